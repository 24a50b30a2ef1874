"""The dossier: what a data protection officer decides by, on about three pages to print and sign.

It is filled from the ledger, the findings and the account of the table. Where there is no figure,
it names the command that makes it. What no file of a run can know is an empty field. It holds
figures of private rows, so it stays in `internal/`. The sentences that do not depend on the run are
in its template.

Sources:
    - NIST SP 800-226 (March 2025), "Guidelines for Evaluating Differential Privacy Guarantees",
      doi 10.6028/NIST.SP.800-226: the blocks of its pyramid.
    - Information Commissioner's Office (March 2025), guidance on anonymisation, "How do we ensure
      anonymisation is effective?": singling out, linkability, inferences, the motivated intruder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date
from operator import attrgetter
from pathlib import Path

from twinset import __version__
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError, VerificationError
from twinset.files.atomic import sha256_file
from twinset.files.limits import read_text
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import RELEASES
from twinset.privacy.statement.guarantee import Guarantee, belief_sentence, most_found, percent_up
from twinset.privacy.statement.theorems import FLAGGED_UNIT, OWNER_UNIT
from twinset.privacy.statement.wording import one_of
from twinset.release.card import describe_event
from twinset.release.share import LEDGER, PRIVACY
from twinset.release.verify import VerificationReport
from twinset.run.budget import ID, Book
from twinset.run.run_folder import HELD_OUT

from ..findings import Measured, Question
from ..leakage.roc import AUROC, BOUND, PLACE, RATES
from .charts import read_template
from .known_run import KnownRun
from .verdicts import (
    MEANINGS,
    NEARER,
    judge,
    judge_hand_over,
    write_power,
)

# Which measures tell of a risk, by how the report's reasons begin.
RISKS: dict[str, tuple[str, ...]] = {
    "Singling out": (AUROC, *RATES, "rows", "longest", "replayed"),
    "Linkability": (NEARER, "distance"),
    "Inferences": ("cells guessed", BOUND),
}
FALSE_ALARMS = {"1 in 1,000": 0.001, "1 in 100": 0.01, "1 in 10": 0.1}
PRIOR = 0.01  # belief that a person is in the table, before the twin is seen
DECISIONS = (
    "ε, δ and the unit suit the receivers and the data",
    "The number of runs on this table, and their total, are known and accepted",
    "The twin was not picked from several by looking at private results",
    "A person cannot have several records, or owners are protected",
    "Names of third persons were masked, and what the mask misses was measured",
    "What is public may be known",
    "The audit was run on this twin, and its figures are accepted",
    "Whether the twin is personal data was decided, and an impact assessment made if it is needed",
)
FIELDS = (
    *("Run by", "Handed over: yes, no, or if …", "To whom"),
    *("Review by", "Owner of the table: name, date", "Data protection officer: name, date"),
)
MEASURING: tuple[Question, ...] = ("utility", "leakage")


def build_dossier(known: KnownRun, account: Path | None = None) -> str:
    """Return the dossier of a run as one page that fetches and runs nothing.

    Args:
        known: what the files of the run say.
        account: the account of the run's table, if its owner names it.

    Raises:
        InputError: there is no such account, or it cannot be read.
    """
    from markupsafe import Markup, escape

    ledger, claim, privacy = known.ledger, known.claim, known.root / "share" / PRIVACY
    kept = known.root / "model" / LEDGER  # a new sample writes the other ledger again
    fresh = {kind: each for kind, each in known.found.items() if kind not in known.stale}
    measured = {q: [m for each in fresh.values() for m in each.of(q)] for q in MEASURING}
    utility, leakage = (judge(question, measured[question]) for question in MEASURING)
    signed_by, found = "not signed. `twinset share RUN --sign KEY` signs it", known.verified
    if isinstance(found, VerificationReport):
        signed_by = found.signed_by or signed_by
        checked = "Done for this dossier. All files agree"
        if found.guarantee.epsilon is not None:
            checked += f": ε = {up_decimals(found.guarantee.epsilon)} by one"
        if found.witness is not None:
            checked += f", and {found.witness:.2f} by the other"
        checked += "."
    elif isinstance(found, VerificationError):
        checked = f"IT DOES NOT HOLD: {found}. Do not hand this over."
    else:
        checked = f"It could not be checked: {found}"
    trained = bool(ledger and not all(isinstance(e, RELEASES) for e in ledger.events))
    template = read_template(
        "dossier.html.jinja",
        described=lambda event: describe_event(event).translate(dict.fromkeys(map(ord, "\\*"))),
        # commands in sentences, of which all else is escaped
        codes=lambda text: Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text)))),
    )
    return template.render(
        name=known.root.resolve().name,
        day=_in_words(date.today()),
        made=_in_words(date.fromtimestamp(kept.stat().st_mtime)) if kept.is_file() else None,
        version=__version__,
        claim=claim,
        is_given=bool(claim and claim.epsilon is not None),
        is_flagged=bool(claim and claim.unit == FLAGGED_UNIT),
        is_owned=bool(claim and claim.unit == OWNER_UNIT),
        belief=belief_sentence(claim) if claim else "Unknown: there is no share/privacy.json.",
        epsilon=up_decimals(claim.epsilon) if claim and claim.epsilon is not None else "none",
        delta=write_power(up_digits(claim.delta)) if claim and claim.delta else "none",
        ledger=ledger,
        one=one_of(ledger) if ledger else "record",
        rows=None if known.twin is None else len(known.twin),
        columns=[] if known.twin is None else list(known.twin),
        base_model=known.base_model or "unknown",
        trained=trained,
        hashes={
            "ledger": sha256_file(privacy) if privacy.is_file() else None,
            "twin": known.digest,
        },
        signed_by=signed_by,
        checked=checked,
        held_out=(known.root / "internal" / HELD_OUT).is_file(),
        account=describe_account(known.root, account),
        handing_over=judge_hand_over(claim, utility, leakage, known.failure),
        utility=utility,
        leakage=leakage,
        bounds=list(bound_intruder(claim)) if claim else [],
        prior=f"{PRIOR:.0%}",
        found=most_accused(measured["leakage"]),
        risks={
            # the worst of each measure, because reasons are sorted
            risk: [r for n in names for r in [r for r in leakage.reasons if r.startswith(n)][:1]]
            for risk, names in RISKS.items()
        },
        missing=[MEANINGS["missing"][k] for k in ("audit", "canaries") if k not in known.whole],
        unmeasured=None if "evaluation" in known.whole else MEANINGS["missing"]["evaluation"],
        notes=[with_flags(note) for each in fresh.values() for note in each.notes],
        stale=known.stale,
        decisions=DECISIONS,
        fields=FIELDS,
    )


def _in_words(day: date) -> str:
    return f"{day:%d %B %Y}".lstrip("0")


def bound_intruder(claim: Guarantee) -> Iterable[tuple[str, str, str, str]]:
    """Yield what the guarantee leaves to an intruder, for each share of false alarms.

    Each line has this share, the members found at most, the same at ε = 1 to compare with, and the
    belief in an accusation at most. With a prior p, t members and f others accused, the last is
    p t / (p t + (1 − p) f).
    """
    if claim.epsilon is None or claim.delta is None:
        return
    for words, alarms in FALSE_ALARMS.items():
        found = most_found(claim.epsilon, claim.delta, alarms)
        belief = PRIOR * found / (PRIOR * found + (1 - PRIOR) * alarms)
        at_one = most_found(1.0, claim.delta, alarms)
        yield words, percent_up(found), percent_up(at_one), percent_up(belief)


def most_accused(measured: Iterable[Measured]) -> dict[str, str]:
    """Return the most that an attack on this run found, for each share of false alarms."""
    names = dict(
        zip(("1 in 1,000", "1 in 100"), sorted(RATES, key=lambda n: RATES[n]), strict=True)
    )
    by_value = attrgetter("value")
    own = [m for m in measured if "policy" not in m.place and m.place.get("sees") != PLACE["sees"]]
    return {
        words: "{0.value:.1%} ({0.low:.1%} to {0.high:.1%})".format(max(scores, key=by_value))
        for words, name in names.items()
        if (scores := [m.score for m in own if m.score.name == name])
    }


def describe_account(run: Path, account: Path | None) -> str:
    """Say what all runs on the table spent together, or how to find out."""
    if account is None:
        if (run / "internal" / ID).is_file():
            return (
                "This run counts in an account. `twinset report RUN --budget-file FILE` puts its "
                "total here, and `twinset budget TABLE` shows it."
            )
        return (
            "No account was kept, so no file knows how many runs read this table. Ask the person "
            "who ran it. `--budget` opens an account for later runs."
        )
    book = Book.load(account)
    if book is None:
        raise InputError(f"{account}: there is no such account. A run with `budget` opens one.")
    spent, many = book.total, len(book.runs)
    of = "no limit" if book.limit is None else f"a limit of {book.limit:g}"
    if spent.epsilon is None:
        return f"{many} runs have no total, because {spent.reason}."
    runs = "the one run" if many == 1 else f"all {many} runs together"
    own = run / "internal" / ID
    is_in = own.is_file() and json.loads(read_text(own))["id"] in {r.id for r in book.runs}
    total = f"ε = {up_decimals(spent.epsilon)} and δ = {up_digits(spent.delta or 0.0)}"
    return f"{total} for {runs} on this table, with {of}." + (
        "" if is_in else " THIS RUN IS NOT AMONG THEM: it is the account of another table."
    )
