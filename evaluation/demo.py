"""`twinset demo`: a twin of real film reviews on this machine, and what it is worth.

The table is public and plays the private one. Everything else is as in `twinset generate`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pandas as pd

from evaluation.embeddings import SentenceEncoder
from evaluation.evaluate import FILE, Wanted, evaluate
from evaluation.findings import Findings
from evaluation.release import Release
from evaluation.report.page import write_report
from evaluation.tables import BASELINE, REAL, TWIN
from evaluation.twins import generate_twin
from twinset.assets import SMOLLM2
from twinset.basemodel import load_base
from twinset.config import PrivacyConfig, RunConfig, SamplingConfig, TrainingConfig
from twinset.demodata import demo_reviews
from twinset.estimate import measure, usual_tokens
from twinset.formats import write_frame
from twinset.prepare import prepare
from twinset.privacy.rounding import up_decimals
from twinset.progress import Progress, Silent
from twinset.request import Places, RowsWanted, Source
from twinset.shipped import GPT2_MINI

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.table import Table

EPSILON = 8.0
BASE_MODEL = SMOLLM2.name
MAX_TOKENS = 48
# As many record visits as fit into the time. Spent in few large steps, with a larger rate, they
# drown in less noise: README has the figures.
TRAINING = TrainingConfig(steps=4, batch_size=252, learning_rate=0.012, max_tokens=MAX_TOKENS)
SMALL_TRAINING = replace(TRAINING, steps=4, batch_size=1008, learning_rate=0.008)
ROWS_PER_LABEL = 300
REAL_ROWS = 1500  # of the real training rows, those the real classifier learns from
HELD_OUT_ROWS = 2500
OTHER_SECONDS = 20.0  # loading, accounting and saving

TEXT, ATTRIBUTE = "review", "verdict"
PROMPT = "film-verdict"
TABLE, KNOWN, HELD_OUT = "demo.parquet", "known.parquet", "held-out.parquet"
PROBE_TEXTS = 64
SAMPLES = 3
CLASSIFIERS = ("tfidf", "minilm")


@dataclass(frozen=True)
class DemoReport:
    """What the demo shows at its end; `rich` prints it.

    Args:
        findings: the figures.
        samples: a few rows of the twin.
        run: the run folder.
    """

    findings: Findings
    samples: pd.DataFrame
    run: Path

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        """Yield the table, the rows and the paths."""
        from rich.text import Text

        yield self._table()
        yield Text("\nThree rows of the twin:")
        for label, text in zip(self.samples[ATTRIBUTE], self.samples[TEXT], strict=True):
            yield Text(f"  {label:7} {' '.join(text.split())}")
        yield Text(f"\n{self.findings.about['guarantee']}\n")
        for part, what in _PARTS.items():
            yield Text(f"  {self.run / part}  {what}")

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table

        found, about = self.findings, self.findings.about
        title = "Accuracy of classifiers on real reviews they have not seen"
        caption = f"twin: ε = {up_decimals(about['epsilon'])}, δ = {about['delta']:g}"
        table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True  # fits 80 columns
        table.add_column("trained on")
        for name in ("rows", "fidelity", *CLASSIFIERS):
            table.add_column(name, justify="right", no_wrap=True)
        for source in (REAL, TWIN, BASELINE):
            scores = (found.find("accuracy", rows=source, classifier=c) for c in CLASSIFIERS)
            row = (str(about["rows"][source]), self._fidelity(source), *map(str, scores))
            table.add_row(source, *row)
        return table

    def _fidelity(self, source: str) -> str:
        """How often the better classifier, taught by real rows, agrees with a row's label."""
        score = self.findings.find("label fidelity", rows=source, classifier=CLASSIFIERS[-1])
        return f"{score.value:.2f}" if score else ""


_PARTS = {
    "share": "the twin, its card and its ledger: may be handed over",
    "model": "the model that wrote it: as safe as the twin",
    "internal": "figures computed on private rows: stay here",
}


def demo_config(base_model: str) -> RunConfig:
    """Return the demo's options."""
    return RunConfig(
        privacy=PrivacyConfig(target_epsilon=EPSILON),
        training=replace(
            SMALL_TRAINING if base_model == GPT2_MINI else TRAINING, base_model=base_model
        ),
        sampling=SamplingConfig(),
    )


def run_demo(
    run: Path | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    base_model: str = BASE_MODEL,
) -> DemoReport:
    """Make a twin of the demo's reviews and measure it; a few minutes.

    Args:
        run: the run folder; None takes the first free `runs/demo-<n>`.
        progress: is told what happens, an estimate of the time first.
        overwrite: whether an existing run may be replaced.
        base_model: asset, local folder or hub name.

    Raises:
        InputError: an asset is out of reach, or the run folder cannot be written.
    """
    progress = progress or Silent()
    config = demo_config(base_model)
    train, heldout = demo_reviews(progress.say)
    load_base(base_model, say=progress.say)  # fetched and converted before the clock is read
    with TemporaryDirectory() as folder:
        table, known, tested = (Path(folder, name) for name in (TABLE, KNOWN, HELD_OUT))
        write_frame(train, table)
        write_frame(train.sample(REAL_ROWS, random_state=0), known)
        write_frame(heldout.sample(HELD_OUT_ROWS, random_state=0), tested)
        source = Source(str(table), TEXT, (ATTRIBUTE,), prompt=PROMPT)
        minutes = math.ceil(_seconds_ahead(source, train, config, progress) / 60)
        progress.say(f"the demo takes about {minutes} min on this machine (measured just now)")
        places = Places(run, overwrite=overwrite)
        twin = generate_twin(source, config, _wanted(), places, progress)
        assert twin.run is not None
        wanted = Wanted(known, tested, classifiers=CLASSIFIERS)
        findings = evaluate(Release.read(twin.run), wanted, "twinset demo", progress)
    findings.save(twin.run / "internal" / FILE)
    write_report(twin.run)
    return DemoReport(findings, twin.frame.head(SAMPLES), twin.run)


def _wanted() -> RowsWanted:
    """As many rows of either label: how they are mixed differs from film to film."""
    return RowsWanted(per_label=(str(ROWS_PER_LABEL),))


def _seconds_ahead(
    source: Source, train: pd.DataFrame, config: RunConfig, progress: Progress
) -> float:
    """Estimate what is still to do: the twin, the baseline's longer rows, the embeddings."""
    prepared = prepare(source, config, _wanted(), Silent())
    texts, tokenizer = prepared.records.texts, prepared.base.tokenizer
    longest = len(tokenizer.encode(prepared.template.render(prepared.records.labels[0])))
    tokens = usual_tokens(texts, tokenizer, longest, MAX_TOKENS)
    rows = 2 * ROWS_PER_LABEL
    twin = measure(prepared.base, config, prepared.plan, tokens, rows)
    baseline = twin.sampling_seconds * MAX_TOKENS / tokens
    encoder = SentenceEncoder(progress.say)
    encoder.encode(train[TEXT][:1].tolist())  # loads it
    began = time.monotonic()
    encoder.encode(train[TEXT][1 : PROBE_TEXTS + 1].tolist())
    embedding = (time.monotonic() - began) / PROBE_TEXTS * (REAL_ROWS + HELD_OUT_ROWS + 2 * rows)
    work = twin.training_seconds + twin.sampling_seconds + baseline + embedding
    return work + OTHER_SECONDS
