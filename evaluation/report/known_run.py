"""What the files of a run say: its ledger, its findings, its twin. Any of them may be missing.

Report and dossier are made from it, and `verify` has checked it. Nothing here measures, judges or
writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twinset.errors import InputError, VerificationError
from twinset.files.atomic import sha256_file
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import LEDGER, PRIVACY, check_file_format, find_twins
from twinset.release.verify import VerificationReport, verify
from twinset.run.run_folder import SETTINGS
from twinset.table.read import read_frame

from ..findings import FIRST, Findings
from ..release import parse_file

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class KnownRun:
    """What the files of a run say, of which any may be missing.

    Args:
        root: the run folder.
        ledger: of `share/privacy.json`.
        claim: what it guarantees.
        found: findings by their kind.
        whole: the kinds that were measured in full, and not only at the end of the run.
        stale: the kinds that were measured on other rows than the present ones.
        base_model: as the options of the run name it.
        twin_file: the twin.
        twin: its rows.
        digest: its SHA-256.
        verified: the findings of `verify`, or its error. Then nothing holds of what the files say.
    """

    root: Path
    ledger: Ledger | None
    claim: Guarantee | None
    found: dict[str, Findings]
    whole: set[str]
    stale: list[str]
    base_model: str | None
    twin_file: Path | None
    twin: DataFrame | None
    digest: str | None
    verified: VerificationReport | VerificationError | InputError

    @property
    def failure(self) -> VerificationError | InputError | None:
        """The error of `verify`, or None."""
        return None if isinstance(self.verified, VerificationReport) else self.verified


def read_run(run: Path) -> KnownRun:
    """Read what is known of a run. Refuse what is no run folder, or has an invalid file in it."""
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder. Give one that `twinset generate` made.")
    share, internal = run / "share", run / "internal"
    for file in (run / "model" / LEDGER, share / PRIVACY):
        check_file_format(file)
    found, whole = dict[str, Findings](), set[str]()
    for kind in ("evaluation", "audit", "canaries"):
        files = (internal / name for name in (f"{kind}.json", FIRST.format(kind)))
        if there := [file for file in files if file.is_file()]:
            found[kind] = Findings.load(there[0])
            whole |= {kind} if there[0].stem == kind else set()
    ledger = parse_file(share / PRIVACY, lambda text: Ledger.from_dict(json.loads(text)["ledger"]))
    base_model = parse_file(
        internal / SETTINGS, lambda text: str(json.loads(text)["training"]["base_model"])
    )
    twin_file = next(iter(find_twins(share)), None)
    twin = None if twin_file is None else read_frame(twin_file)
    digest = None if twin_file is None else sha256_file(twin_file)
    stale = [k for k, f in found.items() if digest and f.about.get("twin_sha256", digest) != digest]
    claim = guarantee(ledger) if ledger else None
    verified: VerificationReport | VerificationError | InputError
    try:
        verified = verify(run)
    except (VerificationError, InputError) as error:
        verified = error
    return KnownRun(
        run, ledger, claim, found, whole, stale, base_model, twin_file, twin, digest, verified
    )
