"""One page about the twin for whoever receives it: `report.html`, from what is shared and no more.

Its numbers are the guarantee's, the ledger's, and counts of the twin's own rows: all of them public
or post-processing of a recorded noisy event. What was measured on private or held-out rows is in
the owner's report alone, which twinset's evaluation writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

import pandas as pd

from twinset import __version__
from twinset.data.schema import Schema
from twinset.privacy.accounting.rounding import up_decimals, up_digits
from twinset.privacy.statement.belief import belief_sentence
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.rendering import template

ROWS, LETTERS, BARS = 20, 700, 10  # shown: rows, letters of each, bars of a chart

Bar = tuple[str, int]  # what is counted, how many rows


def render_share_page(
    title: str, base_model: str, frame: pd.DataFrame, schema: Schema, ledger: Ledger
) -> str:
    """Return the page as one text that fetches nothing and runs nothing.

    Args:
        title: of the data set.
        base_model: what the base model is called.
        frame: the twin.
        schema: its columns.
        ledger: what was spent.
    """
    claim = guarantee(ledger)
    day = f"{date.today():%d %B %Y}".lstrip("0")
    text: str = template("share_page.html.jinja").render(
        title=title,
        facts=[f"{len(frame):,} rows", f"written by {base_model}", day, f"twinset {__version__}"],
        claim=claim,
        budget=_budget(claim),
        belief=belief_sentence(claim),
        charts=[*_labels(frame, schema), ("Words a text", _lengths(frame[schema.text].tolist()))],
        rows=_rows(frame, schema.text),
        total=len(frame),
    )
    return text


def _budget(claim: Guarantee) -> tuple[str, str] | None:
    """Return ε and δ in digits, rounded up; None where nothing is guaranteed."""
    if claim.epsilon is None or claim.delta is None:
        return None
    return up_decimals(claim.epsilon), up_digits(claim.delta)


def _labels(frame: pd.DataFrame, schema: Schema) -> list[tuple[str, list[Bar]]]:
    """Count the rows of each value of each attribute, the commonest ones by themselves."""
    charts = []
    for attribute in schema.attributes:
        counts = Counter(map(str, frame[attribute.name]))
        bars = counts.most_common(BARS)
        rest = len(frame) - sum(rows for _, rows in bars)
        charts.append((attribute.name, [*bars, *([("others", rest)] if rest else [])]))
    return charts


def _lengths(texts: Sequence[str]) -> list[Bar]:
    """Count the rows by number of words, in about `BARS` equal steps.

    >>> _lengths(["one", "one two", "one two three"])
    [('1', 1), ('2', 1), ('3', 1)]
    """
    words = [len(text.split()) for text in texts]
    least, most = min(words, default=0), max(words, default=0)
    step = -(-(most - least + 1) // BARS)
    starts = range(least, most + 1, step)
    counts = Counter((count - least) // step for count in words)
    names = (str(s) if step == 1 else f"{s}–{s + step - 1}" for s in starts)
    return [(name, counts[place]) for place, name in enumerate(names)]


def _rows(frame: pd.DataFrame, text: str) -> list[tuple[str, str]]:
    """Return the labels and the text of some rows, none of them twice; the same of one twin."""
    different = frame.astype(str).drop_duplicates()
    drawn = different.sample(min(ROWS, len(different)), random_state=0)
    labels = [name for name in drawn.columns if name != text]
    return [
        (", ".join(f"{name}: {row[name]}" for name in labels), row[text][:LETTERS])
        for row in drawn.to_dict("records")
    ]
