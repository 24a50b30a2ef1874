"""MOSTLY AI's engine through its scikit-learn interface: its LSTM, or adapters of a base model.

It takes a noise multiplier and stops at an ε; so the multiplier is chosen for its planned epochs to
spend the ε asked for, with the accountant that it uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

VALIDATED = 0.2  # of the table, kept from training: its `split`, fixed
SLACK = 0.999  # so that rounding brings no ε above the one that stops it


def write_rows(job: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Train with differential privacy on, and sample."""
    from mostlyai.engine import LanguageModel
    from mostlyai.engine.domain import DifferentialPrivacyConfig

    options = job["options"]
    table = pd.read_parquet(job["table"])
    noise = _noise(job, len(table))
    workspace = Path(job["folder"], "workspace")
    model = LanguageModel(
        model=job["base_model"] if options["pretrained"] else None,
        tgt_encoding_types=_encodings(job),
        max_epochs=options["epochs"],
        batch_size=options["batch_size"] // options["accumulated"],
        gradient_accumulation_steps=options["accumulated"],
        value_protection=False,  # the label values are public for every toolkit here
        differential_privacy=DifferentialPrivacyConfig(
            max_epsilon=job["epsilon"], delta=job["delta"], noise_multiplier=noise
        ),
        workspace_dir=workspace,
        random_state=job["seed"],
    )
    model.fit(table[[job["text"], *job["attributes"]]])
    frame = model.sample(job["rows"])
    log = pd.read_csv(next(workspace.rglob("progress-messages.csv")))
    spent = float(log["dp_eps"].dropna().max())
    settings = {**options, "noise multiplier": noise, "steps": int(log["steps"].max())}
    return frame.astype("string"), {"epsilon": spent, "settings": settings}


def _encodings(job: dict[str, Any]) -> dict[str, str]:
    labels = dict.fromkeys(job["attributes"], "LANGUAGE_CATEGORICAL")
    return {**labels, job["text"]: "LANGUAGE_TEXT"}


def _noise(job: dict[str, Any], records: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    trained, batch = round((1 - VALIDATED) * records), job["options"]["batch_size"]
    batches = -(-trained // batch)
    return float(
        get_noise_multiplier(
            target_epsilon=SLACK * job["epsilon"],
            target_delta=job["delta"],
            sample_rate=1 / batches,
            steps=job["options"]["epochs"] * (trained // batch),
            accountant="rdp",
        )
    )
