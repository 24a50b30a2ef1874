"""`twinset demo`: a twin made on this machine, and what it is worth.

The table is public, or made up, and plays the private one. Everything else is as in
`twinset generate`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from evaluation.demo.demo_report import DemoReport
from evaluation.demo.demos import REVIEWS, Demo
from evaluation.evaluate import FILE, EvaluationRequest, evaluate
from evaluation.findings import Findings
from evaluation.leakage.names import replay_planted
from evaluation.release import Release
from evaluation.report.page import write_report
from evaluation.utility.classifiers import SentenceEncoder
from twinset.config import RunConfig, SpeedConfig
from twinset.models.base_model import load_base
from twinset.models.device import AUTO, check_device
from twinset.progress import Progress, Silent
from twinset.run.generate import generate, plan_run
from twinset.run.request import OutputPaths, Source
from twinset.sampling.allocation import RowsRequest
from twinset.table.read import write_frame

if TYPE_CHECKING:
    from pandas import DataFrame

TABLE, KNOWN, HELD_OUT = "demo.parquet", "known.parquet", "held-out.parquet"
OTHER_SECONDS = 20.0  # loading, accounting and saving
PROBE_TEXTS = 64
SAMPLES = 3


def run_demo(
    demo: Demo = REVIEWS,
    run: Path | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    base_model: str | None = None,
    device: str = AUTO,
) -> DemoReport:
    """Make a twin of the demo's table and measure it; a few minutes.

    Args:
        demo: which one.
        run: the run folder; None takes the first free `runs/demo-<n>`.
        progress: is notified of what happens, an estimate of the time first.
        overwrite: whether an existing run may be replaced.
        base_model: asset, local folder or hub name; None takes the demo's own.
        device: that computes, as `device_of` takes it.

    Raises:
        InputError: an asset is out of reach, the run folder cannot be written, or the device is not
            there.
    """
    progress = progress or Silent()
    config = replace(demo.config(base_model), speed=SpeedConfig(device=device))
    check_device(device, 1)
    train, heldout = demo.tables(progress.say)
    load_base(config.training.base_model, say=progress.say)  # before the clock is read
    with TemporaryDirectory() as folder:
        table, known, tested = (Path(folder, name) for name in (TABLE, KNOWN, HELD_OUT))
        write_frame(train, table)
        write_frame(train.sample(demo.known_rows, random_state=0), known)
        write_frame(heldout.sample(demo.heldout_rows, random_state=0), tested)
        source = Source(str(table), demo.text, demo.attributes, prompt=demo.prompt)
        minutes = math.ceil(_seconds_ahead(demo, source, train, config, progress) / 60)
        progress.say(f"the demo takes about {minutes} min on this machine (measured just now)")
        places = OutputPaths(run, overwrite=overwrite)
        made = generate(source, config, _rows(demo), places, progress).run
        assert made is not None
        request = EvaluationRequest(
            known, tested, classifiers=demo.classifiers, embedded=demo.embedded
        )
        command = f"twinset demo --data {demo.name}"
        release = Release.read(made, device=device)
        findings = evaluate(release, request, command, progress)
    twin = release.twin.frame
    findings = _with_secrets(findings, demo, twin, train, heldout)
    findings.save(made / "internal" / FILE)
    write_report(made)
    return DemoReport(demo, findings, twin.head(SAMPLES), made)


def _rows(demo: Demo) -> RowsRequest:
    return RowsRequest(per_label=(str(demo.rows_per_label),))


def _with_secrets(
    findings: Findings, demo: Demo, twin: DataFrame, train: DataFrame, heldout: DataFrame
) -> Findings:
    """Add how many of the planted values the twin holds, where the demo has planted some."""
    if not demo.secrets:
        return findings
    written, private = (frame[demo.text].tolist() for frame in (twin, train))
    found = replay_planted(written, private, demo.planted(train), demo.planted(heldout))
    return replace(findings, measured=(*findings.measured, *found))


def _seconds_ahead(
    demo: Demo, source: Source, train: DataFrame, config: RunConfig, progress: Progress
) -> float:
    """Estimate what is still to do: the twin, the baseline's longer rows, the embeddings."""
    rows = demo.rows_per_label * len(train[list(demo.attributes)].drop_duplicates())
    planned = plan_run(source, None, config, rows, Silent())
    baseline = dict(planned.phases)["rows"]
    embedding = _embedding_seconds(demo, train, rows, config, progress) if demo.embedded else 0.0
    return planned.seconds + baseline + embedding + OTHER_SECONDS


def _embedding_seconds(
    demo: Demo, train: DataFrame, rows: int, config: RunConfig, progress: Progress
) -> float:
    texts = train[demo.text][: PROBE_TEXTS + 1].tolist()
    encoder = SentenceEncoder(progress.say, config.speed.device)
    encoder.encode(texts[:1])  # loads it
    began = time.monotonic()
    encoder.encode(texts[1:])
    each = (time.monotonic() - began) / PROBE_TEXTS
    return each * (demo.known_rows + demo.heldout_rows + 2 * rows)
