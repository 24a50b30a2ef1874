"""What paper 003's experiment would do, in lines: models, steps, noise and ε. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evaluation.papers.kerrigan import published
from evaluation.papers.kerrigan.contestants import Contestant
from evaluation.papers.kerrigan.corpora import Corpora, folder_tokens
from evaluation.papers.kerrigan.published import DELTA, SIGMAS
from evaluation.papers.kerrigan.sizes import Size
from evaluation.papers.learning import plan_of
from evaluation.papers.models import FolderShape, parameters
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.rounding import up_decimals

# Numbers kept for each weight: weight, gradient, clipped sum, Adam's two moments.
_COPIES, _BYTES = 5, 4


@dataclass(frozen=True)
class Counts:
    """How much there is of what a plan depends on.

    Args:
        tokens: kinds of tokens.
        public: lines.
        private: lines.
    """

    tokens: int
    public: int
    private: int


def counted(corpora: Mapping[str, Corpora]) -> dict[str, Counts]:
    """Return the counts of texts, by contestant."""
    return {
        name: Counts(one.tokens.size, len(one.public), len(one.private))
        for name, one in corpora.items()
    }


def assumed(size: Size) -> dict[str, Counts]:
    """Return the counts of the paper's own texts, by contestant, as many lines as the size takes.

    Raises:
        InputError: a folder's model cannot be used.
    """
    public = min(published.PUBLIC_LINES, size.public_lines or published.PUBLIC_LINES)
    private = min(published.PRIVATE_LINES, size.private_lines or published.PRIVATE_LINES)
    known = min(published.VOCABULARY, size.vocabulary or published.VOCABULARY)
    tokens = {
        c.name: folder_tokens(c.shape.folder).size if isinstance(c.shape, FolderShape) else known
        for c in size.contestants
    }
    return {name: Counts(found, public, private) for name, found in tokens.items()}


def plan(size: Size, counts: Mapping[str, Counts]) -> Iterator[str]:
    """Yield a line for each phase of each model."""
    for contestant in size.contestants:
        one = counts[contestant.name]
        weights = parameters(contestant.shape, one.tokens)
        yield (
            f"{contestant.name}: {weights:,} parameters, {one.tokens:,} tokens, weights with "
            f"sums and optimiser {weights * _COPIES * _BYTES / 2**30:.2f} GiB"
        )
        first = plan_of(one.public, contestant.public, 0.0)
        yield f"  public: {first.steps:,} steps of {first.batch_size} from {first.records:,} lines"
        for sigma in SIGMAS:
            yield f"  private: {_private_phase(contestant, one.private, sigma)}"


def _private_phase(contestant: Contestant, lines: int, sigma: float) -> str:
    plan = plan_of(lines, contestant.private, sigma)
    spent = "none"
    if sigma:
        event = SubsampledGaussian(sigma, plan.sample_rate, plan.steps)
        spent = f"{up_decimals(epsilon([event], DELTA))} at δ = {DELTA:g}"
    return (
        f"{plan.steps:,} steps of {plan.batch_size} expected from {plan.records:,} lines, "
        f"q = {plan.sample_rate:.3g}, σ = {sigma:g}, learning rate {plan.learning_rate:g}, "
        f"ε = {spent}"
    )
