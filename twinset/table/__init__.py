"""From a private table to token sequences, and from rows to a table again."""
