"""Is the twin useful: classifiers trained on it, beside those trained on other tables."""
