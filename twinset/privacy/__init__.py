"""Every privacy claim of twinset is made in this folder, and nowhere else; a test holds it.

One page, in the order of a run; each module's docstring says what it assumes.

| claim | made in |
|---|---|
| what was done with the private records is one of a few known mechanisms | `accounting.events` |
| ε of those mechanisms together, the least of two upper bounds | `accounting.accountant` |
| σ for a wanted ε; ε of groups; a witness | `accounting.accountant` |
| noise and draws come from the system's entropy, never from a seed | `mechanism.randomness` |
| each unit enters each step independently with probability q | `mechanism.randomness` |
| which of an owner's records take part depends on no other owner | `mechanism.units` |
| one unit moves the summed gradient by at most C: the whole of it is clipped | `clipping` |
| noise of standard deviation σC is added to that sum | `mechanism.noise` |
| a noisy sum is that of real numbers, rounded, to the last bit | `mechanism.noise` |
| the label counts are a Gaussian release | `mechanism.counts` |
| so are the counts of tokens by label | `mechanism.counts` |
| so is any sum of one bounded vector a unit | `mechanism.vector_sum` |
| so are regressions that noisy gradients fit | `mechanism.vector_sum` |
| a record's privacy weight is a public function of its own text | `mechanism.units` |
| what each policy, a whole training, and an audit guarantee | `statement.theorems` |
| what a reader needs to recompute ε, with nothing private in it | `statement.ledger` |
| what a ledger guarantees; "none" in every case of doubt | `statement.guarantee` |
| what it guarantees to a group of units | `accounting.accountant` |
| the same in words | `statement.wording` |

The unit is one record, and neighbouring tables differ in whether it is used or left out, with N as
it is. Where an owner of each record is named, it is all records of one owner together. Of selective
noise alone it is what was flagged in one record. The number of records, declared label values, the
template, the base model and the hyper-parameters are taken as public.
Nothing here imports anything of twinset outside this folder.
"""
