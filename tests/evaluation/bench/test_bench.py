"""The speed benchmark on toy models: every engine does the same work, and every row is kept."""

import json
import subprocess
import sys
from dataclasses import astuple, replace

import pytest
import torch

from evaluation.bench import models, step
from evaluation.bench.cases import ORDINARY, StepCase
from evaluation.bench.measure import times
from evaluation.bench.ours import Work
from evaluation.bench.peers import ENGINES, Unavailable, _refuse_unknown
from evaluation.bench.report import as_markdown, write_figure
from evaluation.bench.runner import LIBRARIES, command
from evaluation.results_store import ResultsStore, about
from twinset.errors import InputError

C = 0.05  # far below a toy's gradient norms: every unit is clipped
OPTIONAL = {"fastdp": "fastDP", "private-transformers": "private_transformers"}
TIMED = {
    "ordinary_seconds": 2.0,
    "candidate_seconds": 3.0,
    "ratio": 1.5,
    "ratios": [1.5],
    "note": "a note",
    "ordinary_bytes": 4_000_000,
    "candidate_bytes": 5_000_000,
    "memory_ratio": 1.25,
}


def a_case(engine: str = "ours", **changed) -> StepCase:
    given = {"model": "gpt2-toy", "method": "full", "precision": "float32", "batch": 3}
    given |= {"length": 12, "per_unit": 1, "engine": engine, "threads": 1}
    return StepCase(**(given | changed))


def gradients(case: StepCase, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """What a step leaves in `.grad`, by name."""
    if case.engine in OPTIONAL:
        pytest.importorskip(OPTIONAL[case.engine])
    model = models.build(case)
    drawn = Work.of(case, model.config.vocab_size)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    work = replace(drawn, max_grad_norm=C, noise_multiplier=noise)
    made = ENGINES[case.engine].make(model, work)
    for _ in range(2):  # nothing may be left over from the step before
        made.step()
    return {name: p.grad for name, p in trained.items()}


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([g.double().norm() for g in gradients.values()]).norm())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return norm({name: one[name] - other[name] for name in one}) / norm(other)


@pytest.mark.parametrize(
    ("engine", "model", "method", "per_unit"),
    [
        ("opacus-hooks", "gpt2-toy", "full", 1),
        ("opacus-hooks", "llama-toy", "lora", 1),
        ("opacus-ghost", "gpt2-toy", "lora", 1),
        ("opacus-ghost", "llama-toy", "lora", 1),
        ("fastdp", "gpt2-toy", "lora", 1),
        ("private-transformers", "gpt2-toy", "lora", 1),
        ("vmap", "gpt2-toy", "full", 1),
        ("vmap", "gpt2-toy", "full", 2),
        ("vmap", "llama-toy", "full", 2),
        ("vmap", "llama-toy", "lora", 2),
    ],
)
def test_exact_engines_leave_the_same_gradient(engine, model, method, per_unit):
    case = a_case(engine, model=model, method=method, per_unit=per_unit)
    theirs, ours = gradients(case), gradients(case.by("ours"))
    if engine == "private-transformers":  # it divides by the batch
        theirs = {name: g * case.batch for name, g in theirs.items()}
    assert distance(theirs, ours) < 1e-4
    assert norm(ours) <= case.batch * C * (1 + 1e-5)


def test_clipping_rows_apart_is_another_gradient():
    """Measured: a relative distance of 1.2 where 1e-4 passes."""
    case = a_case("opacus-hooks", per_unit=2)
    assert distance(gradients(case), gradients(case.by("ours"))) > 0.1


def test_lora_in_bfloat16():
    case = a_case(method="lora", precision="bfloat16", per_unit=2)
    left = gradients(case)
    assert all(g.dtype is torch.float32 for g in left.values())
    assert 0 < norm(left) <= case.batch * C * (1 + 1e-5)


def test_full_training_in_bfloat16_is_autocast_for_everyone():
    case = a_case(precision="bfloat16")
    ours = gradients(case)
    assert all(g.dtype is torch.float32 for g in ours.values())
    assert 0 < distance(ours, gradients(a_case())) < 0.1
    ordinary = gradients(case.by(ORDINARY))
    assert 0 < distance(ordinary, gradients(a_case(ORDINARY))) < 0.1
    assert distance(gradients(case.by("ours-kernels")), ordinary) < 0.05
    with pytest.raises(Unavailable, match="not tried in autocast"):
        times(case.by("vmap"), rounds=1, at_least=1, seconds=0.0)


def test_low_memory_is_the_same_gradient():
    case = a_case("ours-low-memory", per_unit=2)
    assert distance(gradients(case), gradients(case.by("ours"))) < 1e-5


def test_a_tied_table_makes_fastdp_clip_by_a_wrong_norm():
    """Measured: a relative distance of 0.12 where 1e-4 passes; so the note is no slander."""
    assert distance(gradients(a_case("fastdp")), gradients(a_case())) > 0.05


def test_our_kernels_change_no_ordinary_gradient():
    case = a_case("ours-kernels", per_unit=2)
    assert distance(gradients(case), gradients(case.by(ORDINARY))) < 1e-4


@pytest.mark.parametrize(
    "engine", ["ours", "opacus-hooks", "opacus-ghost", "vmap", "fastdp", "private-transformers"]
)
def test_private_steps_add_noise_of_the_stated_size(engine):
    sigma = 100.0
    drawn = torch.cat([g.flatten() for g in gradients(a_case(engine), sigma).values()])
    divisor = 3 if engine == "private-transformers" else 1
    assert float(drawn.std()) * divisor == pytest.approx(sigma * C, rel=0.05)


def test_times_are_taken_in_turn_and_rounds_are_cut_short():
    row = times(a_case(), rounds=3, at_least=2, seconds=0.0)
    assert len(row["ratios"]) == 2
    assert row["ratio"] > 0 and row["ordinary_seconds"] > 0 and row["candidate_seconds"] > 0


def test_an_engine_that_would_leave_parameters_out_is_refused():
    model = models.build(a_case(model="llama-toy"))
    with pytest.raises(Unavailable, match="does not know LlamaRMSNorm"):
        _refuse_unknown(model, [torch.nn.Linear, torch.nn.Embedding])


def test_the_command_offers_the_engines_there_are():
    assert {ORDINARY, *step.ENGINES} == set(ENGINES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "gpt5"], "--models: 'gpt5' is none of"),
        (["--engines", "ours,magic"], "--engines: 'magic' is none of"),
        (["--shapes", "8"], "--shapes: '' is not a number"),
        (["--shapes", "0x8"], "--shapes: '0' is not a number from 1 on"),
        (["--per-unit", "two"], "--per-unit: 'two' is not a number"),
    ],
)
def test_bad_options_end_in_one_line(arguments, words):
    with pytest.raises(InputError, match=words):
        command(step.bench)(arguments, standalone_mode=False)


# -- rows, table, figure ---------------------------------------------------------------------------


def some_results(path) -> ResultsStore:
    store = ResultsStore.open(path, about(LIBRARIES), "python -m evaluation.bench.step")
    for case, row in (
        (a_case("ours"), TIMED),
        (a_case("ours-kernels"), TIMED | {"ratio": 1.2, "memory_ratio": None, "note": ""}),
        (a_case("fastdp"), {"failed": "not installed (no module fastDP)"}),
    ):
        store.add(astuple(case), row | {"date": "2026-11-21"})
    return store


def test_the_table(tmp_path):
    results = some_results(tmp_path / "step.json")
    text = as_markdown(results)
    assert "| step | 3×12, K = 1 |" in text
    assert "| ordinary | 2 s (4 MB) |" in text
    assert "| ours | 1.50× (1.25×) |" in text
    assert "| ours-kernels | 1.20× |" in text
    assert "| fastdp | failed |" in text
    assert "| ours / ours-kernels | 1.25× |" in text
    assert "- ours: a note" in text and "- fastdp: not installed" in text
    assert all(value.split(",")[0] in text for value in results.settings.values())
    assert torch.__version__.split("+")[0] in text


def test_the_figure(tmp_path):
    path = tmp_path / "step.png"
    write_figure(some_results(tmp_path / "step.json"), path)
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_memory_is_the_process_s_own_and_too_much_of_it_is_a_failure():
    measured = step._ask(a_case(), "memory", step.Effort(rounds=1, seconds=1.0, memory_gib=20.0))
    assert 0 < measured["bytes"] < 200e6  # imports alone are twice as much
    failed = step._ask(a_case(), "times", step.Effort(rounds=1, seconds=1.0, memory_gib=0.1))
    assert "emory" in failed["failed"] or "bad_alloc" in failed["failed"]


@pytest.mark.slow
def test_the_command_writes_what_it_measured(tmp_path):
    output = tmp_path / "step.json"
    given = [sys.executable, "-m", "evaluation.bench.step", "--models", "gpt2-toy"]
    given += ["--methods", "full", "--shapes", "2x8", "--per-unit", "1", "--rounds", "1"]
    given += ["--output", str(output), "--engines", "ours"]
    run = subprocess.run(given, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(output.read_text())["rows"]
    assert row["ratio"] > 0 and row["memory_ratio"] > 0 and row["key"][6] == "ours"
    assert "| ours |" in output.with_suffix(".md").read_text("utf-8")
