"""What tokens say of labels: found in noisy counts, kept with the model, heard beside a teacher."""

import numpy as np
import pandas as pd
import pytest

from tests.helpers.refusals import refusal
from twinset import Twinset
from twinset.models.teacher import CONSTANT, Teacher, Whitening
from twinset.privacy.mechanism.counts import TokenMarginals, TokenWeights
from twinset.sampling.label_classifier import LabelClassifier
from twinset.sampling.naive_bayes import NAIVE_BAYES, NaiveBayes
from twinset.sampling.token_tilt import LARGEST
from twinset.sampling.twin_model import TwinModel

VOCABULARY, END, UNITS = 20, 0, 4000
BAD, GOOD = 7, 8  # tokens of one label, nearly
SHARES = np.array([0.25, 0.75])


def released(noise=1.0, seed=None):
    """Counts of texts a quarter of which are bad; every tenth has each token, but for two."""
    presence = np.full((2, VOCABULARY), 0.1)
    presence[0, BAD] = presence[1, GOOD] = 0.4
    counts = presence * UNITS * SHARES[:, None]
    if seed is not None:
        counts = counts + np.random.default_rng(seed).normal(0, noise, counts.shape)
    return TokenMarginals([counts], noise, UNITS, TokenWeights.equal(VOCABULARY, END))


def test_a_token_of_one_label_speaks_for_it_and_others_say_nothing():
    found = NaiveBayes.of(released())
    share = 0.25 * 0.4 + 0.75 * 0.1  # of all texts that have it
    odds = found.log_odds[0][:, BAD]
    assert odds == pytest.approx(np.log([0.4 / share, 0.1 / share]), abs=0.1)
    assert not np.delete(found.log_odds[0], [BAD, GOOD], 1).any()
    assert not found.log_odds[0][:, END].any()
    (scores,) = found.scores([BAD, 3, BAD, END])
    assert scores == pytest.approx(odds)  # distinct tokens


def test_noise_that_hides_the_counts_silences_them():
    """Control: at a thousandth of the noise the same draw speaks."""
    loud, quiet = (NaiveBayes.of(released(noise, seed=0)) for noise in (2.0, 2000.0))
    assert loud.log_odds[0][0, BAD] > 0.5
    assert not quiet.log_odds[0].any()


def test_a_value_of_longer_texts_is_not_what_every_token_speaks_for():
    """Its texts have each token half as often again, and so do not differ in what they say."""
    counts = 0.1 * UNITS * np.outer([0.5, 0.75], np.ones(VOCABULARY))
    weights = TokenWeights.equal(VOCABULARY, END)
    assert not NaiveBayes.of(TokenMarginals([counts], 1.0, UNITS, weights)).log_odds[0].any()
    counts[0, BAD] *= 4  # control
    assert NaiveBayes.of(TokenMarginals([counts], 1.0, UNITS, weights)).log_odds[0][0, BAD] > 0.3


def test_a_value_that_nobody_has_makes_no_trouble():
    counts = np.zeros((2, VOCABULARY))
    marginals = TokenMarginals([counts], 0.0, UNITS, TokenWeights.equal(VOCABULARY, END))
    found = NaiveBayes.of(marginals)
    assert np.isfinite(found.log_odds[0]).all()


def test_what_is_saved_is_read_again_and_what_no_run_writes_is_refused(tmp_path):
    found = NaiveBayes.of(released())
    assert NaiveBayes.load(tmp_path, (2,), VOCABULARY) is None
    found.save(tmp_path)
    read = NaiveBayes.load(tmp_path, (2,), VOCABULARY)
    assert (read.log_odds[0] == found.log_odds[0]).all()
    for classes, vocabulary in (((3,), VOCABULARY), ((2, 2), VOCABULARY), ((2,), 21)):
        with pytest.raises(ValueError, match="other labels"):
            NaiveBayes.load(tmp_path, classes, vocabulary)
    for number in (2 * LARGEST, np.nan):
        NaiveBayes([np.full((2, VOCABULARY), number)]).save(tmp_path)
        with pytest.raises(ValueError, match="no run writes"):
            NaiveBayes.load(tmp_path, (2,), VOCABULARY)


class Asked:
    """Stands for a model that is asked: its hidden state is a text's first token."""

    def states_of_texts(self, rows):
        return [np.array([[float(ids[0])]]) for ids in rows]


def test_tokens_decide_where_the_teacher_is_unsure():
    whitening = Whitening(np.array([5.0]), np.array([[1.0]]))  # first tokens: below 5 or above
    sure, unsure = (Teacher([whitening], [np.array([[-w, 0], [w, 0]])], 1) for w in (3.0, 0.05))
    words = NaiveBayes.of(released())
    text = [6, BAD, END]
    for teacher, known, number in ((sure, words, 1), (unsure, words, 0), (unsure, None, 1)):
        assert LabelClassifier(Asked(), teacher, known, END).numbers([text]) == [(number,)]


def test_a_rare_value_is_not_denied_for_being_rare():
    """Of 1 in 10 texts a teacher says so; a row of that value is judged by what is in it."""
    whitening = Whitening(np.array([5.0]), np.array([[1.0]]))
    rare = [np.array([0.1, 0.9])]
    at_half = np.log(0.9 / 0.1) / CONSTANT
    teacher = Teacher([whitening], [np.array([[-1.0, 0], [1.0, at_half]])], 1)
    known = LabelClassifier(Asked(), teacher, None, END)
    texts = [[4, END], [6, END]]
    assert known.numbers(texts) == [(1,), (1,)]
    assert known.numbers(texts, rare) == [(0,), (1,)]
    sure = Teacher([whitening], [np.array([[-4.0, 0], [4.0, at_half]])], 1)
    unseen = LabelClassifier(Asked(), sure, None, END).numbers(texts, [np.array([0.0, 1.0])])
    assert unseen == [(0,), (1,)]


TEXTS = ["It works well.", "The plot was dull, and I left.", "Fine"]


def fitted(tiny_base, folder, **options):
    frame = pd.DataFrame({"text": TEXTS * 10, "label": ["good", "bad", "good"] * 10})
    known = {"epsilon": None, "steps": 0, "max_tokens": 12, "teacher_share": 0.3}
    Twinset(str(tiny_base), **known | options).fit(frame, "text", "label").save(folder)
    return TwinModel.load(folder)


def test_a_run_keeps_them_beside_a_teacher(tiny_base, tmp_path):
    model = fitted(tiny_base, tmp_path / "m")
    assert model.words is not None
    assert model.classify(TEXTS)["label"].tolist() == ["good", "bad", "good"]
    before = model.classify(TEXTS)
    assert TwinModel.load(tmp_path / "m").classify(TEXTS).equals(before)
    for less in ({"marginal_share": 0}, {"teacher_share": 0}):
        assert fitted(tiny_base, tmp_path / str(less), **less).words is None


def test_rows_are_denied_by_what_tokens_say_too(tiny_base, tmp_path):
    model = fitted(tiny_base, tmp_path / "m")
    row = model.questions.tokens(TEXTS[0], 12)
    assert model._denies([("good",), ("bad",)], [row, row]) == [False, True]
    other = TwinModel.load(tmp_path / "m")
    good = [each.values for each in other.schema.attributes][0].index("good")
    odds = np.zeros_like(other.words.log_odds[0])
    odds[good, row], odds[1 - good, row] = -100, 100  # no teacher is as sure
    other.words = NaiveBayes([odds])
    assert other._denies([("good",), ("bad",)], [row, row]) == [True, False]


def test_a_model_of_before_has_none_and_a_damaged_one_is_refused(tiny_base, tmp_path):
    model = fitted(tiny_base, tmp_path / "m")
    model.words = None
    model.save(tmp_path / "before")
    before = TwinModel.load(tmp_path / "before")
    assert before.words is None and set(before.classify(TEXTS)["label"]) <= {"good", "bad"}
    (tmp_path / "m" / NAIVE_BAYES).write_bytes(b"")
    assert "damaged" in refusal(TwinModel.load, tmp_path / "m")
