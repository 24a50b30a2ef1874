"""Benchmarks, each with ratios that are taken in one run.

    python -m evaluation.bench.step     # a private training step, and other libraries' step
    python -m evaluation.bench.rows     # rows per second, and the machine's limit
    python -m evaluation.bench.arms     # what each part of a twin adds, and experiments
    python -m evaluation.bench.gpu      # the tests marked gpu, then step and rows on a GPU

`results/` holds the measurements with their commands, versions and machines.
"""
