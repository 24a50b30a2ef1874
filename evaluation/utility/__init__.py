"""Is the twin useful? Compares classifiers trained on it with those trained on other tables."""
