"""Paper 002's comparisons as tables: accuracy, losses, decoding, prompts and leaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.leakage.overlap import HELDOUT, RUN, SAMPLE, TRAIN
from evaluation.papers.intervals import Interval, difference, mean_of
from evaluation.papers.mattern.cases import (
    APART,
    BASELINE,
    COMPARED,
    DATA,
    REAL,
    RECORDS,
    RIVAL,
    SHORT,
    TWIN,
    Level,
    baseline,
    by_loss,
    levels,
    main_twins,
    names,
)
from evaluation.papers.mattern.found import Found, joint
from evaluation.papers.mattern.reviews import ATTRIBUTES
from evaluation.papers.mattern.scoring import ACCURACY, FIDELITY, PAIRS
from evaluation.papers.mattern.sizes import DECODINGS, NUCLEUS
from evaluation.papers.page import table
from evaluation.papers.report import Section
from evaluation.tables import names_of
from evaluation.utility import targets
from twinset.markdown import bullets, plain
from twinset.privacy.rounding import up_decimals

_LEARNT = ("learnt from", "records", "asked ε", "spent ε")
_RUNS = f"rows with a run of {RUN} words"


def sections(found: Found) -> Iterator[Section]:
    """Yield the page's tables."""
    for data in DATA:
        yield Section(f"{data}: accuracy on real test rows", _accuracies(found, data))
    for data in DATA:
        yield Section(f"{data}: with and without the mismatch loss", _losses(found, data))
    yield Section("Decoding", _decodings(found))
    yield Section("Prompts against one model per label", _apart(found))
    yield Section("What the released texts give away", _leaks(found))


def _accuracies(found: Found, data: str) -> list[str]:
    facts = found.rows.facts[data]
    guesses = ", ".join(f"{name} {value:.3f}" for name, value in facts["guesses"].items())
    notes = (
        f"{facts['train']:,} real rows are all; {facts['test']:,} test rows, of which "
        f"{facts['coinciding']:,} are training rows too. A twin has {found.size.rows[data]:,}.",
        f"Always answering the commonest label: {guesses}.",
        f"Twins: {found.size.mismatch}, {NUCLEUS}. {BASELINE.capitalize()}: the base model behind "
        "the same prompts, the row that the paper lacks.",
        "A twin's ε covers all targets and the texts; a DP classifier spends its ε on each target "
        "anew.",
        "Perplexity: of test rows behind their prompts; below that of no private data, something "
        "was learnt.",
    )
    columns = _columns(found, data)
    header = [*_LEARNT, *(f"{t}, {c}" for t, c in columns), "perplexity", "seeds", "s"]
    shown = (x for x in levels(data, found.size) if _is_main(x, found))
    body = (_accuracy_cells(found, level, columns) for level in shown)
    return [*bullets(map(plain, notes)), "", *table(header, body, left=2)]


def _is_main(level: Level, found: Found) -> bool:
    if level.source == TWIN:
        return level.mismatch == found.size.mismatch
    return level.source in (REAL, RIVAL, SHORT, BASELINE)


def _columns(found: Found, data: str) -> list[tuple[str, str]]:
    return [(names_of(t), c) for t in targets(ATTRIBUTES[data]) for c in found.size.classifiers]


def _accuracy_cells(found: Found, level: Level, columns: list[tuple[str, str]]) -> list[str]:
    rows = list(found.of(level).values())
    known = rows[0][ACCURACY]
    asked, count = names(level.epsilon, level.records)
    return [
        level.source,
        count,
        asked,
        _spent(level, rows),
        *(_mean(found.accuracy(level, t, c)) if c in known[t] else "" for t, c in columns),
        found.perplexity(level).text(1) if "perplexity" in rows[0] else "",
        str(len(rows)),
        f"{sum(row['seconds'] for row in rows) / len(rows):.0f}",
    ]


def _spent(level: Level, rows: list[dict[str, Any]]) -> str:
    """Return the largest ε that was spent, rounded up; a DP classifier's noise is set to its ε."""
    if level.source == RIVAL:
        return names(level.epsilon, None)[0]
    spent = [row.get("epsilon") for row in rows]
    known = [value for value in spent if value is not None]
    return up_decimals(max(known)) if len(known) == len(spent) else "none"


def _mean(values: Mapping[int, float]) -> str:
    return str(mean_of(list(values.values()), 0.0, 1.0))


def _losses(found: Found, data: str) -> list[str]:
    target, classifiers = joint(data), found.size.classifiers
    note = (
        f"All records. Label fidelity: the share of a twin's rows whose {target} a classifier of "
        "all real rows finds; such classifiers err too. "
        "Published: a mismatched prompt's loss is subtracted, and may grow without bound. Bounded: "
        "a penalty that ends once the text tells prompts apart. A model that writes no usable row "
        "counts as one whose twin teaches nothing: a guess, and no fidelity."
    )
    header = ["asked ε", "loss"]
    header += [f"{m}, {c}" for m in (FIDELITY, ACCURACY) for c in classifiers] + ["perplexity"]
    body = (
        [names(level.epsilon, None)[0], str(level.mismatch)]
        + [
            _mean(found.values(level, measure, target, c))
            for measure in (FIDELITY, ACCURACY)
            for c in classifiers
        ]
        + [found.perplexity(level).text(1)]
        for epsilon in (COMPARED, None)
        for level in by_loss(data, found.size, epsilon)
    )
    return [plain(note), "", *table(header, body, left=2)]


def _decodings(found: Found) -> list[str]:
    classifiers = found.size.classifiers
    note = (
        f"The same model's rows drawn in other ways: the twin of all records at ε = {COMPARED:g}, "
        "and the base model. Accuracy and fidelity of all labels together. Distinct-2: the share "
        f"of different ones among a table's pairs of words, {PAIRS:,} at most; shorter tables have "
        "fewer, and so a larger share."
    )
    header = ["table", "written by", "drawn from"]
    header += [f"{m}, {c}" for m in (ACCURACY, FIDELITY) for c in classifiers] + ["distinct-2"]
    body = (
        [data, level.source, decoding]
        + [
            _mean(found.values(level, measure, joint(data), c, decoding))
            for measure in (ACCURACY, FIDELITY)
            for c in classifiers
        ]
        + [str(found.distinct(level, decoding))]
        for data in DATA
        for level in (_compared(found, data), baseline(data))
        for decoding in DECODINGS
    )
    return [plain(note), "", *table(header, body, left=3)]


def _compared(found: Found, data: str) -> Level:
    return Level(data, TWIN, None, COMPARED, found.size.mismatch)


def _apart(found: Found) -> list[str]:
    """Compare one model behind prompts with one for each combination, which none can mismatch."""
    note = (
        f"All records at ε = {COMPARED:g}, each combination of labels with a model of its own "
        "and the same visits in all, less one model of all labels behind prompts with the loss "
        "named. Each of the models has less data, and as much noise."
    )
    header = ["table", "label", "less"]
    header += [f"{m}, {c}" for m in (ACCURACY, FIDELITY) for c in found.size.classifiers]
    body = (
        [data, names_of(t), str(level.mismatch)]
        + [
            str(_apart_less(found, level, measure, names_of(t), c))
            for measure in (ACCURACY, FIDELITY)
            for c in found.size.classifiers
        ]
        for data in DATA
        for t in targets(ATTRIBUTES[data])
        for level in list(by_loss(data, found.size, COMPARED))[:2]
    )
    return [plain(note), "", *table(header, body, left=3)]


def _apart_less(found: Found, one: Level, measure: str, target: str, classifier: str) -> Interval:
    own = Level(one.data, APART, None, COMPARED)
    return difference(*(found.values(x, measure, target, classifier) for x in (own, one)))


def _leaks(found: Found) -> list[str]:
    others = {data: found.rows.facts[data]["others"] for data in DATA}
    note = (
        "AUROC: rows that were learnt from against others, told apart by the nearest row that was "
        "written; 0.5 knows nothing. Shared runs: rows written that share a run of "
        f"{RUN} words with rows learnt from, and with as many others, which is what chance is; the "
        "longest also with any row learnt from, of which there may be more. "
        f"{BASELINE.capitalize()}: against the same records, from which nothing was learnt: what "
        "an AUROC is by chance, which verdicts take off it, seed by seed. Others: "
        f"{', '.join(f'{data}: {one}' for data, one in others.items())}."
    )
    attacks = found.attacks(DATA[0])
    header = ["table", "written by", "records", "asked ε", *(f"AUROC, {a}" for a in attacks)]
    header += ["longest shared run, any learnt from", "as many", "others"]
    header += [f"{RUN} words, as many learnt from", "others"]
    body: list[list[str]] = []
    for data in DATA:
        body += [_chance_cells(found, data, records, attacks) for records in RECORDS]
        body += [_leak_cells(found, level, attacks) for level in main_twins(data, found.size)]
    return [plain(note), "", *table(header, body, left=3)]


def _chance_cells(found: Found, data: str, records: int | None, attacks: list[str]) -> list[str]:
    areas = [_mean(found.chance(data, records, attack)) for attack in attacks]
    runs = _run_cells(found, baseline(data)) if records is None else [""] * 5
    return [data, BASELINE, names(None, records)[1], "0", *areas, *runs]


def _leak_cells(found: Found, level: Level, attacks: list[str]) -> list[str]:
    asked, count = names(level.epsilon, level.records)
    areas = [_mean(found.leak(level, "AUROC", attack)) for attack in attacks]
    return [level.data, level.source, count, asked, *areas, *_run_cells(found, level)]


def _run_cells(found: Found, level: Level) -> list[str]:
    row = next(iter(found.of(level).values()))
    equal = SAMPLE if f"{_RUNS}, {SAMPLE}" in row["leaks"]["shared"] else TRAIN
    runs = [
        max(found.leak(level, "shared", f"longest verbatim run, {where}").values())
        for where in (TRAIN, equal, HELDOUT)
    ]
    return [
        *(f"{run:.0f}" for run in runs),
        *(_mean(found.leak(level, "shared", f"{_RUNS}, {where}")) for where in (equal, HELDOUT)),
    ]
