"""All that is computed from private records passes one gate, and the types say so."""

import ast
import inspect
import typing

import pytest

from tests.test_architecture import CODE, MODULES
from twinset.privacy.accounting.events import GaussianRelease, LabelSelection
from twinset.privacy.mechanism import columns, counts, vector_sum
from twinset.privacy.mechanism.gate import Gate, Measured, Noisy

WHOLE = GaussianRelease(1.0, "other columns")


def part(share):
    """A part of `WHOLE` that spends this share of its σ⁻²."""
    event = GaussianRelease(share**-0.5, WHOLE.what)
    return Noisy(share, event, [Measured(share**-0.5, 50)])


def test_a_value_passes_after_its_event_is_recorded_and_its_noise_is_kept():
    recorded, kept = [], []
    gate = Gate(recorded.append, keep=lambda *given: kept.append((len(recorded), *given)))
    assert gate.release(Noisy("a", WHOLE)) == "a"
    selection = LabelSelection(1.0, 9, 1, 1)
    closed = Noisy([3], selection, [Measured(1.0, 3)]).then(len)
    assert gate.release(closed, "values") == 1  # what follows from a value is closed as well
    assert recorded == [WHOLE, selection]
    assert kept == [(1, WHOLE, WHOLE.what, ()), (2, selection, "values", (Measured(1.0, 3),))]
    with pytest.raises(RuntimeError, match="without noise"):
        gate.release(Noisy("exact", None))
    assert Gate(print, is_private=False).release(Noisy("exact", None)) == "exact"


def test_parts_spend_no_more_than_the_whole_which_is_recorded_first():
    recorded, kept = [], []
    gate = Gate(recorded.append, keep=lambda *given: kept.append(given))
    with gate.parts_of(WHOLE):
        assert recorded == [WHOLE]
        assert [gate.release(part(0.25)) for _ in range(4)] == [0.25] * 4
        with pytest.raises(RuntimeError, match="spend more than"):
            gate.release(part(0.01))
        with pytest.raises(RuntimeError, match="at the moment"), gate.parts_of(WHOLE):
            pass
        gate.release(Noisy(0, LabelSelection(1.0, 9, 1, 1)), "values")  # has its own event
    assert [type(event) for event in recorded] == [GaussianRelease, LabelSelection]
    *_, (event, name, sums) = kept
    assert (event, name) == (WHOLE, WHOLE.what) and len(sums) == 4
    assert Measured.together(sums).noise == pytest.approx(1.0, rel=0.03)
    gate.release(part(0.25))  # no longer a part
    assert len(recorded) == 3


def opens(source):
    """Return where a source reads a closed value."""
    nodes = ast.walk(ast.parse(source))
    hidden = ("_value", "_measured", "then")
    return [n.lineno for n in nodes if isinstance(n, ast.Attribute) and n.attr in hidden]


def test_nothing_but_mechanisms_and_their_gate_opens_a_value():
    for source in ("x = noisy._value", "noisy.then(print)"):
        assert opens(source) == [1]  # such a place would be found
    found = {name for name in CODE if opens(MODULES[name].read_text("utf-8"))}
    inside = ("columns", "counts", "gate", "vector_sum")
    assert found == {f"twinset.privacy.mechanism.{name}" for name in inside}


# What adds noise to sums of records. None of it hands a sum out.
DRAWS = ("add_gaussian_", "add_gaussian_to_each_", "GaussianGrid")
MECHANISMS = (
    columns.release_histograms,
    columns.release_pair_scores,
    counts.release_label_counts,
    counts.release_token_marginals,
    counts.select_label_values,
    vector_sum.VectorSum.release,
    vector_sum.fit_regressions,
)
# Sums of policies pass in a step, faults are planted, and a plan times noise on made-up sums.
OTHERS = ("twinset.policies", "evaluation.audit.faults", "twinset.run.plan")


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.__name__)
def test_a_mechanism_returns_a_closed_value(mechanism):
    result = typing.get_type_hints(mechanism)["return"]
    assert typing.get_origin(result) is Noisy


def test_noise_is_drawn_by_these_mechanisms_and_by_policies_alone():
    found = set()
    for name in CODE:
        tree = ast.parse(MODULES[name].read_text("utf-8"))
        drawn = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & set(DRAWS)
        if drawn and not name.startswith(OTHERS):
            found.add(name)
    own = {inspect.getmodule(each).__name__ for each in MECHANISMS}
    assert found == own | {"twinset.privacy.mechanism.noise"}
    for module in (columns, counts, vector_sum):  # each function that draws is in the list
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                if set(DRAWS) & set(value.__code__.co_names):
                    assert value in MECHANISMS, name


# -- who reads private records ---------------------------------------------------------------------

PRIVATE = ("records", "tokens", "units", "held_out")  # of a `Run`
GATE, STEPS, FACTS = "what it finds passes the gate", "it feeds steps", "schema, N and owners alone"
MAKES, SHOWN = "it makes other private values", "checks, and lines for the owner (SECURITY.md)"
READERS = {
    "twinset.run.story": {
        **dict.fromkeys(("read", "count", "tokenise_texts"), MAKES),
        **dict.fromkeys(("find_prompts", "find_workload", "build_twin_model"), FACTS),
        **dict.fromkeys(("select", "plan"), SHOWN),
        **dict.fromkeys(("train", "weigh_records"), STEPS),
    },
    "twinset.run.releases": {
        **dict.fromkeys(("find_label_values", "count_labels", "count_columns"), GATE),
        **dict.fromkeys(("count_tokens", "fit_teacher"), GATE),
        "counted_units": MAKES,
        **dict.fromkeys(("enter_account", "plan_ledger", "open_ledger"), FACTS),
        **dict.fromkeys(("find_selection", "find_candidates", "longest_text"), FACTS),
    },
    "twinset.run.generate": {"learn": "rows held out, kept in `internal/`"},
}


def readers(source):
    """Return the functions that read private values of a run, and those that call its gate."""
    reading, passing = set(), set()
    for function in ast.parse(source).body:
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "run":
                reading |= {function.name} if node.attr in PRIVATE else set()
                passing |= {function.name} if node.attr == "gate" else set()
    return reading, passing


def test_every_reader_of_private_records_is_known_and_passes_what_it_finds_through_the_gate():
    for name in CODE:
        reading, passing = readers(MODULES[name].read_text("utf-8"))
        known = READERS.get(name, {})
        assert reading == known.keys(), name
        assert {each for each, where in known.items() if where == GATE} <= passing
    leak = "def show(run):\n    return run.tokens.texts[0]"
    assert readers(leak) == ({"show"}, set())
