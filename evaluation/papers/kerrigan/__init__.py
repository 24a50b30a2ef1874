"""Paper 003: does public text make private training possible?

| module | holds |
|---|---|
| `__main__` | the command |
| `experiment` | the experiment in the common form; all else is called from there |
| `published`, `readings` | what the paper reports, and how it was read |
| `sizes`, `contestants`, `feedforward` | how large, which models |
| `corpora`, `plan` | the texts as tokens; what would be done with them |
| `cases`, `training` | which rows there are, and how one is made |
| `found`, `claim` | the rows of a model, and whether the claim held for it |
| `tables`, `people`, `figure` | perplexities; what holds of people with several lines; the figure |
"""
