"""Paper 000: less noise for texts that a public model finds ordinary (ADP).

| module | holds |
|---|---|
| `__main__` | the command |
| `experiment` | the experiment in the common form; all else is called from there |
| `published`, `readings` | what the paper reports, and how it was read |
| `sizes`, `cases`, `plan` | how large, which rows there are, what would be done |
| `corpora`, `weighing` | texts and canaries as tokens; how private a public model finds each |
| `noise`, `training` | the four ways of training; how a row is made |
| `found`, `claim` | the rows of a model, and whether the claim held |
| `tables`, `figure` | the page's tables, and the figure |
"""
