"""Inputs of an evaluation: a twin's file, a run folder, held-out rows, and tables to compare.

Reads no weights. The only files it writes are temporary copies of real rows, inside `internal/`.
Messages count rows and never quote one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from twinset.config import RunConfig, SpeedConfig
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file
from twinset.files.environment import machine, versions
from twinset.files.limits import read_text
from twinset.models.device import AUTO, check_device
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT
from twinset.progress import Silent
from twinset.release.publish import beside
from twinset.release.share import LEDGER, PRIVACY, check_file_format
from twinset.run.request import Source
from twinset.run.run_folder import HELD_OUT as HELD_OUT_FILE
from twinset.run.run_folder import SETTINGS, check_ended, kept_rows
from twinset.run.story import read_source
from twinset.sampling.twin_model import DESCRIPTION, twin_frame
from twinset.table.cells import one_type_each
from twinset.table.choose import check_table, choose_columns
from twinset.table.columns import (
    Picked,
    Texts,
    as_texts,
    facts_of,
    label_cells,
    text_cells,
)
from twinset.table.kinds import ColumnRules
from twinset.table.labels import LabelRules, spelled_labels
from twinset.table.read import FORMATS, format_of, read_frame, write_frame, written_names
from twinset.table.records import Records, records_from_frame, with_joined_text
from twinset.table.schema import Combination, Schema, plain, written_line
from twinset.table.templates import Template
from twinset.table.text_formats import OF_TEXT, OWN_DELIMITERS, Layout

REAL, REAL_SMALL = "real", "real, no more rows than the twin"
TWIN, BASELINE, NON_PRIVATE = "twin", "no private data", "non-private twin"
TWIN_SMALL = "twin, no more rows than the base"
PRIVATE_CLASSIFIER = "DP classifier on real rows"
HELD_OUT = "held out"
Forms: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]  # how `read_frame` reads two tables
AS_THEY_ARE: Forms = ({}, {})
_OF_TEXTS = ("encoding", "delimiter", "multiline")
_NEITHER = re.compile(r"[\W_]+")  # letters nor digits
NAMED = 5  # labels in one line
FEW_ROWS = 30  # below, one line says that nothing can be concluded from so few


@dataclass(frozen=True)
class Tables:
    """Rows to learn from, and rows to test on."""

    train: pd.DataFrame  # the private table
    heldout: pd.DataFrame  # real rows that no one learns from
    twin: pd.DataFrame
    text: str  # name of the text column
    attributes: tuple[str, ...]  # names of the label columns
    baseline: pd.DataFrame | None = None  # rows that the base model wrote without private data
    non_private: pd.DataFrame | None = None  # rows that a model trained without noise wrote
    # Of the twin, where it is known: it may have declared labels that no real row has
    schema: Schema | None = None

    @property
    def written(self) -> dict[str, pd.DataFrame]:
        """Return the tables that a model wrote."""
        found = {TWIN: self.twin, NON_PRIVATE: self.non_private, BASELINE: self.baseline}
        return {name: frame for name, frame in found.items() if frame is not None}


def check_tables(tables: Tables) -> list[str]:
    """Return notes for a reader of these tables, or refuse tables that do not fit together."""
    notes, text, schema = list[str](), tables.text, tables.schema
    declared = {a.name: set(map(plain, a.values)) for a in schema.attributes} if schema else {}
    found: dict[str, dict[str, set[str]]] = {}  # table → attribute → its labels
    named = {"`train`": tables.train, "`test`": tables.heldout} | tables.written
    for name, frame in named.items():
        check_table(frame, name)
        choose_columns(frame, text, list(tables.attributes), name, [])
        text_cells(frame[text], f"{name}: column {text!r}")
        labelled(frame, text, tables.attributes, name)
        found[name] = {a: set(labelled(frame, text, (a,))[1]) for a in tables.attributes}
        for attribute, labels in found[name].items():
            if unknown := labels - found["`train`"][attribute] - declared.get(attribute, set()):
                raise InputError(
                    f"{name}: column {attribute!r} has {len(unknown)} labels that `train` lacks. "
                    "Give tables of the same kind."
                )
    for attribute, known in found["`train`"].items():
        if rest := known - found["`test`"][attribute]:
            # Only labels that the twin shows anyway are named.
            shown = sorted(rest & found[TWIN][attribute])[:NAMED]
            notes.append(
                f"{attribute}: {len(rest)} of {len(known)} labels have no row in `test`, so they "
                f"are not judged{': ' if shown else ''}{', '.join(map(repr, shown))}"
            )
    for name, frame in tables.written.items():
        if len(frame) < FEW_ROWS:
            notes.append(f"{name} has only {len(frame)} rows. They are too few for conclusions.")
        for attribute, labels in found[name].items():
            if len(labels) < 2:
                notes.append(f"{name} has only one {attribute!r}, so classifiers learn nothing")
    return notes


def labelled(
    frame: pd.DataFrame, text: str, target: Sequence[str], source: str = "table"
) -> tuple[list[str], list[str]]:
    """Return texts and labels of the rows that have both, at least one.

    Labels are compared by their spelling, so equal values agree whatever file they came from.
    """
    columns = (label_cells(frame[name], f"column {name!r}") for name in target)
    texts = text_cells(frame[text], f"column {text!r}")
    rows = [
        # a line of CSV, so that no two pairs are written alike
        (row, written_line(values) if len(values) > 1 else plain(values[0]))
        for row, *values in zip(texts, *columns, strict=True)
        if row is not None and None not in values
    ]
    if not rows:
        raise InputError(f"{source}: no row has both a text and {', '.join(target)}. Give others.")
    return [row for row, _ in rows], [label for _, label in rows]


def normalised(text: object) -> str:
    """Return the letters and digits by which rows count as the same, or the text if it has none.

    >>> normalised("Good film!"), normalised("SO-SO"), normalised(3), normalised(":-)")
    ('goodfilm', 'soso', '3', ':-)')
    """
    return _NEITHER.sub("", str(text).lower()) or str(text)


@dataclass(frozen=True)
class Twin:
    """A twin's rows and their guarantee."""

    frame: pd.DataFrame
    epsilon: float | None = None  # ε, or None without a guarantee
    delta: float | None = None  # its δ
    sentence: str = "unknown: the twin came without its privacy.json"  # the guarantee in words
    unit: str = ""  # the unit that the guarantee protects. "" without one.

    @classmethod
    def from_ledger(cls, frame: pd.DataFrame, ledger: Ledger) -> Twin:
        """Return rows with the guarantee of their ledger."""
        claim = guarantee(ledger)
        return cls(frame, claim.epsilon, claim.delta, claim.sentence, claim.unit)

    @classmethod
    def read(cls, path: Path) -> Twin:
        """Read a twin and its `privacy.json`, from `share/` or from the files of `--output`."""
        file = next((f for f in (beside(path)[1], path.with_name(PRIVACY)) if f.is_file()), None)
        if file is None:
            return cls(read_frame(path))
        check_file_format(file)
        try:
            described = json.loads(file.read_text("utf-8"))
            twin = described["files"]["twin"]
            # A ledger says nothing of a file that was changed or put in the twin's place.
            if twin["sha256"] != sha256_file(path):
                message = f"unknown: {file.name} describes another file"
                return cls(read_frame(path), sentence=message)
            frame = read_frame(path, written_as=twin["format"])
            return cls.from_ledger(frame, Ledger.from_dict(described["ledger"]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file}: holds no ledger. Restore it, or remove it.") from error

    @property
    def is_of_whole_records(self) -> bool:
        """Whether the guarantee covers all that a record says, not only flagged spans."""
        return self.epsilon is not None and self.unit != FLAGGED_UNIT


@dataclass(frozen=True)
class FinishedRun:
    """The results of a run."""

    root: Path
    config: RunConfig  # its options, with the steps, batch size and rate that were chosen for it
    schema: Schema  # shape of the private table
    template: Template  # its prompts
    labels: LabelRules = LabelRules()  # by which rows of the table's kind get labels of the schema
    # How its table was read. See `Source.reading`.
    reading: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, device: str = AUTO) -> FinishedRun:
        """Read a run folder. One that is damaged, or of another format, is refused.

        The device is for all later computations. It is this machine's, not the run's.
        """
        check_file_format(root / "model" / LEDGER)
        try:
            made_from = json.loads(read_text(root / "internal" / SETTINGS))
            plan = made_from["plan"]  # the run's choice, if its options left it open
            config = RunConfig.from_dict(made_from)
            chosen = {name: plan[name] for name in ("steps", "batch_size", "learning_rate")}
            training = replace(config.training, **chosen)
            config = replace(config, training=training, speed=replace(config.speed, device=device))
            described = json.loads(read_text(root / "model" / DESCRIPTION))
            schema = Schema.from_dict(described["schema"])
            template = Template.from_dict(described["template"])
            labels = LabelRules(**made_from.get("labels", {})).settled(schema, {})
        except InputError as error:
            raise InputError(f"{root}: {error}") from None
        except DAMAGED as error:
            raise InputError(
                f"{root}: is not a complete run folder ({type(error).__name__}). Check the path."
            ) from error
        return cls(root, config, schema, template, labels, made_from.get("reading", {}))

    @property
    def internal(self) -> Path:
        """The folder that stays with the owner."""
        return self.root / "internal"


@dataclass(frozen=True)
class Release:
    """A twin, with its run folder if there is one."""

    path: Path  # the twin's file, or the run folder
    file: Path  # the file of the twin's rows
    twin: Twin  # its rows and its guarantee
    run: FinishedRun | None
    device: str = AUTO  # for computing measures, as in `device_of`

    @classmethod
    def read(cls, path: Path, run: Path | None = None, device: str = AUTO) -> Release:
        """Read a run folder, or a twin's file with or without its run folder."""
        check_device(SpeedConfig(device=device).device, 1)
        check_ended(run or path)
        # A run folder has a model. Anything else is the file of a twin.
        is_run = (path / "model" / DESCRIPTION).is_file()
        if is_run and run is not None:
            raise InputError(f"{path} is a run folder. Leave `run` out.")
        root, file = run or (path if is_run else None), path
        finished = None if root is None else FinishedRun.read(root, device)
        if is_run:
            twins = (path / "share" / f"twin{ending}" for ending in FORMATS)
            there = [twin for twin in twins if twin.is_file()]
            if not there:
                raise InputError(f"{path}/share holds no twin yet. Run `twinset sample {path}`.")
            file = there[0]
        twin = Twin.read(file)
        if finished is not None:
            # A CSV guards column names against spreadsheets. The schema has the true ones.
            names = list(finished.schema.columns)
            if list(twin.frame.columns) == written_names(pd.DataFrame(columns=names), "csv"):
                twin = replace(twin, frame=twin.frame.set_axis(names, axis="columns"))
            twin = replace(twin, frame=read_labels(twin.frame, finished.schema))
        return cls(path, file, twin, finished, device)

    def real_tables(
        self, paths: Sequence[Path], request: Any, notes: list[str]
    ) -> tuple[list[pd.DataFrame], str, list[str]]:
        """Return tables of real rows, and the names of their text and label columns.

        The columns are those of the request, else the run's, else guessed and noted.
        """
        frames = [read_frame(path, **form) for path, form in zip(paths, request.forms, strict=True)]
        joined = [with_joined_text(frame, request.text, list(frame)) for frame in frames]
        text, names, run = joined[0][1], list(request.attributes), self.run
        if run is not None:
            text = text or run.schema.text
            names = names or [attribute.name for attribute in run.schema.attributes]
        text, names = choose_columns(self.twin.frame, text, names, str(self.path), notes)
        for place, (path, (frame, *_)) in enumerate(zip(paths, joined, strict=True)):
            notes += [f"{path}: {note}" for note in facts_of(frames[place]).notes]
            check_table(frame, str(path))
            choose_columns(frame, text, names, str(path), notes)
            if run is not None:
                kind = run.schema, run.labels, str(path)
                frame = records_to_frame(public_records(frame, *kind, notes.append))
            frames[place] = frame
        return frames, text, names

    def about(self, command: str, table: Path) -> dict[str, Any]:
        """Return what a reader of findings needs to repeat them."""
        twin, data = self.twin, "/".join(table.parts[-2:])
        claim = {"epsilon": twin.epsilon, "delta": twin.delta, "guarantee": twin.sentence}
        made = {"command": command, "data": data, "twin_sha256": sha256_file(self.file)}
        return {**made, **claim, "versions": versions(), "machine": machine()}


def forms_of(reading: Mapping[str, Any], data: Any, others: Any = None, **given: Any) -> Forms:
    """Return how to read a private table, and other real rows: as given, else as a run read it.

    The options are those of `Source.reading`. What does not suit a format is left out. The split,
    or sheet, is the private table's. Its encoding is a good guess for a file of the same format.
    """
    suits: dict[str, tuple[str | None, ...]] = {"split": ("xlsx", None)}
    suits |= dict.fromkeys(_OF_TEXTS, OF_TEXT) | {"delimiter": tuple(OWN_DELIMITERS)}
    kinds = [format_of(each) if isinstance(each, str | Path) else "" for each in (data, others)]
    for name in given:
        if not set(kinds) & set(suits[name]):
            raise InputError(f"`{name}`: is for tables in another form than {data}. Leave it out.")
    known, forms = {**reading, **given}, list[dict[str, Any]]()
    for kind, one in ((kinds[0], known), (kinds[1], known if kinds[0] == kinds[1] else given)):
        form = {n: value for n, value in one.items() if value and kind in suits.get(n, ())}
        split = form.pop("split", None)
        forms.append({"split": None if forms else split, "layout": Layout(**form)})
    return forms[0], forms[1]


@contextmanager
def open_real_rows(
    run: FinishedRun | None,
    data: Path,
    others: Path | None,
    text: str | None,
    given: Mapping[str, Any],
) -> Iterator[tuple[Path, Path, str | None, Forms]]:
    """Yield files of training rows and of other rows, their text column, and how to read them.

    By default the other rows are those that the run held out. Then the table is read as the run
    read it. The text column may be a template that joins several. By default it is the run's, or
    guessed. So is how the files are read, see `forms_of`.
    """
    reading = dict(run.reading) if run is not None else {}
    text, forms = text or reading.get("text"), forms_of(reading, data, others, **given)
    if others is not None:
        yield data, others, text, forms
        return
    if run is None or not (run.internal / HELD_OUT_FILE).is_file():
        raise InputError(
            "real rows are needed that the model was not trained on. Name a file, or make a run "
            "with `hold_out=0.2`, which keeps some back."
        )
    source = Source(
        str(data),
        text or run.schema.text,
        tuple(attribute.name for attribute in run.schema.attributes),
        forms[0]["split"],
        drop_empty=True,
        labels=run.labels,
        columns=ColumnRules(run.schema.others),
        **{name: getattr(forms[0]["layout"], name) for name in _OF_TEXTS},
    )
    # Private rows are copied into the owner's folder only, never into the system's /tmp.
    with TemporaryDirectory(dir=run.internal, prefix=f"{data.name}-") as folder:
        found = Path(folder, "trained-on.parquet"), Path(folder, HELD_OUT_FILE)
        for path, records in zip(found, split_held_out(run.root, source), strict=True):
            write_frame(records_to_frame(records), path)
        yield *found, None, AS_THEY_ARE


def split_held_out(run: Path, source: Source) -> tuple[Records, Records]:
    """Return the records that a run was trained on, and those that it held out."""
    internal = run / "internal"
    try:
        _, records, _ = read_source(source, Silent(), internal)  # if it is large
    except InputError as error:  # it may offer options that only a run has
        fault = str(error).partition(". ")[0]
        raise InputError(f"{fault}. So it is not the table of {run}. Give that one.") from None
    trained, held = records.split(kept_rows(internal))
    if held is None:
        raise InputError(f"{run}: no rows were held out. Set `hold_out`.")
    # The places of held-out rows mean nothing in another table, so the texts must be the same.
    if list(held.texts) != read_frame(internal / HELD_OUT_FILE)[records.schema.text].tolist():
        raise InputError(f"{source.name}: is not the table of {run}. Give that one.")
    return trained, held


def read_labels(frame: pd.DataFrame, schema: Schema, source: str = "the twin") -> pd.DataFrame:
    """Return a twin's rows with their labels as in the schema.

    It does not matter which type CSV, Parquet or pandas gave to "1". Unknown labels stay.
    """
    found = {}
    for attribute in schema.attributes:
        if attribute.name in frame.columns:
            known: dict[Any, Any] = {plain(value): value for value in attribute.values}
            column = frame[attribute.name]
            pairs = zip(spelled_labels(column, attribute, source), column.tolist(), strict=True)
            found[attribute.name] = pd.Series([known.get(*p) for p in pairs], frame.index, object)
    frame = frame.assign(**found)
    frame.attrs = {}  # its source states nothing any more: nothing is guessed again
    return frame


def public_records(
    frame: pd.DataFrame, schema: Schema, rules: LabelRules, source: str, say: Callable[[str], Any]
) -> Records:
    """Return a table's records with labels of a schema, by settled rules. Others are left out."""
    # A real row with a label that the run did not release can't be compared with the twin.
    names, rules = [a.name for a in schema.attributes], replace(rules, drop=True)
    check_table(frame, source)
    choose_columns(frame, schema.text, names, source, [])
    text_cells(frame[schema.text], f"{source}: column {schema.text!r}")
    found = {a.name: spelled_labels(frame[a.name], a, source) for a in schema.attributes}
    spelt = frame.assign(**found)
    spelt.attrs = {}  # labels are texts now, whatever the source states
    # the twin's other columns, where this table has them
    keep = ColumnRules(tuple(name for name in schema.others if name in frame))
    try:
        records, _ = records_from_frame(
            spelt, schema.text, names, drop_empty=True, rules=rules, keep=keep
        )
    except InputError:  # what it offers are options of a run
        why = f"{source}: no row has both a text and labels of the twin."
        for attribute in schema.attributes:
            has = pd.api.types.infer_dtype(frame[attribute.name], skipna=True)
            here = {"integer": "numbers", "floating": "numbers", "boolean": "booleans"}.get(has)
            why += f" Its {attribute.name!r} is {' or '.join(map(repr, attribute.values[:NAMED]))}"
            why += f", and this table has {here}." if here else "."
        raise InputError(f"{why} Give a table of the same kind.") from None
    if left_out := len(frame) - len(records):
        say(f"{source}: leaving out {left_out} of {len(frame)} rows without a text or such labels")
    known, labels = schema.spelled, records.labels
    assert isinstance(labels, Picked)
    labels = replace(labels, items=[known[row] for row in labels.items])
    return replace(records, labels=labels, schema=schema)


def rows_per_label(twin: pd.DataFrame, schema: Schema) -> dict[Combination, int]:
    """Count a twin's rows of every combination of the schema, and refuse any other."""
    names = [attribute.name for attribute in schema.attributes]
    choose_columns(twin, schema.text, names, "the twin", [])
    found, known = Counter(as_texts(twin[names]).itertuples(False, None)), schema.spelled
    if not found.keys() <= known.keys():
        raise InputError("the training table lacks some of the twin's labels. Give the right one.")
    return {combination: found[spelt] for spelt, combination in known.items()}


def take_records(records: Records, places: np.ndarray) -> Records:
    """Return the records at these places."""
    texts, labels = [records.texts[i] for i in places], [records.labels[i] for i in places]
    others = records.other_columns()
    if others is None:
        return Records(texts, labels, records.schema, whose=records.whose)
    own = Texts(np.array(texts, object), np.arange(len(texts)))
    others = others.iloc[places]
    return Records(own, labels, records.schema, whose=records.whose, others=others)


def records_to_frame(records: Records) -> pd.DataFrame:
    """Return records as a table again, for files too."""
    others = records.other_columns()
    others = None if others is None else one_type_each(others)
    return twin_frame(records.schema, records.texts, records.labels, others)


def parse_file(path: Path, parse: Callable[[str], Any]) -> Any:
    """Return the content of a file of the run, or None if it is missing."""
    if not path.is_file():
        return None
    try:
        return parse(read_text(path))
    except DAMAGED as error:
        raise InputError(
            f"{path}: is damaged ({type(error).__name__}). Restore it, or remove it."
        ) from error
