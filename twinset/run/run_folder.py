"""The run folder: built in a hidden place, then moved. Also its settings and held-out rows.

`share/` may be handed over and `model/` is as safe. `internal/` must stay with the owner. It keeps
the run's inputs, which a resumed run is compared with, and the rows held out of training.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from twinset.errors import InputError
from twinset.files.atomic import has_checksums, writing
from twinset.files.limits import read_text
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.statement.wording import SPENT

# How open each part is. A file written by `atomic` is as open as the folder it is in.
PARTS = {"share": 0o755, "model": 0o755, "internal": 0o700}
SETTINGS = "config.json"  # in `internal/`: the run's inputs
# In `internal/`: figures of each step, and of the noise of each other release
METRICS, MEASURED_NOISE = "metrics.jsonl", "measured-noise.jsonl"
# Selections of values, which have no name in the ledger, in the file of measured noise.
LABEL_VALUES, COLUMN_VALUES = "label values", "values of other columns"
RESUMABLE = ".unfinished"  # a file in a folder under construction that can be resumed
# Settings that do not affect training may differ in a resumed run. Inputs are compared by hash.
MAY_DIFFER = ("speed", "sampling", "rows", "reading")
HELD_OUT, NUMBERS = "held-out.parquet", "held-out.json"  # in `internal/`: the rows, and which
HELD_SHARE, HELD_FROM = 0.2, 5_000  # the default: the share, and from how many records or owners on


def place_near(final: Path, what: str) -> Path:
    """Return a hidden path next to a run.

    The run is built in `partial`. An unfinished run waits in `aside` until its replacement is worth
    keeping, and an older run waits in `replaced` until the new one is in place. The run's process
    holds the file `lock`.
    """
    return final.with_name(f".{final.name}.{what}")


def numbered_runs(source_name: str) -> list[Path]:
    """Return the paths `runs/<table>-<n>` of a table's runs. The last one is the first free."""
    table = re.sub(r"[^\w.-]", "-", Path(source_name).name.split(".")[0]) or "table"
    runs: list[Path] = []
    while True:
        run = Path("runs", f"{table}-{len(runs) + 1}")
        runs.append(run)
        hidden = (place_near(run, what) for what in ("lock", "partial", "aside", "replaced"))
        if not any(path.exists() for path in (run, *hidden)):
            return runs


def is_run(path: Path) -> bool:
    """Tell a run folder from any other folder. Nothing may be written or deleted in others."""
    return (path / "share" / "privacy.json").is_file() or all((path / p).is_dir() for p in PARTS)


def is_unfinished(final: Path) -> bool:
    """Tell whether this path has an unfinished run that can be resumed."""
    return any((place_near(final, n) / RESUMABLE).is_file() for n in ("partial", "aside"))


def is_abandoned(final: Path) -> bool:
    """Tell whether a run was killed here before its first checkpoint, so it cannot be resumed."""
    if not place_near(final, "partial").exists() or is_unfinished(final):
        return False
    try:
        with suppress(FileNotFoundError), open_lock(final) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # a living run holds the lock
        return False
    return True


def check_ended(run: Path) -> None:
    """Refuse a run that was stopped before its end. It is in a hidden folder next to its path.

    Raises:
        InputError: it was. The message names that folder and how to continue.
    """
    final = run.resolve()
    hidden = [place_near(final, n) for n in ("partial", "aside")]
    there = [place for place in hidden if (place / RESUMABLE).is_file()]
    if final.exists() or not any(place.exists() for place in hidden):
        return
    if not there:
        raise InputError(f"{run}: a run is being made there, or was killed early. Wait for it.")
    sample = ""
    if has_checksums(there[0] / "model"):
        sample = f" To write rows from its model, run {sampling_command(there[0])}."
    raise InputError(
        f"{run}: the run was stopped early and waits in {there[0]}. To continue, run `twinset "
        f"generate TABLE --run {shlex.quote(str(run))} --resume` with its other options.{sample}"
    )


def sampling_command(run: Path) -> str:
    """Return the command that writes rows from a run's model."""
    return f"`twinset sample {shlex.quote(str(run))} --output FILE`"


class RunFolder:
    """A run folder under construction. After the `with` block it is the finished one."""

    def __init__(self, root: Path, final: Path, is_resumed: bool = False) -> None:
        self.final = final
        self.is_resumed = is_resumed  # it existed before, unfinished
        self.is_kept = is_resumed  # it stays if it ends early
        self.root = root  # a hidden folder next to `final`, then `final` itself
        self.share, self.model, self.internal = (root / part for part in PARTS)

    def keep(self) -> None:
        """Keep the folder if the run ends early, because it can be resumed."""
        self.is_kept = True
        (self.root / RESUMABLE).touch()
        shutil.rmtree(place_near(self.final, "aside"), ignore_errors=True)

    @classmethod
    @contextmanager
    def create(
        cls, path: str | Path, overwrite: bool = False, resume: bool = False
    ) -> Iterator[RunFolder]:
        """Build a run folder that appears at `path` whole or not at all.

        If the block ends early, even by an interrupt, an older run stays untouched. No file stays
        behind unless `keep` was called. In that case the hidden folder stays for `resume`, and
        replaces an older unfinished one.

        Raises:
            InputError: `check_free` refuses the path, another run is writing it, or the file
                system refuses.
        """
        final, missing = Path(path).resolve(), list[Path]()
        with writing(final):
            check_free(final, overwrite, resume)
        partial, aside, replaced = (place_near(final, n) for n in ("partial", "aside", "replaced"))

        def settle_older() -> None:
            """Put the older run back if nothing replaced it, else remove it."""
            if final.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            elif replaced.exists():
                os.replace(replaced, final)

        def clear_unfinished() -> None:
            """Remove a run that cannot be resumed, and put back the run that it was to replace."""
            if (partial / RESUMABLE).is_file():
                shutil.rmtree(aside, ignore_errors=True)
                return
            shutil.rmtree(partial, ignore_errors=True)
            if aside.exists():
                os.replace(aside, partial)

        try:
            with ExitStack() as stack:
                with writing(final):
                    missing = [folder for folder in final.parents if not folder.exists()]
                    final.parent.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(hold_lock(final))
                    for hidden in (partial, aside, replaced):
                        check_own(hidden)
                    # Repair what a killed run left. This one has the lock, so it has no owner.
                    settle_older()
                    clear_unfinished()
                    check_free(final, overwrite, resume)  # again: it may hold an older run by now
                    run = cls(partial, final, resume)
                    stack.callback(clear_unfinished)
                    # An empty folder, or an empty `share/` of a run to resume.
                    if (partial / RESUMABLE).is_file() and not resume:
                        os.replace(partial, aside)
                    shutil.rmtree(run.share if resume else partial, ignore_errors=True)
                    if not resume:  # one that somebody made meanwhile is not taken
                        partial.mkdir(mode=0o700)
                    for name, mode in PARTS.items():
                        (partial / name).mkdir(exist_ok=True)
                        (partial / name).chmod(mode)  # mkdir's own mode is subject to the umask
                with writing(final, only_full_disk=True):
                    yield run
                with writing(final):
                    try:  # until it has taken the older run's place it can still be resumed
                        if final.exists():
                            os.replace(final, replaced)
                        os.replace(partial, final)
                    finally:
                        settle_older()
                    (final / RESUMABLE).unlink(missing_ok=True)
                    shutil.rmtree(aside, ignore_errors=True)
                    run.root = final
                    run.share, run.model, run.internal = (final / part for part in PARTS)
        except BaseException:
            for folder in missing:  # that were made: innermost first
                with suppress(OSError):
                    folder.rmdir()
            raise


def check_free(final: Path, overwrite: bool = False, resume: bool = False) -> None:
    """Refuse a path where no run folder may be made. Write nothing.

    Raises:
        InputError: it is a mount point, it exists and may not be replaced, or there is an
            unfinished run that is not to be resumed, or no run that could be.
    """
    if os.path.ismount(final):
        raise InputError(f"{final}: is a mount point. Name a folder inside it as `run`.")
    if resume and not is_unfinished(final):
        raise InputError(f"{final}: there is no unfinished run to resume. Leave `resume` out.")
    if is_unfinished(final) and not (resume or overwrite):
        sample, partial = "", place_near(final, "partial")
        if has_checksums(partial / "model"):
            sample = f" {sampling_command(partial)} writes rows from its model,"
        raise InputError(
            f"{final}: an unfinished run waits there. `resume=True` resumes it,{sample} "
            f"`overwrite=True` deletes it and starts again, and {SPENT}."
        )
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not is_run(final):
        raise InputError(f"{final}: exists and is not a twinset run. Choose another `run`.")
    if overwrite:
        return
    if not has_checksums(final / "model"):
        raise InputError(f"{final}: exists. Use `overwrite=True`, or name another `run`.")
    raise InputError(
        f"{final}: exists, with a trained model. {sampling_command(final)} writes more rows from "
        f"it. `overwrite=True` deletes it, and {SPENT}. Or choose another `run`."
    )


def check_own(hidden: Path) -> None:
    """Refuse a hidden folder that others made or can open. Its name is easy to guess.

    Raises:
        InputError: it is a link or a file, belongs to another user, or others may enter it.
    """
    with suppress(FileNotFoundError):
        found = hidden.lstat()
        is_open = stat.S_IMODE(found.st_mode) & 0o077
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or is_open:
            raise InputError(
                f"{hidden}: is not your own private folder, and a run would write private texts "
                "into it. Remove it, or choose another `run`."
            )


def open_lock(final: Path, more: int = 0) -> IO[bytes]:
    """Open the lock file next to `final`. Its name is easy to guess, and others may take it first.

    A link is not followed. A pipe, which would wait for a second process, is not waited for.
    """
    path = place_near(final, "lock")
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | more
    file = open(os.open(path, flags, 0o600), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(f"{path}: is no file of a run. Remove it, or choose another `run`.")
    return file


@contextmanager
def hold_lock(final: Path, waits: bool = False) -> Iterator[None]:
    """Hold the lock file next to `final`. The kernel frees it whenever the process dies.

    If another process holds it, wait for that one or refuse.
    """
    path, is_there = place_near(final, "lock"), False
    way = fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB)
    while not is_there:  # its last holder may remove the file between our open and our lock
        with ExitStack() as stack:
            file = stack.enter_context(open_lock(final, os.O_CREAT))
            try:
                fcntl.flock(file, way)
            except BlockingIOError:
                raise InputError(
                    f"{final}: another run is writing it. Wait for it, or choose another `run`."
                ) from None
            with suppress(FileNotFoundError):
                is_there = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            if is_there:
                stack.callback(path.unlink, missing_ok=True)
                yield


# -- what a run is made from ---------------------------------------------------------------------


def check_settings(run: RunFolder, plain: dict[str, Any]) -> None:
    """Refuse to resume a run with other settings than it began with, so that it trains as before.

    Raises:
        InputError: it would train differently.
    """
    known = json.loads((run.internal / SETTINGS).read_text("utf-8"))
    plain = json.loads(json.dumps(plain))  # tuples become lists, as in the file
    if other := [n for n in plain if n not in MAY_DIFFER and known.get(n) != plain[n]]:
        trained = has_checksums(run.model)
        sample = f" {sampling_command(run.root)} writes rows from its model." if trained else ""
        raise InputError(
            f"{run.final}: was made with other settings ({', '.join(other)}). Repeat its first "
            f"command with `resume=True` (rows, decoding and speed may differ).{sample} "
            f"`overwrite=True` without `resume` deletes it and starts again, and {SPENT}."
        )


# -- rows held out, to judge the twin by ---------------------------------------------------------


def held_share(asked: float | None, units: int) -> float:
    """Return which share of a table is held out.

    For the whole table's guarantee then see `twinset.privacy.statement.theorems`, HELD_OUT.

    >>> held_share(None, 5_000), held_share(None, 4_999), held_share(0.1, 60)
    (0.2, 0.0, 0.1)
    """
    if asked is not None:
        return asked
    return HELD_SHARE if units >= HELD_FROM else 0.0


def draw_held_out(units: int, asked: float | None) -> np.ndarray:
    """Return the numbers of the units (records or owners) that are held out, in rising order.

    Each unit has its own coin from the operating system. Seeded coins would depend on the unit's
    position, and one added row would change the coins of all rows after it.
    """
    share = held_share(asked, units)
    if not share:
        return np.zeros(0, np.int64)
    return next(poisson_batches(units, share, 1, Randomness.from_os()))


def held_out_line(rows: int) -> str:
    """Return what the owner should know about held-out rows."""
    return (
        f"holding {rows:,} rows out to judge the twin. Nothing is trained on them. "
        "`hold_out=0` trains on all."
    )


def kept_rows(internal: Path) -> list[int]:
    """Return the table's rows, from 0, that a run held out. The array may be empty."""
    path = internal / NUMBERS
    found: list[int] = json.loads(read_text(path))["rows"] if path.is_file() else []
    return found
