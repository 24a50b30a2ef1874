"""Paper 004: does protecting private tokens alone leave more to learn?

| module | holds |
|---|---|
| `__main__` | the command |
| `experiment` | the experiment in the common form; all else is called from there |
| `published`, `readings` | what the paper reports, and how it was read |
| `sizes`, `cases`, `plan` | how large, which rows, what would be done |
| `corpora`, `texts` | rows with what is private in them; the same as tokens |
| `lstm`, `algorithm` | the LSTM; Selective-DPSGD, and what covers its ε |
| `training`, `scoring`, `attacks` | how a row is made |
| `claims`, `tables`, `figure` | whether the claims held; the tables; the figure |
"""
