"""The main experiment of each paper that twinset stands on, re-run with the project's own parts.

A folder for each paper, run by `python -m evaluation.papers.NAME`; here is what they share.

| module | holds |
|---|---|
| `experiment` | what an experiment is, and how any is run: plan, rows, page, figure |
| `options` | the options that all commands have |
| `rows` | results that grow row by row |
| `workshop` | what a row is made in: progress, and weights that several rows begin from |
| `intervals` | means, differences and ratios over seeds |
| `verdict`, `report`, `page` | whether a claim held; what is to be said; the same in Markdown |
| `summary` | one table of all papers |
| `texts`, `words`, `models`, `learning` | lines of text that language models learn |
"""
