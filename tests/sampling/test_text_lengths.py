"""How long rows are: by noisy counts of lengths, and up to the end of a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import _tokenizer
from twinset.config import SamplingConfig
from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, TokenWeights, on_simplex
from twinset.sampling.sampler import Sampler, SentenceEnds
from twinset.sampling.text_lengths import TextLengths
from twinset.table.schema import Attribute, Schema

END, LONGEST = 0, 64
BINS = LengthBins(LONGEST, END)
SCHEMA = Schema(
    "text",
    "str",
    (Attribute("mood", "str", ("bad", "good")), Attribute("kind", "str", ("dvd", "pan"))),
    columns=("text", "mood", "kind"),
)


def released(lengths, deviation=0.0):
    return TokenMarginals([], deviation, 100, TokenWeights.equal(2, END), lengths)


def counts_of(**texts):
    """Counts of texts of two values, by bin."""
    found = np.zeros((2, len(BINS)))
    for name, (row, number) in texts.items():
        found[row, int(name[1:])] = number
    return found


def test_every_length_has_one_bin_from_which_it_may_be_drawn():
    rng = np.random.default_rng(0)
    for length in range(1, LONGEST):
        number = BINS.of([7] * length + [END])
        drawn = {BINS.draw(number, rng) for _ in range(200)}
        assert length in drawn and max(drawn) < LONGEST
    assert BINS.draw(BINS.of([7] * LONGEST), rng) == LONGEST


@pytest.mark.parametrize("longest", [1, 2, 5, 48, 1024])
def test_there_are_bins_for_any_longest_text(longest):
    bins, rng = LengthBins(longest, END), np.random.default_rng(0)
    for ids in ([END], [7, END], [7] * longest, [7] * longest + [END]):
        assert 1 <= bins.draw(bins.of(ids), rng) <= longest


def test_without_noise_lengths_are_those_of_the_labels():
    mood, kind = counts_of(b2=(0, 50), b9=(1, 50)), counts_of(b2=(0, 25), b9=(1, 25))
    kind[0, 9], kind[1, 2] = 25, 25
    lengths = TextLengths.of(BINS, released([mood, kind]))
    for combination, number in ((("bad", "pan"), 2), (("good", "dvd"), 9)):
        assert lengths.shares_of(SCHEMA, combination)[number] == pytest.approx(1, abs=0.01)
    rng = np.random.default_rng(0)
    assert BINS.edges[2] <= lengths.draw(SCHEMA, ("bad", "dvd"), rng) < BINS.edges[3]


def test_noise_is_taken_out_and_what_it_hides_is_taken_from_all_values():
    true = np.tile(np.where(np.arange(len(BINS)) == 5, 400.0, 10.0), (2, 1))
    true[1] /= 20  # few texts
    rng, deviation = np.random.default_rng(0), 15.0
    raw, ours = [], []
    for _ in range(50):
        noisy = true + rng.normal(0, deviation, true.shape)
        found = TextLengths.of(BINS, released([noisy], deviation)).shares[0]
        assert found.min() >= 0 and found.sum(1) == pytest.approx([1, 1], abs=0.01)
        wanted = true[1] / true[1].sum()
        naive = np.maximum(noisy[1], 0)
        raw.append(np.abs(naive / naive.sum() - wanted).sum())
        ours.append(np.abs(found[1] - wanted).sum())
    assert np.mean(ours) < 0.65 * np.mean(raw)


def test_the_nearest_shares():
    assert on_simplex(np.array([-1.0, -2.0])) == pytest.approx([0.5, 0.5])
    counts = np.array([3.0, -0.5, 1.0, 0.2])
    found = on_simplex(counts)
    best = min(
        (np.square(p - counts / counts.sum()).sum(), tuple(p))
        for p in np.random.default_rng(0).dirichlet(np.ones(4), 20_000)
    )
    assert np.square(found - counts / counts.sum()).sum() <= best[0] and found[1] == 0


def test_what_is_saved_is_what_is_loaded(tmp_path):
    lengths = TextLengths.of(BINS, released([counts_of(b2=(0, 3), b4=(1, 5))] * 2))
    lengths.save(tmp_path)
    read = TextLengths.load(tmp_path, (2, 2), BINS)
    assert all((a == b).all() for a, b in zip(read.shares, lengths.shares, strict=True))
    assert TextLengths.load(tmp_path / "none", (2, 2), BINS) is None
    with pytest.raises(ValueError):
        TextLengths.load(tmp_path, (2, 3), BINS)
    assert TextLengths.of(BINS, released([])) is None


@pytest.fixture(scope="module")
def tokenizer():
    return _tokenizer()


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


def test_sentences_end_where_they_do(tokenizer):
    ends = SentenceEnds(tokenizer)
    ids = ids_of(tokenizer, "It was fine. It was not bad! And then")
    found = [
        tokenizer.decode(ids[:n]) for n in range(1, len(ids) + 1) if ends.ends_sentence(ids[:n])
    ]
    assert found == ["It was fine.", "It was fine. It was not bad!"]
    first, second = (len(ids_of(tokenizer, text)) for text in found)
    assert ends.nearest(ids, first + 1) == first and ends.nearest(ids, 99) == second
    assert ends.nearest(ids_of(tokenizer, "without an end"), 3) is None


CONFIG = SamplingConfig(guidance=0.0, batch_size=8, endings="keep")
PROMPTS = {("bad",): [5, 6], ("good",): [6, 7]}


@pytest.fixture
def writer(tiny_base, tokenizer, monkeypatch):
    """Make a sampler whose decoder writes one text again and again, and asks when to end."""
    from transformers import AutoModelForCausalLM

    model, asked = AutoModelForCausalLM.from_pretrained(tiny_base), []

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
        return Sampler(model, tokenizer, PROMPTS, config, LONGEST, length=drawn)

    make.asked = asked
    return make


@pytest.mark.parametrize("length", [3, 10, 17, 30])
def test_a_row_ends_with_the_sentence_nearest_to_its_length(writer, tokenizer, length):
    sentence = len(ids_of(tokenizer, "It was fine. "))
    for ids in writer(length).drafts({("bad",): 3})["bad",]:
        assert ids[-1] == tokenizer.eos_token_id
        # the blank behind a full stop is the next sentence's
        assert abs(len(ids) - 1 - length) <= sentence / 2 + 1


def test_a_row_without_sentences_is_cut_at_its_length(writer, tokenizer):
    found = writer(12, text="and then ").drafts({("bad",): 3})["bad",]
    assert [len(ids) for ids in found] == [12] * 3
    assert tokenizer.eos_token_id not in found[0]


def test_a_row_that_goes_on_is_as_long_as_the_longest(writer):
    assert [len(ids) for ids in writer(LONGEST).drafts({("bad",): 3})["bad",]] == [LONGEST] * 3


def test_a_text_cut_shorter_than_the_private_ones_may_end_before(writer):
    """Else no row of a shorter limit could end, and all would be cut within a sentence."""
    for length in (40, LONGEST, 10):
        writer(length, replace(CONFIG, max_new_tokens=16)).drafts({("bad",): 1})
    assert [row.ending is None for row in writer.asked] == [True, True, False]


def test_a_text_without_blanks_keeps_what_was_written(writer):
    """Cut off at its last blank nothing would be left of it, and no row would be usable."""
    rows = writer(None, text="a" + "bc" * 40).sample({("bad",): 2})
    assert [row.text for row in rows] == ["a" + "bc" * ((LONGEST - 1) // 2) + "b"] * 2 or all(
        set(row.text) == set("abc") and len(row.text) > 40 for row in rows
    )
