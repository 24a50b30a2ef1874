"""Decoding: rows that come and go, their positions, caches and recordings."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.helpers.models import continue_prompts
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.layers import fuse
from twinset.sampling import decoding
from twinset.sampling.decoding import Ending, check_decoding
from twinset.sampling.token_sampling import guided

GREEDY = SamplingConfig(temperature=1e-6, top_p=1.0, guidance=0.0)
DRAWN = SamplingConfig(temperature=1.0, top_p=0.9, guidance=0.0, batch_size=3)
PROMPTS = [[5, 6, 7], [9], [3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [20, 21, 22, 23, 24], [30], [7, 40]]


def spread_out(model, scale=0.4):
    """Have the likeliest token depend on the context."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(scale * torch.randn(p.shape, generator=generator))
    return model


@pytest.fixture(scope="module", params=["tiny_base", "tiny_llama"])
def model(request):
    from transformers import AutoModelForCausalLM

    folder = request.getfixturevalue(request.param)
    return fuse(spread_out(AutoModelForCausalLM.from_pretrained(folder).eval()))


# -- rows are those of each prompt alone -----------------------------------------------------------


@torch.no_grad()
def greedy(model, prompt: list[int], end: int, steps: int, wrong=None) -> list[int]:
    """One prompt alone, without cache, mask or padding; guided with strength 2 from a wrong one."""
    written: list[int] = []
    while len(written) < steps and end not in written:
        logits = model(input_ids=torch.tensor([prompt + written])).logits[:, -1]
        if wrong is not None:
            logits = guided(
                logits, model(input_ids=torch.tensor([wrong + written])).logits[:, -1], 2.0
            )
        written.append(int(logits.argmax()))
    return written


@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_rows_are_those_of_each_prompt_alone(model, guidance):
    """They end with their end token or at the limit, and leave with both their caches."""
    against = PROMPTS[1:] + PROMPTS[:1] if guidance else [[-9]] * 7  # no such token: it is not read
    pairs = zip(PROMPTS, against, strict=True)
    free = [greedy(model, p, -1, 12, w if guidance else None) for p, w in pairs]
    assert len({tuple(ids) for ids in free}) > 3
    config = replace(GREEDY, batch_size=3, guidance=guidance)
    for end in sorted({ids[n] for ids in free for n in (0, 3, 7)})[:3]:
        expected = [ids[: ids.index(end) + 1] if end in ids else ids for ids in free]
        assert continue_prompts(model, PROMPTS, end, 12, config, against=against) == expected
    assert not guidance or free != [greedy(model, p, -1, 12) for p in PROMPTS]


@pytest.fixture
def read(monkeypatch):
    """Record, of every row and each of its tokens, the logits that it was drawn from."""
    seen: dict[int, list[Tensor]] = {}
    batches: list[list[tuple[int, int]]] = []
    original = decoding._Batch.logits

    def logits(self) -> tuple[Tensor, Tensor | None]:
        own, wrong = original(self)
        batches.append([(row.key, len(row.ids)) for row in self.rows])
        for row, values in zip(self.rows, own, strict=True):
            seen.setdefault(row.key, []).append(values.float().clone())
        return own, wrong

    monkeypatch.setattr(decoding._Batch, "logits", logits)
    return seen, batches


@torch.no_grad()
def _plain(model, prompt: list[int], ids: list[int]) -> Tensor:
    """(T, V) log-probabilities of one forward over prompt and text."""
    logits = model(input_ids=torch.tensor([prompt + ids])).logits[0]
    return logits[len(prompt) - 1 : -1].float().log_softmax(1)


def _ends_early(model) -> int:
    """Return a token that closes rows at different lengths."""
    never = continue_prompts(model, PROMPTS, -1, 30, DRAWN, seed=1)
    return max({t for ids in never for t in ids[2:]}, key=lambda t: sum(t in i for i in never))


def _assert_as_plain(model, prompts, written, seen, atol: float) -> None:
    for key, ids in enumerate(written):
        found = torch.stack(seen[key]).log_softmax(1)
        assert len(found) == len(ids)
        torch.testing.assert_close(found, _plain(model, prompts[key], ids), rtol=0, atol=atol)


def test_every_token_is_drawn_from_what_a_plain_forward_says(model, read):
    """Rows enter at different times, in slots that others left, beyond the first columns."""
    seen, batches = read
    prompts = PROMPTS * 2
    end = _ends_early(model)
    seen.clear(), batches.clear()
    written = continue_prompts(model, prompts, end, 60, DRAWN, seed=1)
    _assert_as_plain(model, prompts, written, seen, 1e-4)
    assert len({len(ids) for ids in written}) > 3
    assert any(len({done for _, done in batch}) > 1 for batch in batches)  # entered later
    assert any(len(b) == 3 for b in batches) and all(len(b) <= 3 for b in batches)
    longest = max(len(p) + len(ids) for p, ids in zip(prompts, written, strict=True))
    assert longest > decoding.COLUMNS_TOGETHER  # the cache grew under way


def _damaged_move(self, source: int, target: int, length: int) -> None:
    """Forget to copy a row that changes its slot."""


def _damaged_put(self, slot: int, states, length: int) -> None:
    """Forget to copy the prompt."""


@pytest.mark.parametrize(("name", "damage"), [("move", _damaged_move), ("put", _damaged_put)])
def test_a_row_with_another_rows_cache_would_be_seen(model, read, monkeypatch, name, damage):
    end = _ends_early(model)
    read[0].clear()
    monkeypatch.setattr(decoding.SlotCache, name, damage)
    written = continue_prompts(model, PROMPTS, end, 30, DRAWN, seed=1)
    with pytest.raises(AssertionError):
        _assert_as_plain(model, PROMPTS, written, read[0], 1e-4)


# -- what is asked for of a row --------------------------------------------------------------------


def test_a_row_ends_neither_before_nor_long_after_it_may(model):
    """The end token is impossible before the least length, and at the most a row is over."""
    together = replace(DRAWN, batch_size=40)

    def rows(ending, end):
        return continue_prompts(model, [[5, 6, 7]] * 40, end, 30, together, ending=ending)

    end = rows(None, -1)[0][2]  # a token that rows have early
    assert any(end in ids[:8] for ids in rows(None, end))
    found = rows(Ending(8, 12, lambda ids: False), end)
    assert not any(end in ids[:8] for ids in found)
    assert {len(ids) for ids in found} <= set(range(9, 13)) and max(map(len, found)) == 12
    assert {len(ids) for ids in rows(Ending(8, 12, lambda ids: True), end)} == {8}


EXTREMES = [{"temperature": 1e-320}, {"guidance": 1e308}]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_settings_that_leave_no_number_are_refused_by_the_base_model(model, extreme):
    prompts = {("a",): [5, 6, 7], ("b",): [8, 9]}
    check_decoding(model, prompts, SamplingConfig())
    with pytest.raises(InputError, match="`temperature|`guidance"):
        check_decoding(model, prompts, SamplingConfig(**extreme))


# -- steps done again from a recording: pretended here, recorded by a GPU in `test_gpu` ------------


def done_again(work, device, pool=None):
    """Return a recording that does the work again."""
    return SimpleNamespace(replay=work, pool=lambda: 1)


def stale(work, device, pool=None):
    """Return one that forgot to read its tokens: what they make is that of the first time."""
    work()
    return SimpleNamespace(replay=lambda: None, pool=lambda: 1)


def impossible(work, device, pool=None):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def recorded(model, monkeypatch):
    """Write rows with recordings of a kind; None: without any."""
    made: list[decoding.TokenStep] = []

    class Kept(decoding.TokenStep):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    def rows(recording=None):
        monkeypatch.setattr(decoding, "has_graphs", lambda device: recording is not None)
        monkeypatch.setattr(decoding, "TokenStep", Kept)
        monkeypatch.setattr(decoding, "record_graph", recording)
        prompts = [[5, 6, 7 + i % 3, 8] for i in range(11)]
        found = continue_prompts(model, prompts, -1, 30, SamplingConfig(batch_size=4))
        return found, made[-1]

    return rows


def test_rows_from_recordings_are_those_of_the_steps_themselves(recorded):
    plain, _ = recorded()
    found, step = recorded(done_again)
    assert found == plain and step.in_use
    assert len(step.recordings) > 1  # one for each number of columns
    assert all(one.compared == decoding.COMPARED for one in step.recordings.values())


@pytest.mark.parametrize("fault", [stale, impossible])
def test_a_faulty_recording_is_not_used(recorded, monkeypatch, fault):
    plain, _ = recorded()
    found, step = recorded(fault)
    assert found == plain and not step.in_use and not step.recordings
    if fault is stale:  # control: used without being compared, it would write other rows
        monkeypatch.setattr(decoding, "COMPARED", 1)
        assert recorded(stale)[0] != plain
