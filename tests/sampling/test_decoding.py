"""Decoding and sampler: rows that come and go, their positions and caches, exact counts."""

import gc
import weakref
from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.models.base_model import context_length
from twinset.models.layers import fuse
from twinset.sampling import decoding, row_memory
from twinset.sampling import kv_cache as kvcache
from twinset.sampling.decoding import (
    Ending,
    Request,
    attention_span,
    check_decoding,
    decode,
    generate,
)
from twinset.sampling.row_memory import RowMemory
from twinset.sampling.sampler import MOST_UNFINISHED, Sampler, is_usable
from twinset.sampling.token_sampling import guided, next_tokens

GREEDY = SamplingConfig(temperature=1e-6, top_p=1.0)
DRAWN = SamplingConfig(temperature=1.0, top_p=0.9, guidance=0.0, batch_size=3)


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
    return fuse(_load(request.getfixturevalue(request.param)))


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


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_rows_are_those_of_each_prompt_alone(model, batch_size):
    free = [_greedy(model, p, -1, 20) for p in PROMPTS]
    assert len({tuple(ids) for ids in free}) > 3
    config = replace(GREEDY, batch_size=batch_size)
    for end in sorted({ids[n] for ids in free for n in (3, 7)})[:3]:
        expected = [_greedy(model, p, end, 20) for p in PROMPTS]
        assert generate(model, PROMPTS, end, 20, config, torch.Generator()) == expected


def test_a_row_ends_at_its_end_token_or_at_the_limit(model):
    end = _greedy(model, PROMPTS[0], -1, 1)[0]
    rows = generate(model, PROMPTS, end, 5, GREEDY, torch.Generator())
    assert rows[0] == [end]
    for row in rows:
        assert end not in row[:-1]
        assert row[-1] == end or len(row) == 5


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
    never = generate(model, PROMPTS, -1, 30, DRAWN, torch.Generator().manual_seed(1))
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
    written = generate(model, prompts, end, 60, DRAWN, torch.Generator().manual_seed(1))
    _assert_as_plain(model, prompts, written, seen, 1e-4)
    assert len({len(ids) for ids in written}) > 3
    assert any(len({done for _, done in batch}) > 1 for batch in batches)  # entered later
    assert any(len(b) == 3 for b in batches) and all(len(b) <= 3 for b in batches)
    longest = max(len(p) + len(ids) for p, ids in zip(prompts, written, strict=True))
    assert longest > kvcache.COLUMNS_TOGETHER  # the cache grew under way


def _damaged_move(self, source: int, target: int, length: int) -> None:
    """Forget to copy a row that changes its slot."""


def _damaged_put(self, slot: int, states, length: int) -> None:
    """Forget to copy the prompt."""


@pytest.mark.parametrize(("name", "damage"), [("move", _damaged_move), ("put", _damaged_put)])
def test_a_row_with_another_rows_cache_would_be_seen(model, read, monkeypatch, name, damage):
    end = _ends_early(model)
    read[0].clear()
    monkeypatch.setattr(kvcache.SlotCache, name, damage)
    written = generate(model, PROMPTS, end, 30, DRAWN, torch.Generator().manual_seed(1))
    with pytest.raises(AssertionError):
        _assert_as_plain(model, PROMPTS, written, read[0], 1e-4)


def test_bfloat16_weights_are_read_as_well(model, read):
    low = _copy(model).to(torch.bfloat16)
    written = generate(low, PROMPTS, -1, 10, DRAWN, torch.Generator().manual_seed(1))
    assert all(len(ids) == 10 for ids in written)
    for key, ids in enumerate(written):
        found = torch.stack(read[0][key]).log_softmax(1)
        plain = _plain(low, PROMPTS[key], ids)
        assert float((found.exp() - plain.exp()).abs().sum(1).mean()) < 0.1


def _copy(model):
    import copy

    return copy.deepcopy(model)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_either_attention_kernel_sees_a_rows_own_tokens(model, read, attention):
    other = _copy(model)
    other.set_attn_implementation(attention)
    written = generate(other, PROMPTS, -1, 12, DRAWN, torch.Generator().manual_seed(1))
    _assert_as_plain(other, PROMPTS, written, read[0], 1e-4)


def test_a_prompt_is_read_once_for_all_its_rows(model, monkeypatch):
    asked = []
    original = decoding.prompt_states

    def count(model, prompt):
        asked.append(prompt)
        return original(model, prompt)

    monkeypatch.setattr(decoding, "prompt_states", count)
    generate(model, PROMPTS[3:5] * 5, -1, 3, DRAWN, torch.Generator())
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
    """Rows of 27 tokens behind 5: 32 columns, exactly what was reckoned; none is cut short."""
    bias = torch.zeros(model.config.vocab_size) if tilted else None
    config = replace(DRAWN, guidance=guidance, batch_size=256)
    list(decode(model, _waiting(8, bias), -1, 27, config, torch.Generator()))
    like, prompts = decoding.prompt_states(model, (5,)), 2 if guidance else 1
    reckoned = RowMemory.of(model, like, prompts, (5, 27), bias)
    assert max(found for *_, found in batches) == 8 * (reckoned.row - reckoned.growing)
    assert reckoned.growing == like[0][0].nbytes * 32 * prompts


def test_rows_at_once_keep_to_the_memory_there_is(model, batches, monkeypatch):
    like = decoding.prompt_states(model, (5,))
    each = RowMemory.of(model, like, 2, (5, 27), None).row
    monkeypatch.setattr(row_memory, "memory_for_rows", lambda device: 10 * each)
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


@pytest.mark.parametrize(("wanted", "found"), [(1, 1), (128, 128), (130, 65), (2048, 128)])
def test_rows_are_shared_out_evenly(wanted, found):
    memory = RowMemory(columns=16, budget=1000, prompt=1, cache=3, growing=1, logits=1, bias=2)
    assert memory.rows_at_once(wanted, 256) == found
    assert memory.rows_at_once(wanted, 64) == min(wanted, 64 if wanted != 130 else 44)


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
    narrow = _copy(model)
    narrow.config.sliding_window = 17
    assert attention_span(narrow) == 17


# -- beside Hugging Face's generate ----------------------------------------------------------------


def _of_generate(model, prompts: list[list[int]], end: int, steps: int, seed: int) -> list:
    """Rows of equally long prompts."""
    torch.manual_seed(seed)
    ids = torch.tensor(prompts)
    written = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        top_p=DRAWN.top_p,
        temperature=1.0,
        max_new_tokens=steps,
        eos_token_id=end,
        pad_token_id=end,
    )[:, ids.shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in written]


def _two_sample_p(ours: list[int], theirs: list[int]) -> float:
    """Chi-square over the values that both together have at least ten times."""
    from scipy.stats import chi2_contingency

    size = max(*ours, *theirs) + 1
    counts = torch.stack([torch.bincount(torch.tensor(x), minlength=size) for x in (ours, theirs)])
    common = counts.sum(0) >= 10
    rest = counts[:, ~common].sum(1, keepdim=True)
    table = torch.cat([counts[:, common], rest[:, : int(rest.sum() >= 10)]], 1)
    return chi2_contingency(table.numpy()).pvalue


@pytest.fixture(scope="module")
def small_vocabulary():
    """Random model of 23 tokens, peaked enough for top-p to matter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def test_rows_are_distributed_as_those_of_generate(small_vocabulary):
    """First and second tokens, pairs of tokens and lengths, for two labels of their own."""
    labels, rows, end, steps = ([3, 4, 5], [7, 1, 2]), 3000, 0, 12
    config = replace(DRAWN, batch_size=500)
    lengths = []
    for label in labels:
        ours = generate(
            small_vocabulary, [label] * rows, end, steps, config, torch.Generator().manual_seed(5)
        )
        theirs = _of_generate(small_vocabulary, [label] * rows, end, steps, seed=6)
        for measure in (
            lambda ids: ids[0],
            lambda ids: ids[min(1, len(ids) - 1)],
            lambda ids: 23 * ids[-2] + ids[-1] if len(ids) > 1 else ids[0],
            len,
        ):
            assert _two_sample_p([*map(measure, ours)], [*map(measure, theirs)]) > 1e-3
        lengths.append([len(ids) for ids in ours])
    assert _two_sample_p(*lengths) < 1e-6  # labels differ: the comparison could have failed
    assert len(set(lengths[0])) > 5


# -- guidance --------------------------------------------------------------------------------------


def _greedy_guided(model, own: list[int], wrong: list[int], strength: float, steps: int):
    written: list[int] = []
    for _ in range(steps):
        a, b = (model(input_ids=torch.tensor([p + written])).logits[:, -1] for p in (own, wrong))
        written.append(int(guided(a, b, strength).argmax()))
    return written


def test_guided_rows_are_those_of_two_prompts_read_side_by_side(model):
    against = PROMPTS[1:] + PROMPTS[:1]
    config = replace(GREEDY, guidance=2.0, batch_size=3)
    with torch.inference_mode():
        pairs = zip(PROMPTS, against, strict=True)
        free = [_greedy_guided(model, own, wrong, 2.0, 12) for own, wrong in pairs]
    for end in sorted({ids[4] for ids in free})[:3]:  # rows leave with both their caches
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
    """Makes a sampler whose decoder writes the given texts in turn ("..." cuts a text off)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    asked: list[int] = []

    def make(texts, denied=(), **options) -> tuple[Sampler, list[int]]:
        """`denied`: texts of which a teacher says another label than ("a",)."""
        script = iter(texts)

        def denies(combinations, rows):
            texts = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in rows]
            pairs = zip(combinations, texts, strict=True)
            return [label == ("a",) and text in denied for label, text in pairs]

        def fake(model, waiting, end, max_new_tokens, config, generator, packed):
            while waiting:
                request = waiting.popleft()
                assert set(request.prompts) == {(1,), (2,)}
                asked.append(request.key)
                text = next(script)
                ids = tokenizer.encode(" " + text.removesuffix("..."), add_special_tokens=False)
                yield request.key, ids if text.endswith("...") else [*ids, end]

        monkeypatch.setattr("twinset.sampling.sampler.decode", fake)
        config = SamplingConfig(**options)
        prompts = {("a",): [1], ("b",): [2]}
        judge = denies if denied else None
        return Sampler(model, tokenizer, prompts, config, 30, denies=judge), asked

    return make


def test_counts_are_exact_and_in_order(scripted):
    sampler, asked = scripted((f"text {i}" for i in range(99)), batch_size=4)
    rows = sampler.sample({("b",): 7, ("a",): 3})
    assert [row.combination for row in rows] == [("b",)] * 7 + [("a",)] * 3
    assert [row.text for row in rows] == [f"text {i}" for i in range(10)]
    assert asked == list(range(10))


def test_rows_that_the_teacher_denies_are_drawn_again_and_the_last_is_taken(scripted):
    script = ["no 1", "yes", "no 2", "no 1", "no 2", "no 1", "no 2", "good"]
    for redraws, taken in ((2, "no 2"), (0, "no 1")):
        sampler, _ = scripted(script, denied=("no 1", "no 2"), teacher_redraws=redraws)
        rows = sampler.sample({("a",): 3, ("b",): 1})
        assert [(row.text, row.denied) for row in rows] == [
            (taken, redraws),
            ("yes", 0),
            ("good" if redraws else "no 2", redraws),
            ("no 1", 0),  # nothing is said of this label
        ]


def test_unusable_rows_are_drawn_again_for_the_same_label(scripted):
    loop = "so so good " * 6
    sampler, asked = scripted(["good", "", " ... ", "nice", "fine", loop, "well"])
    seen: list[tuple[int, float]] = []
    rows = sampler.sample({("a",): 2, ("b",): 2}, lambda *done: seen.append(done))
    assert [(r.combination[0], r.text) for r in rows] == [
        ("a", "good"),
        ("a", "nice"),
        ("b", "fine"),
        ("b", "well"),
    ]
    assert asked == [0, 1, 1, 1, 2, 3, 3]
    assert seen[-1] == (4, 1.0) and seen == sorted(seen)


def test_a_long_text_may_say_the_same_now_and_then():
    """Control: as often in a row it is a loop, of a few words or of a sentence."""
    said = "do you want"
    apart = " ".join(f"{said} {' '.join(f'word{i}-{j}' for j in range(30 + i))}" for i in range(9))
    assert is_usable(apart)
    assert not is_usable(f"{apart} {'do you want some tea? ' * 5}")
    sentence = "It was the best film of all the films that I saw. "
    assert is_usable(sentence * 4) and not is_usable(sentence * 5)
    longer = " ".join(f"word{i}" for i in range(20))
    assert is_usable(f"{longer} " * 4) and not is_usable(f"{longer} " * 5)


def test_a_text_cut_off_loses_its_last_word(scripted):
    sampler, _ = scripted(["it was a goo...", "it was a good one"])
    texts = [row.text for row in sampler.sample({("a",): 2})]
    assert texts == ["it was a", "it was a good one"]


def test_a_text_cut_off_may_end_with_its_last_sentence(scripted):
    cut_off = ["It was good. But the...", "It was good. But the end"]
    sampler, _ = scripted(cut_off, endings="cut")
    texts = [row.text for row in sampler.sample({("a",): 2})]
    assert texts == ["It was good.", "It was good. But the end"]  # that one was finished


def test_unfinished_rows_are_drawn_again_so_often_and_then_cut(scripted):
    script = ["No end to...", "Good.", *["Whole. But..."] * (MOST_UNFINISHED + 1), "Fine."]
    sampler, asked = scripted(script, endings="redraw")
    rows = sampler.sample({("a",): 2, ("b",): 1})
    assert [(row.text, row.unfinished, row.filtered) for row in rows] == [
        ("Good.", 1, 0),
        ("Whole.", MOST_UNFINISHED, 0),
        ("Fine.", 0, 0),
    ]
    assert asked == [0] * 2 + [1] * (MOST_UNFINISHED + 1) + [2]


def test_an_unfinished_row_is_taken_where_nothing_better_comes(scripted):
    sampler, _ = scripted(["It was good. But...", "", "", ""], endings="redraw", max_redraws=4)
    (row,) = sampler.sample({("a",): 1})
    assert (row.text, row.unfinished) == ("It was good.", 1)


def test_filtered_rows_are_drawn_again_and_counted(scripted):
    script = ["good", "Labels: a, b", "This review focuses on x", "fine", "damn shit", "nice"]
    sampler, asked = scripted(script, filter="debris")
    rows = sampler.sample({("a",): 2, ("b",): 2})
    assert [(row.text, row.filtered) for row in rows] == [
        ("good", 0),
        ("fine", 2),
        ("damn shit", 0),
        ("nice", 0),
    ]
    assert asked == [0, 1, 1, 1, 2, 3]


def test_nothing_but_filtered_rows_ends_in_one_line_that_names_the_filter(scripted):
    sampler, _ = scripted(["Labels: x"] * 9, filter="all", max_redraws=3)
    with pytest.raises(InputError, match=r"leave `filter=all` out"):
        sampler.sample({("a",): 2})


def test_only_empty_rows_end_in_one_line(scripted):
    sampler, asked = scripted([""] * 100, max_redraws=5)
    with pytest.raises(InputError, match=r"only 0 of 2 rows for label \('a',\)") as error:
        sampler.sample({("a",): 2, ("b",): 0})
    assert "\n" not in str(error.value)
    assert asked == [0] * 5 + [1] * 5


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


def test_streams_draw_rows_of_their_own(tiny_base, tokenizer):
    model = _load(tiny_base)
    prompts = {("a",): tokenizer.encode("Write a review:"), ("b",): tokenizer.encode("Write:")}

    def texts(stream: int) -> list[str]:
        sampler = Sampler(model, tokenizer, prompts, SamplingConfig(seed=1), 12, stream)
        return [row.text for row in sampler.sample({("a",): 6, ("b",): 6})]

    first, second = texts(0), texts(1)
    assert first == texts(0)
    assert len(set(first) & set(second)) < len(set(first)) / 2  # the shortest may coincide


def test_streams_have_generators_in_different_states():
    """A generator on the processor keeps 32 bits of its seed, and they must differ."""
    from twinset.sampling.sampler import random_streams

    seeds = [random_streams(3, stream)[0].initial_seed() for stream in range(64)]
    assert len({seed % 2**32 for seed in seeds}) == 64 and max(seeds) < 2**32


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


@pytest.mark.parametrize("least", [{"top_p": 1e-320}], ids=str)
def test_the_least_mass_is_the_first_token_and_not_a_loop_without_end(least):
    try:
        config = SamplingConfig(**least)
    except InputError:
        return  # refused, which ends as well
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(50, 3)
    drawn = next_tokens(logits, config, torch.Generator().manual_seed(0))
    assert len(set(drawn.tolist())) == 1


def test_a_row_ends_neither_before_nor_long_after_it_may(model):
    """The end token is impossible before the least length, and at the most a row is over."""

    def never(ids):
        return False

    def rows(ending, end):
        waiting = deque(Request(i, ((5, 6, 7),), ending=ending) for i in range(40))
        return [ids for _, ids in decode(model, waiting, end, 30, DRAWN, torch.Generator())]

    end = rows(None, -1)[0][2]  # a token that rows have early
    assert any(end in ids[:8] for ids in rows(None, end))
    found = rows(Ending(8, 12, never), end)
    assert not any(end in ids[:8] for ids in found)
    assert {len(ids) for ids in found} <= set(range(9, 13)) and max(map(len, found)) == 12
    assert {len(ids) for ids in rows(Ending(8, 12, lambda ids: True), end)} == {8}
