"""Rows by vLLM: the same contract as our own decoding, and the same distribution where it is there.

Most tests run against a stand-in with vLLM's interface. Those marked `real` need vLLM, which has
builds for processors too.
"""

import sys
import types
from collections import Counter, deque
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest
import torch

from tests.helpers.commands import run_twinset
from tests.helpers.draws import chi_square_p, nucleus
from tests.helpers.refusals import refusal
from twinset.config import SamplingConfig
from twinset.models.base_model import load_base
from twinset.run.twin_rows import drawn_rows
from twinset.sampling.decoding import Request
from twinset.sampling.sampler import Sampler
from twinset.sampling.vllm_engine import VllmEngine, check_engine

END, CONFIG = 0, SamplingConfig(guidance=0, tilt=0, top_p=0.9, temperature=1.0, batch_size=3)
real = pytest.mark.skipif(find_spec("vllm") is None, reason="needs twinset[vllm]")


@dataclass
class Completion:
    token_ids: list[int]
    finish_reason: str


@dataclass
class Output:
    request_id: str
    outputs: list[Completion]
    finished: bool = True


class StandIn:
    """Ends the youngest request in each step; a prompt of n tokens gets n more."""

    def __init__(self, arguments):
        self.arguments, self.asked, self.waiting, self.most = arguments, [], [], 0

    def add_request(self, name, prompt, parameters):
        assert name not in [known for known, _, _ in self.asked]
        self.asked.append((name, prompt, parameters))
        self.waiting.append((name, prompt["prompt_token_ids"], parameters))
        self.most = max(self.most, len(self.waiting))

    def abort_request(self, names):
        self.waiting = [one for one in self.waiting if one[0] not in names]

    def step(self):
        name, prompt, parameters = self.waiting.pop()
        ids = [7] * min(len(prompt), parameters.max_tokens)
        reason = "stop" if len(prompt) < parameters.max_tokens else "length"
        under_way = [Output(other, [Completion([7], None)], False) for other, _, _ in self.waiting]
        return [*under_way, Output(name, [Completion(ids, reason)])]


@pytest.fixture
def library(monkeypatch) -> types.ModuleType:
    module = types.ModuleType("vllm")
    module.EngineArgs = module.SamplingParams = lambda **given: types.SimpleNamespace(**given)
    module.LLMEngine = types.SimpleNamespace(from_engine_args=StandIn)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr("twinset.sampling.vllm_engine.find_spec", lambda name: module)
    return module


@pytest.fixture
def engine(tiny_base, library) -> VllmEngine:
    base = load_base(str(tiny_base))
    return VllmEngine(base.model, base.tokenizer)


def rows(engine, lengths, longest=5, seed=0):
    waiting = deque(Request(i, ((1,) * n, (2,) * n)) for i, n in enumerate(lengths))
    draws = torch.Generator().manual_seed(seed)
    return engine.decode(waiting, END, longest, CONFIG, draws), waiting


def test_every_row_comes_once_with_its_end_where_it_was_reached(engine):
    found, _ = rows(engine, [1, 2, 3, 9])
    assert dict(found) == {0: [7, END], 1: [7, 7, END], 2: [7, 7, 7, END], 3: [7] * 5}


def test_rows_are_written_some_at_once_and_enter_as_others_end(engine):
    found, _ = rows(engine, [1] * 10)
    assert len(dict(found)) == 10 and engine._engine.most == CONFIG.batch_size


def test_rows_may_be_asked_for_until_the_last_has_ended(engine):
    found, waiting = rows(engine, [1, 1])
    keys = []
    for key, _ in found:
        if key < 10:
            waiting.append(Request(10 + key, ((1,),)))
        keys.append(key)
    assert sorted(keys) == [0, 1, 10, 11]


def test_each_row_has_draws_of_its_own(engine):
    seeds = []
    for seed in (0, 0, 1):
        list(rows(engine, [1] * 20, seed=seed)[0])
        seeds.append([asked.seed for _, _, asked in engine._engine.asked[-20:]])
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])
    assert len(set(seeds[0])) == 20 and max(seeds[0]) < 2**32


def test_rows_that_were_broken_off_do_not_come_later(engine):
    broken_off, _ = rows(engine, [1] * 10)
    next(broken_off)
    broken_off.close()
    assert sorted(dict(rows(engine, [1, 1])[0])) == [0, 1]


def test_settings_are_passed_on_and_nobody_elses(engine):
    list(rows(engine, [2])[0])
    _, prompt, asked = engine._engine.asked[0]
    assert prompt == {"prompt_token_ids": [1, 1]}  # the wrong prompt is guidance's
    given = (asked.temperature, asked.top_p, asked.max_tokens, asked.stop_token_ids)
    assert given == (1.0, 0.9, 5, [END])
    assert engine._engine.arguments.generation_config == "vllm"
    assert engine._engine.arguments.dtype == "float32"


@pytest.mark.parametrize("options", [{}, {"guidance": 0.0, "typical_p": 0.9}])
def test_what_it_lacks_is_refused(options):
    assert "`guidance=0`" in refusal(SamplingConfig, engine="vllm", **options)


@pytest.mark.parametrize("command", ["sample", "generate"])
def test_without_it_nothing_begins(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("twinset.sampling.vllm_engine.find_spec", lambda name: None)
    (tmp_path / "t.csv").write_text("text,label\nfine,a\n")
    table = ("t.csv", "--text", "text", "--attribute", "label") if command == "generate" else ("m",)
    asked = (
        command,
        *table,
        "--guidance",
        "0",
        "--tilt",
        "0",
        "--engine",
        "vllm",
        "--output",
        "twin.csv",
    )
    outcome = run_twinset(capsys, *asked)
    assert outcome.code == 2 and "pip install 'twinset[vllm]'" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


VLLM = SamplingConfig(engine="vllm", guidance=0, tilt=0)


def test_it_writes_in_one_process():
    assert "twinset sample" in refusal(check_engine, VLLM, processes=2)


def test_one_that_cannot_start_is_one_line(library, tiny_base):
    def refuse(arguments):
        raise RuntimeError("no GPU\nand more")

    library.LLMEngine.from_engine_args = refuse
    base = load_base(str(tiny_base))
    message = refusal(VllmEngine, base.model, base.tokenizer)
    assert "cannot start (no GPU); " in message and "`engine=torch`" in message
    assert "`resume`" in message


def test_one_that_cannot_be_loaded_is_one_line(monkeypatch):
    monkeypatch.setattr("twinset.sampling.vllm_engine.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert "cannot be loaded" in refusal(check_engine, VLLM)


@pytest.mark.parametrize(
    ("change", "stays"),
    [({"engine": "vllm"}, True), ({"batch_size": 9}, True), ({"seed": 9}, False)],
)
def test_rows_stay_when_the_other_engine_resumes(tmp_path, change, stays):
    counts = {("a",): 1}
    drawn_rows(tmp_path / "rows", CONFIG, counts).write(0, [])
    assert (0 in drawn_rows(tmp_path / "rows", replace(CONFIG, **change), counts)) == stays


def test_settings_it_refuses_are_refused_before_anything_starts(library):
    def refuse(**given):
        raise ValueError("top_p is out of range")

    library.SamplingParams = refuse
    assert "refuses these decoding settings (top_p" in refusal(check_engine, VLLM)


@real
@pytest.mark.slow
def test_the_real_one_draws_from_the_models_distribution():
    base, draws = load_base("gpt2-mini"), 12_000
    prompt = tuple(base.tokenizer("Write a positive review:")["input_ids"])
    config = SamplingConfig(guidance=0, tilt=0, top_p=0.9, temperature=1.0)
    waiting = deque(Request(i, (prompt,)) for i in range(draws))
    engine = VllmEngine(base.model, base.tokenizer)
    found = engine.decode(waiting, base.tokenizer.eos_token_id, 1, config, torch.Generator())
    drawn = torch.tensor([ids[0] for _, ids in found])
    with torch.inference_mode():
        logits = base.model(torch.tensor([prompt])).logits[:, -1]
    expected = nucleus(logits, config.top_p)[0]
    assert bool((expected[drawn] > 0).all())
    assert chi_square_p(drawn, expected) > 1e-3
    # negative control: of all tokens, as if top-p were ignored
    assert chi_square_p(drawn, logits[0].double().softmax(-1)) < 1e-3


@real
@pytest.mark.slow
def test_the_real_one_writes_exact_counts():
    base = load_base("gpt2-mini")
    engine = VllmEngine(base.model, base.tokenizer)
    prompts = {("a",): [5, 6, 7], ("b",): [8, 9]}
    config = SamplingConfig(guidance=0, tilt=0, engine="vllm")
    sampler = Sampler(base.model, base.tokenizer, prompts, config, 20, engine=engine.decode)
    made = sampler.sample({("a",): 30, ("b",): 11})
    assert Counter(row.combination for row in made) == {("a",): 30, ("b",): 11}
