"""From a private table to token sequences, and from rows back to a table."""
