"""Measures of a twin. Reads private records again, so what it writes stays with their owner."""

import twinset  # noqa: F401  # takes the working folder off the import path of `python -m evaluation…`
