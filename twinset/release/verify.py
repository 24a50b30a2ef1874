"""Checks a shared twin against its own ledger, without the model and the private data.

ε is computed again from the ledger's events. Claims about it in the files are not believed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinset.errors import InputError, VerificationError
from twinset.files.atomic import CHECKSUMS, fault, listed, sha256_file
from twinset.files.limits import read_text
from twinset.privacy.accounting.accountant import NotCovered, prv_epsilon
from twinset.privacy.accounting.events import MaskedAccess
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.card import CARD, may_hide, one_line, read_header, stated_lines, stated_numbers
from twinset.release.publish import beside, companions, find_published
from twinset.release.share import (
    COMPANIONS,
    LEDGER,
    PRIVACY,
    check_file_format,
    claim_to_dict,
    find_twins,
    statement_text,
)
from twinset.release.sign import signature_of, signer
from twinset.table.read import FORMATS, read_frame

TOLERANCE = 1e-4  # relative. ε differs so much between releases of numpy and scipy.
WITNESS_TOLERANCE = 0.01  # relative. The witness's own error is up to 1 %, and usually 0.1 %.
MOST_EVENTS = 10_000
MOST_KINDS = 8  # of events that differ. A run has six at most
# Of these, the ones that sample records. A run has one. They are composed for every stated ε: the
# slowest two that were found, with privacy weights and a group, take half a minute.
MOST_SAMPLED = 2
MOST_STEPS = 20_000_000  # in all: more ask for finer grids. `steps` allows half as many

UNSIGNED = "who made these files: they are not signed, and one author of all can make them agree"
CANNOT_SHOW = (
    "that the model was trained, and the twin drawn from it, as the ledger says",
    "that what the ledger takes as public is public",
    "what else the card, the page and the files for registries say, and anything about other files",
)


@dataclass(frozen=True)
class VerificationReport:
    """The findings of a successful verification.

    Args:
        guarantee: the guarantee, computed again from the events.
        rows: number of the twin's rows.
        witness: ε of the same events by Opacus' PRV accountant, which shares no code with ours.
            None if nothing is guaranteed, or if it does not cover the numbers.
        checked: the checks that passed, one line each.
        cannot_show: what no such check can show, one line each.
        signed_by: fingerprint of the key that signed `privacy.json`, or None.
    """

    guarantee: Guarantee
    rows: int
    witness: float | None
    checked: tuple[str, ...]
    cannot_show: tuple[str, ...]
    signed_by: str | None = None


def verify(path: str | Path, key: str | Path | None = None) -> VerificationReport:
    """Check a run folder, its `share/`, or a twin with its companions next to it.

    Args:
        path: of the folder, the twin, or a file that was published with the twin.
        key: a file with the public key that must have signed it, such as `id_ed25519.pub`.

    Raises:
        InputError: a file is missing, cannot be read, or has another format.
        VerificationError: something is not as stated. One line says what.
    """
    try:
        # 1. Find the files. `privacy.json` names the twin's format, and so its file.
        named = Path(path)
        if not named.exists():
            raise InputError(f"{named}: no such file or folder. Check the path.")
        folder = named.parent if named.is_file() else named
        if named.is_file() and not (folder / PRIVACY).is_file():
            named = find_published(named)
        shares = [f for f in (folder, folder / "share") if (f / PRIVACY).is_file()]
        twin_file: Path | None = None
        if named.is_file() and (beside(named)[1].is_file() or not (folder / PRIVACY).is_file()):
            (card, privacy), twin_file = beside(named), named
        elif shares:  # a run, a share folder, or a file of one that was pointed at
            card, privacy = shares[0] / CARD, shares[0] / PRIVACY
            # Any other file than its own must be a copy of the twin.
            own = (privacy, signature_of(privacy), *map(privacy.with_name, COMPANIONS.values()))
            if named.is_file() and named not in own:
                twin_file = named
        else:
            writes = "For a run with a model, `twinset sample` writes it"
            raise InputError(
                f"{folder}: holds no {PRIVACY}. {writes}. Else name a share/ or a published twin."
            )
        for file in (card, privacy):
            _present(file)
        by = signer(privacy, None if key is None else Path(key))
        statement = _read_statement(privacy)
        ledger, files = statement["ledger"], statement["files"]
        twin = files["twin"]
        twin_file = twin_file or privacy.with_name(f"twin.{twin['format']}")
        twins = [each.name for each in find_twins(privacy.parent)]
        said = f"holds {' and '.join(twins)}. {PRIVACY} is of one. Remove what is not from it."
        _expect(privacy.name != PRIVACY or len(twins) < 2, privacy.parent, said)

        # 2. The ledger alone says what is guaranteed. A second accountant must agree.
        found = _check_guarantee(ledger, statement["guarantee"], privacy)
        claim, computed, witness, second = found

        # 3. The other files must be unaltered and say the same. All but the card may be left out.
        _check_digest(card, files["card"]["sha256"])
        _check_card(card, stated_numbers(ledger, claim, twin["rows"]), claim, twin)
        named_by = companions(twin_file) if privacy.name != PRIVACY else {}
        for role, name in COMPANIONS.items():
            other = named_by.get(name) if named_by else privacy.with_name(name)
            if role != "card" and other is not None and other.is_file():
                _expect(role in files, other, f"is not one of the files in {privacy.name}")
                _check_digest(other, files[role]["sha256"])
        _check_digest(twin_file, twin["sha256"])
        try:
            frame = read_frame(twin_file, written_as=twin["format"])
        except InputError as error:
            raise VerificationError(str(error)) from None
        _expect(len(frame) == twin["rows"], twin_file, f"has {len(frame)} rows, not {twin['rows']}")
        same = list(frame.columns) == twin["columns"]
        _expect(same, twin_file, "has other columns than stated")

        # 4. A model next to it must be the one that was saved, whole, with the same ledger.
        home = privacy.resolve().parent
        model = home.parent / "model"
        is_stated = "model" in files and model.is_dir()
        has_model = home.name == "share" and (is_stated or (model / LEDGER).is_file())
        if has_model:
            damage = fault(model)
            _expect(damage is None, model, f"is damaged: {damage}")
            names = {each.name for each in model.iterdir() if each.name[0] != "."}
            unlisted = names - listed(model).keys()  # they might be loaded all the same
            _expect(not unlisted, model, "holds files that its checksums do not list")
            stated = files.get("model", {}).get("sha256")
            said = f"{PRIVACY} states no model. Save a model before you share its twin."
            _expect(stated is not None, model, said)
            _check_digest(model / CHECKSUMS, stated)
            try:
                is_same = json.loads(_read(model / LEDGER)) == ledger
            except (ValueError, RecursionError):
                is_same = False
            _expect(is_same, model / LEDGER, f"is not the ledger of {PRIVACY}")
    except OSError as error:
        reason = error.strerror or "input/output error"
        raise InputError(f"{path}: cannot be read ({reason}). Check path and rights.") from None

    # The larger ε is reported: stated and computed may differ by TOLERANCE.
    larger = max((e for e in (claim.epsilon, computed) if e is not None), default=None)
    spent = "no guarantee" if larger is None else f"ε = {larger}"
    whose = f"whose key {by} is. `key` compares it with one that you know."
    hidden = () if key else (UNSIGNED if by is None else whose,)
    checked = (
        *([f"{privacy.name}: signed by {by}{', which you named' if key else ''}"] if by else []),
        f"{privacy.name}: its {len(ledger['events'])} events come to {spent}, as stated{second}",
        f"{card.name}: unaltered, with the numbers and lines that the ledger calls for",
        f"{twin_file.name}: unaltered, {twin['rows']} rows, {len(twin['columns'])} columns",
        *([f"model: the files whose hashes {PRIVACY} states, with its ledger"] * has_model),
    )
    claim = replace(claim, epsilon=larger)
    return VerificationReport(claim, twin["rows"], witness, checked, (*hidden, *CANNOT_SHOW), by)


def _present(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: is missing. It belongs to the twin. Ask its sender.")
    return path


def _read(path: Path) -> str:
    try:
        return read_text(_present(path))
    except InputError as error:
        raise VerificationError(str(error)) from None
    except UnicodeDecodeError:
        raise VerificationError(f"{path}: is not UTF-8 text, so it was altered") from None


def _expect(holds: bool, path: Path, otherwise: str) -> None:
    if not holds:
        raise VerificationError(f"{path}: {otherwise}")


def _expect_fields(data: Any, names: set[str], path: Path, where: str) -> None:
    right = isinstance(data, dict) and set(data) == names
    _expect(right, path, f"{where} must have the fields {', '.join(sorted(names))}, and no other")


def _check_digest(path: Path, stated: Any) -> None:
    digest = sha256_file(_present(path))
    _expect(digest == stated, path, f"was altered: its SHA-256 is not the one in {PRIVACY}")


def _read_statement(path: Path) -> dict[str, Any]:
    """Read `privacy.json`, which must be byte for byte the output of `write_share`.

    Then every reader understands the file as this one does. Duplicate keys, for example, are
    refused.
    """
    text = _read(path)
    try:
        data = json.loads(text)
        as_written = statement_text(data)
    except (ValueError, RecursionError):
        raise VerificationError(f"{path}: is not valid JSON, so it was altered") from None
    check_file_format(path)
    _expect(text == as_written, path, "is not laid out as it was written, so it was altered")
    _expect_fields(data, {"format_version", "guarantee", "ledger", "files"}, path, "the file")
    _expect(type(data["format_version"]) is int, path, "has no format_version that is a number")
    events = data["ledger"].get("events") if isinstance(data["ledger"], dict) else None
    events = events if isinstance(events, list) else []
    # Steps of one kind are composed together, however many events have them.
    plain = [event for event in events if isinstance(event, dict)]
    kinds = {json.dumps({**event, "steps": 0}): event for event in plain}
    sampled = [event for event in kinds.values() if event.get("sample_rate", 1) != 1]
    steps = sum(event["steps"] for event in plain if type(event.get("steps")) is int)
    for number, most, what in (
        (len(events), MOST_EVENTS, "events"),
        (len(kinds), MOST_KINDS, "events that differ"),
        (len(sampled), MOST_SAMPLED, "events that differ and sample records"),
        (steps, MOST_STEPS, "steps"),
    ):
        _expect(number <= most, path, f"has more than {most:,} {what}, too many to compose")
    roles = dict.fromkeys(("card", "page"), {"sha256"})
    roles["twin"] = {"format", "sha256", "rows", "columns"}
    # a model that was saved, a draft for a registry if there is a guarantee
    for role in ("model", "croissant", "deployment"):
        if isinstance(data["files"], dict) and role in data["files"]:
            roles[role] = {"sha256"}
    _expect_fields(data["files"], set(roles), path, "'files'")
    for role, names in roles.items():
        _expect_fields(data["files"][role], names, path, f"'{role}'")
    twin = data["files"]["twin"]
    _expect(f".{twin['format']}" in FORMATS, path, "names an unknown format of the twin")
    _expect(isinstance(twin["columns"], list), path, "does not list the twin's columns")
    return data


def _check_guarantee(
    data: Any, stated: Any, path: Path
) -> tuple[Guarantee, float | None, float | None, str]:
    """Compare a guarantee with that of the ledger, and its ε with an independent accountant's.

    A single implementation of a privacy accountant need not be trusted. Both approximate the
    same composition. A difference above `WITNESS_TOLERANCE` means that one of them is wrong.

    Returns:
        The guarantee as stated, ε by our accountant and by the witness, and words for the latter.
    """
    try:
        ledger = Ledger.from_dict(data)
        found = guarantee(ledger)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise VerificationError(f"{path}: {one_line(error)}") from None
    expected = claim_to_dict(found)
    _expect_fields(stated, set(expected), path, "'guarantee'")
    if isinstance(stated["epsilon"], float) and found.epsilon is not None:
        agrees = math.isclose(stated["epsilon"], found.epsilon, rel_tol=TOLERANCE)
    else:
        agrees = stated["epsilon"] is None and found.epsilon is None
    said = f"states ε = {one_line(stated['epsilon'])}, but its events come to {found.epsilon}"
    _expect(agrees, path, said)
    for name in sorted(expected.keys() - {"epsilon"}):
        agrees = json.dumps(stated[name]) == json.dumps(expected[name])
        _expect(agrees, path, f"the guarantee's {name} does not follow from the ledger")
    claim, computed = replace(found, epsilon=stated["epsilon"]), found.epsilon
    if computed is None:
        return claim, None, None, ""
    # Masked texts are taken as known wherever there is a guarantee at all: see `guarantee`.
    events = [e for e in ledger.events if not isinstance(e, MaskedAccess)]
    try:
        witness = prv_epsilon(events, ledger.delta)
    except NotCovered as error:
        return claim, computed, None, f" (Opacus' PRV accountant can't say: {one_line(error)})"
    agrees = math.isclose(witness, computed, rel_tol=WITNESS_TOLERANCE)
    difference = f"ε = {computed} by our accountant and ε = {witness} by Opacus' PRV accountant"
    _expect(agrees, path, f"its events come to {difference}, over 1 % apart. Trust neither.")
    return claim, computed, witness, f" (by Opacus' PRV accountant to ε = {witness:.4f})"


def _check_card(
    path: Path, numbers: Mapping[str, Any], claim: Guarantee, twin: Mapping[str, Any]
) -> None:
    card = _read(path)
    try:
        header = read_header(card)
    except ValueError as error:
        raise VerificationError(f"{path}: {error}") from None
    stated: Any = header.get("privacy")
    _expect_fields(stated, set(numbers), path, "the header's 'privacy'")
    for name, number in numbers.items():
        _expect(stated[name] == number, path, f"its {name} is not that of {PRIVACY}")
    match header.get("configs"):
        case [{"data_files": str(file)}] if file == f"twin.{twin['format']}":
            pass  # the one file that `datasets` reads
        case _:
            raise VerificationError(f"{path}: its header names another file")
    _expect(not may_hide(card), path, "has HTML or links, which may hide what it states")
    lines = set(card.splitlines())
    for line in stated_lines(claim, twin["rows"]):
        _expect(line in lines, path, f"lacks the line {line[:60]!r}…, which the ledger calls for")
