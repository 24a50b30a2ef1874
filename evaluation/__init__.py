"""Measures of a twin. They read private records again, so their output stays with the owner."""

import twinset  # noqa: F401  # takes the working folder off the import path of `python -m evaluation…`
