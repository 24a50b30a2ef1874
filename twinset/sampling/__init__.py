"""From a trained model to the rows of a twin. Post-processing: it reads no private record."""
