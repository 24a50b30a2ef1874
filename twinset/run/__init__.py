"""One run, from a private table to a twin, to be read from top to bottom."""
