"""What is guaranteed, by which theorem: one entry for each mechanism, and no claim anywhere else.

Each noise policy has one entry in each form. It names the events that the policy may spend, and
`guarantee` covers a ledger only if its policy has an entry that names all of its events. A new
policy brings its own `Theorem` and passes it to `register_theorem`. Other modules outside of
`twinset.privacy` refer to entries by name and claim nothing themselves. `clipping` and `mechanism`
state what each part of a mechanism must do for these theorems to be true.

Two tables are neighbours if one unit is used in one of them and left out of the other. Its
contribution to every sum and count becomes zero, and N, the number of units, stays the same
("zero-out", Kairouz et al. 2021, 'Practical and Private (Deep) Learning Without Sampling or
Shuffling', definition 1.1). So all that follows from N alone is the same in both: sample rates, δ,
thresholds, held-out shares. For every sum, using a unit adds it and leaving it out removes it, so
the accounting is that of adding and removing.

Policies import this when options are listed, so it loads nothing but the events.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    LabelSelection,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)


@dataclass(frozen=True)
class Protected:
    """Who is protected, against which change, and what is clipped together for that.

    All three are values of a ledger's fields of the same names, compared letter by letter.
    """

    unit: str
    neighbouring: str
    clipping: str


SAMPLER = "Poisson"
_ALL = "all sequences, all tensors, all uses of tied weights"
RECORD = Protected(
    "record",
    "use or leave out one record, the number of records being the same",
    f"whole record: {_ALL}",
)
OWNER = Protected(
    "owner",
    "use or leave out all records of one owner, the number of owners being the same",
    f"whole owner: all its records in a step, {_ALL}",
)
FLAGGED = Protected(
    "the flagged spans of one record",
    "use or leave out one record's unmasked text, all masked texts and all labels being known",
    RECORD.clipping,
)
UNIT, OWNER_UNIT, FLAGGED_UNIT = RECORD.unit, OWNER.unit, FLAGGED.unit


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """What is guaranteed about a mechanism. For a noise policy in one form, `guarantee` applies it.

    Args:
        statement: the guarantee, its change of the records, and its conditions.
        source: whose theorem it is.
        protects: for a policy: the units and relations that it is about, the usual one first.
        events: for a policy: kinds of event that describe it in full. None: no guarantee.
        caveats: what must be said before, during and after its use.
        weighs_records: whether a record's privacy weight decides how much of it is protected. Then
            a ledger must say how weights follow from public constants.
        masks_texts: whether a first phase reads masked texts without noise. Then a ledger must say
            what masked them, and the guarantee takes masked texts as known.

    >>> Theorem(statement="Nothing.", source="us").events
    ()
    """

    statement: str
    source: str
    protects: tuple[Protected, ...] = (RECORD,)
    events: tuple[type[Event], ...] = ()
    caveats: tuple[str, ...] = ()
    weighs_records: bool = False
    masks_texts: bool = False


# -- noise policies --------------------------------------------------------------------------------

UNIFORM = Theorem(
    statement=(
        "z ~ N(0, σ²C²I) is added to a sum to which each unit contributes at most C in L2 norm, "
        "over a batch that each unit enters independently with probability q. Each release is one "
        "step of the Poisson-subsampled Gaussian mechanism of noise multiplier σ, for adding or "
        "removing one unit. An empty batch releases noise alone. With σ = 0 the event says that "
        "records were used without privacy, and nothing is guaranteed."
    ),
    source="Abadi et al. 2016, 'Deep Learning with Differential Privacy', algorithm 1",
    protects=(RECORD, OWNER),
    events=(SubsampledGaussian, GaussianRelease, LabelSelection),
)

ADAPTIVE = Theorem(
    statement=(
        "The noise is that of UNIFORM. Record i is clipped to C · c(ρᵢ) instead of C, c falling "
        "from 1 at ρ = 0. Its privacy weight ρᵢ is a fixed public function of record i alone, so "
        "adding or removing it changes each sum by at most C · c(ρᵢ), whatever the others are. For "
        "that record each release is one step of the subsampled Gaussian mechanism of multiplier "
        "σ / c(ρᵢ), and for every record of multiplier σ."
    ),
    source="Boenisch et al. 2023, 'Have it your way: Individualized Privacy Assignment for "
    "DP-SGD', the variant that scales",
    protects=(RECORD,),  # weights are those of records, so owners cannot be units
    events=(IndividualGaussian, GaussianRelease, LabelSelection),
    weighs_records=True,
)

ADAPTIVE_PUBLISHED = Theorem(
    statement=(
        "None. The noise is scaled by γ_B, the mean privacy weight of the private batch, which is "
        "used without noise. In many dimensions the length of the noisy gradient reveals it. An "
        "empty batch gets no noise at all."
    ),
    source="Wu et al. 2022, 'Adaptive Differential Privacy for Language Modeling', "
    "equations 4 to 6, claims more",
    protects=(RECORD,),
    caveats=(
        "the published form of adaptive noise is for comparison only. Its noise is scaled by a "
        "statistic of the private batch, which the length of a noisy gradient reveals, and no "
        "theorem covers that. Its nominal epsilon is no guarantee",
    ),
    weighs_records=True,
)

_FLAGGED_ONLY = (
    "selective noise protects flagged spans only. Whatever the detector misses is trained on "
    "without noise and may be repeated word for word"
)

SELECTIVE = Theorem(
    statement=(
        "A first phase reads texts whose flagged spans are masked, without noise "
        "(MASKED_PHASE). A second one draws the noise of UNIFORM on whole texts. For using or "
        "leaving out one record's unmasked text, all masked texts and all labels being known, the "
        "guarantee is that of UNIFORM. What no detector flagged has no protection at all."
    ),
    source="the theorem of UNIFORM, of a table of unmasked texts. The definition is close to that "
    "of Shi et al. 2022, 'Selective Differential Privacy for Language Modeling'",
    protects=(FLAGGED,),
    events=(SubsampledGaussian, GaussianRelease, LabelSelection, MaskedAccess),
    caveats=(_FLAGGED_ONLY,),
    masks_texts=True,
)

SELECTIVE_PUBLISHED = Theorem(
    statement=(
        "The mechanism and the guarantee of SELECTIVE. The paper states the same ε for replacing "
        "flagged spans, which is leaving one text out and using another: twice the ε."
    ),
    source=SELECTIVE.source,
    protects=(FLAGGED,),
    events=SELECTIVE.events,
    caveats=(
        _FLAGGED_ONLY,
        "the paper claims its epsilon for replacing flagged spans by others. Accounted for adding "
        "and removing, as there, that costs twice the epsilon",
    ),
    masks_texts=True,
)

IMPORTANCE = Theorem(
    statement=(
        "z ~ N(0, σ²C²I) is added to Σ clip(gᵢ / s), and the result multiplied by s. The scales s "
        "are a function of gradients released before and of weights that follow from them, never "
        "of the records. The first step has s = 1. Given s, a unit moves the sum by at most C, so "
        "each release is a step of UNIFORM, and multiplying by s is post-processing."
    ),
    source="the theorem of UNIFORM. For why later steps may depend on earlier ones, see TRAINING",
    protects=(RECORD, OWNER),
    events=UNIFORM.events,
)

IMPORTANCE_PUBLISHED = Theorem(
    statement=(
        "Clipping is that of UNIFORM, and noise z_j = s_j · N(0, σ²C²), s kept within 1/b and b. "
        "In the least noisy direction a unit shows with multiplier σ · min s ≥ σ / b. With that "
        "multiplier, which its events state, each release is a step of UNIFORM. The paper's "
        "claim, that scales of mean one leave it σ, is no theorem."
    ),
    source="the theorem of UNIFORM, of sums divided by s. Li et al. 2024 (ANADP) claim more",
    protects=(RECORD, OWNER),
    events=UNIFORM.events,
    caveats=(
        "the published form of importance is for comparison only. It clips as usual and draws less "
        "noise in some directions. Its nominal epsilon supposes that only the mean noise counts, "
        "which is no theorem, so the epsilon stated here is that of the least noisy direction",
    ),
)

# (name, form). For uniform noise both forms are one
THEOREMS: dict[tuple[str, str], Theorem] = {
    ("uniform", "sound"): UNIFORM,
    ("uniform", "published"): UNIFORM,
    ("adaptive", "sound"): ADAPTIVE,
    ("adaptive", "published"): ADAPTIVE_PUBLISHED,
    ("selective", "sound"): SELECTIVE,
    ("selective", "published"): SELECTIVE_PUBLISHED,
    ("importance", "sound"): IMPORTANCE,
    ("importance", "published"): IMPORTANCE_PUBLISHED,
}


def register_theorem(policy: str, form: str, theorem: Theorem) -> None:
    """Let `guarantee` cover a noise policy in one form, by the theorem that it brings.

    It needs no other entry. A policy that is not registered has no guarantee at all.

    Args:
        policy: name, as in a ledger.
        form: "sound" or "published".
        theorem: names every kind of event that the policy may spend.

    Raises:
        ValueError: this policy has another theorem already, or the theorem protects nothing or
            names an access without noise.

    >>> register_theorem("uniform", "sound", UNIFORM)
    """
    if not theorem.protects or NonPrivateAccess in theorem.events:
        raise ValueError(f"the theorem of {policy}, {form} form, is no guarantee")
    if THEOREMS.setdefault((policy, form), theorem) != theorem:
        raise ValueError(f"the noise policy {policy}, {form} form, has another theorem already")


# -- what is built from them -----------------------------------------------------------------------

MASKED_PHASE = Theorem(
    statement=(
        "Only masked texts are read, so, given all earlier releases, the model is the same "
        "whatever the masks hide. Nothing else is guaranteed."
    ),
    source="it is a function of masked texts and of earlier releases alone",
)

TRAINING = Theorem(
    statement=(
        "If the batches are independent Poisson batches, the trained weights are a "
        "post-processing of T releases of the noise policy, one a step, each of which was recorded "
        "before it was used. Together they are what their events compose to. Sums are divided by "
        "the expected batch size, never by the realised one. Without noise nothing is guaranteed."
    ),
    source="Dong, Roth and Su 2019, 'Gaussian Differential Privacy', section 3 (composition of "
    "releases that may depend on earlier ones, post-processing). `accountant` computes it",
)

LABEL_VALUES = Theorem(
    statement=(
        "The values of A undeclared label columns are those whose noisy counts are τ or "
        "more. A unit adds at most m records to the counts of each column, and noise N(0, σ²m²A) "
        "is drawn for every value that a record has. Let D and D′ differ in one unit. The counts "
        "of values that both have are one Gaussian release of multiplier σ. The others, at most "
        "Am of them with counts of at most m, are of that unit alone. Unless noise lifts one of "
        "them to τ, all that is released is a function of the former. That chance p does not "
        "depend on any other noise, nor on what is released later, so p / (1 - p) is added to δ "
        "(`LabelSelection.delta`). For g units m becomes gm. A record whose value is not selected "
        "is left out on its own, and its unit still counts in N."
    ),
    source="Korolova et al. 2009, 'Releasing search queries and clicks privately', with Gaussian "
    "noise: Wilkins et al. 2024, 'Exact Privacy Analysis of the Gaussian Sparse Histogram "
    "Mechanism'",
)

TOKEN_MARGINALS = Theorem(
    statement=(
        "For every attribute, label value and token, how many texts have both. For every "
        "attribute, label value and bin of lengths, how many texts have a label value and such a "
        "length. The bins follow from the longest text that is kept. A token counts for its "
        "weight, which follows from the base model's rows and the released label counts, a text's "
        "length for 1. A unit adds one vector of bounded length to all weighted counts together. "
        "With N(0, σ²) times that length on each they are one Gaussian release of multiplier σ, "
        "for adding or removing one unit, or using or leaving out one record's unmasked text. "
        "Dividing by the weights, which of the public prompt templates is taken, which tokens are "
        "tilted by these counts and by rows of the trained model, how long rows are, and what a "
        "token says of labels, is post-processing."
    ),
    source="Dwork and Roth 2014, 'The Algorithmic Foundations of Differential Privacy', appendix A",
)

COLUMNS = Theorem(
    statement=(
        "The other columns are released in five parts. Earlier parts and public choices decide "
        "what is counted in each. The first counts what cells are, how they are written and how "
        "large they are. The second selects undeclared values, as LABEL_VALUES. The third "
        "counts numbers and dates on public grids. The fourth counts each column, alone and with "
        "the labels, and scores pairs of columns. The fifth counts the best pairs. A record's "
        "cells are read on their own, by public lists of spellings. In each part but the second a "
        "unit adds one vector of bounded length, or moves each of P scores by at most 1 and all "
        "of them by √P. So each is a Gaussian release, and the event's σ⁻² is the sum of theirs. "
        "Which columns, values and gaps are kept, bins, the graphical model and all rows drawn "
        "from it are post-processing. Names, order and stated types of columns, declared kinds, "
        "values and ranges are public."
    ),
    source="Dong, Roth and Su 2019, 'Gaussian Differential Privacy', corollary 3.3. The choice of "
    "pairs follows McKenna, Miklau and Sheldon 2021, 'Winning the NIST Contest'",
)

TEACHER = Theorem(
    statement=(
        "Linear classifiers on what the trained model makes of a text, fitted by steps that are "
        "Gaussian releases of one clipped gradient a unit, together one of multiplier σ "
        "(`mechanism.vector_sum`). The model, and the rows whose statistics scale its "
        "hidden states, were released before. A unit's vectors depend on them and on it alone. "
        "Units may be drawn at random first, which is not counted."
    ),
    source="Dong, Roth and Su 2019, 'Gaussian Differential Privacy', corollary 3.3",
)

RUN = Theorem(
    statement=(
        "A model, trained or not, with its noisy counts and all that is drawn from it is the "
        "output of mechanisms that its ledger lists completely. `guarantee` says what they come to."
    ),
    source="the theorem of the run's noise policy, composed with Gaussian releases of the label "
    "counts and, where they are asked for, of LABEL_VALUES, COLUMNS, TOKEN_MARGINALS and TEACHER",
)

HELD_OUT = Theorem(
    statement=(
        "Each unit is held out of a run by an independent coin of its own, of a share that is "
        "public: an option, or by whether there are many records. With equal coins the "
        "training parts of two tables that differ in one unit differ in that unit, or not at all. "
        "So a guarantee of the training part for its units is one of the whole table for all, even "
        "if an attacker knows the coins. Nothing released is computed from what is held out. N is "
        "that of the training part, and public. "
        "What is measured with rows held out is computed on private rows, is covered by no "
        "guarantee, and stays with their owner."
    ),
    source="RUN, for each outcome of the coins",
)

SEVERAL_RUNS = Theorem(
    statement=(
        "Several runs on one table are together one mechanism, whose events are those of all their "
        "ledgers. Each run may use other columns, other rows held out and another N, which are "
        "public. A record that some runs do not use is protected at least as well. All must "
        "protect the same units against the same change. The options of a run must not depend on "
        "what earlier runs released. Where they do, this is no theorem, because composition is of "
        "mechanisms that are fixed before. For runs without training a limit that was set before "
        "the first run, and never raised, holds even then, at the δ that is stated."
    ),
    source="TRAINING. For why fixed options matter, see Rogers et al. 2016, 'Privacy Odometers and "
    "Filters', and for Gaussian releases Smith and Thakurta 2022, 'Fully Adaptive Composition for "
    "Gaussian Differential Privacy'",
)

CLASSIFIER = Theorem(
    statement=(
        "With a budget, a classifier's weights are what TRAINING leaves of them, rows being "
        "records. σ is the one with which uniform noise spends the budget. Another policy may "
        "spend more of it. The ledger has its own events, and `guarantee` says what these amount "
        "to. The number of rows and the set of labels are taken as public. Without a budget "
        "nothing is guaranteed."
    ),
    source="TRAINING",
)

ONE_RUN_AUDIT = Theorem(
    statement=(
        "The lower bound of an audit by one training run exceeds ε of an (ε, δ)-private mechanism "
        "with probability at most 1 - confidence, if the number of guesses is fixed before the "
        "scores are known. Of several numbers the best may be taken, because each is tested at "
        "(1 - confidence) / how many (Bonferroni). Taking the best without that would break it."
    ),
    source="Steinke, Nasr and Jagielski 2023, 'Privacy Auditing with One (1) Training Run'",
)
