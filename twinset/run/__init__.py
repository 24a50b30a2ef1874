"""One run, from a private table to a twin."""
