"""One account a table: what all runs on it spend together, and the limit that they obey.

The account is a JSON file next to the table, or the one that `budget_file` names. `budget` opens it
and states its limit. From then on every run that reads the table counts in it. A run enters with
all that it may spend before it spends anything. When it ends, what it did spend takes the place of
that. So a run that crashes counts in full, and two runs at once both count.

Of each run the account keeps facts and events of its ledger, as they are shared with a twin.
`twinset.privacy.statement.guarantee.total` adds the runs up. The file's hash shows that it was
altered by accident. Someone who may write the file can also compute the hash.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from twinset.bounds import check_number
from twinset.config import EPSILON, SMALLEST_EPSILON
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json, writing
from twinset.files.limits import read_text
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import Event, MaskedAccess
from twinset.privacy.statement.guarantee import Total, guarantee, total
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress
from twinset.run.run_folder import hold_lock

ID = "account.json"  # in `internal/`: which entry is the run's
FORMAT_VERSION = 1
OWNER_ONLY = 0o600
BAR = 20  # characters
ROUNDING = 1 + 1e-9  # of an ε that is planned to be the limit itself
REMEDY = (
    "Runs with a limit need privacy, a theorem, and one unit for all. If this run is no such run, "
    "change it. If an earlier one was not, no limit can hold any more. Move the account away."
)
NOT_COUNTED = (
    "figures of private rows that `plan`, `evaluate` and `audit` show to the table's owner alone, "
    "and models that they train for these figures",
    "choosing options or the best twin by such figures, or by what earlier runs released",
    "copies of the table, each of which has an account of its own, and copies of a run folder",
)


@dataclass(frozen=True)
class Entry:
    """One run of an account.

    Args:
        id: random. A run that is resumed keeps it.
        date: when it entered.
        command: what it was: generate, finetune, fit or compare.
        owner: the column of owners, if these are protected.
        is_ended: whether the ledger has what it spent, and not what it planned.
        ledger: unit, relation, N, δ, noise policy and events, as they are shared with a twin.
    """

    id: str
    date: str
    command: str
    owner: str | None
    is_ended: bool
    ledger: Ledger


@dataclass(frozen=True)
class Book:
    """The content of an account."""

    limit: float | None = None  # on ε of all runs (None: there is no limit)
    runs: tuple[Entry, ...] = ()

    @property
    def total(self) -> Total:
        """What all runs guarantee together.

        For its guarantee see `twinset.privacy.statement.theorems`, SEVERAL_RUNS.
        """
        found = total([run.ledger for run in self.runs])
        if len({run.owner for run in self.runs}) > 1 and found.epsilon is not None:
            return Total(None, None, "its runs name different columns of owners")
        return found

    def with_run(self, run: Entry) -> Book:
        """Add a run, or put it in the place of its earlier entry."""
        others = {each.id: each for each in self.runs}
        return replace(self, runs=tuple((others | {run.id: run}).values()))

    def without(self, run_id: str) -> Book:
        """Leave a run out."""
        return replace(self, runs=tuple(run for run in self.runs if run.id != run_id))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without their hash."""
        runs = [vars(run) | {"ledger": run.ledger.to_dict()} for run in self.runs]
        return {"format_version": FORMAT_VERSION, "limit": self.limit, "runs": runs}

    @classmethod
    def load(cls, file: Path) -> Book | None:
        """Read an account, or return None if there is none.

        Raises:
            InputError: it is a link, not the user's own file, damaged, or was altered.
        """
        try:
            there = file.lstat()
            if not stat.S_ISREG(there.st_mode) or there.st_uid != os.getuid():
                raise InputError(f"{file}: is no file of your own. Ask its owner to move it.")
            data = json.loads(read_text(file))
            if data.pop("sha256") != _digest(data):
                raise ValueError("altered")
            if data["format_version"] != FORMAT_VERSION:
                said = "was written by another version of twinset. Use that version."
                raise InputError(f"{file}: {said}")
            if data["limit"] is not None:
                check_number("the limit", data["limit"], EPSILON)
            ledgers = [Ledger.from_dict(run["ledger"]) for run in data["runs"]]
            pairs = zip(data["runs"], ledgers, strict=True)
            runs = tuple(Entry(**{**run, "ledger": ledger}) for run, ledger in pairs)
            texts = [text for run in runs for text in (run.id, run.date, run.command)]
            if len({run.id for run in runs}) < len(runs) or not all(map(str.strip, texts)):
                raise ValueError("an entry is there twice, or has a blank")
            return cls(data["limit"], runs)
        except FileNotFoundError:
            return None
        except InputError:
            raise
        except DAMAGED:
            raise InputError(
                f"{file}: is damaged or was altered, so what this table has spent is unknown. Put "
                "a copy back. If you delete it instead, earlier runs are no longer counted."
            ) from None

    def save(self, file: Path) -> None:
        """Write the account, whole or not at all."""
        plain = self.to_dict()
        write_json(file, plain | {"sha256": _digest(plain)}, OWNER_ONLY)


def _digest(plain: dict[str, Any]) -> str:
    """Return the SHA-256 of plain values, however they are laid out in a file."""
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Account:
    """A run's access to the account of its table."""

    file: Path
    limit: float | None  # that the run states (None: the account's own)
    owner: str | None
    command: str
    progress: Progress
    writes: bool = True  # False: the run is only planned, and refused all the same
    id: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    is_in: bool = field(default=False, init=False)  # whether this process has entered

    def keep_id(self, internal: Path) -> None:
        """Keep in a run's folder which entry is its own. A resumed run finds it there."""
        try:
            found = json.loads(read_text(internal / ID))["id"]
            if not re.fullmatch("[0-9a-f]{16}", found):
                raise ValueError("no id")
            self.id = found
        except DAMAGED:
            write_json(internal / ID, {"id": self.id})

    def check(self, is_private: bool) -> None:
        """Refuse a run that cannot fit, before anything slow. Write nothing.

        Raises:
            InputError: the account cannot be used. Or there is a limit, and it is reached, or the
                run has no privacy.
        """
        others = self._read()[1].without(self.id)
        if others.limit is None:
            return
        if not is_private:
            self._refuse(others.limit, "this run is without privacy")
        if others.runs and self._epsilon_of(others) >= others.limit:
            raise InputError(f"{self._say_spent(others)} No run fits. Raise `budget`.")

    def enter(
        self, ledger: Ledger, planned: Callable[[float], Ledger], is_spent: bool = False
    ) -> None:
        """Count a run, before it spends anything, with all that it may spend.

        Args:
            ledger: with all planned events.
            planned: returns the same for another ε, or raises an `InputError` if there is no plan.
            is_spent: whether the run has spent it already. Then it counts even if it is refused.

        Raises:
            InputError: the account's limit refuses the run.
        """

        def with_ledger(found: Ledger) -> Book:
            found = replace(found, public_inputs=(), library_versions=(), group_size=None)
            return book.with_run(replace(entry, ledger=found))

        with self._held():
            before, book = self._read()
            dates = [run.date for run in book.runs if run.id == self.id]
            date = dates[0] if dates else f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
            entry = Entry(self.id, date, self.command, self.owner, is_spent, ledger)
            new, limit = with_ledger(ledger), book.limit
            if is_spent and self.writes:
                new.save(self.file)
            if limit is not None and (spent := self._epsilon_of(new)) > limit * ROUNDING:
                if dates:
                    said = f"{self._say_spent(new, ', with this run')} It was counted before."
                    raise InputError(f"{said} Raise `budget`.")
                most = largest_epsilon(
                    ledger.target_epsilon or 0.0,
                    lambda target: self._epsilon_of(with_ledger(planned(target))) <= limit,
                )
                advice = f"Take `epsilon={most:g}` at most, or raise" if most else "Raise"
                raise InputError(
                    f"{self._say_spent(book.without(self.id))} This run would bring it to "
                    f"{up_decimals(spent)}. {advice} `budget`."
                )
            if self.writes:
                new.save(self.file)
        if not self.is_in and self.writes:
            words = "no limit" if limit is None else f"a limit of ε = {limit:g}"
            if before is None:
                line = f"{self.file}: this table has an account now, with {words}. Every run counts"
                self.progress.say(f"{line} in it from now on.")
            elif before.limit != limit:
                was = "none" if before.limit is None else f"ε = {before.limit:g}"
                self.progress.say(f"{self.file}: the account has {words} now. It was {was}.")
            self.progress.say(self._say_spent(new, ", with this run"))
        self.is_in = True

    def end(self, events: Sequence[Event]) -> None:
        """Put what a run did spend in the place of what it planned. Nothing: leave the run out.

        If the account cannot be used any more, a warning says so and the plan stays in it.
        """
        try:
            with self._held():
                book = Book.load(self.file) if self.writes else None
                if book is None and self.is_in:
                    raise InputError(f"{self.file}: is gone.")
                for run in book.runs if book else ():
                    if book and run.id == self.id:
                        # what masked the texts of a first phase is stated, whether it was read
                        masked = [e for e in run.ledger.events if isinstance(e, MaskedAccess)]
                        spent = [*events, *(e for e in masked if e not in events)]
                        ledger = replace(run.ledger, events=spent)
                        ended = book.with_run(replace(run, is_ended=True, ledger=ledger))
                        (ended if events else book.without(run.id)).save(self.file)
        except InputError as error:
            self.progress.warn(f"{error} What this run spent could not be written there.")

    def enter_trained(self, ledger: Ledger) -> None:
        """Count a run that has spent all it will, as a run that was trained before the account.

        Raises:
            InputError: the account's limit refuses the run.
        """

        def planned(target: float) -> Ledger:
            raise InputError(f"{self.file}: the run is trained, so its ε stays.")

        self.enter(ledger, planned, is_spent=True)

    def _read(self) -> tuple[Book | None, Book]:
        """Return the account as it is, and with the limit that this run states."""
        before = Book.load(self.file)
        book = before or Book()
        return before, book if self.limit is None else replace(book, limit=self.limit)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep other runs from reading or writing the account. They wait, for a second or so."""
        with ExitStack() as stack:
            if self.writes:
                stack.enter_context(writing(self.file))
                stack.enter_context(hold_lock(self.file, waits=True))
            yield

    def _epsilon_of(self, book: Book) -> float:
        """Return the total ε of an account with a limit, which must have one."""
        spent = book.total
        if spent.epsilon is None:
            self._refuse(book.limit, spent.reason)
        return spent.epsilon

    def _refuse(self, limit: float | None, reason: str) -> NoReturn:
        raise InputError(
            f"{self.file}: this table's account has a limit of ε = {limit:g}, but no total can be "
            f"stated, because {reason}. {REMEDY}"
        )

    def _say_spent(self, book: Book, more: str = "") -> str:
        """Return a line on what an account has spent."""
        spent, many = book.total, len(book.runs)
        if spent.epsilon is None and many:
            return f"{self.file}: this table's account has no total, because {spent.reason}."
        of = "" if book.limit is None else f" of {book.limit:g}"
        by = f"{many} run{'s' * (many != 1)}{more}"
        return (
            f"{self.file}: this table's account has ε = {up_decimals(spent.epsilon or 0.0)}{of} "
            f"spent by {by}."
        )


def largest_epsilon(asked: float, fits: Callable[[float], bool]) -> float | None:
    """Return the largest ε of two digits below the one asked for that fits, or None.

    A very small ε may have no plan, because its noise would drown the records. What `fits` raises
    then counts as fitting, so that the search ends where runs begin to be too much.
    """

    def is_too_much(target: float) -> bool:
        with suppress(InputError):
            return not fits(target)
        return False

    two = [float(f"{n}e{power}") for power in range(-4, 5) for n in range(10, 100)]  # rising
    two = [each for each in two if SMALLEST_EPSILON <= each < asked]
    fitting = two[: bisect_left(two, True, key=is_too_much)]
    with suppress(InputError):
        return fitting[-1] if fitting and fits(fitting[-1]) else None
    return None


def describe(file: Path, book: Book) -> tuple[dict[str, Any], list[str]]:
    """Return how an account stands: as plain values, and as lines for people."""
    limit, runs, rows = book.limit, list[dict[str, Any]](), [f"account: {file}"]
    for number, run in enumerate(book.runs, start=1):
        ledger, own = run.ledger, guarantee(run.ledger)
        so_far = replace(book, runs=book.runs[:number]).total.epsilon
        about = {"id": run.id, "date": run.date, "command": run.command, "ended": run.is_ended}
        about |= {"policy": ledger.policy, "records": ledger.records, "total": so_far}
        runs.append(about | {"epsilon": own.epsilon, "delta": own.delta})
        alone, both = ("none" if e is None else up_decimals(e) for e in (own.epsilon, so_far))
        whole = round(BAR * min(1.0, (so_far or 0.0) / (limit or math.inf)))
        bar = f" {'━' * whole}{'╶' * (BAR - whole)}" if limit and so_far else ""
        state = "" if run.is_ended else ", not ended: counted as planned"
        what = f"{number:3} {run.date} {run.command:8} {ledger.policy:10}"
        rows.append(f"{what} ε = {alone:>6}, total {both:>6}{bar}{state}")
    spent, left = book.total, None
    if spent.epsilon is None or spent.delta is None:
        rows.append(f"total: none, because {spent.reason}")
    else:
        shown, unit = up_decimals(spent.epsilon), book.runs[0].ledger.unit
        rows.append(f"total: ε = {shown}, δ = {up_digits(spent.delta)}, for each {unit}")
        if limit is not None:
            left = max(0.0, limit - spent.epsilon)
            less = f"{max(0.0, limit - float(shown)):.2f} is left"
            more = "A run may take more than that, because several runs come to less than their sum"
            rows.append(f"limit: ε = {limit:g}, of which {less}. {more}.")
    facts = {"file": str(file), "limit": limit, "left": left, "runs": runs}
    facts |= {"epsilon": spent.epsilon, "delta": spent.delta, "reason": spent.reason or None}
    rows += [f"not counted: {line}" for line in NOT_COUNTED]
    return facts | {"not_counted": list(NOT_COUNTED)}, rows
