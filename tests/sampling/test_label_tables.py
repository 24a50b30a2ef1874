"""Tables by label: tilt, lengths and log-odds are fitted to counts, kept, and used."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.helpers.models import continue_prompts, tiny_model
from tests.helpers.refusals import refusal
from twinset import Twinset
from twinset.config import SamplingConfig
from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, TokenWeights
from twinset.sampling.label_tables import LARGEST, NaiveBayes, TextLengths, TokenTilt
from twinset.sampling.tilt_fitting import expected_tokens, fit_tilt
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Attribute, Schema

SCHEMA = Schema(
    "text",
    "str",
    (Attribute("mood", "str", ("bad", "good")), Attribute("kind", "str", ("dvd", "pan"))),
    columns=("text", "mood", "kind"),
)
VOCABULARY, END, UNITS = 50, 0, 4000
EQUAL = TokenWeights.equal(VOCABULARY, END)
BAD, GOOD = 7, 8  # tokens of one label, nearly


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TokenTilt, TextLengths, NaiveBayes])
def test_saved_tables_are_loaded_and_impossible_ones_refused(tmp_path, kind):
    tables = kind([np.random.default_rng(i).uniform(0, 1, (2, 5)) for i in range(2)])
    assert kind.load(tmp_path, (2, 2), 5) is None
    tables.save(tmp_path)
    read = kind.load(tmp_path, (2, 2), 5)
    assert all((a == b).all() for a, b in zip(tables.tables, read.tables, strict=True))
    for classes, columns in (((2,), 5), ((2, 3), 5), ((2, 2), 6)):
        assert "as no run" in refusal(kind.load, tmp_path, classes, columns, error=ValueError)
    for number in (2 * LARGEST, np.nan):
        kind([np.full((2, 5), number)] * 2).save(tmp_path)
        assert "as no run" in refusal(kind.load, tmp_path, (2, 2), 5, error=ValueError)


# -- tilt ------------------------------------------------------------------------------------------


def fitted_tilt(real, rows, units=UNITS, noise=1.0):
    """Fit a tilt to counts of texts of which a share has each token, by label combination."""
    counts = [np.zeros((2, VOCABULARY)) for _ in range(2)]
    for combination, shares in real.items():
        for each, number in zip(counts, SCHEMA.value_numbers(combination), strict=True):
            each[number] += shares * units / 4
    released = TokenMarginals(counts, noise, units, EQUAL)
    return fit_tilt(released, SCHEMA, dict.fromkeys(rows, 0.25), rows)


def alike(share):
    return {c: np.full(VOCABULARY, share) for c in SCHEMA.combinations}


def test_a_word_of_one_label_is_tilted_there_and_nowhere_else():
    real = alike(0.1)
    for combination in real:
        if combination[0] == "bad":
            real[combination][7] = 0.3
    tilt = fitted_tilt(real, alike(0.1))
    assert tilt.tables[0][0][7] == pytest.approx(np.log(3), abs=0.1)
    assert abs(tilt.tables[0][1][7]) < 0.1
    assert np.abs(np.delete(tilt.tables[0], 7, 1)).max() < 0.1
    assert sum(tilt.rows_of(SCHEMA, ("bad", "pan")))[7] == pytest.approx(np.log(3), abs=0.2)


def test_rows_that_are_alike_and_counts_that_noise_hides_are_left_alone():
    assert not any(each.any() for each in fitted_tilt(alike(0.2), alike(0.2)).tables)
    hidden = fitted_tilt(alike(0.3), alike(0.1), units=40, noise=1000.0)
    assert max(np.abs(each).max() for each in hidden.tables) <= 0.1


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return tiny_model("GPT2Config", vocab_size=VOCABULARY, max_position_embeddings=32).eval()


@pytest.fixture(scope="module")
def written(small):
    config = SamplingConfig(guidance=0, top_p=1.0)
    return continue_prompts(small, [[1, 2]] * 3000, -1, 6, config)


def test_expected_presence_is_what_counting_many_rows_finds(small, written):
    """But for the end, which is not counted: no tilt changes it."""
    counted = np.zeros(VOCABULARY)
    for ids in written:
        counted[EQUAL.of(ids)[0]] += 1 / len(written)
    counted[END] = 0
    writer = SimpleNamespace(fastest=small, prompts={"a": [1, 2]})
    expected = expected_tokens(writer, {"a": written[:400]}, EQUAL)["a"]
    assert expected == pytest.approx(counted, abs=0.03) and expected[END] == 0
    same = dict.fromkeys(SCHEMA.combinations, expected)
    assert not any(each[:, END].any() for each in fitted_tilt(same, same).tables)


# -- lengths ---------------------------------------------------------------------------------------

LONGEST = 64
BINS = LengthBins(LONGEST, END)


def lengths_of(*counts):
    weights = TokenWeights.equal(2, END)
    return TextLengths.from_counts(TokenMarginals([], 0.0, 100, weights, counts))


def test_without_noise_lengths_are_those_of_the_labels():
    mood, kind = np.zeros((2, 2, len(BINS)))
    mood[0, 2] = mood[1, 9] = 50
    kind[:, [2, 9]] = 25
    lengths = lengths_of(mood, kind)
    for combination, number in ((("bad", "pan"), 2), (("good", "dvd"), 9)):
        assert lengths.shares_of(SCHEMA, combination)[number] == pytest.approx(1, abs=0.01)
    drawn = lengths.draw(SCHEMA, BINS, ("bad", "dvd"), np.random.default_rng(0))
    assert BINS.edges[2] <= drawn < BINS.edges[3]
    assert lengths_of() is None


# -- log-odds --------------------------------------------------------------------------------------

SHARES = np.array([0.25, 0.75])


def released(noise=1.0, seed=None):
    """Counts of texts a quarter of which are bad; every tenth has each token, but for two."""
    presence = np.full((2, VOCABULARY), 0.1)
    presence[0, BAD] = presence[1, GOOD] = 0.4
    counts = presence * UNITS * SHARES[:, None]
    if seed is not None:
        counts = counts + np.random.default_rng(seed).normal(0, noise, counts.shape)
    return TokenMarginals([counts], noise, UNITS, EQUAL)


def test_a_token_of_one_label_speaks_for_it_and_others_say_nothing():
    found = NaiveBayes.from_counts(released())
    share = 0.25 * 0.4 + 0.75 * 0.1  # of all texts that have it
    odds = found.tables[0][:, BAD]
    assert odds == pytest.approx(np.log([0.4 / share, 0.1 / share]), abs=0.1)
    assert not np.delete(found.tables[0], [BAD, GOOD], 1).any()
    assert not found.tables[0][:, END].any()
    (scores,) = found.scores([BAD, 3, BAD, END])
    assert scores == pytest.approx(odds)  # distinct tokens


def test_noise_that_hides_the_counts_silences_them():
    """Control: at a thousandth of the noise the same draw speaks."""
    loud, quiet = (NaiveBayes.from_counts(released(noise, seed=0)) for noise in (2.0, 2000.0))
    assert loud.tables[0][0, BAD] > 0.5
    assert not quiet.tables[0].any()


def test_a_run_saves_naive_bayes_with_its_teacher(tiny_base, tmp_path):
    texts, options = ["It works well.", "The plot was dull, and I left.", "Fine"], {"steps": 0}
    frame = pd.DataFrame({"text": texts * 10, "label": ["good", "bad", "good"] * 10})
    options |= {"private": False, "max_tokens": 12, "teacher_share": 0.3}
    Twinset(base_model=str(tiny_base), **options).fit(frame, "text", "label").model.save(tmp_path)
    model = TwinModel.load(tmp_path)
    assert model.words is not None
    found = model.classify(texts)
    assert found["label"].tolist() == ["good", "bad", "good"]
    assert TwinModel.load(tmp_path).classify(texts).equals(found)
