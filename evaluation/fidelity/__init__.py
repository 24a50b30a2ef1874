"""Is the twin faithful? Measures of texts, labels and embeddings, with a real sample's."""
