"""Where a text that was cut off can end: at its last sentence. Knows one text and no model."""

from __future__ import annotations

import re

LEAST_LEFT = 0.5  # of a text's characters
_END = re.compile(
    r"""(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)(?<!\be\.g)(?<!\bi\.e)
    (?: [.!?…]+ ["'”’»)\]]* (?= \s+ ["'“‘«(\[]* [^\W_a-z] | \s*$ )  # a capital or a number follows
      | [。！？]+ [」』”]* )""",
    re.VERBOSE,
)


def cut_at_sentence(text: str) -> str:
    """Return a text up to the end of its last sentence; whole where less than half would be left.

    >>> cut_at_sentence("It was a fine film. Mr. Smith was")
    'It was a fine film.'
    >>> cut_at_sentence("Fine. But then the whole of the second half was")
    'Fine. But then the whole of the second half was'
    """
    ends = [found.end() for found in _END.finditer(text)]
    return text[: ends[-1]] if ends and ends[-1] >= LEAST_LEFT * len(text) else text
