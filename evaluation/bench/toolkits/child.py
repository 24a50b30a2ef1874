"""Runs one toolkit's script: in that toolkit's own environment, as a process of its own.

    python child.py SCRIPT JOB

It imports neither twinset nor evaluation, since no other toolkit's environment has them. The script
has a function `write_rows` from a job to a table and what is known of it; see `running.Job`.
"""

import json
import runpy
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any


def main(script: str, job_file: str) -> None:
    """Write `rows.parquet` and `facts.json` beside the job."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    single_thread()
    frame, facts = runpy.run_path(script)["write_rows"](job)
    columns = [job["text"], *job["attributes"]]
    folder = Path(job["folder"])
    frame[columns].reset_index(drop=True).to_parquet(folder / "rows.parquet")
    facts = {**facts, "versions": versions(job["libraries"]), "peak GiB": peak_gib()}
    facts["minutes"] = time.process_time() / 60
    (folder / "facts.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def single_thread() -> None:
    """Let no toolkit have more threads than another."""
    import torch

    torch.set_num_threads(1)


def versions(libraries: list[str]) -> dict[str, str]:
    """Return the versions of libraries that this environment has."""
    known = {dist.metadata["Name"].lower() for dist in metadata.distributions()}
    return {name: metadata.version(name) for name in libraries if name.lower() in known}


def peak_gib() -> Any:
    """Return this process's own peak of resident memory; None where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(li for li in status.read_text().splitlines() if li.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


if __name__ == "__main__":
    main(*sys.argv[1:])
