"""Any value as Markdown that shows it and does nothing else. Knows only Markdown.

Column names, label values and titles are data: no mark-up, link, table cell or new line may come of
what they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable


def one_line(value: object) -> str:
    r"""Return a value as one visible line: what is no printable character is escaped.

    >>> one_line("a\n---\x07b")
    'a\\n---\\x07b'
    """
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return "".join(escaped)


def plain(value: object) -> str:
    r"""Return a value as Markdown that shows its characters and means nothing by them.

    >>> plain("<b> *x* | [y](z)")
    '\\<b\\> \\*x\\* \\| \\[y\\](z)'
    >>> plain("1. x"), plain("- x"), plain(0.5)
    ('1\\. x', '\\- x', '0.5')
    """
    line = re.sub(r"([\\`*_{}\[\]<>#|!~$&])", r"\\\1", one_line(value).strip())
    return re.sub(r"^((?=[-+=:])|\d+(?=[.)](\s|$)))", r"\1\\", line)  # a list, a rule, a heading


def code(value: object) -> str:
    r"""Return a value as a Markdown code span, whatever back-ticks and blanks it holds.

    >>> code("fresh"), code("a`b"), code(" ")
    ('`fresh`', '`` a`b ``', '`" "`')
    """
    line = one_line(value)
    if line != line.strip() or not line:
        line = json.dumps(line, ensure_ascii=False)  # a code span would drop the blanks
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def bullets(items: Iterable[str]) -> list[str]:
    """Return the lines of a list whose items are Markdown already."""
    return [f"- {item}" for item in items]
