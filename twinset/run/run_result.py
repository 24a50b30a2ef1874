"""What a run made: of one that ends now, and of one that was finished before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress
from twinset.release.run_format import LEDGER
from twinset.release.share import PRIVACY
from twinset.release.verify import verify
from twinset.run.prepare import prepare
from twinset.run.request import Source
from twinset.run.run_folder import SETTINGS, is_finished, sampling_command
from twinset.run.run_settings import as_begun, differing, known_settings, settings_of


@dataclass(frozen=True)
class Result:
    """What a command made.

    Args:
        guarantee: of everything it made, taken together.
        run: the run folder; None where none was made.
        twin: the twin's file; None where only a model was trained.
        rows: the twin's.
    """

    guarantee: Guarantee
    run: Path | None = None
    twin: Path | None = None
    rows: int = 0


def finished_result(
    source: Source, config: RunConfig, run: Path, progress: Progress
) -> Result | None:
    """Return what a run made that is whole already; None: it is not.

    Raises:
        InputError: it was made of something else than this command would make one of.
    """
    if not is_finished(run):
        return None
    _check_finished(source, config, run)
    progress.say(f"{run}: is finished, so there is nothing to resume; this is what it made")
    if not (run / "share" / PRIVACY).exists():
        return Result(guarantee(Ledger.load(run / "model" / LEDGER)), run)
    found, twin = verify(run), next((run / "share").glob("twin.*"))
    return Result(found.guarantee, run, twin, found.rows)


def _check_finished(source: Source, config: RunConfig, run: Path) -> None:
    others = f"leave `resume` out for a run of its own; {sampling_command(run)} writes rows"
    internal = run / "internal"
    if not (internal / SETTINGS).is_file():
        raise InputError(f"{run}: does not tell any more what it was made from; {others}")
    made_from = settings_of(prepare(source, config, **as_begun(internal)))
    if other := differing(made_from, known_settings(internal)):
        raise InputError(f"{run}: was made with other settings ({', '.join(other)}); {others}")
