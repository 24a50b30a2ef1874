"""Elements of inline SVG, all text in them escaped. Knows nothing of axes and of what is drawn.

Everything is drawn on `WIDTH` units, which is about as many pixels on a telephone and in a column
of a wide page, so that letters have one size everywhere. Colours are named in page.css.
"""

from __future__ import annotations

import re

from markupsafe import Markup

WIDTH = 340
LETTER = 5.9  # mean width of a letter of the 11.5 units that labels have
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Replace what no page can hold: control characters, and halves of characters.

    >>> visible("a" + chr(0) + "b")
    'a�b'
    """
    return text.__class__(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """Return an element; `class_` is its class, and `text_anchor` the attribute text-anchor.

    >>> tag("text", "1 < 2", x=1.239, class_="label")
    Markup('<text x="1.24" class="label">1 &lt; 2</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(_attribute(key), _short(value))
        for key, value in attributes.items()
    )
    inner = Markup("").join(map(visible, children))  # escapes what is no markup
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inner)


def drawing(height: float, title: str, description: str, *children: str) -> Markup:
    """Return a picture that screen readers announce by its title and description."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        focusable="false",
    )


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "start") -> Markup:
    """Return one line of text."""
    return tag("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def shortened(content: str, units: float) -> str:
    """Return what fits into so many units, with an ellipsis for the rest.

    >>> shortened("real, no more rows than the twin", 60)
    'real, no…'
    """
    most = max(2, int(units / LETTER))
    return content if len(content) <= most else content[: most - 1].rstrip() + "…"


def _attribute(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _short(value: str | float) -> str:
    return visible(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
