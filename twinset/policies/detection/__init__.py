"""Private spans of texts: found (`detectors`), masked (`masking`), and measured (`coverage`)."""
