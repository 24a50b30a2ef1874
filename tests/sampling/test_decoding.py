"""Decoding: rows that come and go, their positions and caches, their memory and recordings."""

import copy
import gc
import weakref
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.draws import continue_prompts
from tests.helpers.models import tiny_model
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.base_model import context_length
from twinset.models.layers import fuse
from twinset.sampling import decoding
from twinset.sampling.decoding import (
    Ending,
    Request,
    attention_span,
    bytes_of_row,
    check_decoding,
    decode,
)
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


@pytest.fixture(scope="module")
def small():
    """A random model of 23 tokens, peaked enough for top-p to matter."""
    sizes = {"vocab_size": 23, "max_position_embeddings": 64, "hidden_size": 32}
    return spread_out(tiny_model("GPT2Config", **sizes).eval(), 0.3)


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


@pytest.mark.parametrize("batch_size", [3, 256])
@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_rows_are_those_of_each_prompt_alone(model, batch_size, guidance):
    """They end with their end token or at the limit, and leave with both their caches."""
    against = PROMPTS[1:] + PROMPTS[:1] if guidance else [[-9]] * 7  # no such token: it is not read
    pairs = zip(PROMPTS, against, strict=True)
    free = [greedy(model, p, -1, 12, w if guidance else None) for p, w in pairs]
    assert len({tuple(ids) for ids in free}) > 3
    config = replace(GREEDY, batch_size=batch_size, guidance=guidance)
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
        batches.append([(row.request.key, len(row.ids)) for row in self.rows])
        for row, values in zip(self.rows, own, strict=True):
            seen.setdefault(row.request.key, []).append(values.float().clone())
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


def test_bfloat16_weights_are_read_as_well(model, read):
    low = copy.deepcopy(model).to(torch.bfloat16)
    written = continue_prompts(low, PROMPTS, -1, 10, DRAWN, seed=1)
    for key, ids in enumerate(written):
        found = torch.stack(read[0][key]).log_softmax(1)
        plain = _plain(low, PROMPTS[key], ids)
        assert float((found.exp() - plain.exp()).abs().sum(1).mean()) < 0.1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_either_attention_kernel_sees_a_rows_own_tokens(model, read, attention):
    other = copy.deepcopy(model)
    other.set_attn_implementation(attention)
    written = continue_prompts(other, PROMPTS, -1, 12, DRAWN, seed=1)
    _assert_as_plain(other, PROMPTS, written, read[0], 1e-4)


def test_a_prompt_is_read_once_for_all_its_rows(model, monkeypatch):
    asked = []
    original = decoding.prompt_states

    def count(model, prompt):
        asked.append(prompt)
        return original(model, prompt)

    monkeypatch.setattr(decoding, "prompt_states", count)
    continue_prompts(model, PROMPTS[3:5] * 5, -1, 3, DRAWN)
    assert asked[0] == (8,)  # one token, for the shapes
    assert sorted(asked[1:]) == sorted(map(tuple, PROMPTS[3:5]))


@pytest.fixture
def batches(monkeypatch):
    """Collect batches, and after each forward the bytes of their tensors."""
    made: list[tuple[weakref.ref, int, int]] = []
    original = decoding._Batch.logits

    def logits(self):
        own, wrong = original(self)
        kept = [x for layer in self._cache.layers for x in layer.kept]
        bytes_of_rows = sum(x.nbytes for x in (*kept, own, *([] if wrong is None else [wrong])))
        bytes_of_rows += 0 if self._bias is None else self._bias.nbytes
        made.append((weakref.ref(self), len(self.rows), bytes_of_rows))
        return own, wrong

    monkeypatch.setattr(decoding._Batch, "logits", logits)
    return made


def _waiting(rows: int, bias: Tensor | None = None) -> deque[Request]:
    pairs = ((5, 6, 7), (9, 8, 7, 6, 5))
    return deque(Request(i, pairs if i % 2 else pairs[::-1], bias) for i in range(rows))


@pytest.mark.parametrize("guidance", [0.0, 1.0])
@pytest.mark.parametrize("tilted", [False, True])
def test_the_bytes_of_rows_are_those_of_their_tensors(model, batches, guidance, tilted):
    """Rows of 27 tokens behind 5: 32 columns, exactly what was computed."""
    bias = torch.zeros(model.config.vocab_size) if tilted else None
    config = replace(DRAWN, guidance=guidance, batch_size=256)
    list(decode(model, _waiting(8, bias), -1, 27, config, torch.Generator()))
    like, prompts = decoding.prompt_states(model, (5,)), 2 if guidance else 1
    growing = like[0][0].nbytes * 32 * prompts  # one layer's keys, while columns are added
    computed = bytes_of_row(model, like, prompts, 32, bias)
    assert max(found for *_, found in batches) == 8 * (computed - growing)


def test_rows_at_once_keep_to_the_memory_there_is(model, batches, monkeypatch):
    like = decoding.prompt_states(model, (5,))
    each = bytes_of_row(model, like, 2, 32, None)
    monkeypatch.setattr(decoding, "memory_for_rows", lambda device: 10 * each)
    config = replace(DRAWN, guidance=1.0, batch_size=256)
    assert len(list(decode(model, _waiting(20), -1, 27, config, torch.Generator()))) == 20
    assert {rows for _, rows, _ in batches} == {7, 6}  # nine fit: three times about as many
    assert max(found for *_, found in batches) < 10 * each


def test_the_memory_of_a_batch_is_free_once_its_rows_are_read(model, batches):
    """By reference counts: the collector may come much later."""
    gc.disable()
    try:
        list(decode(model, _waiting(3), -1, 4, DRAWN, torch.Generator()))
        assert batches[-1][0]() is None
    finally:
        gc.enable()


def test_rows_asked_for_under_way_join_the_batch(model):
    waiting = deque([Request(0, ((5, 6, 7),))])
    keys = []
    for key, ids in decode(model, waiting, -1, 4, DRAWN, torch.Generator()):
        keys.append(key)
        assert len(ids) == 4
        if key < 3:
            waiting.extend([Request(key + 10, ((9,),)), Request(key + 1, ((8, 8),))])
    assert sorted(keys) == [0, 1, 2, 3, 10, 11, 12]


def test_a_window_of_attention_bounds_the_span(model):
    assert attention_span(model) == context_length(model)
    narrow = copy.deepcopy(model)
    narrow.config.sliding_window = 17
    assert attention_span(narrow) == 17


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


def tilted_rows(small, bias, end=-1, count=2000):
    config = SamplingConfig(guidance=0.0, top_p=1.0, batch_size=1000)
    return continue_prompts(small, [[1, 2]] * count, end, 6, config, bias=bias)


def test_a_token_is_lifted_until_a_row_has_it(small):
    bias = torch.zeros(23)
    assert tilted_rows(small, None, count=50) == tilted_rows(small, bias, count=50)
    bias[7] = 30.0
    rows = tilted_rows(small, bias, count=50)
    assert all(ids[0] == 7 for ids in rows)
    assert np.mean([ids[1:].count(7) for ids in rows]) < 1


def test_likelier_words_leave_rows_as_likely_to_end(small):
    """Control: where the end is counted as a word with no bias, rows grow longer."""
    bias = torch.full((23,), 2.0)
    bias[0] = 0.0
    usual, tilted = (
        np.mean([0 in ids for ids in tilted_rows(small, one, end=0)]) for one in (None, bias)
    )
    crowded = np.mean([0 in ids for ids in tilted_rows(small, bias)])
    assert tilted == pytest.approx(usual, abs=0.03)
    assert crowded < usual - 0.05


EXTREMES = [{"temperature": 1e-320}, {"temperature": 1e308}, {"guidance": 1e308}]


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_settings_that_leave_no_number_are_refused_by_the_base_model(model, extreme):
    prompts = {("a",): [5, 6, 7], ("b",): [8, 9]}
    check_decoding(model, prompts, SamplingConfig())
    with pytest.raises(InputError, match="`temperature|`guidance"):
        check_decoding(model, prompts, SamplingConfig(**extreme))


def test_a_base_model_that_cannot_write_rows_is_refused_in_one_line(model, monkeypatch):
    def fail(*_, **__):
        raise NotImplementedError("no such cache\nand more")

    monkeypatch.setattr("twinset.sampling.decoding.decode", fail)
    with pytest.raises(InputError, match=r"from this base model \(no such cache\)"):
        check_decoding(model, {("a",): [5, 6]}, SamplingConfig())


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
