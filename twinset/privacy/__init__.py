"""Every privacy claim of twinset is made in this folder and nowhere else. A test checks that.

This is a summary in the order of a run. Each module's docstring states its assumptions.

| claim | made in |
|---|---|
| every use of the private records is one of a few known mechanisms | `accounting.events` |
| ε of those mechanisms together, the smaller of two upper bounds | `accounting.accountant` |
| σ for a wanted ε, ε of groups, and a second opinion | `accounting.accountant` |
| noise and draws come from the system's entropy, never from a seed | `mechanism.randomness` |
| each unit enters each step independently with probability q | `mechanism.randomness` |
| a release leaves through one gate, which records its event first | `mechanism.gate` |
| which of an owner's records take part depends on no other owner | `mechanism.units` |
| one unit moves the summed gradient by at most C: the whole of it is clipped | `clipping` |
| noise of standard deviation σC is added to that sum | `mechanism.noise` |
| a noisy sum is that of real numbers, rounded, to the last bit | `mechanism.noise` |
| the label counts are a Gaussian release | `mechanism.counts` |
| so are the counts of tokens by label | `mechanism.counts` |
| so is any sum of one bounded vector per unit | `mechanism.vector_sum` |
| so are regressions that are fitted by noisy gradients | `mechanism.vector_sum` |
| a record's privacy weight is a public function of its own text | `mechanism.units` |
| what each policy, a whole training, and an audit guarantee | `statement.theorems` |
| what a reader needs to recompute ε, with nothing private in it | `statement.ledger` |
| what a ledger guarantees, or "none" in every case of doubt | `statement.guarantee` |
| what it guarantees to a group of units | `accounting.accountant` |
| the same in words | `statement.wording` |

The unit is one record. Neighbouring tables differ in whether it is used or left out, with the same
N. If the owner of each record is named, the unit is all records of one owner together. For
selective noise alone, it is the flagged part of one record. The number of records, declared label
values, the template, the base model and the hyper-parameters are taken as public.
Nothing here imports anything of twinset outside this folder.
"""
