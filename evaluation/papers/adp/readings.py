"""How paper 000 was read: where it is ambiguous or silent, and what was done here."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.papers.adp.noise import LOGARITHMIC, PUBLISHED
from evaluation.papers.adp.published import (
    ADP,
    BATCH,
    DP_SGD,
    EPOCHS,
    LINES,
    MAX_GRAD_NORM,
    NO_DP,
    SIGMAS,
    TABLE_1,
)
from evaluation.papers.adp.sizes import DELTA, Size
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.rounding import up_decimals


def readings(size: Size) -> Iterator[str]:
    """Yield one reading a sentence or two."""
    yield (
        "Code. The paper names a repository; when it was looked up it held a promise of code and "
        "none. All is read from the text."
    )
    yield (
        "Unit of privacy. Here: one line of the file, with all its tokens up to the context; adding"
        " or removing it. The paper names none, nor how it cuts the text, nor what a token is."
    )
    yield (
        "Privacy weight. Paper: ρ = normalize(perplexity), by an operator that it does not name "
        f"(eq. 4). “{PUBLISHED}” takes least as 0 and most as 1 over the private lines: one odd "
        "line then has weight 1 and all others have next to none, and noise all but ends. "
        f"“{LOGARITHMIC}” does the same with logarithms of perplexities. The sound form may not "
        "look at the other lines: its constants are the nats per token at which a tenth of the "
        "public lines is below, and a tenth above."
    )
    yield (
        f"The model that weighs. Here: {size.weigher}, the first {size.weighed_tokens} tokens "
        "of a line. Paper: “a large language model” like GPT."
    )
    yield (
        "The same σ. In the published form the noise is γ σ C, γ the mean weight of the batch "
        "(eqs. 5 and 6), so that a line of weight 1 has less than σ. In the sound form the noise "
        f"is {LEAST_SHARE:g} σ C, lines of weight 1 are clipped to {LEAST_SHARE:g} C and those of "
        "weight 0 to C, so that the former have σ and the latter half of it. Less noise is bought "
        "with less protection of the others: compare ε too."
    )
    yield (
        f"ε. The paper states no δ; here δ = {DELTA:g}. With each of the {LINES:,} lines of "
        f"WikiText-103 that are not blank as a record, batches of {BATCH:,} and {EPOCHS} epochs, "
        f"the accountant used here gives {_accounted()} for DP-SGD. Paper: "
        f"{_stated(DP_SGD)}; for ADP {_stated(ADP)}."
    )
    yield (
        "Nominal ε. Of the published form: that of a Gaussian of multiplier γ σ for each batch, "
        "composed. That is what its ε can mean, and no theorem says it, as γ is computed from the "
        "private batch and used without noise; an empty batch gets none."
    )
    yield (
        "Loss and perplexity. The pairs of Table 1 are no powers of one base: "
        f"{', '.join(_bases())}. Here: perplexity is e to the loss."
    )
    yield (
        f"Optimiser. Paper: batches of {BATCH:,}, {EPOCHS} epochs, C = {MAX_GRAD_NORM:g}, all "
        "models alike. Here: batches drawn by Poisson, the same "
        f"{size.recipe.epochs:g} epochs of batches of {size.recipe.batch_size:g} at "
        f"{size.recipe.learning_rate:g} with C = {size.recipe.max_grad_norm:g} for all models "
        "with noise; No-DP is not clipped; Adam with warm-up and a linear fall; sums are divided "
        "by the expected batch size. None of this was tuned. The published form, where its noise "
        "all but ends, comes to clipped training without noise, which is probably why its "
        "perplexity is below that of No-DP."
    )
    yield (
        "Canary. Each model was trained once with each number of copies and once with none. The "
        "paper took exposure “by text generation”; here candidates are ranked by likelihood, as in "
        "Carlini et al. 2019."
    )
    yield (
        "Intervals are 95 %, Student's t over seeds, which change weights, batches and noise; one "
        "seed decides nothing. Under noise, batches and noise are fresh from the operating system "
        "whatever the seed."
    )


def _accounted() -> str:
    steps = round(EPOCHS * LINES / BATCH)
    spent = {s: epsilon([SubsampledGaussian(s, BATCH / LINES, steps)], DELTA) for s in SIGMAS}
    return " and ".join(f"{up_decimals(value)} at σ = {s:g}" for s, value in spent.items())


def _stated(model: str) -> str:
    return " and ".join(f"{TABLE_1[model, s].epsilon:g} at σ = {s:g}" for s in SIGMAS)


def _bases() -> Iterator[str]:
    for model, sigma in ((NO_DP, 0.0), (DP_SGD, SIGMAS[0]), (ADP, SIGMAS[0]), (ADP, SIGMAS[1])):
        line = TABLE_1[model, sigma]
        base = math.exp(math.log(line.perplexity) / line.loss)
        yield f"{line.perplexity:.2f} = {base:.2f} to the {line.loss:.2f}"
