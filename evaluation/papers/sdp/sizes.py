"""How large paper 004's experiment is: for a test, for two cores and an hour, and as published."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.fitting import Recipe
from evaluation.papers.models import Gpt2Shape


@dataclass(frozen=True)
class Size:
    """How much text, how large models, how long they learn.

    Args:
        rows: most training rows (lines, dialogues) of a set, drawn at random; None: all.
        scored: most held-out rows likewise.
        vocabulary: tokens of a BPE of the training rows as the policy function leaves them; None:
            those of the base model of --gpt2.
        width: of the LSTM's vectors and states.
        context: most tokens of one record of the LSTM, the begin included.
        open: recipe without noise, also for the regular updates of S-DPSGD.
        noisy: recipe of DPSGD, whose batches and epochs S-DPSGD has too; C is the paper's.
        step: η·C of S-DPSGD's private updates: how far a clipped gradient moves the weights.
        digits: of the canary's secret, from the left.
        exact: whether exposure is an exact rank; else it is extrapolated from a sample.
        points: times that a model is looked at: at the end, half of the steps, a quarter and so on.
        members: rows on each side of membership inference.
        transformer: the base model where no folder is named.
        fine: its recipe without noise.
        private: its recipe with noise.
    """

    rows: int | None
    scored: int | None
    vocabulary: int | None
    width: int
    context: int
    open: Recipe
    noisy: Recipe
    step: float
    digits: int
    exact: bool
    points: int
    members: int
    transformer: Gpt2Shape
    fine: Recipe
    private: Recipe


SIZES = {
    "tiny": Size(
        rows=160,
        scored=60,
        vocabulary=500,
        width=24,
        context=48,
        open=Recipe(32, 2, 1e-2),
        noisy=Recipe(32, 2, 1e-2),
        step=0.01,
        digits=3,
        exact=True,
        points=2,
        members=40,
        transformer=Gpt2Shape(16, 1, 2, 48),
        fine=Recipe(32, 1, 5e-3),
        private=Recipe(32, 1, 5e-3, 1.0),
    ),
    "cpu": Size(
        rows=2_000,
        scored=300,
        vocabulary=2_000,
        width=200,
        context=64,
        open=Recipe(32, 4, 5e-3),
        noisy=Recipe(64, 4, 2e-2),
        step=0.01,
        digits=5,
        exact=True,
        points=6,
        members=200,
        transformer=Gpt2Shape(128, 2, 4, 64),
        fine=Recipe(32, 3, 3e-3),
        private=Recipe(64, 3, 1e-3, 1.0),
    ),
    # One LSTM layer of 200, batches of 16 (no DP) and 7 of 36 tokens, 50 epochs (S-DPSGD) and 100:
    # the paper, and the commands and defaults of its code. η·C = 0.1 · 1e-3.
    "full": Size(
        rows=None,
        scored=None,
        vocabulary=None,
        width=200,
        context=36,
        open=Recipe(16, 50, 1e-3),
        noisy=Recipe(7, 50, 1e-3),
        step=1e-4,
        digits=6,
        exact=True,
        points=10,
        members=500,
        transformer=Gpt2Shape(768, 12, 12, 1024),
        fine=Recipe(32, 3, 5e-5),
        private=Recipe(256, 10, 5e-5, 1.0),
    ),
}
