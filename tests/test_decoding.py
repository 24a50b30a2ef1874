"""Decoding and sampler: the distributions drawn from, left padding, leaving rows, exact counts."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from twinset import decoding
from twinset.config import SamplingConfig
from twinset.decoding import generate, next_tokens
from twinset.errors import InputError
from twinset.sampler import Sampler, is_usable

GREEDY = SamplingConfig(temperature=1e-6, top_p=1.0)


# -- references: a full sort, and the wrappers of transformers -------------------------------------


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """(R, V) exact distribution: the shortest run of likeliest tokens that reaches p."""
    probabilities, order = logits.double().softmax(1).sort(1, descending=True)
    size = (probabilities.cumsum(1) < top_p).sum(1, keepdim=True) + 1
    kept = probabilities * (torch.arange(logits.shape[1]) < size)
    found = torch.zeros_like(kept).scatter_(1, order, kept)
    return found / found.sum(1, keepdim=True)


def typical(logits: Tensor, mass: float) -> Tensor:
    from transformers import TypicalLogitsWarper

    return TypicalLogitsWarper(mass)(None, logits.clone()).double().softmax(1)


def nucleus_of_transformers(logits: Tensor, top_p: float) -> Tensor:
    from transformers import TopPLogitsWarper

    return TopPLogitsWarper(top_p)(None, logits.clone()).double().softmax(1)


@pytest.fixture
def weights(monkeypatch):
    """The unnormalised distribution that each `_draw` was given, rows in order of the calls."""
    seen = []

    def keep(given: Tensor, ids: Tensor, generator: torch.Generator) -> Tensor:
        for row, row_ids in zip(given, ids, strict=True):
            seen.append(dict(zip(row_ids.tolist(), row.tolist(), strict=True)))
        return ids[:, 0].clone()

    monkeypatch.setattr(decoding, "_draw", keep)
    return seen


def _logits(rows: int, size: int, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(10 * spread))
    return spread * torch.randn(rows, size, generator=generator)


def _assert_same(found: dict[int, float], expected: Tensor) -> None:
    total = sum(found.values())
    allowed = {token for token, weight in found.items() if weight > 0}
    assert allowed == set(expected.nonzero().squeeze(1).tolist())
    for token in allowed:
        assert found[token] / total == pytest.approx(float(expected[token]), rel=1e-4)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("spread", [0.2, 2.0, 8.0])
@pytest.mark.parametrize("size", [300, 2000])
def test_nucleus_is_that_of_a_full_sort(weights, top_p, spread, size):
    logits = _logits(4, size, spread)
    expected = nucleus(logits, top_p)
    assert torch.allclose(expected, nucleus_of_transformers(logits, top_p), atol=1e-6)
    next_tokens(logits, SamplingConfig(top_p=top_p, temperature=1.0), torch.Generator())
    for row, found in enumerate(_last_per_row(weights, logits, top_p)):
        _assert_same(found, expected[row])


def _last_per_row(weights: list[dict], logits: Tensor, top_p: float) -> list[dict]:
    """A row whose prefix was too short is drawn a second time, from the full sort."""
    rows = weights[: len(logits)]
    head = logits.double().softmax(1).topk(min(512, logits.shape[1]), dim=1).values.sum(1)
    again = [row for row in range(len(logits)) if float(head[row]) < top_p]
    assert len(weights) == len(logits) + len(again)
    for row, found in zip(again, weights[len(logits) :], strict=True):
        rows[row] = found
    return rows


def test_peaked_and_flat_rows_may_share_a_batch(weights):
    logits = torch.stack([_logits(1, 2000, 0.1)[0], _logits(1, 2000, 9.0)[0], torch.zeros(2000)])
    logits[2, 5] = 50.0  # one token has it all
    expected = nucleus(logits, 0.95)
    next_tokens(logits, SamplingConfig(top_p=0.95, temperature=1.0), torch.Generator())
    for row, found in enumerate(_last_per_row(weights, logits, 0.95)):
        _assert_same(found, expected[row])
    assert (expected[2] > 0).sum() == 1 and (expected[0] > 0).sum() > 512


@pytest.mark.parametrize("mass", [0.2, 0.9, 0.95])
@pytest.mark.parametrize("spread", [0.2, 2.0, 8.0])
def test_typical_is_that_of_transformers(weights, mass, spread):
    logits = _logits(4, 600, spread)
    expected = typical(logits, mass)
    next_tokens(logits, SamplingConfig(typical_p=mass, temperature=1.0), torch.Generator())
    for row, found in enumerate(weights):
        _assert_same(found, expected[row])


def test_typical_bears_impossible_tokens(weights):
    logits = _logits(1, 50, 2.0)
    logits[0, :10] = -math.inf
    next_tokens(logits, SamplingConfig(typical_p=0.9, temperature=1.0), torch.Generator())
    assert not any(weights[0][token] for token in range(10))
    assert sum(weights[0].values()) >= 0.9


def _chi_square_p(drawn: Tensor, expected: Tensor) -> float:
    from scipy.stats import chisquare

    observed = torch.bincount(drawn, minlength=len(expected)).double()
    assert not observed[expected == 0].any()
    kept = expected > 0
    return chisquare(observed[kept], expected[kept] * len(drawn)).pvalue


@pytest.mark.parametrize(
    ("config", "exact"),
    [
        (SamplingConfig(top_p=1.0, temperature=1.0), lambda logits: logits.double().softmax(1)),
        (SamplingConfig(top_p=0.8, temperature=1.0), lambda logits: nucleus(logits, 0.8)),
        (SamplingConfig(top_p=0.8, temperature=0.5), lambda logits: nucleus(logits / 0.5, 0.8)),
        (SamplingConfig(typical_p=0.7, temperature=1.0), lambda logits: typical(logits, 0.7)),
    ],
)
def test_draws_follow_the_exact_distribution(config, exact):
    logits = _logits(1, 40, 1.5)
    generator = torch.Generator().manual_seed(0)
    drawn = next_tokens(logits.expand(20_000, -1), config, generator)
    assert _chi_square_p(drawn, exact(logits)[0]) > 1e-3
    wrong = next_tokens(
        1.1 * logits.expand(20_000, -1), SamplingConfig(top_p=1.0, temperature=1.0), generator
    )
    assert _chi_square_p(wrong, logits.double().softmax(1)[0]) < 1e-6


# -- the loop --------------------------------------------------------------------------------------


def _load(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():  # spread out, so that the likeliest token depends on context
            if p.dim() > 1:
                p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    return model


@pytest.fixture(scope="module", params=["tiny_base", "tiny_llama"])
def model(request):
    return _load(request.getfixturevalue(request.param))


@torch.no_grad()
def _greedy(model, prompt: list[int], end: int, steps: int) -> list[int]:
    """One prompt alone, without cache, mask or padding."""
    written: list[int] = []
    while len(written) < steps and end not in written:
        logits = model(input_ids=torch.tensor([prompt + written])).logits[0, -1]
        written.append(int(logits.argmax()))
    return written


PROMPTS = [[5, 6, 7], [9], [3, 1, 4, 1, 5, 9, 2, 6], [8, 8], [20, 21, 22, 23, 24], [30], [7, 40]]


def _run(model, prompts: list[list[int]], end: int, steps: int = 20) -> list[list[int]]:
    with torch.inference_mode():
        return generate(model, prompts, end, steps, GREEDY, torch.Generator())


def test_left_padding_changes_no_row(model):
    free = [_greedy(model, p, -1, 20) for p in PROMPTS]
    never = next(i for i in range(100) if not any(i in ids for ids in free))
    assert _run(model, PROMPTS, end=never) == free


def test_rows_that_leave_the_batch_change_no_other(model, monkeypatch):
    free = [_greedy(model, p, -1, 20) for p in PROMPTS]
    assert len({tuple(ids) for ids in free}) > 3
    kept = []
    original = decoding._Decoder._keep

    def keep(self, slots: Tensor) -> None:
        kept.append(len(slots))
        original(self, slots)

    monkeypatch.setattr(decoding._Decoder, "_keep", keep)
    ends = sorted({ids[n] for ids in free for n in (3, 7)})[:8]
    for end in ends:
        expected = [_greedy(model, p, end, 20) for p in PROMPTS]
        assert _run(model, PROMPTS, end) == expected
    assert kept and len(set(kept)) > 1


def test_a_row_ends_at_its_end_token_or_at_the_limit(model):
    end = _greedy(model, PROMPTS[0], -1, 1)[0]
    rows = _run(model, PROMPTS, end, steps=5)
    assert rows[0] == [end]
    for row in rows:
        assert end not in row[:-1]
        assert row[-1] == end or len(row) == 5


# -- guidance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_guidance_weighs_plausible_tokens_by_the_ratio_of_both_prompts(strength):
    own, wrong = _logits(4, 60, 3.0), _logits(8, 60, 3.0)[4:]
    p, q = own.double().softmax(1), wrong.double().softmax(1)
    expected = p * (p / q) ** strength * (p >= decoding.PLAUSIBLE * p.max(1, keepdim=True).values)
    found = decoding.guided(own, wrong, strength).double().softmax(1)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-4, atol=0)
    assert (found == 0).any()  # an implausible token stays so, whatever the wrong prompt says


def _greedy_guided(model, own: list[int], wrong: list[int], strength: float, steps: int):
    written: list[int] = []
    for _ in range(steps):
        a, b = (model(input_ids=torch.tensor([p + written])).logits[:, -1] for p in (own, wrong))
        written.append(int(decoding.guided(a, b, strength).argmax()))
    return written


def test_guided_rows_are_those_of_two_prompts_read_side_by_side(model):
    against = PROMPTS[1:] + PROMPTS[:1]
    config = replace(GREEDY, guidance=2.0)
    with torch.inference_mode():
        pairs = zip(PROMPTS, against, strict=True)
        free = [_greedy_guided(model, own, wrong, 2.0, 12) for own, wrong in pairs]
        ends = sorted({ids[4] for ids in free})[:3]
        for end in ends:  # rows leave both batches together
            cut = [ids[: ids.index(end) + 1] if end in ids else ids for ids in free]
            assert generate(model, PROMPTS, end, 12, config, torch.Generator(), against) == cut
    assert free != [_greedy(model, p, -1, 12) for p in PROMPTS]


def test_without_guidance_the_wrong_prompt_is_not_read(model):
    config = replace(GREEDY, guidance=0.0)
    free = [_greedy(model, p, -1, 6) for p in PROMPTS]
    never = next(i for i in range(100) if not any(i in ids for ids in free))
    unread = [[-9]] * len(PROMPTS)  # no such token
    assert generate(model, PROMPTS, never, 6, config, torch.Generator(), unread) == free


# -- the sampler -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tiny_base):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_base)


@pytest.fixture
def scripted(tiny_base, tokenizer, monkeypatch):
    """Makes a sampler whose generator writes the given texts in turn ("..." cuts a text off)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    asked: list[int] = []

    def make(texts, **options) -> tuple[Sampler, list[int]]:
        script = iter(texts)

        def fake(model, prompts, end, max_new_tokens, config, generator, against):
            assert against == [[2] if p == [1] else [1] for p in prompts]
            asked.append(len(prompts))
            rows = []
            for _ in prompts:
                text = next(script)
                ids = tokenizer.encode(" " + text.removesuffix("..."), add_special_tokens=False)
                rows.append(ids if text.endswith("...") else [*ids, end])
            return rows

        monkeypatch.setattr("twinset.sampler.generate", fake)
        config = SamplingConfig(**options)
        return Sampler(model, tokenizer, {("a",): [1], ("b",): [2]}, config, 30), asked

    return make


def test_counts_are_exact_and_in_order(scripted):
    sampler, asked = scripted((f"text {i}" for i in range(99)), batch_size=4)
    rows = sampler.sample({("b",): 7, ("a",): 3})
    assert [row.combination for row in rows] == [("b",)] * 7 + [("a",)] * 3
    assert [row.text for row in rows] == [f"text {i}" for i in range(10)]
    assert asked == [4, 4, 2]


def test_unusable_rows_are_drawn_again_for_the_same_label(scripted):
    loop = "so so good " * 6
    sampler, asked = scripted(["good", "", "fine", loop, " ... ", "well", "nice"])
    seen: list[int] = []
    rows = sampler.sample({("a",): 2, ("b",): 2}, seen.append)
    assert [(r.combination[0], r.text) for r in rows] == [
        ("a", "good"),
        ("a", "nice"),
        ("b", "fine"),
        ("b", "well"),
    ]
    assert asked == [4, 2, 1]
    assert seen[-1] == 4 and seen == sorted(seen)


def test_a_text_cut_off_loses_its_last_word(scripted):
    sampler, _ = scripted(["it was a goo...", "it was a good one"])
    texts = [row.text for row in sampler.sample({("a",): 2})]
    assert texts == ["it was a", "it was a good one"]


def test_only_empty_rows_end_in_one_line(scripted):
    sampler, asked = scripted([""] * 100, max_redraws=5)
    with pytest.raises(InputError, match=r"only 0 of 2 rows for label \('a',\)") as error:
        sampler.sample({("a",): 2, ("b",): 0})
    assert "\n" not in str(error.value)
    assert asked == [2] * 5


def test_no_rows_wanted_is_no_rows(scripted):
    sampler, asked = scripted([])
    assert sampler.sample({("a",): 0}) == [] and asked == []


def test_the_same_seed_draws_the_same_rows(tiny_base, tokenizer):
    model = _load(tiny_base)
    prompts = {("a",): tokenizer.encode("Write a review:"), ("b",): tokenizer.encode("Write:")}

    def texts(seed: int) -> list[str]:
        sampler = Sampler(model, tokenizer, prompts, SamplingConfig(seed=seed), 12)
        return [row.text for row in sampler.sample({("a",): 3, ("b",): 2})]

    assert texts(1) == texts(1) != texts(2)
    assert all(is_usable(text) for text in texts(1))
