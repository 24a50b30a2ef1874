"""The card of a model folder, which may be handed over as the twin may. Knows no private record."""

from __future__ import annotations

from twinset.privacy.statement.guarantee import belief_sentence, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT
from twinset.release.rendering import template

CARD = "README.md"


def render_model_card(base_name: str, base_origin: str, ledger: Ledger) -> str:
    """Return the card as one text: YAML header and Markdown.

    Args:
        base_name: what the base model is called; "" where nobody said.
        base_origin: where it came from.
        ledger: what training spent.
    """
    claim = guarantee(ledger)
    text: str = template("model_card.md.jinja").render(
        base_name=base_name or base_origin,
        base_origin=base_origin,
        ledger=ledger,
        claim=claim,
        belief=belief_sentence(claim),
        FLAGGED_UNIT=FLAGGED_UNIT,
    )
    return text
