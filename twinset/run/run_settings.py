"""What a run is made from: kept in `internal/`, and compared where a run is resumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twinset.errors import InputError
from twinset.files.atomic import has_checksums, write_json
from twinset.privacy.statement.wording import SPENT
from twinset.run.hold_out import kept_rows
from twinset.run.prepare import Prepared
from twinset.run.run_folder import SETTINGS, RunFolder, sampling_command
from twinset.sampling.allocation import RowsRequest

# What decides nothing in training may differ in a resumed run; what was read has its hash.
MAY_DIFFER = ("speed", "sampling", "rows", "reading")
NEWER = ("hold_out", "base", "scale", "candidates")  # what a run of an older version does not state


def settings_of(prepared: Prepared) -> dict[str, Any]:
    """Return what a run is made from, as plain values."""
    made_from = {
        **prepared.config.to_dict(),
        "plan": asdict(prepared.plan),
        "rows": asdict(prepared.rows or RowsRequest()),
        "prompt": prepared.template.to_dict(),
        "candidates": [template.pattern for template in prepared.candidates],
        "labels": prepared.labels.to_dict(),
        "reading": dict(prepared.reading),
        "hold_out": prepared.hold_out,
        "base": prepared.base.origin,
        "scale": prepared.scale and prepared.scale.to_dict(),
        "table": prepared.records.fingerprint(),  # private, as all of `internal/` is
    }
    plain: dict[str, Any] = json.loads(json.dumps(made_from))
    return plain


def known_settings(internal: Path) -> dict[str, Any]:
    """Return what a run is made from."""
    known: dict[str, Any] = json.loads((internal / SETTINGS).read_text("utf-8"))
    return known


def record_rows(internal: Path, rows: RowsRequest) -> None:
    """Keep how many rows a run is to have, so that it has as many where it is resumed."""
    write_json(internal / SETTINGS, {**known_settings(internal), "rows": asdict(rows)})


def differing(plain: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Return which of the things that must not differ do, in a run that is resumed."""
    may_differ = (*MAY_DIFFER, *(name for name in NEWER if name not in known))
    return [n for n in plain if n not in may_differ and known.get(n) != plain[n]]


def record_settings(prepared: Prepared, run: RunFolder) -> None:
    """Write what a run is made from; a resumed one must train as before."""
    plain = settings_of(prepared)
    if run.is_resumed and (other := differing(plain, known_settings(run.internal))):
        trained = has_checksums(run.model)
        sample = f"{sampling_command(run.root)} writes rows from its model, " if trained else ""
        raise InputError(
            f"{run.final}: was begun with other settings ({', '.join(other)}); repeat the command "
            "that began it, with `resume=True` (only rows, decoding and speed may differ); "
            f"{sample}`overwrite=True` without `resume` deletes it and starts anew, and {SPENT}"
        )
    write_json(run.internal / SETTINGS, plain)


def as_begun(internal: Path) -> dict[str, Any]:
    """Return by what `prepare` makes a run that is resumed as it was begun."""
    return {"begun_with": _begun_with(internal), "held_rows": kept_rows(internal)}


def _begun_with(internal: Path) -> tuple[int, int]:
    """Return steps and batch size of a run that is resumed, chosen when its machine was as fast."""
    plan = known_settings(internal)["plan"]
    return plan["steps"], plan["batch_size"]
