"""Token tilts: fitted to counts, applied until a token has been written, kept with the model."""

from collections import deque

import numpy as np
import pytest
import torch

from tests.helpers.models import tiny_model
from twinset.config import SamplingConfig
from twinset.privacy.mechanism.counts import TokenMarginals, TokenWeights
from twinset.sampling.decoding import Request, decode
from twinset.sampling.token_tilt import LARGEST, TokenTilt, expected_presence, fit_tilt
from twinset.table.schema import Attribute, Schema

SCHEMA = Schema(
    "text",
    "str",
    (Attribute("mood", "str", ("bad", "good")), Attribute("kind", "str", ("dvd", "pan"))),
    columns=("text", "mood", "kind"),
)
VOCABULARY, END = 50, 0
EQUAL = TokenWeights.equal(VOCABULARY, END)


def marginals_of(frequencies, units, noise=1.0):
    """Counts of texts of which a share has each token, label combination by combination."""
    counts = [np.zeros((2, VOCABULARY)) for _ in range(2)]
    for combination, shares in frequencies.items():
        for each, number in zip(counts, SCHEMA.value_numbers(combination), strict=True):
            each[number] += shares * units / 4
    return TokenMarginals(counts, noise, units, EQUAL)


def test_rows_that_are_alike_already_are_left_alone():
    same = {c: np.full(VOCABULARY, 0.2) for c in SCHEMA.combinations}
    tilt = fit_tilt(marginals_of(same, 4000), SCHEMA, dict.fromkeys(same, 0.25), same)
    assert not any(each.any() for each in tilt.strengths)


def test_a_word_of_one_label_is_tilted_there_and_nowhere_else():
    same = {c: np.full(VOCABULARY, 0.1) for c in SCHEMA.combinations}
    real = {c: shares.copy() for c, shares in same.items()}
    for combination in real:
        if combination[0] == "bad":
            real[combination][7] = 0.3
    tilt = fit_tilt(marginals_of(real, 4000), SCHEMA, dict.fromkeys(same, 0.25), same)
    assert tilt.strengths[0][0][7] == pytest.approx(np.log(3), abs=0.1)
    assert abs(tilt.strengths[0][1][7]) < 0.1
    assert np.abs(np.delete(tilt.strengths[0], 7, 1)).max() < 0.1
    bias = tilt.bias(SCHEMA, ("bad", "pan"))
    assert bias[7] == pytest.approx(np.log(3), abs=0.2)


def test_a_fitted_tilt_is_the_same_when_it_was_saved(tmp_path):
    same = {c: np.full(VOCABULARY, 0.1) for c in SCHEMA.combinations}
    real = {c: np.random.default_rng(0).uniform(0.05, 0.4, VOCABULARY) for c in same}
    tilt = fit_tilt(marginals_of(real, 4000), SCHEMA, dict.fromkeys(same, 0.25), same)
    tilt.save(tmp_path)
    read = TokenTilt.load(tmp_path, (2, 2), VOCABULARY)
    assert all((a == b).all() for a, b in zip(tilt.strengths, read.strengths, strict=True))


def test_noise_that_hides_the_counts_leaves_rows_as_they_are():
    same = {c: np.full(VOCABULARY, 0.1) for c in SCHEMA.combinations}
    real = {c: np.full(VOCABULARY, 0.3) for c in same}
    released = marginals_of(real, 40, noise=1000.0)
    tilt = fit_tilt(released, SCHEMA, dict.fromkeys(same, 0.25), same)
    assert max(np.abs(each).max() for each in tilt.strengths) <= 0.1


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tiny_model("GPT2Config", vocab_size=VOCABULARY, max_position_embeddings=32).eval()


def written(model, bias, count=64, longest=6, end=-1):
    waiting = deque(Request(i, ((1, 2),), bias) for i in range(count))
    config = SamplingConfig(guidance=0, top_p=1.0, batch_size=count // 2)
    rows = decode(model, waiting, end, longest, config, torch.Generator().manual_seed(0))
    return [ids for _, ids in rows]


def test_a_token_is_lifted_until_a_row_has_it(model):
    bias = torch.zeros(VOCABULARY)
    bias[7] = 30.0
    rows = written(model, bias)
    assert all(ids[0] == 7 for ids in rows)
    assert np.mean([ids[1:].count(7) for ids in rows]) < 1


def test_without_a_bias_rows_are_as_they_were(model):
    assert written(model, None) == written(model, torch.zeros(VOCABULARY))


def test_expected_presence_is_what_counting_many_rows_finds(model):
    many = written(model, None, 4000)
    counted = np.zeros(VOCABULARY)
    for ids in many:
        counted[EQUAL.of(ids)[0]] += 1 / len(many)
    expected = expected_presence(model, [1, 2], many[:400], EQUAL)
    assert expected == pytest.approx(counted, abs=0.03)


def test_rows_count_for_as_much_as_private_texts_like_them(model):
    rows, short = written(model, None, 50), TokenWeights(EQUAL.weights, 1.0)
    weighed = np.mean([short.of(ids)[1] for ids in rows])
    assert weighed < 0.8
    expected, less = (expected_presence(model, [1, 2], rows, each) for each in (EQUAL, short))
    assert less.sum() == pytest.approx(weighed * expected.sum(), rel=0.1)


def test_what_is_saved_is_read_again(tmp_path):
    strengths = [np.round(np.random.default_rng(i).uniform(-2, 2, (2, 5)), 1) for i in range(2)]
    tilt = TokenTilt([each.astype(np.float32) for each in strengths])
    tilt.save(tmp_path)
    read = TokenTilt.load(tmp_path, (2, 2), 5)
    for one, other in zip(tilt.strengths, read.strengths, strict=True):
        assert other == pytest.approx(one, abs=1e-3)
    assert TokenTilt.load(tmp_path / "elsewhere", (2, 2), 5) is None


@pytest.mark.parametrize("fault", ["labels", "vocabulary", "size"])
def test_a_tilt_that_no_run_writes_is_refused(tmp_path, fault):
    size = 2 * LARGEST if fault == "size" else 1.0
    TokenTilt([np.full((2, 5), size, np.float32)] * 2).save(tmp_path)
    classes = (2,) if fault == "labels" else (2, 2)
    with pytest.raises(ValueError, match="tilt"):
        TokenTilt.load(tmp_path, classes, 6 if fault == "vocabulary" else 5)


def test_likelier_words_leave_rows_as_likely_to_end(model):
    """Where the end is counted as a word with no bias, as it was once, rows grow longer."""
    bias = torch.zeros(VOCABULARY)
    bias[1:] = 2.0
    usual, tilted = (
        np.mean([END in ids for ids in written(model, one, 4000, end=END)]) for one in (None, bias)
    )
    crowded = np.mean([END in ids for ids in written(model, bias, 4000)])
    assert tilted == pytest.approx(usual, abs=0.02)
    assert crowded < usual - 0.05


def test_nothing_is_expected_of_ends_as_none_is_counted(model):
    expected = expected_presence(model, [1, 2], written(model, None, 50), EQUAL)
    assert expected[END] == 0
    counted = marginals_of(dict.fromkeys(SCHEMA.combinations, expected), 4000)
    same = dict.fromkeys(SCHEMA.combinations, expected)
    tilt = fit_tilt(counted, SCHEMA, dict.fromkeys(same, 0.25), same)
    assert not any(each[:, END].any() for each in tilt.strengths)
