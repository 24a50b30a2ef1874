"""Is the twin faithful? Measures of texts, labels and embeddings beside a second real sample's."""
