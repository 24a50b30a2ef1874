"""Paper 002: is a private twin as good as the table, and better than a private classifier?

| module | holds |
|---|---|
| `__main__` | the command |
| `experiment` | the experiment in the common form; all else is called from there |
| `published`, `readings` | what the paper and its code say, and how that was read |
| `sizes`, `cases` | how large, and which rows there are |
| `reviews`, `plan` | the two tables; what would be done with them |
| `writing`, `scoring` | one row: a twin is written, and measured |
| `found`, `claims` | rows as intervals, and which claims held |
| `tables`, `figure` | what the page shows |
"""
