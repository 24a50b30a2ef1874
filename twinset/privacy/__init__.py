"""Every privacy claim of twinset is made in this folder, and nowhere else.

One page, in the order of a run; each module's docstring says what it assumes.

| claim | made in |
|---|---|
| what was done with the private records is one of a few known mechanisms | `events` |
| ε of those mechanisms together, an upper bound; σ for a wanted ε | `accountant` |
| noise and draws come from the operating system's entropy, never from `--seed` | `randomness` |
| each unit enters each step independently with probability q | `batches` |
| which of an owner's records take part depends on no other owner | `units` |
| one unit moves the summed gradient by at most C: the whole of it is clipped | `clipping` |
| noise of standard deviation σC is added to that sum | `noise` |
| the label counts are a Gaussian release of the sensitivity that a unit has | `labelcounts` |
| a record's privacy weight is a public function of its own text | `weightscale` |
| what a reader needs to recompute ε, with nothing private in it | `ledger` |
| what all of it guarantees; "none" in every case of doubt | `guarantee` |
| what it guarantees to a group of units | `groups` |
| the same in words | `sentences` |

The unit is one record, the neighbouring relation "add or remove one record"; where an owner of
each record is named, it is all records of one owner, added or removed together; of selective noise
alone it is what was flagged in one record, which is used or left out. The number of records, the
label set, the template, the base model and the hyper-parameters are taken as public.
Nothing here imports anything of twinset outside this folder.
"""
