"""Decoding: how a token is drawn, rows that come and go, their positions, caches and recordings."""

from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from tests.helpers.models import continue_prompts
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.layers import fuse
from twinset.sampling import decoding
from twinset.sampling.decoding import Ending, Request, check_decoding, decode
from twinset.sampling.token_sampling import PLAUSIBLE, guided, next_tokens

GREEDY = SamplingConfig(temperature=1e-6, top_p=1.0, guidance=0.0)
DRAWN = SamplingConfig(temperature=1.0, top_p=0.9, guidance=0.0, batch_size=3)
PROMPTS = [[5, 6, 7], [9], [3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [20, 21, 22, 23, 24], [30], [7, 40]]
CUES = [[11, 12, 13], [14]]


def is_never(ids):
    return False


@pytest.fixture(scope="module", params=["tiny_base", "tiny_llama"])
def model(request):
    from transformers import AutoModelForCausalLM

    folder, generator = request.getfixturevalue(request.param), torch.Generator().manual_seed(3)
    made = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():  # so that the likeliest token depends on the context
        for p in made.parameters():
            if p.dim() > 1:
                p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    return fuse(made)


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


@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_a_further_text_continues_its_own_row(model, guidance):
    """It is what the model writes behind prompt, text and cue, though rows change their slots."""
    against = PROMPTS[1:] + PROMPTS[:1] if guidance else [None] * 7
    pairs = [(p, w if guidance else None) for p, w in zip(PROMPTS, against, strict=True)]
    free = [greedy(model, p, -1, 12, w) for p, w in pairs]
    end = sorted({ids[n] for ids in free for n in (0, 3, 7)})[0]
    config, made = replace(GREEDY, batch_size=3, guidance=guidance), []
    for prompts in pairs:
        own = tuple(tuple(p) for p in prompts if p)
        made.append(
            Request(len(made), own, further=[(cue, Ending(0, 5, is_never)) for cue in CUES])
        )
    list(decode(model, deque(made), end, 12, config, torch.Generator()))
    for (prompt, wrong), row in zip(pairs, made, strict=True):
        before, wrong_before = prompt, wrong
        for cue, ids in zip([[], *CUES], row.texts, strict=True):
            before = before + cue
            wrong_before = wrong_before and wrong_before + cue
            assert ids == greedy(model, before, end, 5 if cue else 12, wrong_before)
            written = ids[:-1] if ids[-1] == end else ids
            before, wrong_before = before + written, wrong_before and wrong_before + written


@pytest.fixture
def read(monkeypatch):
    """Record, of every row and each of its tokens, the logits that it was drawn from."""
    seen: dict[int, list[Tensor]] = {}
    batches: list[list[tuple[int, int]]] = []
    original = decoding._Batch.logits

    def logits(self) -> tuple[Tensor, Tensor | None]:
        own, wrong = original(self)
        batches.append([(row.key, len(row.texts[0])) for row in self.rows])
        for row, values in zip(self.rows, own, strict=True):
            seen.setdefault(row.key, []).append(values.float().clone())
        return own, wrong

    monkeypatch.setattr(decoding._Batch, "logits", logits)
    return seen, batches


def _ends_early(model) -> int:
    """Return a token that closes rows at different lengths."""
    never = continue_prompts(model, PROMPTS, -1, 30, DRAWN, seed=1)
    return max({t for ids in never for t in ids[2:]}, key=lambda t: sum(t in i for i in never))


@torch.no_grad()
def _assert_as_plain(model, prompts, written, seen) -> None:
    """Each token's log-probabilities (T, V) are those of one forward over prompt and text."""
    for key, ids in enumerate(written):
        found = torch.stack(seen[key]).log_softmax(1)
        logits = model(input_ids=torch.tensor([prompts[key] + ids])).logits[0]
        plain = logits[len(prompts[key]) - 1 : -1].float().log_softmax(1)
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)


def test_every_token_is_drawn_from_what_a_plain_forward_says(model, read):
    """Rows enter at different times, in slots that others left, beyond the first columns."""
    seen, batches = read
    prompts = PROMPTS * 2
    end = _ends_early(model)
    seen.clear(), batches.clear()
    written = continue_prompts(model, prompts, end, 60, DRAWN, seed=1)
    _assert_as_plain(model, prompts, written, seen)
    assert len({len(ids) for ids in written}) > 3
    assert any(len({done for _, done in batch}) > 1 for batch in batches)  # entered later
    assert any(len(b) == 3 for b in batches) and all(len(b) <= 3 for b in batches)
    longest = max(len(p) + len(ids) for p, ids in zip(prompts, written, strict=True))
    assert longest > decoding.COLUMNS_TOGETHER  # the cache grew under way


@pytest.mark.parametrize("forgotten", ["move", "put"])
def test_a_row_with_another_rows_cache_would_be_seen(model, read, monkeypatch, forgotten):
    """As if a row that changes its slot, or a prompt, were not copied."""
    end = _ends_early(model)
    read[0].clear()
    monkeypatch.setattr(decoding.SlotCache, forgotten, lambda *given: None)
    written = continue_prompts(model, PROMPTS, end, 30, DRAWN, seed=1)
    with pytest.raises(AssertionError):
        _assert_as_plain(model, PROMPTS, written, read[0])


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


@pytest.mark.parametrize("kind", ["done again", "stale", "impossible"])
def test_rows_from_recordings_are_those_of_the_steps_and_a_faulty_one_is_not_used(
    model, monkeypatch, kind
):
    """A stale one forgot to read its tokens: what they make is that of the first time."""
    made: list[decoding.TokenStep] = []

    def record(work, device, pool=None):
        if kind == "impossible":
            raise RuntimeError("operation not permitted when stream is capturing")
        if kind == "stale":
            work()
        again = work if kind == "done again" else lambda: None
        return SimpleNamespace(replay=again, pool=lambda: 1)

    class Kept(decoding.TokenStep):
        def __init__(self, model, cache, packed, records):
            super().__init__(model, cache, packed, records=True)
            made.append(self)

    def rows():
        prompts = [[5, 6, 7 + i % 3, 8] for i in range(11)]
        return continue_prompts(model, prompts, -1, 30, SamplingConfig(batch_size=4))

    plain = rows()
    monkeypatch.setattr(decoding, "TokenStep", Kept)
    monkeypatch.setattr(decoding, "record_graph", record)
    assert rows() == plain
    recordings = made[-1].recordings.values()
    assert made[-1].in_use == (kind == "done again") == (len(recordings) > 1)
    assert all(one.compared == decoding.COMPARED for one in recordings)
    if kind == "stale":  # control: used without being compared, it would write other rows
        monkeypatch.setattr(decoding, "COMPARED", 1)
        assert rows() != plain


# -- the draw of one token -------------------------------------------------------------------------


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """(R, V) exact distribution: the shortest run of likeliest tokens that reaches p."""
    probabilities, order = logits.double().softmax(1).sort(1, descending=True)
    size = (probabilities.cumsum(1) < top_p).sum(1, keepdim=True) + 1
    kept = probabilities * (torch.arange(logits.shape[1]) < size)
    found = torch.zeros_like(kept).scatter_(1, order, kept)
    return found / found.sum(1, keepdim=True)


def chi_square_p(drawn: Tensor, expected: Tensor) -> float:
    """Tokens expected fewer than five times are counted together."""
    observed, counts = torch.bincount(drawn, minlength=len(expected)), expected * len(drawn)
    assert not observed[expected == 0].any()
    often = counts >= 5
    cells = ([*x[often].tolist(), float(x[~often].sum())] for x in (observed, counts))
    found, wanted = (torch.tensor(x)[: None if counts[~often].any() else -1] for x in cells)
    return 1.0 if len(wanted) == 1 else chisquare(found, wanted * found.sum() / wanted.sum()).pvalue


def _logits(rows: int, size: int, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(10 * spread))
    return spread * torch.randn(rows, size, generator=generator)


@pytest.mark.parametrize(
    ("config", "exact"),
    [
        (SamplingConfig(top_p=1.0, temperature=1.0), lambda logits: logits.double().softmax(1)),
        (SamplingConfig(top_p=0.8, temperature=1.0), lambda logits: nucleus(logits, 0.8)),
        (SamplingConfig(top_p=0.8, temperature=0.5), lambda logits: nucleus(logits / 0.5, 0.8)),
    ],
)
def test_draws_follow_the_exact_distribution(config, exact):
    logits = _logits(1, 40, 1.5)
    for factor in (1.0, 1.1):  # the second is the control
        rows = (factor * logits).expand(20_000, -1)
        drawn = next_tokens(rows, config, torch.Generator().manual_seed(0))
        fits = chi_square_p(drawn, exact(logits)[0])
        assert fits > 1e-3 if factor == 1.0 else fits < 1e-6


def test_rows_of_one_batch_keep_to_their_own_distributions():
    """Peaked, flat, and one token that has it all; redraws go back to their own rows."""
    logits = torch.stack([_logits(1, 200, 0.1)[0], _logits(1, 200, 3.0)[0], torch.zeros(200)])
    logits[2, 5] = 50.0
    generator = torch.Generator().manual_seed(0)
    config = SamplingConfig(top_p=0.7, temperature=1.0)
    drawn = torch.stack([next_tokens(logits, config, generator) for _ in range(2000)])
    for row, expected in enumerate(nucleus(logits, 0.7)):
        assert chi_square_p(drawn[:, row], expected) > 1e-3
    assert (drawn[:, 2] == 5).all()


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_guidance_weighs_plausible_tokens_by_the_ratio_of_both_prompts(strength):
    own, wrong = _logits(4, 60, 3.0), _logits(8, 60, 3.0)[4:]
    p, q = own.double().softmax(1), wrong.double().softmax(1)
    expected = p * (p / q) ** strength * (p >= PLAUSIBLE * p.max(1, keepdim=True).values)
    found = guided(own, wrong, strength).double().softmax(1)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-4, atol=0)
    assert (found == 0).any()  # an implausible token stays so, whatever the wrong prompt says
