"""Whole runs on neighbouring tables, with the releases of the first run played back.

Whatever a run makes of its releases may not depend on the records. So a run on a table in which one
record differs, with the same releases, must write every byte of `share/` and `model/` again, and
show the same lines. No other file may name the record. What differs is a leak that no ledger knows.
The idea is that of an audit of twelve libraries in 2026 (arXiv 2602.17454). The same runs tell how
far each sum moved: by no more than its event claims. The noise itself is attacked by `twinset audit
mechanism`.
"""

import json
import random
import re
from collections import Counter
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from tests.conftest import opened, save_tiny
from tests.helpers.commands import ROOT, fitted_scale
from tests.helpers.replay import overspent, put_tape, request_of, run_once, unit_left_out
from twinset.errors import InputError
from twinset.privacy.mechanism.counts import proportional_rows
from twinset.privacy.mechanism.gate import Noisy
from twinset.privacy.mechanism.vector_sum import UNIT_STEPS, VectorSum
from twinset.run import checkpoint, columns, releases, story
from twinset.run import generate as runs
from twinset.run.columns import ColumnRelease
from twinset.sampling import rows, sampler, tilt_fitting, twin_model
from twinset.table.records import Records
from twinset.training.clipped_sum import ClippedSum
from twinset.training.loop import PrivateOptimizer

N, ODD, BLANK = 60, 8, 59  # rows, the number of the one that differs, and that of one without text
rng = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "text": [f"the film {i} was {('good', 'bad')[i % 2]} and long" for i in range(N)],
        "label": ["pos", "neg"] * (N // 2),
        "title": [f"title {i}" for i in range(N)],
        "age": rng.integers(18, 90, N).astype(str),
        "city": np.array(["York", "Leeds", "Hull"])[rng.integers(0, 3, N)],
        "when": [f"2024-0{1 + i % 9}-{1 + i % 28:02}" for i in range(N)],
        "user_id": [f"u{i}" for i in range(N)],
        "stars": [f"{i % 5}.{25 * (i % 4):02}" for i in range(N)],
    }
)
TABLE.loc[BLANK, "text"] = ""  # it is left out, and N is of the others
OWNED = TABLE.assign(who=[f"p{i // 3}" for i in range(N)])
OF_OWNER = [6, 7, 8]  # rows of the owner of the one that differs

ABSENT, MOVED, MANY = "left out", "at another place", "an owner of many records"
# Units have other numbers, or their records are drawn by other bits. So batches differ, and sums.
OTHER_BATCHES = {MOVED, MANY}
LEFT_OUT = 9  # a unit of the first two batches, which is in no batch and no count

# -- neighbours ------------------------------------------------------------------------------------


def edited(**cells):
    """The odd record has other cells."""
    return lambda table: table.assign(
        **{name: table[name].mask(table.index == ODD, cell) for name, cell in cells.items()}
    )


GAPS = dict.fromkeys(("title", "age", "city", "when", "user_id"), "")
# One record differs in several ways at once. Each way alone would show, too.
NEIGHBOURS = {
    "other words, another label, gaps": edited(
        text="Zebras dance quietly in Ulaanbaatar 5550123", label="neg", **GAPS
    ),
    "a long text, extremes": edited(
        text="so very long " * 300,
        title="so long " * 90,
        age="99999999999999",
        when="1801-01-01",
        city="A" * 140_000,  # more characters than `csv` takes in a cell
    ),
    "special tokens, values of its own": edited(
        text="<|endoftext|> x", title="<|endoftext|>A\tB", city="Nowhere", age="17", user_id="u1"
    ),
    "nothing but special tokens": edited(text="<|endoftext|>", label="neg", title="-", age="0"),
    "the text of another, cells of other kinds": edited(
        text=TABLE["text"][7], title="7", age="free", when="soon", city="3,50"
    ),
    "another script": edited(
        text="Ужасный фильм 電影很長 👩‍👩‍👧 é",
        title="Заглавие",
        city="Łódź",
        age="٤٢",
        when="3.4.2024",
    ),
    "the shortest text, a rare label": edited(text="x", label="neg", age="-1", when="9999-12-31"),
    "control characters": edited(text="a\x00b\x02", title="\x03", city="Y\x7fork", age="1\u00a00"),
    "formulas and quotes": edited(text='=1+1, "so"\nnext', title='@x "y"\nz', city="=cmd()"),
    "finer cells": edited(
        age="42.00", when="2024-03-05T10:00:00.5Z", city="$5.00", user_id="7.0", stars="3.000"
    ),
    "a name, a number and an address": edited(
        text="Mrs Jane Doe, jane.doe@example.org, +44 20 7946 0958, paid 4111 1111 1111 1111"
    ),
    "names of columns": edited(text="text", title="title", city="city"),
    MOVED: lambda table: table.iloc[[*range(ODD), BLANK, *range(ODD + 1, BLANK), ODD]],
    ABSENT: LEFT_OUT,
}
FEW = {name: NEIGHBOURS[name] for name in [*list(NEIGHBOURS)[:4], ABSENT]}
OF_JSON = {
    "a key of its own": lambda table: table.assign(secret=table["age"].where(table.index == ODD)),
    "numbers and a list": lambda table: edited(age=19.5, city=10**18)(
        table.assign(when=[[1] if i == ODD else day for i, day in enumerate(table["when"])])
    ),
}
A_LABEL = {"a label of its own": edited(label="odd")}
OWNERS = {
    "all records of an owner": lambda table: table.assign(
        text=table["text"].mask(table.index.isin(OF_OWNER), "now they all say this 12345"),
        label=table["label"].mask(table.index.isin(OF_OWNER), "neg"),
        city=table["city"].mask(table.index.isin(OF_OWNER), "Nowhere"),
    ),
    MANY: lambda table: pd.concat([table, table.iloc[[ODD] * 9]]),
    "an owner of one record": lambda table: table.drop([6, 7]),
}

# Selective noise protects what is flagged. All else of a text is taken as known. Spans come first,
# since only a few tokens of a text are read.
FLAGGED = {
    "other spans": edited(text="+44 20 7946 0958 or jane@example.org about the film"),
    "long spans": edited(text=f"{'0123 ' * 60} or {'a.b.' * 30}c@example.org about the film"),
    "other cells": edited(age="99999999999999", when="1801-01-01", city="A" * 70, stars="x"),
    "no cells": edited(age="", when="", city="", user_id="", stars=""),
    ABSENT: LEFT_OUT,
}
CALLS = edited(text="+1 202 555 0143 or bob@example.com about the film")(TABLE)
SPANS = {"only": FLAGGED, "table": CALLS, "phases": 1}
ODD_LABEL = TABLE.assign(label=TABLE["label"].mask(TABLE.index == 3, "odd"))
MORE_GAPS = TABLE.assign(text=TABLE["text"].mask(TABLE.index % 9 == 2, ""))

# -- paths -----------------------------------------------------------------------------------------

GIVEN = ("--text", "text", "--attribute", "label", "--epsilon", "50", "--delta", "1e-5", "--quiet")
SMALL = ("--rows", "5", "--max-tokens", "8", "--hold-out", "0", "--processes", "1")
SMALL += ("--teacher-redraws", "1")
DECLARED = ("--labels", "label=pos,neg")
COUNTED = ("--steps", "0", *DECLARED)
STEPS = ("--steps", "2", "--batch-size", "15", "--physical-batch", "8", "--max-grad-norm", "0.01")
TRAINED = (*STEPS, *DECLARED)
NO_COUNTS = ("--teacher-share", "0", "--marginal-share", "0")
POLICY = (*TRAINED, *NO_COUNTS, "--noise-policy")
SELECTIVE = (*POLICY, "selective", "--batch-size", "50")  # so that the first phase reads all
BOUNDS = ("--importance-bound", "3", "--importance-alpha", "0.2")
BY_OWNER = ("--owner", "who", "--epsilon", "200")
KINDS = ("--kind", "title=text", "--kind", "age=number", "--range", "age=18:99")
KINDS += ("--values", "city=York,Leeds,Oslo")


class Way:
    """A way through a run: its options, the form of the table, and which neighbours it is tried on.

    Args:
        options: of `generate`.
        form: of the table's file.
        more: neighbours in addition to all.
        only: neighbours instead of all.
        table: the first one.
        change: what to replace in the run.
        phases: of training that read what is taken as known.
        is_killed: whether the run is killed after a step, and resumed.
    """

    def __init__(
        self,
        *options,
        form="csv",
        more=None,
        only=NEIGHBOURS,
        table=TABLE,
        change=lambda patch: None,
        phases=0,
        is_killed=False,
    ):
        self.options, self.form, self.table = options, form, table
        self.neighbours = only | (more or {})
        self.change, self.phases, self.is_killed = change, phases, is_killed


def choose_prompts(patch):
    """Have so few records choose a prompt."""
    patch.setattr(releases, "FEWEST_RECORDS", 10)
    patch.setattr(releases, "FEWEST_PRODUCT", 1.0)
    patch.setattr(tilt_fitting, "PROMPT_ROWS", 4)


class AtOnce:
    """A thread that does its work when it is started."""

    def __init__(self, target, args, daemon):
        self.start = partial(target, *args)

    def is_alive(self):
        return False


def share_rows(patch):
    """Have a second worker write rows, in this process: another takes seconds to start."""

    @contextmanager
    def start(load, devices):
        draws = [load(device) for device in devices]
        yield [lambda number, latest, draw=draw: draw(number) for draw in draws]

    patch.setattr(runs, "process_group", lambda processes: nullcontext())
    patch.setattr(rows, "GROUP_ROWS", 2)
    patch.setattr(rows, "Thread", AtOnce)
    patch.setattr(twin_model, "start_workers", start)


WAYS = {
    "nothing trained": Way(*COUNTED),
    "longer texts": Way(*COUNTED, "--max-tokens", "60"),
    "undeclared labels": Way("--steps", "0", more=A_LABEL),
    "undeclared labels, dropped": Way(*COUNTED, "--drop-undeclared", table=ODD_LABEL),
    "merged labels": Way(*COUNTED, "--merge-labels", more={"a spelling": edited(label=" NEG ")}),
    "labels from numbers": Way(
        *COUNTED,
        *("--attribute", "stars", "--bins", "stars=0,2,5"),
        more={"another number": edited(stars="4.75")},
    ),
    "text and labels": Way(*COUNTED, "--columns", "none"),
    "columns by name": Way(*COUNTED, "--columns", "city,age,title", *KINDS),
    "rows without text dropped": Way(*COUNTED, "--drop-empty", table=MORE_GAPS),
    "Parquet": Way(*COUNTED, form="parquet"),
    "JSONL": Way(*COUNTED, "--columns", "age,city,when", form="jsonl", more=OF_JSON),
    "a file of its own": Way(*COUNTED, "--output", "twin.jsonl"),
    "group": Way(*COUNTED, "--group-size", "3"),
    "held out": Way(*COUNTED, "--hold-out", "0.3"),
    "a chosen prompt": Way(*COUNTED, change=choose_prompts, only=FEW),  # each prompt takes time
    "two processes": Way(*COUNTED, "--processes", "2", change=share_rows),
    "owners": Way(*COUNTED, *BY_OWNER, more=OWNERS, table=OWNED),
    "owners, undeclared": Way(*("--steps", "0", *BY_OWNER), more=A_LABEL | OWNERS, table=OWNED),
    "trained": Way(*TRAINED),
    "trained in usual batches": Way(*TRAINED[:4], *DECLARED),
    "trained by owner": Way(*TRAINED, *BY_OWNER, more=OWNERS, table=OWNED),
    "trained, undeclared": Way(*STEPS, more=A_LABEL),
    "no counts, no teacher": Way(*TRAINED, *NO_COUNTS),
    "a teacher alone": Way(*TRAINED, "--marginal-share", "0", "--teacher-share", "0.3"),
    "wrong prompts": Way(*TRAINED, *NO_COUNTS, "--mismatch-weight", "0.5"),
    "all weights": Way(*TRAINED, *NO_COUNTS, "--method", "full"),
    "adapters": Way(*TRAINED, *NO_COUNTS, "--method", "lora"),
    "second texts": Way(*TRAINED, "--columns", "title", "--kind", "title=text"),
    "resumed": Way(*TRAINED, is_killed=True),
    "held out, trained": Way(*TRAINED, "--hold-out", "0.3"),
    "adaptive": Way(*POLICY, "adaptive", "--epsilon-max", "90", "--weight-scale", "scale.json"),
    "importance": Way(*POLICY, "importance", *BOUNDS),
    "importance, published": Way(*POLICY, "importance", "--policy-form", "published"),
    "selective": Way(*SELECTIVE, **SPANS),
    "selective, published": Way(*SELECTIVE, "--policy-form", "published", **SPANS),
    "masked": Way(*TRAINED, "--redact-only"),
}


def write(table, form, place):
    """Write a table. The types that a file states are those of all neighbours."""
    place.mkdir()
    data = place / f"t.{form}"
    if form == "csv":
        table.to_csv(data, index=False)
    elif form == "jsonl":
        found = [{k: c for k, c in row.items() if c == c != ""} for row in table.to_dict("records")]
        data.write_text("".join(f"{json.dumps(row)}\n" for row in found))
    else:
        numbers = pd.to_numeric(table["age"], errors="coerce").clip(upper=2**30)
        parts = {name: pa.array(table[name]) for name in table if name not in ("age", "when")}
        parts["age"] = pa.array(numbers, pa.int32(), from_pandas=True)
        days = pd.to_datetime(table["when"], errors="coerce")
        parts["when"] = pa.array(days, pa.timestamp("ms"), from_pandas=True)
        parts["old"] = pa.array(numbers.gt(40).mask(numbers.isna()), pa.bool_())
        write_table(pa.table(parts), data)
    return data


class Killed(BaseException):
    """What no code catches."""


class Lab:
    """Makes runs of neighbouring tables along one way. The first one is of the table itself."""

    def __init__(self, tape, base, place, way):
        self.tape, self.base, self.place, self.way = tape, base, place, way
        self.made, self.request = 0, None

    def run(self, neighbour=None, change_file=lambda text: text):
        """Run on a neighbouring table. Return what may be compared."""
        self.tape.rewind()
        table = neighbour(self.way.table) if callable(neighbour) else self.way.table
        place, self.made = self.place / str(self.made), self.made + 1
        data = write(table, self.way.form, place)
        if self.way.form != "parquet":
            data.write_text(change_file(data.read_text()))
        if self.request is None:
            self.request = request_of(self.base, data, *GIVEN, *SMALL, *self.way.options)
        with unit_left_out(LEFT_OUT, self.way.phases) if neighbour == LEFT_OUT else nullcontext():
            if self.way.is_killed:
                self.kill(data, place)
            return run_once(self.request, data, place, self.way.is_killed)

    def kill(self, data, place):
        """Kill a run when it has taken a step. Checkpoints are kept after each one."""
        plain = PrivateOptimizer.step

        def step(optimizer, *given):
            if optimizer.done:
                raise Killed
            plain(optimizer, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)
            patch.setattr(PrivateOptimizer, "step", step)
            with pytest.raises(Killed):
                run_once(self.request, data, place)


def findings(lab, names):
    """Return by neighbour what differs, or else which release moved too far."""
    first, found = lab.run(), {}
    assert first.refusal is None, first.refusal
    assert {"r/share/privacy.json", "r/model/model.safetensors"} < first.files.keys()
    for name in names:
        neighbour = lab.way.neighbours[name]
        try:
            found[name] = first.differences(lab.run(neighbour))
        except AssertionError as error:  # of the tape
            found[name] = [str(error)]
        if not found[name] and len(lab.tape.now) < len(lab.tape.first):
            found[name] = ["fewer releases"]
        # one unit is left out, or has other records
        units = 1 if neighbour == LEFT_OUT else 0 if name in OTHER_BATCHES else 2
        if units and not found[name]:
            found[name] = [f"moved too far: {w}" for w in overspent(lab.tape, first.spent, units)]
    return {name: what for name, what in found.items() if what}


def neighbours_of(name, rest=False):
    """Return the neighbours that a way is tried with: its own, and half of all. Or the rest.

    Ways take turns, so that each half is left to other ways.
    """
    number = list(WAYS).index(name)
    left = {n for at, n in enumerate(NEIGHBOURS) if (at + number) % 2} - {ABSENT}
    left = left if number and len(WAYS[name].neighbours) > len(FEW) else set()
    return [n for n in WAYS[name].neighbours if (n in left) == rest]


def check_way(lab, monkeypatch, names):
    if "adaptive" in lab.way.options:
        fitted_scale(lab.place, lab.base)
    lab.way.change(monkeypatch)
    assert findings(lab, names) == {}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model of one layer, which is quicker."""
    return save_tiny(tmp_path_factory.mktemp("one-layer"), "GPT2Config", num_hidden_layers=1)


@pytest.fixture
def tape(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return put_tape(monkeypatch)


@pytest.mark.parametrize("name", WAYS)
def test_neighbours_write_every_byte_again(tape, base, tmp_path, monkeypatch, name):
    check_way(Lab(tape, base, tmp_path, WAYS[name]), monkeypatch, neighbours_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WAYS)[1:])
def test_the_other_neighbours_do_too(tape, base, tmp_path, monkeypatch, name):
    lab = Lab(tape, base, tmp_path, WAYS[name])
    check_way(lab, monkeypatch, neighbours_of(name, rest=True))


ODD_CELLS = (
    " ;NA;null;NaN;inf;1e400;0x1F;yes;2024-02-30;12:00 PM;01/02/2024;Jan 3, 2024;1,234.5;1.234,5;"
    "5%;٤٢;½;１２;(5);.5;-0;00012;1_000;9007199254740993;[1,2];{'a':1};\";\\N;#REF!;+49;@x;😀;a|b;"
    "0001-01-01;10000-01-01;2262-04-12;2024-01-01T00:00:00Z;id-0;u0;Other;title;<NA>;York ;YORK;\t"
).split(";")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing trained", "undeclared labels", "JSONL", "trained"])
def test_cells_drawn_at_random_change_nothing(tape, base, tmp_path, name):
    way, draw = copy(WAYS[name]), random.Random(7)
    way.neighbours = {}
    for number in range(25):
        cells = {n: draw.choice(ODD_CELLS) for n in TABLE if draw.random() < 0.8}
        cells |= {"text": f"{draw.choice(ODD_CELLS)}.", "label": draw.choice(["pos", "neg"])}
        way.neighbours[f"{number}: {cells}"] = edited(**cells)
    assert findings(Lab(tape, base, tmp_path, way), way.neighbours) == {}


def test_there_are_many_pairs():
    assert sum(len(neighbours_of(name)) for name in WAYS) >= 220


# -- refusals that depend on a record --------------------------------------------------------------

# SECURITY.md, "Whether a run was refused". What stops a run, and the option that lets it go on.
REFUSED = {
    "A column of people that repeats": (edited(user_id="u1"), "--each-row-is-someone"),
    "a stray quote": ('"the film 8 ', None),
    "a stray line break": ("the film\r8 ", None),
    "a missing text": (edited(text=""), "--drop-empty"),
    "an odd label": (edited(label="odd"), "--drop-undeclared"),
    "a missing owner": (edited(who=""), None),
}
FULL = OWNED.assign(
    text=OWNED["text"].mask(OWNED.index.isin([2, 22]), ""),  # one more gap is too many
    user_id=[f"u{i % 40}" if i != ODD else "odd" for i in range(N)],  # so is one person less
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_refuses_only_what_the_threat_model_names(tape, base, tmp_path, name):
    security = " ".join((ROOT / "SECURITY.md").read_text("utf-8").split())
    (said,) = re.findall(r"\*Whether a run was refused\.\* (.*?) can stop a run", security)
    assert set(re.split(", | or ", said)) == set(REFUSED)
    neighbour, remedy = REFUSED[name]
    options = (*COUNTED, *(BY_OWNER if name == "a missing owner" else ()))
    lab = Lab(tape, base, tmp_path, Way(*options, table=FULL))
    assert lab.run().refusal is None
    text = neighbour if isinstance(neighbour, str) else "the film 8 "
    refusal = lab.run(neighbour, lambda file: file.replace("the film 8 ", text)).refusal
    assert "t.csv" in refusal and "\n" not in refusal and "film" not in refusal
    assert not [p for p in (tmp_path / "1").rglob("*") if p.name != "t.csv"]  # nothing is written
    if remedy:
        lab.way.options, lab.request, tape.first, tape.now = (*options, remedy), None, [], []
        assert lab.run(neighbour).refusal is None


# -- faults: mistakes of libraries, planted in a run -----------------------------------------------


def mean_of_the_batch(plain, optimizer, sums, units):
    """Divide by the records that are in the batch, as plain SGD does."""
    optimizer._batch_size = max(1, len(units))
    plain(optimizer, sums, units)


def words_of_the_table(plain, run, base):
    """Count only the words that some text of the table has."""
    words = [token for ids in run.tokens.texts for token in ids]
    there = np.isin(np.arange(base.model.config.vocab_size), words)
    weights = releases.token_weights
    with pytest.MonkeyPatch.context() as patch:
        found = weights(base, run.progress)
        chosen = replace(found, weights=found.weights * there)
        patch.setattr(releases, "token_weights", lambda *given: chosen)
        return plain(run, base)


def whitening_of_private_texts(plain, run, model):
    """Scale hidden states by those of private texts, and not of rows that the model wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releases, "reference_rows", lambda *given: {"all": list(run.tokens.texts)})
        return plain(run, model)


def filter_by_the_table(plain, run):
    """Draw rows again that have a letter of one text alone, as if to prevent copies."""
    letters = Counter(letter for text in run.records.texts for letter in set(text))
    rare = {letter for letter, texts in letters.items() if texts == 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "is_usable", lambda text: not rare & set(text))
        plain(run)


def rows_by_real_shares(plain, run):
    """Write rows with labels in the table's proportions, not in those of the noisy counts."""
    counts = Counter(run.records.labels)
    combinations = run.records.schema.combinations
    shares = proportional_rows([counts[c] for c in combinations], run.rows.rows)
    run.counts = dict(zip(combinations, shares, strict=True))
    plain(run)


def type_by_cells(plain, release):
    """Choose a type by what the cells are, as a gap in a file once did."""
    plain(release)
    place = [column.name for column in release.columns].index("age")
    has_gap = (release.cells[place].places < 0).any()
    release.columns[place] = replace(release.columns[place], dtype="Int64" if has_gap else "int64")


def line_about_texts(plain, run):
    """Show how long the longest text is."""
    run.progress.say(f"the longest text has {max(map(len, run.records.texts))} characters")
    plain(run)


def text_in_a_file(plain, run):
    """Leave a private text in a file that is not shared."""
    run.folder.internal.joinpath("text.txt").write_text(run.records.texts[ODD])
    plain(run)


def refusal_by_a_text(plain, run):
    """Refuse a run for one text."""
    if any("5550123" in text for text in run.records.texts):
        raise InputError("a text holds too many digits. Remove it.")
    plain(run)


def owners_not_scaled(plain, units, records):
    """Count each record of an owner as if the others were not there."""
    weights = np.zeros(records, np.int64)
    weights[[row for unit in units for row in unit]] = UNIT_STEPS
    return weights


def values_of_the_table(plain, texts, selection, randomness):
    """Release all values that there are, as if noise had chosen them."""
    return Noisy([Counter(each) for each in texts], selection)


def two_thirds_of_the_noise(plain, total, sigma, *given):
    """Draw less noise than the event states."""
    return Noisy(opened(plain(total, sigma * 2 / 3, *given)), plain(total, sigma, *given).event)


def counted_twice(plain, *given):
    """Add each vector of a sum twice."""
    plain(*given)
    plain(*given)


def clipped_apart(plain, own, batch):
    """Clip each record of an owner on its own."""
    return plain(own, replace(batch, units=[[row] for unit in batch.units for row in unit]))


BYTES, LINES, REFUSALS, SUMS, FILES = "bytes", "lines", "refusals", "sums", "files"
OTHERS, LONG = "other words, another label, gaps", "a long text, extremes"
# What is replaced and by what, along which way, which neighbour shows it, and by what.
FAULTS = {
    "mean over the real batch": (
        *(PrivateOptimizer, "step", mean_of_the_batch),
        *("no counts, no teacher", ABSENT, BYTES),
    ),
    "words of the table": (
        *(releases, "count_tokens", words_of_the_table),
        *("nothing trained", OTHERS, BYTES),
    ),
    "whitening of private rows": (
        *(releases, "fit_teacher", whitening_of_private_texts),
        *("a teacher alone", OTHERS, BYTES),
    ),
    "a filter that looks at the table": (
        *(story, "sample", filter_by_the_table),
        *("nothing trained", OTHERS, BYTES),
    ),
    "rows by real shares of labels": (
        *(story, "sample", rows_by_real_shares),
        *("nothing trained", OTHERS, BYTES),
    ),
    "a domain read from the table": (
        *(columns, "select_label_values", values_of_the_table),
        *("nothing trained", "special tokens, values of its own", BYTES),
    ),
    "a type by cells": (
        *(ColumnRelease, "find_kinds", type_by_cells),
        *("nothing trained", OTHERS, BYTES),
    ),
    "the longest text of the table": (
        *(releases, "longest_text", lambda plain, run: max(map(len, run.tokens.texts))),
        *("longer texts", LONG, BYTES),
    ),
    "labels counted exactly": (
        *(releases, "count_labels", lambda plain, run: dict(Counter(run.records.labels))),
        *("nothing trained", OTHERS, BYTES),
    ),
    "N of the records that are left": (
        *(Records, "with_values", lambda plain, *given: replace(plain(*given), unit_of=None)),
        *("undeclared labels", "a label of its own", BYTES),
    ),
    "a line about texts": (*(story, "teach", line_about_texts), "trained", LONG, LINES),
    "a text in a file": (*(story, "teach", text_in_a_file), "trained", OTHERS, FILES),
    "a run refused for a text": (*(story, "plan", refusal_by_a_text), "trained", OTHERS, REFUSALS),
    "columns of owners not scaled": (
        *(columns, "unit_weights", owners_not_scaled),
        *("owners", ABSENT, SUMS),
    ),
    "labels of owners not scaled": (
        *(releases, "release_label_counts", lambda plain, *given: plain(*given[:4], 1)),
        *("owners", ABSENT, SUMS),
    ),
    "a marginal counted twice": (
        *(VectorSum, "add", counted_twice),
        *("nothing trained", ABSENT, SUMS),
    ),
    "clipping of each record": (
        *(ClippedSum, "compute_clipped_sum", clipped_apart),
        *("trained by owner", ABSENT, SUMS),
    ),
    "texts that are not masked": (
        *(story, "mask_texts", lambda plain, texts, *given: list(texts)),
        *("selective", "other spans", BYTES),
    ),
    "two thirds of the noise": (
        *(VectorSum, "release", two_thirds_of_the_noise),
        *("nothing trained", ABSENT, SUMS),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(tape, base, tmp_path, monkeypatch, fault):
    owner, name, replacement, way, neighbour, shown = FAULTS[fault]
    plain = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: replacement(plain, *given))
    (found,) = findings(Lab(tape, base, tmp_path, WAYS[way]), [neighbour]).values()
    kinds = {"line:": LINES, "refus": REFUSALS, "moved": SUMS, "files": FILES}
    assert shown in {kinds.get(each[:5], BYTES) for each in found}, found
