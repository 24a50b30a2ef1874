"""Runs on neighbouring tables, with the releases of the first run played back.

A `Tape` stands where noise is added. It keeps what goes in and what comes out. The next run gets
the same outputs, so whatever differs between two runs did not pass a release. What went in may
differ by what one unit can change, and no more.
"""

import os
import re
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.commands import Heard, call
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.accounting.events import (
    COLUMNS,
    LABEL_COUNTS,
    TEACHER,
    TOKEN_MARGINALS,
    GaussianRelease,
    IndividualGaussian,
    LabelSelection,
    SubsampledGaussian,
)
from twinset.privacy.mechanism import columns as pairs
from twinset.privacy.mechanism import noise, vector_sum
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import Units
from twinset.privacy.statement.ledger import Ledger
from twinset.run import columns, releases, story
from twinset.run import generate as runs
from twinset.sampling import sampler, tilt_fitting, twin_model

STEP, VALUES = "a step", "values"
WORDS = b"Ulaanbaatar", b"7946 0958"  # of texts that differ. Only rows held out may have them.
COUNTED = {"count_columns": COLUMNS, "count_tokens": TOKEN_MARGINALS, "fit_teacher": TEACHER}
ROUNDING = 1e-5  # of sums of float32, in lengths of one unit (SECURITY.md, Rounding)
# Lines that only the owner sees, and what they tell of private rows. All other lines are compared.
# A step's records, loss and clipped share are private as well (`StepReport`), and so are the counts
# of a bar. SECURITY.md says that all that is printed is for the owner.
PRIVATE = {
    r"(read|select|plan|count|train|teach|sample|share|judge) +[\d.]+ \w+, \d+% of": "time it took",
    r"[\d,]+ texts are cut at": "how many texts are long",
    r"removed (control characters|special tokens of the base model) from": "in how many texts",
    r"removed [\d,]+ NUL character": "how many cells had one",
    r"leaving out [\d,]+ of [\d,]+ rows": "rows without text, or with a rare label",
    r"merging [\d,]+ values? of column": "rows with another spelling of a label",
    r"[\d,]+ rows repeat the text of an earlier row": "how many duplicates",
    r"not every row has columns? ": "which keys of JSONL some rows lack",
    r"owners N +[\d,]+, of [\d,]+ records": "how many records owners have",
    r"reading columns? .* too. Noisy counts": "names are numbers where they may be cells",
    r"leaving out columns? .*: the twin will not have": "the same",
    r"the values of column .* become public by noisy counts": "the same",
}


@dataclass
class Release:
    """One release: what it is of, what went into its noise, the noise, and what came out."""

    what: str
    exact: object  # (n,) numbers, or for each column the counts of its values
    std: float
    output: object


class Tape:
    """What the first run releases, played back to the next ones."""

    def __init__(self) -> None:
        self.first, self.now, self.what = [], [], [STEP]

    def rewind(self) -> None:
        """Make what was recorded the first run, and begin the next one."""
        self.first, self.now = self.first or self.now, []

    def play(self, what, exact, std, output):
        if self.first:
            assert len(self.now) < len(self.first), "the neighbour releases more"
            known = self.first[len(self.now)]
            assert (known.what, known.std) == (what, std), "another release"
            assert getattr(known.exact, "shape", 0) == getattr(exact, "shape", 0), "another shape"
            output = known.output
        self.now.append(Release(what, exact, std, output))
        return output

    def moved(self, what) -> list[float]:
        """Return how far two runs are from one another in each release, in standard deviations."""
        two = [(a, b) for a, b in zip(self.first, self.now, strict=True) if what == a.what]
        return [float(np.linalg.norm(a.exact - b.exact)) / a.std for a, b in two]


def put_tape(monkeypatch) -> Tape:
    """Put a tape where noise is added. Batches are drawn alike in all runs, and all is quick."""
    found, keys = Tape(), np.random.default_rng
    one, many = noise.add_gaussian_, noise.add_gaussian_to_each_

    def add_one(sums, std, randomness):
        exact = sums.numpy().copy()
        return sums.copy_(
            found.play(found.what[-1], exact, std, one(sums, std, randomness).clone())
        )

    def add_many(sums, std, randomness, scales=()):
        own = [s / k for s, k in zip(sums, scales, strict=True)] if scales else sums
        exact = torch.cat([each.flatten() for each in own]).double().numpy()
        many(sums, std, randomness, scales)
        played = found.play(found.what[-1], exact, std, [each.clone() for each in sums])
        for each, known in zip(sums, played, strict=True):
            each.copy_(known)

    def select(function):
        def played(texts, selection, randomness):
            counts = [Counter(each) for each in texts]
            output = function(texts, selection, randomness)
            return found.play(VALUES, counts, selection.deviation, output)

        return played

    def count(function):
        def played(labels, combinations, sigma, randomness, most=1):
            counts = Counter(labels)
            exact = np.array([float(counts[c]) for c in combinations])
            output = function(labels, combinations, sigma, randomness, most)
            return found.play(LABEL_COUNTS, exact, sigma * most, output)

        return played

    def within(function, what):
        def named(*given):
            found.what.append(what)
            try:
                return function(*given)
            finally:
                found.what.pop()

        return named

    def same_keys():
        fixed = keys(11)
        return Randomness._of(lambda: fixed.bytes(32), "fixed", True)

    for module in (vector_sum, pairs):
        monkeypatch.setattr(module, "add_gaussian_", add_one)
    monkeypatch.setattr(noise, "add_gaussian_to_each_", add_many)
    for module in (columns, releases):
        monkeypatch.setattr(module, "select_label_values", select(module.select_label_values))
    monkeypatch.setattr(releases, "release_label_counts", count(releases.release_label_counts))
    for name, what in COUNTED.items():
        monkeypatch.setattr(releases, name, within(getattr(releases, name), what))
    monkeypatch.setattr(Randomness, "from_os", staticmethod(same_keys))
    make_quick(monkeypatch)
    return found


BASES = {}


def make_quick(monkeypatch) -> None:
    """Leave out what no record reaches: loading the same base again, and waiting for the disk."""

    def load(name, device, say):
        if name not in BASES:
            BASES[name] = load_base(name, device=device)
        return replace(BASES[name], model=deepcopy(BASES[name].model))

    monkeypatch.setattr(story, "load_base", load)
    for module in (story, twin_model):
        monkeypatch.setattr(module, "give_memory_back", lambda device: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    # fewer rows and units, of which any would show a leak
    monkeypatch.setattr(tilt_fitting, "REFERENCE_ROWS", 4)
    monkeypatch.setattr(tilt_fitting, "WEIGHT_ROWS", 4)
    monkeypatch.setattr(sampler, "OTHER_TOKENS", 3)
    monkeypatch.setattr(releases, "MOST_READ", 15)


@dataclass
class Outcome:
    """All of one run that others may see, or that its owner is shown."""

    refusal: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    others: dict[str, object] = field(default_factory=dict)
    spent: tuple = ()  # events

    def differences(self, other: "Outcome") -> list[str]:
        """Return the names of what differs."""
        if self.refusal or other.refusal:
            return [] if self.refusal == other.refusal else [f"refused: {other.refusal}"]
        names = {*self.files, *other.files}
        found = sorted(n for n in names if self.files.get(n) != other.files.get(n))
        found += [n for n in self.others if self.others[n] != other.others[n]]
        return (
            found
            + [f"line: {n}" for n in Counter(self.lines) - Counter(other.lines)]
            + [f"line: {n}" for n in Counter(other.lines) - Counter(self.lines)]
        )


def request_of(base, data, *options):
    """Return what the command line asks of a run with these options."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:

        def take(*given):
            asked.append(given[:4])
            raise InputError("asked")

        patch.setattr(runs, "generate", take)
        told = call("generate", data, "--base-model", base, *options)
    assert asked, told.err
    return asked[0]


def run_once(request, data: Path, folder: Path, resume=False) -> Outcome:
    """Make a run of a table. Return all that may be compared."""
    source, config, asked, paths = request
    shown, run = Heard(), folder / "r"
    paths = replace(paths, run=run, resume=resume)
    if paths.output is not None:
        paths = replace(paths, output=folder / paths.output.name)
    try:
        made = runs.generate(replace(source, data=data), config, asked, paths, shown)
    except InputError as error:
        return Outcome(str(error).replace(str(folder), ""))
    public = [p for part in ("share", "model") for p in (run / part).rglob("*")]
    public += [p for p in folder.glob("*") if p.name not in (data.name, "r")]
    files = {str(p.relative_to(folder)): p.read_bytes() for p in public if p.is_file()}
    lines = [line.replace(str(folder), "") for line in shown.lines]
    lines = [line for line in lines if not any(re.match(each, line) for each in PRIVATE)]
    own = [p for p in folder.rglob("*") if p.is_file() and p != data and "held-out" not in p.name]
    others = {
        "files with a private word": sorted(
            p.name for p in own if any(word in p.read_bytes() for word in WORDS)
        ),
        "parts": sorted(p.name for p in run.iterdir()),
        "rows": made.rows,
        "phases": shown.phases,
        "steps": shown.steps,
        "guarantee": made.guarantee,
    }
    spent = Ledger.load(run / "model/ledger.json").events
    return Outcome(None, files, lines, others, spent)


@contextmanager
def unit_left_out(unit: int, phases: int = 0):
    """Use a table in which one unit is in no batch and no count. N stays, as it is public.

    With `phases` it is left out of batches alone, and only after the first phases of training.
    """
    draw, batches, calls = Units.draw, story.poisson_batches, []

    def drawn(self, units, stream):
        found = draw(self, units, stream)
        return [[] if n == unit else own for n, own in zip(units.tolist(), found, strict=True)]

    def without(*given):
        calls.append(given)
        if len(calls) <= phases:
            return batches(*given)
        return (batch[batch != unit] for batch in batches(*given))

    with pytest.MonkeyPatch.context() as patch:
        if not phases:
            patch.setattr(Units, "draw", drawn)
        for module in (story, releases):
            patch.setattr(module, "poisson_batches", without)
        yield


def overspent(tape: Tape, events, units: int) -> list[str]:
    """Return what moved by more than its events claim, between tables that differ in some units.

    What each release moved by, over its noise, squared and added up, is what was really spent on
    this pair of tables. An event claims σ⁻².
    """
    found = []
    for event in events:
        if isinstance(event, GaussianRelease):
            moved = sum(each**2 for each in tape.moved(event.what)) ** 0.5
            claims = {event.what: (moved, 1 / event.noise_multiplier)}
        elif isinstance(event, SubsampledGaussian | IndividualGaussian):
            moved = max(tape.moved(STEP), default=0.0)
            claims = {STEP: (moved, 1 / event.noise_multiplier)}
        else:
            continue
        found += [w for w, (moved, most) in claims.items() if moved > units * most * (1 + ROUNDING)]
    pairs = [(a, b) for a, b in zip(tape.first, tape.now, strict=True) if a.what == VALUES]
    selections = [event for event in events if isinstance(event, LabelSelection)]
    for (a, b), event in zip(pairs, selections, strict=True):
        assert a.std == event.deviation
        for mine, theirs in zip(a.exact, b.exact, strict=True):
            if sum(((mine - theirs) + (theirs - mine)).values()) > units * event.most:
                found.append(VALUES)
    return found
