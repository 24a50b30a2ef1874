"""Paper 003's perplexities and ours side by side, a section for each kind of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evaluation.papers.intervals import geometric_mean
from evaluation.papers.kerrigan import published
from evaluation.papers.kerrigan.found import LEVELS, Found, blocks
from evaluation.papers.kerrigan.published import BOTH, PUBLIC
from evaluation.papers.learning import perplexity
from evaluation.papers.page import table
from evaluation.papers.report import Section
from evaluation.papers.rows import Rows
from twinset.markdown import bullets, plain
from twinset.privacy.rounding import up_decimals

HEADER = (
    "trained on",
    "σ",
    "ε",
    "perplexity, development",
    "perplexity, test",
    "÷ public only",
    "paper: development",
    "paper: test",
    "paper: ÷ public only",
    "paper: ε",
    "seeds",
    "lines/s",
)


def perplexities(rows: Rows) -> Iterator[Section]:
    """Yield a section for each kind of tokens, with a table for each model."""
    for block, found in blocks(rows):
        lines = bullets(map(plain, _facts(block)))
        for one in found:
            body = (_cells(one, *level) for level in LEVELS)
            lines += ["", f"### {plain(one.name)}", "", *table(HEADER, body)]
        yield Section(f"Perplexity per token: {block['tokens']}", lines)


def _facts(block: Mapping[str, Any]) -> Iterator[str]:
    counted = (perplexity(np.array(block[n])) for n in ("counts_groups_dev", "counts_groups"))
    dev, test = (f"{value:.1f}" for value in counted)
    yield (
        f"Public lines: {block['public lines']:,}; private: {block['private lines']:,}; "
        f"development: {block['development lines']:,}; test: {block['test lines']:,} with "
        f"{block['test tokens']:,} tokens; lines cut at the context: {block['lines cut']:,}."
    )
    yield (
        f"Words that no token stands for, left out: {block['unknown words of test']:.1%} of "
        "the test words."
    )
    yield (
        f"To be beaten: word counts of the public text, {dev} (development), {test} (test); "
        f"a blind guess, {block['vocabulary']:,}."
    )


def _cells(found: Found, start: str, sigma: float) -> list[str]:
    rows = list(found.of(start, sigma).values())
    speeds = [row["records_per_second"] for row in rows]
    parts = ([row[f"perplexity_{part}"] for row in rows] for part in ("dev", "test"))
    return [
        start,
        "" if start == PUBLIC else f"{sigma:g}",
        _spent(rows),
        *(geometric_mean(values).text(1) for values in parts),
        "" if start == PUBLIC else str(found.relative(start, sigma)),
        *_published(found.network, start, sigma),
        str(len(rows)),
        f"{sum(speeds) / len(speeds):.0f}",
    ]


def _spent(rows: list[dict[str, Any]]) -> str:
    """Return the largest ε of some rows, rounded up."""
    found = [row["epsilon"] for row in rows]
    return "none" if None in found else up_decimals(max(found)) if max(found) else "0"


def _published(network: str, start: str, sigma: float) -> list[str]:
    key = network, start, sigma
    if key in published.USELESS:
        return ["useless", "useless", "", ""]
    if key not in published.TABLE_1:
        return ["", "", "", ""]
    dev, test = published.TABLE_1[key]
    relative = "" if start == PUBLIC else f"{published.relative(key):.3f}"
    spent = f"{published.EPSILON[sigma]:.2f}" if start == BOTH and sigma else ""
    return [f"{dev:.2f}", f"{test:.2f}", relative, spent]
