"""The sampler: exact counts, which texts are usable, filtered or cut, and where rows end."""

import pytest
import torch

from tests.helpers.refusals import refusal
from twinset.config import SamplingConfig
from twinset.sampling.sampler import MOST_UNFINISHED, UNWANTED, Sampler, is_usable
from twinset.table.tokenization import OTHER_TOKENS

A, B = ("a",), ("b",)


@pytest.fixture(scope="module")
def model(tiny_base):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_base).eval()


# -- a decoder that writes given texts -------------------------------------------------------------


@pytest.fixture
def scripted(model, tokenizer, monkeypatch):
    """Make a sampler whose decoder writes the given texts in turn ("..." cuts a text off)."""

    def make(texts, denied=(), **options) -> tuple[Sampler, list[int]]:
        """`denied`: texts of which a teacher says another label than ("a",)."""
        script, asked = iter(texts), []

        def denies(combinations, rows):
            texts = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in rows]
            pairs = zip(combinations, texts, strict=True)
            return [label == A and text in denied for label, text in pairs]

        def fake(model, waiting, end, max_new_tokens, config, generator, packed):
            while waiting:
                request = waiting.popleft()
                assert set(request.prompts) == {(1,), (2,)}
                asked.append(request.key)
                text = next(script)
                ids = tokenizer.encode(" " + text.removesuffix("..."), add_special_tokens=False)
                yield request.key, ids if text.endswith("...") else [*ids, end]

        monkeypatch.setattr("twinset.sampling.sampler.decode", fake)
        given = (model, tokenizer, {A: [1], B: [2]}, SamplingConfig(**options), 30)
        return Sampler(*given, denies=denies if denied else None), asked

    return make


WHOLE, LONG = "Whole. But...", "a" + "bc" * 40
SCRIPTS = {  # texts, options, rows wanted → (text, filtered, unfinished, denied), rows as asked for
    "counts are exact and in order": (
        [f"text {i}" for i in range(10)],
        {"batch_size": 4},
        {B: 7, A: 3},
        [(f"text {i}", 0, 0, 0) for i in range(10)],
        [*range(10)],
    ),
    "empty and looping texts are drawn again": (
        ["good", "", " ... ", "nice", "fine", "so so good " * 6, "well"],
        {},
        {A: 2, B: 2},
        [(text, 0, 0, 0) for text in ("good", "nice", "fine", "well")],
        [0, 1, 1, 1, 2, 3, 3],
    ),
    "a text cut off loses its last word": (
        ["it was a goo...", "it was a good one"],
        {},
        {A: 2},
        [("it was a", 0, 0, 0), ("it was a good one", 0, 0, 0)],
        [0, 1],
    ),
    "or ends with its last sentence": (
        ["It was good. Mr. Smith was...", "It was good. But the end", "Fine. But a long half..."],
        {"endings": "cut"},
        {A: 3},  # the last would lose more than half
        [(t, 0, 0, 0) for t in ("It was good.", "It was good. But the end", "Fine. But a long")],
        [0, 1, 2],
    ),
    "or is drawn again so often and then cut": (
        ["No end to...", "Good.", *[WHOLE] * (MOST_UNFINISHED + 1), "Fine."],
        {"endings": "redraw"},
        {A: 2, B: 1},
        [("Good.", 0, 1, 0), ("Whole.", 0, MOST_UNFINISHED, 0), ("Fine.", 0, 0, 0)],
        [0] * 2 + [1] * (MOST_UNFINISHED + 1) + [2],
    ),
    "or stays whole without spaces": ([f"{LONG}..."], {}, {A: 1}, [(LONG, 0, 0, 0)], [0]),
    "filtered texts are drawn again and counted": (
        ["good", "Labels: a, b", "This review focuses on x", "fine", "damn shit", "nice"],
        {"filter": "debris"},
        {A: 2, B: 2},
        [("good", 0, 0, 0), ("fine", 2, 0, 0), ("damn shit", 0, 0, 0), ("nice", 0, 0, 0)],
        [0, 1, 1, 1, 2, 3],
    ),
}


@pytest.mark.parametrize(
    ("texts", "options", "counts", "rows", "keys"), SCRIPTS.values(), ids=SCRIPTS
)
def test_rows_of_a_script(scripted, texts, options, counts, rows, keys):
    sampler, asked = scripted(texts, **options)
    seen: list[tuple[int, float]] = []
    found = sampler.sample(counts, lambda *done: seen.append(done))
    assert [(row.text, row.filtered, row.unfinished, row.denied) for row in found] == rows
    assert [row.combination for row in found] == [c for c, n in counts.items() for _ in range(n)]
    assert asked == keys
    assert seen == sorted(seen) and (not rows or seen[-1] == (len(rows), 1.0))


def test_rows_that_the_teacher_relabels_are_drawn_again_and_the_last_is_taken(scripted):
    script = ["no 1", "yes", "no 2", "no 1", "no 2", "no 1", "no 2", "good"]
    for redraws, taken in ((2, "no 2"), (0, "no 1")):
        sampler, _ = scripted(script, denied=("no 1", "no 2"), teacher_redraws=redraws)
        rows = sampler.sample({A: 3, B: 1})
        assert [(row.text, row.denied) for row in rows] == [
            (taken, redraws),
            ("yes", 0),
            ("good" if redraws else "no 2", redraws),
            ("no 1", 0),  # nothing is said of this label
        ]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, "only 0 of 2 rows for label ('a',)"),
        ("Labels: x", {"filter": "all"}, "leave `filter=all` out"),
    ],
)
def test_unusable_rows_end_in_one_line(scripted, text, options, said):
    sampler, asked = scripted([text] * 99, max_redraws=5, **options)
    assert said in refusal(sampler.sample, {A: 2, B: 0})
    assert asked == [0] * 5 + [1] * 5


# -- random numbers --------------------------------------------------------------------------------


def test_a_seed_and_a_stream_draw_rows_of_their_own(model, tokenizer):
    prompts = {A: tokenizer.encode("Write a review:"), B: tokenizer.encode("Write:")}

    def texts(seed: int, stream: int) -> list[str]:
        config = SamplingConfig(seed=seed, max_redraws=100)
        sampler = Sampler(model, tokenizer, prompts, config, 12, stream)
        return [row.text for row in sampler.sample({A: 6, B: 6})]

    first = texts(1, 0)
    assert first == texts(1, 0) and all(map(is_usable, first))
    for other in (texts(2, 0), texts(1, 1)):
        assert len(set(first) & set(other)) < len(set(first)) / 2  # the shortest may coincide


# -- which texts are usable ------------------------------------------------------------------------


DEBRIS = [
    "Too heavy.\nLabels: Chicago Movie Shame, Screw Up, Bad Taste",
    "This review focuses on the acting.",
    "As an AI language model, I have not seen it.",
]
VULGAR = ["What a shitty film", "FUCK this"]
PLAIN = [
    "This film focuses on a family, and the reviewer will write a review about it.",
    "The label says class: it was a gift.",  # not a heading
    "Agent: Please write to us at https://example.org. Customer: I will.",
    "He graduated summa cum laude and lives in Scunthorpe with a cockatoo, an ass and a titmouse.",
    "",
]


@pytest.mark.parametrize(
    ("texts", "kind"), [(DEBRIS, "debris"), (VULGAR, "vulgar"), (PLAIN, None)], ids=str
)
def test_each_list_finds_its_own_texts(texts, kind):
    for text in texts:
        kinds = ("debris", "vulgar", "all", "none")
        found = [k for k in kinds if any(pattern.search(text) for pattern in UNWANTED[k])]
        assert found == ([kind, "all"] if kind else []), text


# -- where texts end -------------------------------------------------------------------------------


@pytest.fixture
def writer(model, tokenizer, monkeypatch):
    """Make a sampler whose decoder writes one text again and again, until it may end."""

    def make(length):
        written = tokenizer("It was fine. ")["input_ids"]

        def decode(model, waiting, end, most, config, generator, packed):
            while waiting:
                row, ids = waiting.popleft(), []
                while len(ids) < row.ending.most:
                    ids.append(written[len(ids) % len(written)])
                    if len(ids) >= row.ending.least and row.ending.is_end(ids):
                        break
                yield row.key, ids

        monkeypatch.setattr("twinset.sampling.sampler.decode", decode)
        config = SamplingConfig(guidance=0.0, batch_size=8, endings="keep")
        given = (model, tokenizer, {A: [5, 6], B: [6, 7]}, config, 64)
        return Sampler(*given, length=lambda combination, rng: length)

    return make


@pytest.mark.parametrize("length", [3, 17])
def test_a_row_ends_with_the_sentence_nearest_to_its_length(writer, tokenizer, length):
    sentence = len(tokenizer("It was fine. ")["input_ids"])
    for ids in writer(length).drafts({A: 3})[A]:
        assert ids[-1] == tokenizer.eos_token_id
        # the blank behind a full stop is the next sentence's
        assert abs(len(ids) - 1 - length) <= sentence / 2 + 1


def test_rows_that_may_be_empty_are_work_too(writer):
    """Else all would be done, by the bar, before the last of them."""
    seen = []
    writer(0).drafts({A: 3, B: 2}, lambda rows, share: seen.append((rows, share)))
    assert seen == [(n, n / 5) for n in range(1, 6)]


def test_further_texts_are_lines_behind_the_same_text(model, tokenizer):
    cues = [
        (tokenizer.encode("\n\ntitle:", add_special_tokens=False), ()),
        (tokenizer.encode("\n\nby:", add_special_tokens=False), (0.0, 0.5, 0.5)),
    ]
    given = (model, tokenizer, {A: [1, 5], B: [2]}, SamplingConfig(batch_size=8), 24)
    bias = {label: torch.zeros(model.config.vocab_size) for label in (A, B)}
    rows = Sampler(*given, biases=bias, further=cues).sample({A: 9, B: 9})
    for row in rows:
        assert row.text and len(row.others) == 2
        assert not any("\n" in line or line != line.strip() for line in row.others)
    assert len({line for row in rows for line in row.others}) > 18
    assert max(len(row.others[1].split()) for row in rows) <= 3
    drafts = Sampler(*given, further=cues).drafts({A: 3})  # they have no further texts
    assert drafts == Sampler(*given).drafts({A: 3})


def test_further_texts_without_room_are_gaps(model, tokenizer):
    """The context is 128 tokens, and each cue takes some."""
    cues = [(tokenizer.encode(f"\n\nname {n}:", add_special_tokens=False), ()) for n in range(9)]
    rows = Sampler(model, tokenizer, {A: [1, 5]}, SamplingConfig(), 100, further=cues).sample(
        {A: 4}
    )
    for row in rows:
        assert len(row.others) == 9 and row.others[0] and not row.others[-1] and row.text


@pytest.mark.parametrize(
    ("text", "line"),
    [("\n A title\nand more", "A title"), ("", ""), ("word " * 40, None)],
)
def test_a_further_text_is_one_whole_line(model, tokenizer, text, line):
    sampler = Sampler(model, tokenizer, {A: [1]}, SamplingConfig(), 24)
    ids = tokenizer.encode(text, add_special_tokens=False)[:OTHER_TOKENS]
    is_longest = len(ids) == OTHER_TOKENS
    assert len(sampler._line(ids, 2, is_longest).split()) <= 2
    found = sampler._line(ids, OTHER_TOKENS, is_longest)
    if line is None:  # cut: without its last word
        assert found == tokenizer.decode(ids).strip().rsplit(None, 1)[0]
    else:
        assert found == line
