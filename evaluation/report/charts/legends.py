"""The names of series beside a sample of how each is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from evaluation.report.charts.styles import Style
from evaluation.report.charts.svg import LETTER, WIDTH, shortened, tag, text


def line_legend(
    looks: Mapping[str, Style], references: Iterable[str] = (), marked: bool = True
) -> tuple[list[Markup], float]:
    """Return samples of lines, in as many rows as they need, and where they end."""
    parts, x, y = [], 0.0, 8.0
    for name, look in [*looks.items(), *((name, None) for name in references)]:
        label = shortened(name, WIDTH - 34)
        width = 30 + len(label) * LETTER + 12
        if x and x + width > WIDTH + 12:
            x, y = 0.0, y + 18
        parts += [_sample(look, x, y, marked), text(label, x + 30, y + 4, "label")]
        x += width
    return parts, y + 10


def _sample(look: Style | None, x: float, y: float, marked: bool) -> Markup:
    path = f"M{x:.1f} {y:.1f}h24"
    if look is None:
        return tag("path", d=path, class_="reference")
    line = look.line(path)
    return line + look.marker(x + 12, y) if marked else line


def bar_legend(looks: Mapping[str, Style]) -> tuple[list[Markup], float]:
    """Return samples of bars, one a row, and where they end."""
    parts: list[Markup] = []
    for place, (name, look) in enumerate(looks.items()):
        parts.append(look.bar(name, 1, 18 * place + 3, 18, 7))
        parts.append(text(shortened(name, WIDTH - 34), 26, 18 * place + 11, "label"))
    return parts, 18.0 * len(looks) + 6
