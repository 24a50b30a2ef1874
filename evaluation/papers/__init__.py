"""The main experiment of each paper that twinset stands on, run again with the project's own parts.

A paper is a module, its sizes and its prose: `NAME.py`, `NAME.toml`, `NAME.md`, run by
`python -m evaluation.papers.NAME` and published in `results/`. What they share:

| module | holds |
|---|---|
| `study` | how a paper is written, and how any is run: command, rows, page, figure |
| `study_rows` | finished rows in a JSON file that grows row by row, and their means |
| `run_context` | what a row is made in: progress, and a cache of weights |
| `page` | a template of prose and tables made from rows, as one Markdown page |
| `intervals` | means, differences and ratios over seeds |
| `plots` | what figures have in common |
| `texts` | files as lines, lines as tokens |
| `language_model` | small language models: shapes, private training, perplexity |
| `noise` | noise policies: kept for what they say of themselves, and attacked |
"""
