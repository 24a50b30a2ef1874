"""One page that says what is guaranteed, whether the twin is useful and faithful, and if it leaks.

It reads a run folder and what was measured on it, and computes no score itself.
"""
