"""Paper 004's experiment in the common form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.papers.experiment import described
from evaluation.papers.models import FolderShape, Shape
from evaluation.papers.report import Report
from evaluation.papers.rows import Rows
from evaluation.papers.sdp.cases import TRANSFORMERS, Case, cases
from evaluation.papers.sdp.claims import utility, verdicts
from evaluation.papers.sdp.corpora import Row, TextSet, dialogues, wikitext
from evaluation.papers.sdp.figure import draw
from evaluation.papers.sdp.plan import assumed, plan
from evaluation.papers.sdp.published import DIALOGUES, DPSGD, PAPER, SDPSGD, TABLE_2, WIKITEXT
from evaluation.papers.sdp.readings import readings
from evaluation.papers.sdp.sizes import Size
from evaluation.papers.sdp.tables import sections
from evaluation.papers.sdp.texts import LstmTexts, TransformerTexts
from evaluation.papers.sdp.training import LstmRow, TransformerRow
from evaluation.papers.workshop import Workshop
from twinset.basemodel import BaseModel, load_base
from twinset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MADE = "dialogues made by evaluation.supportdialogues, in the manner of CustomerSim"
_TRAIN_SEED, _HELD_OUT_SEED = 0, 1
DIALOGUES_MADE = 10_000  # of CustomerSim there are as many


@dataclass(frozen=True)
class Paths:
    """The files.

    Args:
        wikitext_train: lines to learn from.
        wikitext_test: lines for all scores.
        dialogs_train: a table of dialogues; None: they are made.
        dialogs_test: likewise; both or none.
    """

    wikitext_train: Path
    wikitext_test: Path
    dialogs_train: Path | None = None
    dialogs_test: Path | None = None


@dataclass(frozen=True)
class Sdp:
    """LSTMs and transformers with and without selective noise.

    Args:
        size: its name.
        how: the size itself.
        paths: the files; None: a plan can be had, and no more.
        base: folder or hub name of a GPT-2 to begin from; None: random weights.
    """

    size: str
    how: Size
    paths: Paths | None
    base: str | None = None
    _flagged: dict[str, list[Row]] = field(default_factory=dict)

    name = "sdp"
    paper = PAPER

    def plan(self) -> Iterator[str]:
        """See `Experiment`; without files, of about the paper's own numbers of records."""
        shape: Shape = self.how.transformer
        if self.paths is None:
            yield "no files named: counted as if they were the paper's"
            records = assumed(self.how, self.how.context)
            many = assumed(self.how, self.how.transformer.context)[WIKITEXT]
        else:
            records = {n: len(texts.train.records) for n, texts in self._lstm.items()}
            many = len(self._transformer.train.records)
        yield from plan(self.how, shape, records, many)
        if self.base is not None:
            yield f"transformer: begins from {self.base}, with its own tokens"

    def cases(self, seeds: int) -> Iterator[Case]:
        """See `Experiment`."""
        return cases(seeds)

    def sources(self) -> Mapping[str, str]:
        """See `Experiment`."""
        files = {name: path for name, path in asdict(self._files).items() if path is not None}
        made = {} if "dialogs_train" in files else {"dialogs": MADE}
        return {name: described(path) for name, path in files.items()} | made

    def settings(self) -> Mapping[str, Any]:
        """See `Experiment`; a base model counts by its origin."""
        return {"sizes": asdict(self.how), "base": self._base.origin if self._base else None}

    def facts(self) -> Mapping[str, Any]:
        """See `Experiment`: counts and shares of the text sets."""
        return {
            "texts": {name: _facts(texts) for name, texts in self._lstm.items()},
            "transformer": (
                f"Base model: {self.base or 'random weights'}; training records: "
                f"{len(self._transformer.train.records):,}; held out: "
                f"{len(self._transformer.test.records):,}."
            ),
        }

    def row(self, case: Case, workshop: Workshop) -> Mapping[str, Any]:
        """See `Experiment`."""
        if case.model not in TRANSFORMERS:
            return LstmRow(case, self.how, self._lstm[case.text], workshop).row()

        def flagged(policy: str) -> list[Row]:
            if policy not in self._flagged:
                tick = workshop.counting("rows flagged")
                self._flagged[policy] = self._transformer.found(policy, tick)
            return self._flagged[policy]

        build = self._shape.begun
        return TransformerRow(case, self.how, self._transformer, build, flagged, workshop).row()

    def report(self, rows: Rows) -> Report:
        """See `Experiment`."""
        sets = (WIKITEXT, DIALOGUES)
        return Report(
            verdicts=list(verdicts(rows)),
            published="perplexity of S-DPSGD ÷ DPSGD: " + "; ".join(map(_published, sets)),
            ours="; ".join(f"{text} {utility(rows, text)}" for text in sets),
            sections=list(sections(rows)),
            readings=list(readings()),
        )

    def figure(self, rows: Rows) -> Figure:
        """See `Experiment`."""
        return draw(rows)

    @property
    def _files(self) -> Paths:
        assert self.paths is not None, "without files there is only a plan"
        return self.paths

    @cached_property
    def _base(self) -> BaseModel | None:
        return None if self.base is None else load_base(self.base)

    @property
    def _shape(self) -> Shape:
        return self.how.transformer if self.base is None else FolderShape(Path(self.base))

    @cached_property
    def _sets(self) -> tuple[TextSet, TextSet]:
        files, how = self._files, self.how
        train = wikitext(files.wikitext_train, how.rows)
        tested = wikitext(files.wikitext_test, how.scored)
        many, few = how.rows or DIALOGUES_MADE, how.scored or DIALOGUES_MADE // 10
        talks = dialogues(files.dialogs_train, how.rows, many, _TRAIN_SEED)
        others = dialogues(files.dialogs_test, how.scored, few, _HELD_OUT_SEED)
        source = MADE if files.dialogs_train is None else ""
        return TextSet(WIKITEXT, train, tested), TextSet(DIALOGUES, talks, others, source)

    @cached_property
    def _lstm(self) -> dict[str, LstmTexts]:
        return {rows.name: LstmTexts(rows, self.how, self._base) for rows in self._sets}

    @cached_property
    def _transformer(self) -> TransformerTexts:
        texts = self._lstm[WIKITEXT]
        context = self.how.transformer.context
        if self._base is None:
            return TransformerTexts(texts.rows, texts.tokenizer, context)
        longest = self._base.model.config.max_position_embeddings
        if longest < context:
            raise InputError(f"--base {self.base}: reads {longest} tokens; {context} are needed")
        return TransformerTexts(texts.rows, self._base.tokenizer, context)


def _facts(texts: LstmTexts) -> dict[str, Any]:
    return {
        "rows": len(texts.rows.train),
        "heldout": len(texts.rows.heldout),
        "records": len(texts.train.records),
        "tokens": sum(map(len, texts.test.records.texts)),
        "vocabulary": len(texts.tokenizer),
        "share": texts.train.share,
        "source": texts.rows.source,
    }


def _published(text: str) -> str:
    return f"{text} {TABLE_2[text, SDPSGD][0] / TABLE_2[text, DPSGD][0]:.3f}"
