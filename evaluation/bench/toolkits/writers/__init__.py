"""Each toolkit's own way to rows, run in its own environment by `child.py`."""
