"""How large paper 002's experiment is: for a test, for two cores and an hour, and as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.papers.mattern import published
from evaluation.papers.mattern.published import AMAZON, FEW, IMDB, TOP_P, TYPICAL_P
from twinset.config import Method, MismatchForm

NUCLEUS, TYPICAL, PLAIN = f"top-p {TOP_P:g}", f"typical {TYPICAL_P:g}", "all tokens"
DECODINGS: dict[str, dict[str, float]] = {
    NUCLEUS: {"top_p": TOP_P},
    TYPICAL: {"typical_p": TYPICAL_P},
    PLAIN: {"top_p": 1.0},
}


@dataclass(frozen=True)
class Mismatch:
    """A form of the prompt-mismatch loss; of weight 0 there is none."""

    form: MismatchForm
    weight: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.form}, λ = {self.weight:g}" if self.weight else "no mismatch loss"


OFF = Mismatch("published", 0.0)


@dataclass(frozen=True)
class Size:
    """How much of what.

    Args:
        base_model: that writes the twins: an asset, a folder or a hub name.
        records: most that "all" are, by table, drawn at random.
        tested: most test rows, drawn at random; None: all.
        rows: of a twin, by table; as many of each combination of labels.
        max_tokens: of a text.
        method: all weights are trained, or adapters.
        max_grad_norm: C.
        learning_rate: Adam's, at its peak.
        few_steps: steps from few records, all of which take part in each.
        epochs: visits of each record, on average, where all are learnt from.
        batch_size: expected records of a step, there.
        mismatch: the loss of the main table.
        other_losses: other forms and weights.
        wrong_prompts: that a record is set against.
        classifiers: names in `evaluation.classifiers`; of the first there is no private one.
        encoder: what the classifier `encoder` fine-tunes, if it is there.
        probed: test rows that perplexity is taken of.
        redraws: times that an empty or looping row is drawn again.
    """

    base_model: str
    records: Mapping[str, int]
    tested: int | None
    rows: Mapping[str, int]
    max_tokens: int
    method: Method
    max_grad_norm: float
    learning_rate: float
    few_steps: int
    epochs: float
    batch_size: int
    mismatch: Mismatch
    other_losses: tuple[Mismatch, ...]
    wrong_prompts: int
    classifiers: tuple[str, ...] = ("tfidf", "minilm")
    encoder: str | None = None
    probed: int = 200
    redraws: int = 100

    @property
    def losses(self) -> tuple[Mismatch, ...]:
        """All losses that are compared, none first."""
        return (OFF, self.mismatch, *self.other_losses)

    @property
    def neural(self) -> tuple[str, ...]:
        """The classifiers behind a transformer; each has a private rival."""
        return tuple(name for name in self.classifiers if name != "tfidf")

    def training(self, records: int, few: bool, mismatch: Mismatch, parts: int) -> dict[str, Any]:
        """Return the options of a run.

        Args:
            records: it learns from.
            few: whether these are few.
            mismatch: its loss.
            parts: models that share the visits to records.
        """
        batch = records if few else max(1, self.batch_size // parts)
        return {
            "base_model": self.base_model,
            "method": self.method,
            "max_grad_norm": self.max_grad_norm,
            "learning_rate": self.learning_rate,
            "max_tokens": self.max_tokens,
            "steps": self.few_steps if few else max(1, round(self.epochs * records / batch)),
            "batch_size": batch,
            "mismatch_form": mismatch.form,
            "mismatch_weight": mismatch.weight,
            "mismatch_prompts": self.wrong_prompts,
            "guidance": 0.0,
            "top_p": TOP_P,
        }


_PUBLISHED = (Mismatch("published", 0.5), Mismatch("published", 1.0))
_BOUNDED = (Mismatch("bounded", 1.0), Mismatch("bounded", 8.0))
_MAIN = Mismatch("published", 0.2)

SIZES = {
    "tiny": Size(
        base_model="gpt2-mini",
        records={IMDB: 60, AMAZON: 60},
        tested=40,
        rows={IMDB: 12, AMAZON: 12},
        max_tokens=16,
        method="full",
        max_grad_norm=1.0,
        learning_rate=1e-3,
        few_steps=2,
        epochs=0.5,
        batch_size=16,
        mismatch=_MAIN,
        other_losses=_BOUNDED[1:],
        wrong_prompts=1,
        probed=10,
        redraws=1000,
    ),
    "cpu": Size(
        base_model="gpt2-mini",
        records={IMDB: 2500, AMAZON: 2500},
        tested=600,
        rows={IMDB: 200, AMAZON: 200},
        max_tokens=40,
        method="lora",
        max_grad_norm=1.0,
        learning_rate=8e-3,
        few_steps=16,
        epochs=2.5,
        batch_size=625,
        mismatch=_MAIN,
        other_losses=(_PUBLISHED[0], *_BOUNDED),
        wrong_prompts=1,
    ),
    "full": Size(
        base_model=published.BASE_MODEL,
        records=published.RECORDS,
        tested=None,
        rows={IMDB: 2 * 5000, AMAZON: 4 * 1500},
        max_tokens=published.MAX_TOKENS,
        method="full",
        max_grad_norm=published.MAX_GRAD_NORM,
        learning_rate=published.LEARNING_RATE,
        few_steps=published.EPOCHS * max(FEW) // published.BATCH,
        epochs=published.EPOCHS,
        batch_size=published.BATCH,
        mismatch=_MAIN,
        other_losses=(*_PUBLISHED, *_BOUNDED),
        wrong_prompts=3,
        classifiers=("tfidf", "minilm", "encoder"),
        encoder=published.ENCODER,
        probed=1000,
    ),
}
