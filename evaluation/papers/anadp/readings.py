"""How paper 001 was read: where it is ambiguous or silent, and what was done here."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.papers.anadp.passages import CHARACTERS
from evaluation.papers.anadp.published import (
    DELTA,
    ENCODER,
    EPOCHS,
    EPSILON,
    MAX_GRAD_NORM,
    RANK,
)
from evaluation.papers.anadp.sizes import Recipes, Size
from evaluation.papers.anadp.tuning import METHODS
from twinset.config import PolicyConfig


def readings(size: Size) -> Iterator[str]:
    """Yield one reading a sentence or two."""
    options = PolicyConfig()
    yield (
        "Numbers of the paper. Its Table 1 and figures were not part of the text at hand, so no "
        "accuracy of the paper stands beside ours, and what is judged is what the text says."
    )
    yield (
        "From importance to noise. Eqs. 6 and 7 centre importance at one; how noise follows from it"
        " is said in words alone: less noise where importance is high. “Importance, published” "
        "clips as DP-SGD and draws noise of σ C (2 - I), the one affine map that falls and keeps "
        f"the mean, within 1/{options.importance_bound:g} and {options.importance_bound:g}; that "
        "bound raises the mean, to nearly 2 with adapters, whose noise is then mostly that of a "
        "smaller ε (the figure shows it). “Sound” clips in the geometry in which it draws, so that "
        "its ε is a theorem; its map from importance to noise is another one."
    )
    yield (
        "Importance is computed from released noisy gradients. The paper's eq. 3 has g(L), which "
        "would be private if it were the gradient before noise."
    )
    yield (
        f"Constants that the paper does not state: β₁ = {options.importance_beta1:g}, β₂ = "
        f"{options.importance_beta2:g}, α = {options.importance_alpha:g}, quantiles "
        f"{options.importance_high:g} and {options.importance_low:g} (eq. 6 has them in an order "
        "that would turn the sign; here the difference is positive)."
    )
    yield (
        "ε. All private rows have the σ that gives uniform noise the stated ε = "
        f"{EPSILON:g}. Of the published form that is what the paper would state; a theorem covers "
        f"only the ε of σ/{options.importance_bound:g}, the least noise that it may draw; an ε in "
        "the hundreds is an upper bound, and a loose one."
    )
    yield (
        f"δ. Paper: {DELTA:g} for SST-2 and QNLI, 1e-6 for the larger sets. Here: {DELTA:g} for "
        "all."
    )
    yield (
        "Sets. Paper: SST-2, QNLI, MNLI and QQP. Here: SST-2 (whole sentences), AG News "
        "(descriptions), and Yelp (reviews of three stars left out), as many rows of each label."
    )
    yield (
        f"Encoder. Paper: RoBERTa base and large. Here: {size.encoder_name}, the first "
        f"{size.tokens} tokens of a text; --encoder {ENCODER} takes the paper's."
    )
    tables = "all of it" if size.tables else "all of it but the tables of tokens and positions"
    yield (
        f"Methods. Full fine-tuning trains {tables}. LoRA is on all linear layers of attention and "
        f"feed-forward network, as the appendix says; adapters are those of Houlsby et al. 2019, "
        f"two a layer, with its normalisation; both of rank {RANK}. The head behind the layers is "
        "trained by all."
    )
    yield f"Optimiser. {_recipes(size)}"
    yield (
        "What is reported. Paper: the best validation accuracy of the epochs, which reads private "
        "data once more. Here: the last weights, on test rows that are read for nothing else. "
        "Learning rates were chosen by trying few on held-out rows under uniform noise and without "
        "privacy; that choice is not in ε, and importance was not tuned."
    )
    yield (
        "Leakage. The paper names measures and the Enron e-mails, neither the model nor the texts. "
        f"Here: a language model of passages of at most {CHARACTERS} characters that end with a "
        "telephone number; names are those that a recogniser finds in them. Beside it stands what "
        "the same model makes of numbers that it never saw, for names and area codes that are "
        "common are known to all."
    )
    yield (
        "Intervals are 95 %: Student's t over seeds, which change new weights and, without privacy,"
        " batches. Under noise, batches and noise are fresh from the operating system whatever the "
        "seed. The sets' rows and the scored numbers are the same for all seeds."
    )


def _recipes(size: Size) -> str:
    """Return epochs, C, batches and learning rates in words."""
    each = (_recipe(method, size.recipes[method]) for method in METHODS)
    one = size.recipes[METHODS[0]].private
    return (
        f"Paper: {EPOCHS} epochs, C = {MAX_GRAD_NORM:g}, neither batches nor learning rates. Here: "
        f"Adam, {one.epochs:g} epochs, C = {one.max_grad_norm:g}, and expected batches and learning"
        f" rates (without privacy, with it) of {'; '.join(each)}."
    )


def _recipe(method: str, recipes: Recipes) -> str:
    bare, private = recipes.bare, recipes.private
    rates = f"{bare.learning_rate:g}, {private.learning_rate:g}"
    return f"{private.batch_size:g} and ({rates}) for {method}"
