"""Paper 003's perplexities and ours side by side, with a verdict on its claim, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.papers import published
from evaluation.papers.claim import Groups, Ratio, Verdict, ratio, verdict
from evaluation.papers.learning import perplexity
from evaluation.papers.published import BOTH, DELTA, PRIVATE, PUBLIC, SIGMAS
from evaluation.papers.readings import readings
from evaluation.papers.rows import Key, Rows
from evaluation.scores import mean
from twinset.markdown import bullets, code, plain
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
LARGEST = max(SIGMAS)
LEVELS = [(PUBLIC, 0.0), *((start, sigma) for start in (PRIVATE, BOTH) for sigma in SIGMAS)]


@dataclass(frozen=True)
class Found:
    """The rows of one model.

    Args:
        name: of the model.
        network: the paper's column: small, large or none.
        rows: all there are, by key.
        counts: groups of the public text's word counts on the test lines.
    """

    name: str
    network: str
    rows: Mapping[Key, dict[str, Any]]
    counts: Groups

    def of(self, start: str, sigma: float) -> dict[int, dict[str, Any]]:
        """Return the rows of one line of the table, by seed."""
        return {int(k[3]): r for k, r in self.rows.items() if k[:3] == (self.name, start, sigma)}

    def groups(self, start: str, sigma: float) -> dict[int, Groups]:
        """Return the test groups of one line of the table, by seed."""
        rows = self.of(start, sigma).items()
        return {seed: np.array(row["test_groups"]) for seed, row in rows}

    def relative(self, start: str, sigma: float) -> Ratio | None:
        """Return perplexity over that of the public model."""
        return ratio(self.groups(start, sigma), self.groups(PUBLIC, 0.0))

    def verdict(self) -> Verdict | None:
        """Return what was found of the claim; None while rows are missing."""
        public = self.groups(PUBLIC, 0.0)
        whose = {
            "public": public,
            "quiet": self.groups(PRIVATE, 0.0),
            "private": self.groups(PRIVATE, LARGEST),
            "both": self.groups(BOTH, LARGEST),
            "counts": dict.fromkeys(public, self.counts),
        }
        return verdict(whose.__getitem__)


def models(rows: Rows) -> Iterator[tuple[Mapping[str, Any], list[Found]]]:
    """Yield each kind of tokens, its facts, and the models that share it."""
    for block in rows.facts["blocks"]:
        counts = np.array(block["counts_groups"])
        names = block["contestants"].items()
        yield block, [Found(name, network, rows.rows, counts) for name, network in names]


def as_markdown(rows: Rows) -> str:
    """Return tables, verdicts, readings of the paper, and what made them."""
    lines = [
        "# Public text first: Kerrigan, Slack and Tuyls (2020)",
        "",
        f"The claim: “{published.CLAIM}”.",
        "",
        *_verdicts(rows),
        "",
    ]
    for block, found in models(rows):
        lines += _block(block, found)
    lines += ["## How this was measured", "", *bullets(map(plain, readings())), ""]
    about = rows.settings["about"]
    lines += bullets(f"{plain(name)}: {plain(value)}" for name, value in about.items())
    lines += bullets(f"{plain(k)}: {plain(v)}" for k, v in rows.settings["files"].items())
    lines += bullets(f"command: {code(command)}" for command in rows.commands)
    return "\n".join(lines) + "\n"


def _verdicts(rows: Rows) -> Iterator[str]:
    for _, found in models(rows):
        for one in found:
            judged = one.verdict()
            yield f"- {plain(one.name)}: **{judged.word if judged else 'not finished'}**"
            for sentence in judged.sentences() if judged else ():
                yield f"  - {plain(sentence)}"


def _block(block: Mapping[str, Any], found: list[Found]) -> Iterator[str]:
    yield f"## Perplexity per token: {plain(block['tokens'])}"
    yield ""
    counted = (perplexity(np.array(block[n])) for n in ("counts_groups_dev", "counts_groups"))
    dev, test = (f"{value:.1f}" for value in counted)
    yield from bullets(
        [
            f"Public lines: {block['public lines']:,}; private: {block['private lines']:,}; "
            f"development: {block['development lines']:,}; test: {block['test lines']:,} with "
            f"{block['test tokens']:,} tokens; lines cut at the context: {block['lines cut']:,}.",
            f"Words that no token stands for, left out: {block['unknown words of test']:.1%} of "
            "the test words.",
            f"To be beaten: word counts of the public text, {dev} (development), {test} (test); "
            f"a blind guess, {block['vocabulary']:,}.",
        ]
    )
    for one in found:
        yield from ("", f"### {plain(one.name)}", "")
        yield from (_line(HEADER), _line(["---", *["---:"] * (len(HEADER) - 1)]))
        yield from (_line(_cells(one, *level)) for level in LEVELS)
    yield ""


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(found: Found, start: str, sigma: float) -> list[str]:
    rows = list(found.of(start, sigma).values())
    relative = found.relative(start, sigma) if start != PUBLIC else None
    speeds = [row["records_per_second"] for row in rows]
    return [
        start,
        "" if start == PUBLIC else f"{sigma:g}",
        _spent(rows),
        *(_mean([row[f"perplexity_{part}"] for row in rows]) for part in ("dev", "test")),
        str(relative) if relative else "",
        *_published(found.network, start, sigma),
        str(len(rows)),
        f"{sum(speeds) / len(speeds):.0f}" if speeds else "",
    ]


def _spent(rows: list[dict[str, Any]]) -> str:
    """Return the largest ε of some rows, rounded up."""
    if not rows:
        return ""
    found = [row["epsilon"] for row in rows]
    return "none" if None in found else up_decimals(max(found)) if max(found) else "0"


def _mean(values: list[float]) -> str:
    """Return the geometric mean and, of several seeds, its t interval."""
    if not values:
        return ""
    score = mean("", [math.log(v) for v in values], "minimise", 0.0, 700.0)
    middle, low, high = (f"{math.exp(x):.1f}" for x in (score.value, score.low, score.high))
    return middle if len(values) == 1 else f"{middle} [{low}, {high}]"


def _published(network: str, start: str, sigma: float) -> list[str]:
    key = network, start, sigma
    if key in published.USELESS:
        return ["useless", "useless", "", ""]
    if key not in published.TABLE_1:
        return ["", "", "", ""]
    (dev, test), (_, public) = published.TABLE_1[key], published.TABLE_1[network, PUBLIC, 0.0]
    relative = "" if start == PUBLIC else f"{test / public:.3f}"
    spent = f"{published.EPSILON[sigma]:.2f}" if start == BOTH and sigma else ""
    return [f"{dev:.2f}", f"{test:.2f}", relative, spent]


def title(rows: Rows) -> str:
    """Return what the figure shows."""
    return f"Perplexity on private test lines, δ = {DELTA:g} ({rows.settings['size']})"
