"""The main experiment of each paper that twinset stands on, re-run with the project's own parts.

Common to all: `sizes` of an experiment, `texts` and `words` (what is read and what counts as a
word), `learning` (the project's private loop on lines of text), `rows` (results that grow row by
row), `experiment` (which rows are due). Then a file for each paper.
"""
