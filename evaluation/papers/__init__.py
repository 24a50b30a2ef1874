"""The main experiment of each paper, through the public interface: one file a paper.

    python -m evaluation.papers.kerrigan --help

`results/` holds what was found: a page with the verdict, a CSV with a row for each arm and seed,
and a picture.
"""
