"""A plan fits the time by this machine's speed and public facts, and never by private lengths."""

import json
import random
import re
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch

from tests.helpers.commands import ROOT, texts
from tests.helpers.machines import READ_SHARE, machine_of
from twinset import generate
from twinset.config.options import run_config
from twinset.config.plan import make_plan, size_for
from twinset.models.base_model import load_base
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Progress
from twinset.run import estimate
from twinset.run import plan_in_time as in_time
from twinset.run.choices import choices, published, worth
from twinset.run.estimate import DENIED_SHARE, measure, usual_tokens
from twinset.run.finetune import finetune
from twinset.run.forecast import forecast
from twinset.run.open_ledger import open_ledger
from twinset.run.plan_in_time import PublicFacts
from twinset.run.prepare import Prepared, prepare, prepare_records
from twinset.run.request import Source
from twinset.sampling.allocation import RowsRequest

USUAL = (40, 32)  # of 60 records
A_MINUTE = 60 * in_time.PLANNED_SHARE


class Notes(Progress):
    """Keeps what it is notified of."""

    def __init__(self):
        self.said, self.warned, self.phases = [], [], []

    def say(self, line):
        self.said.append(line)

    def warn(self, line):
        self.warned.append(line)

    def expect(self, phases):
        self.phases = list(phases)


@pytest.fixture
def machine(monkeypatch):
    """Have a machine measured; see `machine_of`."""
    return partial(machine_of, monkeypatch)


@pytest.fixture
def planned(tiny_base):
    """Prepare a table of 60 texts; return what was prepared, and the notes."""

    def plan(rows=None, data=None, source=None, **options):
        notes, known = Notes(), {"base_model": str(tiny_base), "epsilon": 1000, "max_tokens": 12}
        known |= {"marginal_share": 0, "teacher_share": 0}  # so that times are round
        frame = pd.DataFrame({"text": data or texts(), "label": ["good", "bad"] * 30, "who": 0})
        frame["who"] = frame.index // 3
        source = Source(frame, "text", ("label",), **(source or {}))
        config = run_config({**known, "physical_batch": 1, **options})  # one by one: no filler
        asked = RowsRequest(rows) if isinstance(rows, int) else rows
        return prepare(source, config, asked, notes), notes

    return plan


def size(prepared: Prepared) -> tuple[int, int]:
    return prepared.plan.steps, prepared.plan.batch_size


def seconds_of(visits: int, prepared: Prepared) -> float:
    """Seconds a token with which so many visits just fit into a minute."""
    tokens = prepared.public_facts().tokens(prepared.config, prepared.base)
    return A_MINUTE / visits / tokens


def test_the_usual_plan_is_taken_where_it_fits(planned, machine):
    alone, _ = planned(max_minutes=None)
    machine(seconds_of(40 * 32, alone) * 0.999)
    fits, notes = planned(max_minutes=1.0)
    assert size(alone) == size(fits) == USUAL
    assert notes.warned == [] and notes.said[-1] == "measuring speed on this machine"


@pytest.mark.parametrize("visits", [1200, 900, 600, 512, 300, 128])
def test_else_as_many_visits_as_fit_first_in_fewer_steps(planned, machine, visits):
    machine(seconds_of(visits, planned(max_minutes=None)[0]) * 0.999)
    found, notes = planned(max_minutes=1.0)
    steps, batch = size(found)
    assert visits - steps < steps * batch <= visits
    assert (steps, batch) == size_for(60, visits) and (batch >= 32 or steps == 8)
    assert notes.warned == [] and f"there are {steps} of {batch}" in notes.said[-1]


def test_other_budgets_and_policies_are_of_the_same_steps(tiny_base, machine):
    """And of owners, where these are named."""
    machine(0.03, row=1e-3)
    owners = [row // 2 for row in range(60)]
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30, "who": owners})
    known = {"base_model": str(tiny_base), "epsilon": 3000, "max_tokens": 12, "max_minutes": 1.0}
    source = Source(frame, "text", ("label",), owner="who")
    found = forecast(source, None, run_config(known), None, Notes())
    said = "\n".join(found.lines())
    assert "owners N               30, of 60 records" in said and "for every owner" in said
    assert "every record" not in said
    assert 0 < found.plan.steps < 40  # usual are 40
    same = found.policies["uniform"]
    assert (same.steps, same.batch_size) == (found.plan.steps, found.plan.batch_size)
    assert same.noise_multiplier == found.plan.noise_multiplier


@pytest.mark.parametrize(
    ("options", "rate"),
    [({}, 0.006), ({"learning_rate": 0.1}, 0.1), ({"method": "full"}, 1e-4)],
)
def test_few_steps_are_larger_ones_unless_a_rate_is_named(planned, machine, options, rate):
    machine(seconds_of(200, planned(max_minutes=None)[0]))
    plan = planned(max_minutes=1.0, **options)[0].plan
    assert (plan.steps, plan.learning_rate) == (8, rate)


def test_with_more_time_no_more_is_trained(planned, machine):
    machine(1e-9)
    assert size(planned(max_minutes=1000.0)[0]) == USUAL


def test_rows_are_written_in_the_same_time(planned, machine):
    record = seconds_of(40 * 32, planned(max_minutes=None)[0]) * 0.999
    machine(record, row=record)
    found = {rows: planned(rows, max_minutes=1.0)[0] for rows in (None, 10, 640)}
    visits = {rows: p.plan.steps * p.plan.batch_size for rows, p in found.items()}
    assert visits[None] == 1280 and 1200 < visits[10] < 1280 and 600 < visits[640] <= 640


@pytest.mark.parametrize(
    ("visits", "rows"),
    [(1, 3000), (1280, 640 * 0.4), (1000, 640 * 0.4), (320, 640 * 3 / 4), (0.1, 640)],
)
def test_rows_nobody_asked_for_fill_what_training_leaves_or_their_share(
    planned, machine, visits, rows
):
    """A machine that has time for so many visits, or twice as many rows, in all."""
    record = seconds_of(1280, planned(max_minutes=None)[0])
    speed = 1e-9 if visits == 1 else record * visits / 1280
    machine(speed, row=1e-9 if visits == 1 else 2 * record)
    found, notes = planned(RowsRequest(), max_minutes=1.0)
    assert found.rows.most == pytest.approx(rows, abs=2) and found.rows.rows is None
    assert any("rows do not fit" in line for line in notes.said) == (rows < 3000)
    assert found.public_facts().rows == found.rows.most


def test_rows_that_were_asked_for_are_written_whatever_they_take(planned, machine):
    machine(1e-9, row=1e-2)
    assert planned(RowsRequest(6000), max_minutes=1.0)[0].rows == RowsRequest(6000)
    assert planned(RowsRequest(), max_minutes=None)[0].rows == RowsRequest(most=3000)


def test_rows_that_take_longer_than_there_is_are_named(planned, machine):
    machine(1e-9, row=1e-2)
    found, notes = planned(6000, max_minutes=1.0)
    assert len(notes.warned) == 1
    assert "writing 6000 rows alone takes about" in notes.warned[0] and "`rows=" in notes.warned[0]
    assert found.plan.steps * found.plan.batch_size >= 64


def test_short_texts_have_more_rows_once_their_lengths_were_counted(
    tiny_base, machine, tmp_path, monkeypatch
):
    """The plan supposes three quarters of the longest; how long they are is private until then."""
    machine(1e-9, row=1e-2)
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"text": ["so it is."] * 60, "label": ["good", "bad"] * 30})
    options = {"epsilon": 1e6, "steps": 0, "max_tokens": 40, "max_minutes": 0.5, "guidance": 0.0}
    options |= {"run": "r", "teacher_share": 0, "base_model": str(tiny_base)}
    notes = Notes()
    rows = generate(frame, "text", "label", progress=notes, **options).rows
    (line,) = (line for line in notes.said if "rows do not fit" in line)
    planned = int(re.search(r"there are (\d+), or more", line)[1])
    known = json.loads((tmp_path / "r" / "internal" / "config.json").read_text())
    assert planned < 100 and rows > 1.4 * planned
    assert known["rows"]["most"] == rows  # so that a run that is resumed has as many


def test_rows_by_length_are_never_fewer_than_planned_nor_more_than_usual():
    speed = estimate.Speed(run_config({}), 100, 100, 1.0, 1, 0.0, 0.0, 0.0, 2.0, 1.0)
    plan = make_plan(60, run_config({"epsilon": 50, "teacher_share": 0}))
    for tokens, rows in ((100, 50), (50, 100), (10, 300), (200, 50)):
        assert in_time.rows_by_length(50, 300, plan, speed, tokens) == rows


@pytest.mark.parametrize(("policy", "trained"), [("uniform", 1), ("selective", 2)])
def test_a_run_reports_the_time_of_its_phases(
    tiny_base, machine, tmp_path, monkeypatch, policy, trained
):
    machine(1e-3, row=1e-2)
    monkeypatch.chdir(tmp_path)
    frame, notes = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30}), Notes()
    options = {"epsilon": 50, "steps": 2, "batch_size": 8, "max_tokens": 12}
    options |= {"noise_policy": policy, "max_minutes": 1.0, "rows": 4, "run": "r"}
    generate(frame, "text", "label", base_model=str(tiny_base), progress=notes, **options)
    once = ["reference rows", "texts read by the teacher", "rows"]
    assert [name for name, _ in notes.phases] == [
        "rows of the base",
        *["training"] * trained,
        *once,
    ]
    weight, *training, reference, read, rows = (seconds for _, seconds in notes.phases)
    tokens = reference / 60 / 1e-2
    assert weight == reference  # of 60 records as many rows each time
    assert training == pytest.approx([2 * 8 * tokens * 1e-3] * trained, rel=0.2)
    assert read == pytest.approx(60 * READ_SHARE * tokens * 1e-3)
    assert rows == pytest.approx(4 * (1 + DENIED_SHARE) * (reference + read) / 60)


@pytest.mark.parametrize("given", [{"steps": 3}, {"batch_size": 8}, {"steps": 3, "batch_size": 8}])
def test_what_is_given_wins_and_is_warned_of(planned, machine, given):
    machine(10.0)
    found, notes = planned(max_minutes=1.0, **given)
    assert {name: getattr(found.plan, name) for name in given} == given
    assert len(notes.warned) == 1 and "and not `max_minutes=1`" in notes.warned[0]


def test_what_would_drown_in_noise_is_not_taken(planned, machine, monkeypatch):
    machine(seconds_of(8, planned(max_minutes=None)[0]) * 0.999)
    monkeypatch.setattr(in_time, "FEWEST_VISITS", 8)
    assert size(planned(max_minutes=1.0)[0]) == (8, 1)
    monkeypatch.setattr("twinset.config.plan.FEW", 0)  # which would train nothing
    found, notes = planned(max_minutes=1.0, epsilon=8)
    assert size(found) == USUAL and "and not `max_minutes=1`" in notes.warned[0]


def test_owners_may_have_several_records_in_a_step(planned, machine):
    record = seconds_of(40 * 32, planned(max_minutes=None)[0])
    machine(record * 0.99)
    owners = {"source": {"owner": "who"}, "max_minutes": 1.0}
    found = {m: planned(max_records_per_owner=m, **owners)[0] for m in (1, 4)}
    visits = {m: p.plan.steps * p.plan.batch_size for m, p in found.items()}
    assert found[1].plan.records == 20 and visits[4] < visits[1]


# --- what it may depend on --------------------------------------------------------------------


def short_and_long() -> dict[str, list[str]]:
    """Two tables alike in all that is public."""
    return {"short": ["So so."] * 60, "long": ["so much longer than the other one, and so on"] * 60}


def test_private_lengths_move_no_plan(planned, machine):
    machine(seconds_of(600, planned(max_minutes=None)[0]))
    found = [planned(data=data, max_minutes=1.0) for data in short_and_long().values()]
    assert found[0][0].plan == found[1][0].plan and size(found[0][0]) != USUAL
    assert found[0][0].speed.tokens == found[1][0].speed.tokens
    assert found[0][1].said == found[1][1].said


def test_a_plan_by_private_lengths_would_be_noticed(planned, machine, monkeypatch):
    honest = Prepared.public_facts

    def spying(prepared):
        tokenizer, facts = prepared.base.tokenizer, honest(prepared)
        most = prepared.config.training.max_tokens
        tokens = usual_tokens(prepared.records.texts, tokenizer, facts.longest_prompt, most)
        return replace(facts, longest_prompt=tokens)

    machine(seconds_of(600, planned(max_minutes=None)[0]))
    monkeypatch.setattr(Prepared, "public_facts", spying)
    found = [planned(data=data, max_minutes=1.0)[0] for data in short_and_long().values()]
    assert size(found[0]) != size(found[1])


@pytest.mark.parametrize(
    "options", [{"max_tokens": 40}, {"prompt": "Write a very, very long and {label} text:"}]
)
def test_public_lengths_move_it(planned, machine, options):
    machine(seconds_of(600, planned(max_minutes=None)[0]))
    assert planned(max_minutes=1.0)[0].plan.steps * 32 > 550
    source = {"prompt": options.pop("prompt")} if "prompt" in options else None
    longer = planned(max_minutes=1.0, source=source, **options)[0]
    assert longer.plan.steps * longer.plan.batch_size < 550


@pytest.mark.parametrize(
    ("options", "is_said"),
    [({}, True), ({"max_minutes": None}, False), ({"steps": 2}, False), ({"batch_size": 8}, False)],
)
def test_the_ledger_says_what_steps_follow_from(planned, options, is_said):
    prepared, _ = planned(**options)
    base, config = prepared.base.origin, prepared.config
    randomness = Randomness.for_tests(1)
    templates = (prepared.template,)
    ledger = open_ledger(prepared.plan, config, templates, base, False, randomness, None, {})
    assert any("the speed of the machine" in one for one in ledger.public_inputs) == is_said


# --- measuring ----------------------------------------------------------------------------------


def test_what_is_short_on_any_machine_is_not_measured(planned, monkeypatch):
    monkeypatch.setattr(in_time, "measure", lambda *_: pytest.fail("measured"))
    prepared, notes = planned(10)
    assert prepared.speed is None and "measuring speed on this machine" not in notes.said
    monkeypatch.setattr(in_time, "SLOWEST", 1.0)
    assert planned(10, max_minutes=None)[0].speed is None
    held = prepare_records(prepared.records, prepared.template, prepared.config, prepared.base)
    assert held.speed is None and not held.config.training.is_timed


@pytest.mark.parametrize("method", ["lora", "full"])
def test_measuring_leaves_the_model_and_the_random_numbers_as_they_were(tiny_llama, method):
    base, config = load_base(str(tiny_llama)), run_config({"method": method, "steps": 2})
    before = {name: t.clone() for name, t in base.model.state_dict().items()}
    plan = make_plan(1000, config)
    numbers = torch.random.get_rng_state(), random.getstate()
    speed = measure(base, config, plan, 12)
    assert torch.equal(numbers[0], torch.random.get_rng_state())
    assert numbers[1] == random.getstate()
    after = base.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(t, after[name]) for name, t in before.items())
    assert min(speed.record_seconds, speed.row_seconds, speed.noise_seconds) > 0


def test_a_run_is_the_same_whether_it_was_measured(planned, monkeypatch):
    options = {"insecure_noise_seed": 1, "steps": 2, "batch_size": 8, "epsilon": 50}
    plain, _ = planned(**options)
    monkeypatch.setattr(in_time, "SLOWEST", 1.0)
    timed, notes = planned(**options)
    assert "measuring speed on this machine" in notes.said
    ours, others = (finetune(p).model.state_dict() for p in (plain, timed))
    assert all(torch.equal(t, others[name]) for name, t in ours.items())


def test_a_plan_and_its_choices_are_of_one_estimate(tiny_base, machine, tmp_path):
    """Chosen for the length that is supposed, all are shown for the length that texts have."""
    machine(1e-3, row=1e-3)
    table = tmp_path / "t.csv"
    found = {}
    for name, data in short_and_long().items():
        pd.DataFrame({"text": data, "label": ["good", "bad"] * 30}).to_csv(table, index=False)
        config = run_config({"base_model": str(tiny_base), "epsilon": 2000, "max_tokens": 12})
        source = Source(str(table), "text", ("label",))
        found[name] = forecast(source, None, config, None, Notes())
    for plan in found.values():
        usual = next(choice for choice in plan.choices if choice.name == "usual")
        assert usual.plan == plan.plan and usual.estimate == plan.estimate
    short, long = found["short"], found["long"]
    assert short.plan == long.plan and short.estimate.seconds < long.estimate.seconds
    assert [c.plan for c in short.choices] == [c.plan for c in long.choices]


def test_processes_share_records_and_rows(machine):
    machine(1e-3, row=1e-3)
    plan = make_plan(1000, run_config({"max_tokens": 12}))
    times = [
        in_time.measure(None, run_config({"processes": n}), plan, 32).estimate(plan, 100)
        for n in (1, 4)
    ]
    assert times[1].training_seconds == pytest.approx(times[0].training_seconds / 4)
    assert times[1].sampling_seconds == pytest.approx(times[0].sampling_seconds / 4)


@pytest.mark.parametrize(
    ("each", "taken"),
    [(1e-6, [1, 32, 256, 256]), (0.01, [1, 32, 70, 70]), (0.3, [1, 32, 2]), (3.0, [1, 32, 1])],
)
def test_a_slow_machine_is_not_measured_for_long(each, taken):
    seen = []

    def timed(number):
        seen.append(number)
        return number * each

    found = estimate._seconds_of_one(timed, 256, 0.7)
    assert [next(found), next(found)] == pytest.approx([each, each])
    assert seen == taken


def test_the_fastest_of_several_measurements_counts():
    """A machine that is busy for a while looks slow once; one that is slow looks so twice."""
    times = iter([9.0, 3.0, 3.0, 1.0, 5.0])
    found = estimate._seconds_of_one(lambda number: number * next(times), 8, 0.7)
    assert [next(found) for _ in range(5)] == [9.0, 3.0, 3.0, 1.0, 1.0]


# --- choices by time ----------------------------------------------------------------------------


def test_choices_by_time(tiny_base, machine):
    machine(1e-3)
    config = run_config({"base_model": str(tiny_base), "steps": 3, "max_minutes": 1e6})
    speed, facts = in_time.measure(None, config, None, 32), PublicFacts(8, 100, may_be_fewer=True)
    found = {choice.name: choice for choice in choices(10_000, config, speed, facts)}
    sizes = {n: (c.plan.steps, c.plan.batch_size) for n, c in found.items()}
    assert {n: c.rows for n, c in found.items() if c.rows} == {"quick": 25}
    assert sizes.pop("untrained")[0] == 0
    assert sizes == {"quick": (10, 250), "usual": (40, 250), "best": (40, 1000)}
    seconds = [choice.estimate.seconds for choice in found.values()]
    assert seconds == sorted(seconds)
    line, options = found["best"].lines("twinset generate t.csv")
    assert options.startswith("  twinset generate t.csv `steps=40` `batch_size=1000` ")
    line, options = found["untrained"].lines("twinset generate t.csv")
    assert "counts and teacher" in line and options == "  twinset generate t.csv `steps=0`"


def test_a_policy_of_steps_has_no_choice_without(tiny_base, machine):
    machine(1e-3)
    config = run_config({"base_model": str(tiny_base), "noise_policy": "importance"})
    speed = in_time.measure(None, config, None, 32)
    found = choices(10_000, config, speed, PublicFacts(8, 100))
    assert "untrained" not in [choice.name for choice in found]


def test_what_a_choice_buys_is_what_docs_publish():
    page, table = (ROOT / "docs" / "tuning.md").read_text("utf-8"), published()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    found = {row[1]: float(row[-1]) for row in rows if len(row) == 7 and row[1][:1].isdigit()}
    for one in table["measured"]:
        assert found[f"{one['steps']} × {one['batch_size']}"] == one["accuracy"]
    base = next(float(row[-1]) for row in rows if row[:1] == ["no private data"] and len(row) == 7)
    assert base == table["without_private_data"]


@pytest.mark.parametrize(
    ("steps", "batch", "base", "found"),
    [
        (40, 140, "smollm2-135m", "5,600 visits gave 0.619"),
        (40, 279, "smollm2-135m", "5,600 visits gave 0.619"),
        (10, 140, "smollm2-135m", "1,395 visits gave 0.593"),
        (40, 281, "smollm2-135m", ""),
        (9, 154, "smollm2-135m", ""),
        (40, 140, "gpt2-mini", ""),
    ],
)
def test_what_was_not_measured_is_not_promised(steps, batch, base, found):
    config = run_config({"base_model": base, "steps": steps, "batch_size": batch})
    said = worth(make_plan(3128, config), config)
    assert said.startswith(found) and bool(said) == bool(found)


def test_a_choice_that_would_drown_in_noise_is_left_out(tiny_base, machine):
    machine(1e-3)
    config = run_config({"base_model": str(tiny_base), "epsilon": 1.0})
    speed = in_time.measure(None, config, None, 32)
    assert choices(60, config, speed, PublicFacts(8, 10)) == []
