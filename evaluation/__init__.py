"""Measures of a twin. Reads private records again, so what it writes stays with their owner."""
