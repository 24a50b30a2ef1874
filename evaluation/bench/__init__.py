"""Benchmarks, each with ratios that are taken in one run.

    python -m evaluation.bench.step     # a private training step, and what others need for it
    python -m evaluation.bench.rows     # rows a second, and the machine's limit
    python -m evaluation.bench.arms     # what each part of a twin is worth, as accuracy
    python -m evaluation.bench.gpu      # the tests marked gpu, then step and rows on a GPU

`results/` holds what was measured, with its commands, versions and machines.
"""
