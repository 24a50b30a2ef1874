"""How paper 003 was read: where text and code differ or are silent, and what was done here."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.papers.kerrigan.published import (
    BATCH,
    DELTA,
    EPSILON,
    GPT2_BROWN,
    GPT2_REDDIT,
    STEPS,
    WINDOWS,
)
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.rounding import up_decimals


def readings() -> Iterator[str]:
    """Yield one reading a sentence or two."""
    yield (
        "Unit of privacy. Here: one line of the private file, with all its words; adding or "
        "removing it. Its gradient, the mean over its words, is clipped to C = 1 as a whole. Paper:"
        " the text speaks of sentences, its script counts each word with the 20 before it as an"
        " example of its own, and clips the mean of ten such examples together. A comment that"
        " spans several lines is several units in either."
    )
    yield (
        f"ε. Here: of the very steps taken, Poisson-sampled, at δ = {DELTA:g}; σ = 0 has none. "
        f"Paper: figure 4, {_paper_epsilons()}. The accountant used here gives, for the script's "
        f"{STEPS:,} batches of {BATCH} from {WINDOWS:,} examples, {_script_epsilons()}. A σ of 0.1 "
        "protects nothing in either case; ε that large are upper bounds, and loose ones."
    )
    yield (
        "σ. The text and the script say that σ is 0.1 and 1.1; the head of Table 1 says σ². The "
        "former was taken."
    )
    yield (
        "Feed-forward model. The text does not say how words enter; in the script they enter as "
        "their numbers in order of frequency, which the rows “words as numbers” follow. Rows "
        "“words as vectors” look them up in a table that is trained too."
    )
    yield (
        "Vocabulary. Here: of the public text alone, for all rows of a table, and unknown words "
        "are left out of a line, as in the script. The script scores the model of private text "
        "alone with a vocabulary of the private text, so the paper's private-only rows have other "
        "tokens than its other rows. Perplexities of different vocabularies do not compare; ratios "
        "within one table do, roughly."
    )
    yield (
        "Infinite perplexities of the paper are what its script makes of a softmax that is zero "
        "in float32 for some test word. Here logarithms are taken before, so none is infinite."
    )
    yield (
        "Optimiser. Paper: Adam at 1e-3 for public text, and descent without momentum at 1e-3 with"
        " noise. Here: the project's loop, which is Adam with warm-up and a linear fall, for both."
    )
    yield (
        "Effort. Private text alone has as many steps under noise as private text behind public "
        "text, which has read the latter before. Other lengths, batches or rates that might help "
        "private text alone were not searched for; and the claim is judged at the largest σ alone: "
        "the table shows what it learns at the smaller."
    )
    yield (
        "Reported weights. Paper: the lowest test perplexity of a run (figure 4). Here: the last "
        "weights, and the test part is read for nothing else. Learning rates were chosen by trying "
        "few on the development part; that choice is not in ε."
    )
    yield (
        "GPT-2. Paper: the pre-trained one of OpenAI, without privacy: test perplexity "
        f"{GPT2_BROWN} after three epochs of Brown on Brown and {GPT2_REDDIT} of Reddit on Reddit, "
        "per token of its own. Here: one that begins from random weights, unless a folder was "
        "named, with the same rows as the feed-forward model."
    )
    yield (
        "Intervals are 95 %: Student's t over seeds, which change weights, batches and noise; with "
        "one seed, a bootstrap over 100 groups of test lines, which speaks of these weights alone. "
        "Under noise, batches and noise are fresh from the operating system whatever the seed."
    )


def _paper_epsilons() -> str:
    return " and ".join(f"{value:.2f} at σ = {sigma:g}" for sigma, value in EPSILON.items())


def _script_epsilons() -> str:
    spent = {s: epsilon([SubsampledGaussian(s, BATCH / WINDOWS, STEPS)], DELTA) for s in EPSILON}
    return " and ".join(f"{up_decimals(value)} at σ = {s:g}" for s, value in spent.items())
