"""Paper 001: noise where it hurts least?

| module | holds |
|---|---|
| `__main__` | the command |
| `experiment` | the experiment in the common form; all else is called from there |
| `published`, `readings` | what the paper reports, and how it was read |
| `sizes`, `tuning`, `noise` | how large; what is trained; under which noise |
| `corpora`, `passages`, `plan` | labelled texts and e-mails; what would be done with them |
| `cases`, `training` | which rows there are, and how one is made |
| `found`, `claim` | what the rows say, and whether the claim held |
| `tables`, `figure` | accuracies, leakage, attacks, and where noise went |
"""
