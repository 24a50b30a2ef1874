"""One account a table: what runs spend together, what is refused, and what a crash leaves."""

import json
import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from tests.helpers.commands import GOOD, OWNED, Heard, arguments, call, fitted_scale
from twinset.errors import InputError
from twinset.policies import policy_names
from twinset.privacy.accounting.accountant import epsilon, gaussian_noise_multiplier, left_of
from twinset.privacy.accounting.events import (
    GaussianRelease,
    LabelSelection,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.statement.guarantee import guarantee, total
from twinset.privacy.statement.ledger import Ledger
from twinset.run import budget, generate, releases, story
from twinset.run.budget import ID, Account, Book, Entry
from twinset.run.request import Source
from twinset.sampling.twin_model import TwinModel

COUNTS, STEPS = GaussianRelease(1.5, "label counts"), SubsampledGaussian(1.1, 0.1, 40)
SELECTION = LabelSelection(4.0, 30, 1, 1)
MASKED, OTHERS_MASKED = MaskedAccess("patterns"), MaskedAccess("entities")
assert policy_names()  # their theorems are known


def ledger_with(*events, policy="uniform", by_owner=False, **facts) -> Ledger:
    rates = [event.sample_rate for event in events if isinstance(event, SubsampledGaussian)]
    usual = {
        "delta": 1e-5,
        "target_epsilon": 8.0,
        "records": 500,
        "sample_rate": max(rates, default=0.1),
    }
    return Ledger.open(
        Randomness.from_os(),
        policy,
        by_owner=by_owner,
        events=list(events),
        **{**usual, "max_grad_norm": 0.1, **facts},
    )


# -- what runs spend together ----------------------------------------------------------------------

RUNS = {
    "counts": [(COUNTS,), (COUNTS, GaussianRelease(3.0, "teacher"))],
    "steps": [(COUNTS, STEPS), (COUNTS, replace(STEPS, steps=10)), (STEPS,)],
    "other steps": [(STEPS,), (SubsampledGaussian(0.9, 0.3, 20), COUNTS), (COUNTS,), (COUNTS,)],
}


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_the_total_is_that_of_all_events_and_of_another_accountant(runs):
    found, events = total([ledger_with(*run) for run in runs]), [e for run in runs for e in run]
    assert found.delta == 1e-5 and found.epsilon == epsilon(events, 1e-5)
    parts = []
    for event in events:
        of = event if isinstance(event, SubsampledGaussian) else None
        made = pld.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=of.sample_rate if of else 1.0
        )
        parts.append(made.self_compose(of.steps) if of else made)
    witness = reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(1e-5)
    assert found.epsilon == pytest.approx(witness, rel=0.01)
    alone = [guarantee(ledger_with(*run)).epsilon for run in runs]
    assert max(alone) < found.epsilon < sum(alone)


def test_selections_and_other_deltas_never_make_epsilon_smaller():
    """The total of one run is its own. δ of sums is the smallest. That of selections adds up."""
    runs = [ledger_with(SELECTION, COUNTS), *[ledger_with(SELECTION, STEPS)] * 20]
    runs += [ledger_with(COUNTS, delta=1e-4), ledger_with(COUNTS, delta=1e-7)]
    own = guarantee(runs[0])
    first = total(runs[:1])
    assert first.delta == own.delta and first.epsilon == pytest.approx(own.epsilon, rel=1e-9)
    found = [total(runs[:many]) for many in range(1, len(runs) + 1)]
    spent = [each.epsilon for each in found]
    assert spent == sorted(spent) and spent[0] < spent[1] < spent[-1]
    each = SELECTION.delta()
    assert each > 0
    assert found[20].delta == pytest.approx(left_of(1e-5, [SELECTION]) + 21 * each, rel=1e-6)
    assert found[-1].delta == pytest.approx(1e-7 + 21 * each, rel=1e-6)


NO_TOTAL = {
    "nothing": ([], "no run"),
    "no privacy": ([ledger_with(COUNTS), ledger_with(NonPrivateAccess("x"))], "run 2 of 2 has no"),
    "no theorem": ([ledger_with(COUNTS, policy="invented")], "run 1 of 1 has no guarantee"),
    "owners": ([ledger_with(COUNTS), ledger_with(COUNTS, by_owner=True)], "record (run 1) and own"),
    "spans": ([ledger_with(COUNTS), ledger_with(MASKED, COUNTS, policy="selective")], "flagged"),
    "detectors": (
        [ledger_with(e, COUNTS, policy="selective") for e in (MASKED, OTHERS_MASKED)],
        "different units",
    ),
    "delta": ([ledger_with(LabelSelection(4.0, 14, 1, 1), delta=0.0019)] * 2, "below 1/N"),
}


@pytest.mark.parametrize(("runs", "said"), NO_TOTAL.values(), ids=NO_TOTAL)
def test_no_total_is_stated_where_no_theorem_has_one(runs, said):
    found = total(runs)
    assert (found.epsilon, found.delta) == (None, None) and said in found.reason


def test_spans_of_one_detector_and_owners_of_one_column_add_up():
    for more in ({"policy": "selective"}, {"by_owner": True}):
        masked = [MASKED] * ("policy" in more)
        runs = [ledger_with(*masked, COUNTS, **more)] * 2
        assert total(runs).epsilon == epsilon([COUNTS, COUNTS], 1e-5)
    book = Book(None, tuple(entry(str(n), runs[0], owner) for n, owner in enumerate("ab")))
    assert "different columns of owners" in book.total.reason


def entry(name, ledger, owner=None) -> Entry:
    return Entry(name, "2026-01-01 00:00", "generate", owner, True, ledger)


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    GOOD.to_csv("t.csv", index=False)
    return tmp_path / "t.csv.budget.json"


def account(limit=None, notes=None, **more) -> Account:
    found = Source("t.csv", budget=limit, **more).open_account("generate", notes or Heard())
    assert found is not None
    return found


def run_with(target: float) -> Ledger:
    """A run whose ε is the target."""
    noise = gaussian_noise_multiplier(target, 1e-5)
    return ledger_with(GaussianRelease(noise, "label counts"), target_epsilon=target)


def test_a_run_enters_as_planned_and_ends_with_what_it_spent(place):
    assert Source("t.csv").account_file is None  # nothing changes without an account
    notes = Heard()
    first = account(10, notes)
    first.enter(run_with(6), run_with)
    assert [run.is_ended for run in Book.load(place).runs] == [False]
    spent = run_with(5).events
    first.end(spent)
    book = Book.load(place)
    assert book.limit == 10 and [run.is_ended for run in book.runs] == [True]
    assert book.runs[0].ledger.events == spent and book.total.epsilon == pytest.approx(5)
    assert place.stat().st_mode & 0o777 == 0o600
    assert "a limit of ε = 10" in notes.lines[0] and "6.00 of 10 spent by 1 run," in notes.lines[1]
    assert "Xyzzy" not in place.read_text()
    # it sticks, without any option, and through a link to the table
    Path("link.csv").symlink_to("t.csv")
    assert Source("link.csv").account_file == Source("t.csv").account_file == place
    account().enter(run_with(5), run_with)
    assert len(Book.load(place).runs) == 2
    account(12, notes).enter(run_with(1), run_with)
    assert "a limit of ε = 12 now. It was ε = 10" in notes.lines[-2]


def test_what_would_go_over_is_refused_and_nothing_is_written(place):
    account(10).enter(run_with(6), run_with)
    before = place.read_bytes()
    with pytest.raises(InputError) as refused:
        account().enter(run_with(8), run_with)
    line = str(refused.value)
    assert "has ε = 6.00 of 10 spent by 1 run. This run would bring it to 10.74. Take" in line
    assert line.endswith("at most, or raise `budget`.")
    most = float(line.partition("`epsilon=")[2].partition("`")[0])
    assert total([run_with(6), run_with(most)]).epsilon <= 10
    assert total([run_with(6), run_with(most + 0.1)]).epsilon > 10
    assert place.read_bytes() == before and not list(place.parent.glob(".*"))
    account().enter(run_with(most), run_with)  # as advised
    # a limit that is reached refuses before the table is read
    account(10.1).enter(run_with(0.5), run_with)
    with pytest.raises(InputError, match="No run fits. Raise `budget`"):
        account(9).check(is_private=True)


def too_few(target: float) -> Ledger:
    if target < 5:
        raise InputError("too few")
    return run_with(target)


def test_the_largest_epsilon_is_one_that_has_a_plan(place):
    account(10).enter(run_with(6), run_with)
    for limit, said in ((10, "Take `epsilon=7"), (7, "10.74. Raise `budget`")):
        with pytest.raises(InputError, match=said):
            account(limit).enter(run_with(8), too_few)


def test_a_run_that_is_counted_is_not_told_to_take_another_epsilon(place):
    run = account(10)
    run.enter(run_with(6), run_with)
    resumed = account(5)
    resumed.id = run.id
    with pytest.raises(InputError, match=r"counted before\. Raise `budget`\.$") as refused:
        resumed.enter(run_with(6), run_with)
    assert "0.00" not in str(refused.value) and "Take" not in str(refused.value)
    assert Book.load(place).limit == 10


REFUSED = {
    "no privacy": (ledger_with(NonPrivateAccess("x"), target_epsilon=None), {}, "run 2 of 2"),
    "owners": (ledger_with(COUNTS, by_owner=True), {"owner": "who"}, "different units"),
}


@pytest.mark.parametrize(("ledger", "more", "said"), REFUSED.values(), ids=REFUSED)
def test_a_limit_refuses_what_has_no_total(place, ledger, more, said):
    account(10).enter(run_with(6), run_with)
    before = place.read_bytes()
    with pytest.raises(InputError, match=said):
        account(**more).enter(ledger, run_with)
    assert place.read_bytes() == before
    with pytest.raises(InputError, match="without privacy"):
        account().check(is_private=False)
    with pytest.raises(InputError, match=said):  # it is trained already, so it is in there
        account(**more).enter_trained(ledger)
    assert len(Book.load(place).runs) == 2 and Book.load(place).total.epsilon is None
    # without a limit it is counted, and then there is no total and no limit any more
    os.unlink(place)
    account(budget_file=place).enter(run_with(6), run_with)
    account(**more).enter(ledger, run_with)
    assert Book.load(place).total.epsilon is None
    with pytest.raises(InputError, match="no total"):
        account(100).check(is_private=True)


def edit(change):
    def damage(place: Path) -> None:
        data = json.loads(place.read_text())
        change(data)
        place.write_text(json.dumps(data))

    return damage


def link(place: Path) -> None:
    place.rename("elsewhere.json")
    place.symlink_to("elsewhere.json")


DAMAGE = {
    "a limit": edit(lambda data: data.update(limit=99)),
    "an event": edit(lambda d: d["runs"][0]["ledger"]["events"][0].update(noise_multiplier=50.0)),
    "a run less": edit(lambda data: data["runs"].clear()),
    "no hash": edit(lambda data: data.pop("sha256")),
    "cut off": lambda place: place.write_text(place.read_text()[:-20]),
    "nested": lambda place: place.write_text("[" * 100_000),
    "no JSON": lambda place: place.write_bytes(b"\xff\x00"),
    "a link": link,
    "a dangling link": lambda place: [link(place), Path("elsewhere.json").unlink()],
    "a folder": lambda place: [place.unlink(), place.mkdir()],
    "a pipe": lambda place: [place.unlink(), os.mkfifo(place)],
    "huge": lambda place: os.truncate(place, 2**40),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_was_altered_stops_every_run(place, damage):
    running = account(10)
    running.enter(run_with(6), run_with)
    damage(place)
    for act in (lambda: account().check(True), lambda: account().enter(run_with(1), run_with)):
        with pytest.raises(InputError) as refused:
            act()
        assert str(refused.value).startswith(str(place)) and "\n" not in str(refused.value)
    notes = running.progress = Heard()
    running.end([COUNTS])  # a run that has trained is not lost
    assert "could not be written" in notes.lines[0]


def test_an_account_that_was_deleted_meanwhile_is_missed(place):
    running = account(10)
    running.enter(run_with(6), run_with)
    place.unlink()
    running.progress = Heard()
    running.end([COUNTS])
    assert "is gone" in running.progress.lines[0] and not place.exists()


def test_a_file_of_another_user_or_version_is_refused(place, monkeypatch):
    account(10).enter(run_with(6), run_with)
    with monkeypatch.context() as patch:
        patch.setattr(budget, "FORMAT_VERSION", 2)
        with pytest.raises(InputError, match="another version"):
            patch.setattr(budget, "_digest", lambda plain: json.loads(place.read_text())["sha256"])
            account().check(True)
    monkeypatch.setattr(budget.os, "getuid", lambda: 12345)
    with pytest.raises(InputError, match="no file of your own"):
        account().check(True)


def test_a_table_without_a_file_names_its_account(place):
    with pytest.raises(InputError, match="Name its account: `budget_file`"):
        assert Source(GOOD, budget=10).account_file
    assert Source(GOOD, budget=10, budget_file=place).account_file == place
    account(10).enter(run_with(6), run_with)
    with pytest.raises(InputError, match="is this table's account"):
        assert Source("t.csv", budget_file=Path("other.json")).account_file
    with pytest.raises(InputError, match="`budget` must be a number from"):
        Source("t.csv", budget=0)


def test_two_runs_at_once_do_not_both_slip_under_the_limit(place, monkeypatch):
    """Each fits alone, and both together do not."""
    account(10).enter(run_with(0.1), run_with)
    outcomes, together = [], threading.Barrier(2)

    def enter():
        own = account()
        together.wait()
        try:
            own.enter(run_with(8), run_with)
            outcomes.append("entered")
        except InputError:
            outcomes.append("refused")

    def race() -> list[str]:
        outcomes.clear()
        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(outcomes)

    assert race() == ["entered", "refused"] and len(Book.load(place).runs) == 2
    # without the lock both slip under it
    place.unlink()
    account(10).enter(run_with(0.1), run_with)
    monkeypatch.setattr(Account, "_held", lambda self: nullcontext())
    read, seen = Account._read, threading.Barrier(2)

    def read_together(self):
        found = read(self)
        seen.wait(timeout=20)
        return found

    monkeypatch.setattr(Account, "_read", read_together)
    assert race() == ["entered", "entered"]


# -- whole runs ------------------------------------------------------------------------------------

PLAIN = "t.csv --steps 3 --marginal-share 0 --teacher-share 0".split()


def make(tiny_base, *more, command="generate"):
    rows = ("--rows", "4") if command == "generate" else ()
    columns = () if "--columns" in more else ("--columns", "none")
    return call(*arguments(tiny_base, (*PLAIN, *columns, *rows, *more), command))


class Killed(BaseException):
    pass


def die(*given, **named):
    raise Killed


def test_runs_enter_before_they_spend_and_the_limit_holds(place, tiny_base, monkeypatch):
    """The first release finds the run's entry. A run that entered later would be caught."""
    states = []

    def watch(name):
        plain = getattr(releases, name)

        def watched(*given, **named):
            book = Book.load(place)
            states.append(book is not None and [run.is_ended for run in book.runs])
            return plain(*given, **named)

        monkeypatch.setattr(releases, name, watched)

    for name in ("select_label_values", "release_label_counts"):
        watch(name)
    made = make(tiny_base, "--run", "a", "--epsilon", "20", "--budget", "25")
    assert made.code == 0, made.err
    assert states == [[False], [False]]
    book = Book.load(place)
    ledger = Ledger.load(Path("a/model/ledger.json"))
    assert book.runs[0].ledger.events == ledger.events and book.runs[0].is_ended
    assert book.total.epsilon == guarantee(ledger).epsilon <= 20
    # over the limit: exit code 2, one line, and nothing is spent or written
    before, there = place.read_bytes(), sorted(Path().iterdir())
    states.clear()
    refused = make(tiny_base, "--run", "b", "--epsilon", "20")
    assert refused.code == 2 and "of 25 spent by 1 run. This run would bring" in refused.err
    assert (place.read_bytes(), sorted(Path().iterdir()), states) == (before, there, [])
    dry = make(tiny_base, "--run", "b", "--epsilon", "20", "--dry-run")
    assert (dry.code, dry.err.splitlines()[-1]) == (2, refused.err.splitlines()[-1])
    assert make(tiny_base, "--run", "b", "--no-privacy").code == 2
    assert place.read_bytes() == before
    # what was advised fits, as another command
    most = refused.err.partition("--epsilon ")[2].split()[0]
    again = make(tiny_base, "--run", "b", "--epsilon", most, command="finetune")
    assert again.code == 0, again.err
    shown = call("budget", "t.csv")
    assert shown.code == 0 and "━" in shown.out and "finetune" in shown.out
    facts = json.loads(call("budget", "t.csv", "--json").out)
    assert [run["command"] for run in facts["runs"]] == ["generate", "finetune"]
    assert facts["epsilon"] == facts["runs"][1]["total"] == Book.load(place).total.epsilon <= 25
    assert facts["left"] == 25 - facts["epsilon"] and facts["not_counted"]
    # the fault: a run that enters after its first release
    states.clear()
    monkeypatch.setattr(releases, "enter_account", lambda run, events=(): None)
    make(tiny_base, "--run", "c", "--epsilon", "20")
    assert states and all(map(all, states))  # no entry of a run that has not ended


def test_a_total_of_the_last_run_alone_is_caught(place, monkeypatch):
    """The check of `test_what_would_go_over…` fails if only one run is added up."""
    plain = total
    monkeypatch.setattr(budget, "total", lambda ledgers: plain(ledgers[-1:]))
    with pytest.raises(pytest.fail.Exception):
        test_what_would_go_over_is_refused_and_nothing_is_written(place)


def test_a_crash_keeps_the_plan_and_a_resumed_run_counts_once(place, tiny_base, monkeypatch):
    given = ("--run", "r", "--epsilon", "20", "--budget", "25")
    with monkeypatch.context() as patch:
        patch.setattr(TwinModel, "save", die)  # after the last checkpoint
        assert make(tiny_base, *given).code == 1
    (own,) = Book.load(place).runs
    assert own.id == json.loads(Path(".r.partial/internal", ID).read_text())["id"]
    with monkeypatch.context() as patch:  # killed in training, so what was planned stays
        patch.setattr(story, "run_training", die)
        assert make(tiny_base, *given, "--resume").code == 1
    (planned,) = Book.load(place).runs
    assert (planned.id, planned.is_ended, planned.date) == (own.id, False, own.date)
    done = make(tiny_base, *given, "--resume")
    assert done.code == 0, done.err
    (ended,) = Book.load(place).runs
    assert (ended.id, ended.is_ended) == (own.id, True)
    assert ended.ledger.events == Ledger.load(Path("r/model/ledger.json")).events
    assert planned.ledger.events == ended.ledger.events
    before = place.read_bytes()
    assert make(tiny_base, *given, "--resume").code == 0 and place.read_bytes() == before


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_run_that_was_trained_before_the_account_enters_it(
    place, tiny_base, monkeypatch, is_finished
):
    """It was stopped while it wrote rows, or is done and is shown again."""
    given = ("--run", "r", "--epsilon", "20")
    with monkeypatch.context() as patch:
        if not is_finished:
            patch.setattr(story, "sample", die)
        assert make(tiny_base, *given).code == (0 if is_finished else 1)
    assert not place.exists()
    over = make(tiny_base, *given, "--resume", "--budget", "19")
    assert over.code == 2 and "would bring it to 20.00. Raise --budget" in over.err
    assert len(Book.load(place).runs) == 1  # it is spent, whether its twin may be written or not
    assert make(tiny_base, *given, "--resume", "--budget", "25").code == 0
    (entered,) = Book.load(place).runs
    assert entered.is_ended and Book.load(place).limit == 25
    assert entered.ledger.events == Ledger.load(Path("r/model/ledger.json")).events


SPENDS = {
    "columns": ("--columns", "all", "--steps", "0"),
    "counts, steps and a teacher": ("--marginal-share", "0.4", "--teacher-share", "0.2"),
    "spans": ("--noise-policy", "selective"),
    "published": ("--noise-policy", "importance", "--policy-form", "published"),
    "weights": ("--noise-policy", "adaptive", "--weight-scale", "scale.json"),
}


@pytest.mark.parametrize("more", SPENDS.values(), ids=SPENDS)
def test_no_run_spends_more_than_it_entered_with(place, tiny_base, monkeypatch, more):
    if "scale.json" in more:
        fitted_scale(place.parent, tiny_base)
    cities = [("York", "Leeds")[i % 7 < 3] for i in range(60)]
    GOOD.assign(city=cities, age=[20 + i % 50 for i in range(60)]).to_csv("t.csv", index=False)
    entered, plain = [], Account.enter

    def enter(self, *given):
        plain(self, *given)
        entered.append(Book.load(place).total)

    monkeypatch.setattr(Account, "enter", enter)
    made = make(tiny_base, "--run", "r", "--epsilon", "20", "--budget", "100", *more)
    assert made.code == 0, made.err
    spent, own = Book.load(place).total, guarantee(Ledger.load(Path("r/model/ledger.json")))
    assert spent.epsilon == pytest.approx(own.epsilon, rel=1e-9) and spent.delta == own.delta
    assert len(entered) == 2
    for planned in entered:
        assert spent.epsilon <= planned.epsilon * budget.ROUNDING


SELECTIVE = ("--noise-policy", "selective", "--steps", "1", "--batch-size", "20")
# options, and what stays in the account
READ = {
    "nothing": (("--labels", "label=neg,pos"), []),
    "labels": ((), [LabelSelection]),
    "labels and masked texts": (SELECTIVE, [LabelSelection, MaskedAccess]),
}


@pytest.mark.parametrize(("more", "kinds"), READ.values(), ids=READ)
def test_a_run_that_is_refused_before_its_ledger_counts_only_what_it_read(
    place, tiny_base, monkeypatch, more, kinds
):
    def refuse(*given, **named):
        raise InputError("no such plan")

    monkeypatch.setattr(generate, "check_decoding", refuse)
    refused = make(tiny_base, "--run", "r", "--budget", "99", "--epsilon", "20", *more)
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert ("'label' before, which has spent a part of ε" in refused.err) == bool(kinds)
    book = Book.load(place)
    found = [event for run in book.runs for event in run.ledger.events]
    assert [type(event) for event in found] == kinds and all(run.is_ended for run in book.runs)
    assert bool(book.total.epsilon) == bool(kinds)


# Options, the content of plan.csv, and how the command is refused. All is known without the values
# of labels, but for the two last: the negative control.
UNFIT = {
    "no such file": ("--plan-file gone.csv", "", "gone.csv: no such file"),
    "an unknown ending": ("--plan-file plan.txt", "", "plan.txt: unknown ending"),
    "no column": ("--plan-file plan.csv", "label\npos\n", "has no column 'rows'"),
    "a fraction": ("--plan-file plan.csv", "label,rows\npos,3.5\n", "must be a whole number"),
    "no number": ("--plan-file plan.csv", "label,rows\npos,x\n", "must be a whole number"),
    "no row": ("--plan-file plan.csv", "label,rows\npos,0\n", "no row is asked for"),
    "ragged": ("--plan-file plan.csv", "label,rows\npos,3,4\n", "row 2 has 3 cells"),
    "another column": ("--plan-file plan.csv", "label,age,rows\npos,3,3\n", "no label column"),
    "no label": ("--plan-file plan.csv", "label,rows\n,3\n", "row 2: has no label"),
    "no number for all": ("--rows-per-label x", "", "must be a whole number"),
    "no number for one": ("--rows-per-label pos=1 --rows-per-label neg=x", "", "whole number"),
    "one label twice": ("--rows-per-label pos=1 --rows-per-label pos=2", "", "once for each label"),
    "a prompt": ("--prompt {label}{age}:", "", "names {age}"),
    "a detector": ("--noise-policy selective --detector x", "", "'x' is none of"),
    "no ε for steps": ("--marginal-share 0.9 --teacher-share 0.2", "", "left for steps"),
    "a threshold out of reach": ("--epsilon 0.5", "", "are too few for two values"),
    "an unknown label": ("--rows-per-label other=1", "", "there is no label 'other'"),
    "an unknown label of a plan": ("--plan-file plan.csv", "label,rows\nx,1\n", "no label 'x'"),
}


@pytest.mark.parametrize("has_account", [True, False])
@pytest.mark.parametrize(("more", "plan", "said"), UNFIT.values(), ids=UNFIT)
def test_what_is_asked_for_is_checked_before_anything_is_spent(
    place, tiny_base, monkeypatch, more, plan, said, has_account
):
    selected, plain = [], releases.select_label_values
    monkeypatch.setattr(
        releases, "select_label_values", lambda *a, **n: selected.append(1) or plain(*a, **n)
    )
    for name in ("plan.csv", "plan.txt"):
        Path(name).write_text(plan)
    limit = ("--budget", "2000") if has_account else ()
    words = (*PLAIN, "--columns", "none", "--epsilon", "50", *more.split(), *limit)
    refused = call(*arguments(tiny_base, words))
    assert refused.code == 2 and refused.err.count("\n") == 1 and said in refused.err
    spends = "no label '" in said
    assert bool(selected) == spends == ("spent a part of ε" in refused.err)
    assert not has_account or bool(place.exists() and Book.load(place).runs) == spends


def test_owners_and_python_count_too(place, tiny_base):
    from twinset import Twinset

    OWNED.to_csv("t.csv", index=False)
    options = {"steps": 0, "teacher_share": 0, "epsilon": 8, "progress": False}
    model = Twinset(base_model=tiny_base, **options)
    given = {"labels": {"label": ["neg", "pos"]}, "columns": "none"}
    model.fit("t.csv", "review", "label", owner="who", budget=9, **given)
    (own,) = Book.load(place).runs
    assert (own.command, own.owner, own.ledger.unit) == ("fit", "who", "owner")
    assert own.ledger.records == 20 and own.ledger.events == model.model.ledger.events
    with pytest.raises(InputError, match="different units"):
        Twinset(base_model=tiny_base, **options).fit("t.csv", "review", "label", **given)
