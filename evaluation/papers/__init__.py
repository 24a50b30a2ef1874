"""The main experiment of each paper, through the public interface: one file per paper.

    python -m evaluation.papers.kerrigan --help

`results/` holds the outcome: a page with the verdict, a CSV with a row for each arm and seed, and a
picture.
"""
