"""The sampler: exact counts, which texts are usable, filtered or cut, and where rows end."""

import time
from dataclasses import replace

import pytest

from tests.helpers.refusals import refusal
from twinset.config import SamplingConfig
from twinset.sampling.sampler import (
    LEAST_LEFT,
    MOST_UNFINISHED,
    Sampler,
    cut_at_sentence,
    ids_end_sentence,
    is_unwanted,
    is_usable,
    nearest_end,
    random_streams,
)

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
        prompts, judge = {A: [1], B: [2]}, denies if denied else None
        return Sampler(
            model, tokenizer, prompts, SamplingConfig(**options), 30, denies=judge
        ), asked

    return make


WHOLE = "Whole. But..."
SCRIPTS = {  # texts, options, rows wanted → (text, filtered, unfinished, denied), rows as asked for
    "counts are exact and in order": (
        [f"text {i}" for i in range(10)],
        {"batch_size": 4},
        {B: 7, A: 3},
        [(f"text {i}", 0, 0, 0) for i in range(10)],
        [*range(10)],
    ),
    "no rows": ([], {}, {A: 0}, [], []),
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
        ["It was good. But the...", "It was good. But the end"],
        {"endings": "cut"},
        {A: 2},
        [("It was good.", 0, 0, 0), ("It was good. But the end", 0, 0, 0)],
        [0, 1],
    ),
    "or is drawn again so often and then cut": (
        ["No end to...", "Good.", *[WHOLE] * (MOST_UNFINISHED + 1), "Fine."],
        {"endings": "redraw"},
        {A: 2, B: 1},
        [("Good.", 0, 1, 0), ("Whole.", 0, MOST_UNFINISHED, 0), ("Fine.", 0, 0, 0)],
        [0] * 2 + [1] * (MOST_UNFINISHED + 1) + [2],
    ),
    "and is taken where nothing better comes": (
        ["It was good. But...", "", "", ""],
        {"endings": "redraw", "max_redraws": 4},
        {A: 1},
        [("It was good.", 0, 1, 0)],
        [0] * 4,
    ),
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


def test_rows_that_the_teacher_denies_are_drawn_again_and_the_last_is_taken(scripted):
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
        return [
            r.text
            for r in Sampler(model, tokenizer, prompts, config, 12, stream).sample({A: 6, B: 6})
        ]

    first = texts(1, 0)
    assert first == texts(1, 0) and all(map(is_usable, first))
    for other in (texts(2, 0), texts(1, 1)):
        assert len(set(first) & set(other)) < len(set(first)) / 2  # the shortest may coincide


def test_streams_have_generators_in_different_states():
    """A generator on the processor keeps 32 bits of its seed, and they must differ."""
    seeds = [random_streams(3, stream)[0].initial_seed() for stream in range(64)]
    assert len({seed % 2**32 for seed in seeds}) == 64 and max(seeds) < 2**32


# -- which texts are usable ------------------------------------------------------------------------


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


DEBRIS = [
    "Too heavy.\nLabels: Chicago Movie Shame, Screw Up, Bad Taste",
    "Labels:Class",
    "This review focuses on the acting.",
    "Too repetitive.\nWrite a review about a speaker: A great find.",
    "Rewrite the sentence to make it positive.",
    "Your review should be at least 50 words long.",
    "As an AI language model, I have not seen it.",
    "Good. <br /><br />Go.",
    "All rights reserved.",
    "A fine film.\nRead more",
    "#### Review",
]
VULGAR = ["What a shitty film", "FUCK this", "he is a real dickhead", "Bullshit."]
PLAIN = [
    "This film focuses on a family, and the reviewer will write a review about it.",
    "The label says class: it was a gift.",  # not a heading
    "I would love to read more about this movie.",
    "Agent: Please write to us at https://example.org. Customer: I will.",
    "-----Original Message-----\nFrom: Anna",
    "He graduated summa cum laude and lives in Scunthorpe with a cockatoo, an ass and a titmouse.",
    "The class was assessed; she passed with 5 stars ****",
    "3 < 5 and 7 > 2; Dick Van Dyke drank a cocktail.",
    "",
]


@pytest.mark.parametrize(
    ("texts", "kind"), [(DEBRIS, "debris"), (VULGAR, "vulgar"), (PLAIN, None)], ids=str
)
def test_each_list_finds_its_own_texts(texts, kind):
    for text in texts:
        found = [each for each in ("debris", "vulgar", "all", "none") if is_unwanted(text, each)]
        assert found == ([kind, "all"] if kind else []), text


def test_a_long_text_is_searched_in_no_time():
    began = time.process_time()
    for text in ("<a" * 50_000, "write a " * 20_000, "_" * 100_000, "\n" * 50_000):
        is_unwanted(text, "all")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("options", [{"endings": "drop"}, {"filter": "rude"}, {"filter": True}])
def test_an_unknown_choice_is_refused(options):
    assert f"`{next(iter(options))}`" in refusal(SamplingConfig, **options)


# -- where texts end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It was a fine film. I was glad to", "It was a fine film."),
        ("It was fine! “Really?” she asked me and", "It was fine! “Really?” she asked me and"),
        ("All of it was fun (mostly.) Then the", "All of it was fun (mostly.)"),
        ("The plot by Mr. Smith and Dr. No", "The plot by Mr. Smith and Dr. No"),
        ("It cost 3.50 dollars and broke", "It cost 3.50 dollars and broke"),
        ("Sehr gut gemacht. Ärger gab", "Sehr gut gemacht."),
        ("这部电影非常好看。但是", "这部电影非常好看。"),
        ("Ok. And then a very long unfinished one", "Ok. And then a very long unfinished one"),
        ("Whole. And whole.", "Whole. And whole."),
        ("", ""),
    ],
)
def test_an_unfinished_text_ends_with_its_last_sentence(text, left):
    assert cut_at_sentence(text) == left
    assert text.startswith(left) and len(left) >= LEAST_LEFT * len(text)


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


def test_sentences_end_where_they_do(tokenizer):
    ids = ids_of(tokenizer, "It was fine. It was not bad! And then")
    lengths = range(1, len(ids) + 1)
    found = [tokenizer.decode(ids[:n]) for n in lengths if ids_end_sentence(tokenizer, ids[:n])]
    assert found == ["It was fine.", "It was fine. It was not bad!"]
    for text in ("It was Mr.", "It cost 3.", "Fine, and"):
        assert not ids_end_sentence(tokenizer, ids_of(tokenizer, text))
    first, second = (len(ids_of(tokenizer, text)) for text in found)
    assert nearest_end(tokenizer, ids, first + 1) == first
    assert nearest_end(tokenizer, ids, 99) == second
    assert nearest_end(tokenizer, ids_of(tokenizer, "without an end"), 3) is None


LONGEST = 64
CONFIG = SamplingConfig(guidance=0.0, batch_size=8, endings="keep")


@pytest.fixture
def writer(model, tokenizer, monkeypatch):
    """Make a sampler whose decoder writes one text again and again, and asks when to end."""
    asked = []

    def make(length, config=CONFIG, text="It was fine. "):
        written = ids_of(tokenizer, text)

        def decode(model, waiting, end, most, config, generator, packed):
            asked.extend(waiting)
            while waiting:
                row, ids = waiting.popleft(), []
                while len(ids) < most and not (row.ending and ids and row.ending.reached(ids)):
                    ids.append(written[len(ids) % len(written)])
                yield row.key, ids

        monkeypatch.setattr("twinset.sampling.sampler.decode", decode)
        drawn = None if length is None else (lambda c, rng: length)
        return Sampler(model, tokenizer, {A: [5, 6], B: [6, 7]}, config, LONGEST, length=drawn)

    make.asked = asked
    return make


@pytest.mark.parametrize("length", [3, 10, 17, 30])
def test_a_row_ends_with_the_sentence_nearest_to_its_length(writer, tokenizer, length):
    sentence = len(ids_of(tokenizer, "It was fine. "))
    for ids in writer(length).drafts({A: 3})[A]:
        assert ids[-1] == tokenizer.eos_token_id
        # the blank behind a full stop is the next sentence's
        assert abs(len(ids) - 1 - length) <= sentence / 2 + 1


def test_a_row_without_sentences_is_cut_at_its_length(writer, tokenizer):
    found = writer(12, text="and then ").drafts({A: 3})[A]
    assert [len(ids) for ids in found] == [12] * 3
    assert tokenizer.eos_token_id not in found[0]


def test_a_row_that_goes_on_is_as_long_as_the_longest(writer):
    assert [len(ids) for ids in writer(LONGEST).drafts({A: 3})[A]] == [LONGEST] * 3


def test_a_text_cut_shorter_than_the_private_ones_may_end_before(writer):
    """Else no row of a shorter limit could end, and all would be cut within a sentence."""
    for length in (40, LONGEST, 10):
        writer(length, replace(CONFIG, max_new_tokens=16)).drafts({A: 1})
    assert [row.ending is None for row in writer.asked] == [True, True, False]


def test_a_text_without_blanks_keeps_what_was_written(writer):
    """Cut off at its last blank nothing would be left of it, and no row would be usable."""
    for row in writer(None, text="a" + "bc" * 40).sample({A: 2}):
        assert set(row.text) == set("abc") and len(row.text) > 40
