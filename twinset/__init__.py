"""twinset: a synthetic twin of a private, labelled table of texts."""
