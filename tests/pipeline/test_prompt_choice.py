"""A prompt that nobody named: the one whose rows have words as counted, at no further ε."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from twinset.config.options import run_config
from twinset.data.schema import Attribute, Schema
from twinset.data.templates import builtin_templates, candidate_templates, kinds_of_text
from twinset.pipeline.finetune import finetune
from twinset.pipeline.prepare import prepare
from twinset.pipeline.prompt_choice import chooses_prompt
from twinset.pipeline.request import Source
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism.token_marginals import TokenMarginals
from twinset.privacy.mechanism.token_weights import TokenWeights
from twinset.progress import Progress
from twinset.sampling.token_tilt import misfit

MOOD = Attribute("mood", "str", ("bad", "good"))
SCHEMA = Schema("text", "str", (MOOD,), columns=("text", "mood"))
RECORDS = 220


class Heard(Progress):
    """Keep what a run says."""

    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)


def table():
    return pd.DataFrame(
        {
            "text": [f"The film was slow and number {i} was fine." for i in range(RECORDS)],
            "mood": ["bad", "good"] * (RECORDS // 2),
        }
    )


def prepared(base, progress=None, prompt=None, **options):
    asked = {"epsilon": 50, "steps": 0, "max_tokens": 12, "teacher_share": 0} | options
    config = run_config({"base_model": str(base), **asked})
    return prepare(Source(table(), "text", ("mood",), prompt=prompt), config, progress=progress)


def test_candidates_are_every_kind_of_text_and_what_fits():
    found = [template.pattern for template in candidate_templates(SCHEMA)]
    kinds = kinds_of_text()
    assert found[: len(kinds)] == [f"Write {kind} with mood: {{mood}}:" for kind in kinds]
    assert found[len(kinds) :] == [builtin_templates()["personal-note"].pattern]
    assert kinds[0] in builtin_templates()["generic"].pattern


def test_a_template_whose_words_do_not_fit_is_no_candidate():
    """A prompt of 10,000 characters cannot grow by a kind of text."""
    long = Attribute("mood", "str", ("x" * 9970, "good"))
    found = candidate_templates(Schema("text", "str", (long,), columns=("text", "mood")))
    assert 0 < len(found) < len(kinds_of_text())


@pytest.mark.parametrize(
    ("records", "epsilon", "share", "chooses"),
    [(200, 8.0, 0.1, True), (199, 8.0, 0.1, False), (900, 1.0, 0.1, False)]
    + [(1000, 1.0, 0.1, True), (200, None, 0.1, True), (5000, 8.0, 0.0, False)],
)
def test_few_records_choose_nothing(tiny_base, records, epsilon, share, chooses):
    made = prepared(tiny_base)
    plan = replace(made.plan, records=records, target_epsilon=epsilon)
    privacy = replace(made.config.privacy, marginal_share=share)
    assert chooses_prompt(plan, replace(made.config, privacy=privacy)) == chooses


def test_a_prompt_that_is_named_is_taken(tiny_base):
    assert prepared(tiny_base).candidates
    assert prepared(tiny_base, prompt="generic").candidates == ()
    assert prepared(tiny_base, prompt="{mood}:").candidates == ()


def counts_like(expected, units=1000, deviation=5.0):
    """Return noisy counts of texts whose tokens are as expected."""
    weights = TokenWeights.equal(len(expected[("bad",)]), 0)
    halves = np.array([expected[c] * units / 2 for c in (("bad",), ("good",))])
    noise = np.random.default_rng(0).normal(0, deviation, halves.shape)
    return TokenMarginals([halves + noise], deviation, units, weights)


def test_misfit_is_least_for_rows_like_the_counted_ones():
    """And where noise hides the counts, it is the same for all."""
    rng = np.random.default_rng(1)
    drawn = [{c: rng.uniform(0, 0.5, 300) for c in SCHEMA.combinations} for _ in range(5)]
    shares = dict.fromkeys(SCHEMA.combinations, 0.5)
    for right in drawn:
        counted = counts_like(right)
        distances = [misfit(counted, SCHEMA, shares, each) for each in drawn]
        assert drawn[int(np.argmin(distances))] is right
        assert min(distances) < 0.5 * sorted(distances)[1]
    hidden = counts_like(drawn[0], deviation=1e6)
    distances = [misfit(hidden, SCHEMA, shares, each) for each in drawn]
    assert max(distances) == pytest.approx(min(distances), rel=0.01)


def chosen(base, monkeypatch, nearest, **options):
    """Run with a base whose rows are nearest behind the prompt that asks for this kind."""
    monkeypatch.setattr(
        "twinset.sampling.twin_model.TwinModel.misfit",
        lambda self, template, marginals: float(nearest not in template.pattern),
    )
    progress = Heard()
    return finetune(prepared(base, **options), progress), progress.said


def test_the_nearest_template_is_the_models_and_spends_nothing(tiny_base, monkeypatch):
    model, said = chosen(tiny_base, monkeypatch, "a question")
    assert model.template.pattern == "Write a question with mood: {mood}:"
    assert any(model.template.pattern in line for line in said)
    released = [e.what for e in model.ledger.events if isinstance(e, GaussianRelease)]
    assert released == ["label counts", "token marginals"]


def test_training_is_behind_the_chosen_prompt(tiny_base, monkeypatch):
    seen = []

    def trained(trainer, batches, context):
        seen.append(context.records.prompts)

    monkeypatch.setattr("twinset.pipeline.finetune.run_training", trained)
    model, _ = chosen(tiny_base, monkeypatch, "a question", steps=1, batch_size=8)
    assert seen == [model._prompts]


def test_the_ledger_says_that_one_was_chosen(tiny_base):
    model = finetune(prepared(tiny_base))
    number = len(candidate_templates(SCHEMA))
    line = f"the {number} prompt templates of which one was chosen by noisy counts of tokens"
    assert any(line in each for each in model.ledger.public_inputs)
    named = finetune(prepared(tiny_base, prompt="generic"))
    assert not any("chosen by" in each for each in named.ledger.public_inputs)
