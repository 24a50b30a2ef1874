"""The detector that needs no library: what looks like a number, an id or an address of any sort.

It would rather flag too much than too little, and checks no digit sums. It knows no names: those
need `entities`. Every pattern takes time linear in the text, whatever the text: a repetition either
is short or never gives back what it took (`++`), and is tried once for each run it could take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from twinset.detectors.spans import Span, joined

_DIGIT = r"\d²³¹¼-¾⁰⁴-⁹₀-₉⅐-ↈ①-⓿"  # \d are the decimal digits of every script
_MAIL = r"[^\s@<>()\[\],;:\"]"
_HOST = r"[\w-]++(?:\.[\w-]++)"
_TOPS = ("com", "net", "org", "edu", "gov", "info", "[a-z]{2}")  # in lower case: no "dull.It"
_TOP = "|".join(rf"(?<=\.{top})" for top in _TOPS)
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b"
)
_POSTCODE = (  # American, British, Canadian
    r"(?:(?:[ADF]PO )?[A-Z]{2},? \d{5}|"
    r"[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}|"
    r"[A-Z]\d[A-Z] ?\d[A-Z]\d)\b"
)
_BOX = r"(?:(?:P\.?O\.? ?Box|PSC|Unit) )?"

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # Also phone, card, order and social security numbers, sums of money, times and IPv4: the
        # mask joins what only spaces and punctuation part.
        (
            "number or id",
            rf"(?<![\w/-])(?:[^\W{_DIGIT}]|[/-])*+[{_DIGIT}][\w{_DIGIT}/-]*+",
        ),
        ("code in capitals", r"(?<!\w)[A-Z]{8,}+(?!\w)"),
        ("number with its sign", r"[+(#$€£¥№]{1,3} ?\d"),
        ("e-mail", rf"(?<!{_MAIL}){_MAIL}++@[\w-]++(?:\.[\w-]++)*+"),
        ("handle", r"@\w++"),
        ("URL", r"(?i)(?<![\w+.-])(?:[a-z][a-z\d+.-]*+://|www\.)\S++"),
        ("host", rf"(?<![\w.-]){_HOST}++(?:{_TOP})(?:[/:?#]\S*+)?"),
        ("IPv6 or MAC", r"(?i)(?<![\w:])[\da-f]{0,4}(?:[:-]{1,2}[\da-f]{1,4}){3,7}(?!\w)"),
        ("IBAN", r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)"),
        (
            "date",
            rf"(?i)\d{{1,2}}(?:st|nd|rd|th)?[\s-]{{1,3}}(?:of )?{_MONTH}|"
            rf"(?<!\w){_MONTH}\.?[\s-]{{1,3}}\d",
        ),
        ("postal address", rf"(?<!\w){_BOX}\d++[^\n]{{1,80}}?(?<!\w){_POSTCODE}"),
        ("postcode", rf"(?<!\w){_POSTCODE}"),
    )
)


class Patterns:
    """Flags what matches one of `PATTERNS`."""

    name = "patterns"

    def spans(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """See `Detector`.

        >>> list(Patterns().spans(["Call 555-0199!", "Who?"]))
        [[(5, 13)], []]
        """
        for text in texts:
            yield joined(m.span() for _, pattern in PATTERNS for m in pattern.finditer(text))
