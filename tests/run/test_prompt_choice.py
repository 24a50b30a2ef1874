"""A prompt that nobody named: the one whose rows have words as counted, at no further ε."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from twinset.config.options import run_config
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism.counts import TokenMarginals, TokenWeights
from twinset.progress import Silent
from twinset.run.generate import finetune, prepare
from twinset.run.releases import FAVOUR, choose_template, chooses_prompt
from twinset.run.request import Source
from twinset.sampling.tilt_fitting import PROMPT_ROWS, expected_tokens, openings, untilted_rows
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import candidate_templates

MOOD = Attribute("mood", "str", ("bad", "good"))
SCHEMA = Schema("text", "str", (MOOD,), columns=("text", "mood"))
RECORDS = 220
TEXTS = [f"The film was slow and number {i} was fine." for i in range(RECORDS)]
TABLE = pd.DataFrame({"text": TEXTS, "mood": ["bad", "good"] * (RECORDS // 2)})


def prepared(base, prompt=None, **options):
    asked = {"epsilon": 50, "steps": 0, "max_tokens": 12, "teacher_share": 0} | options
    config = run_config({"base_model": str(base), **asked})
    return prepare(Source(TABLE, "text", ("mood",), prompt=prompt), config)


def test_few_records_or_a_named_prompt_choose_nothing(tiny_base):
    made = prepared(tiny_base)
    assert made.candidates
    cases = (200, 8.0, 0.1, True), (199, 8.0, 0.1, False), (900, 1.0, 0.1, False)
    for records, epsilon, share, chooses in (*cases, (5000, 8.0, 0.0, False)):
        plan = replace(made.plan, records=records, target_epsilon=epsilon)
        privacy = replace(made.config.privacy, marginal_share=share)
        assert chooses_prompt(plan, replace(made.config, privacy=privacy)) == chooses
    named = prepared(tiny_base, prompt="generic")
    assert named.candidates == prepared(tiny_base, prompt="{mood}:").candidates == ()
    assert not any("chosen by" in each for each in finetune(named).ledger.public_inputs)


def counts_like(expected, units, deviation=5.0):
    """Return noisy counts of texts whose tokens are as expected, as many with each label."""
    tokens = len(next(iter(expected.values())))
    parts = np.array([each * units / len(expected) for each in expected.values()])
    noise = np.random.default_rng(0).normal(0, deviation, parts.shape)
    return TokenMarginals([parts + noise], deviation, units, TokenWeights.equal(tokens, 0))


def test_the_prompt_that_texts_were_written_behind_is_nearest(tiny_base, monkeypatch):
    """Of the model's own rows, whose openings are whole texts here; noise alone chooses none."""
    monkeypatch.setattr("twinset.run.releases.TextLengths.from_counts", lambda marginals: None)
    base, templates = finetune(prepared(tiny_base, "generic")), candidate_templates(SCHEMA)
    base.lengths, base.label_counts = None, dict.fromkeys(SCHEMA.combinations, 100)
    weights = TokenWeights.equal(base.model.config.vocab_size, base.tokenizer.eos_token_id)
    run = SimpleNamespace(candidates=templates, progress=Silent())
    writer = openings(base, templates[1])
    expected = expected_tokens(writer, untilted_rows(writer, PROMPT_ROWS), weights)
    counted = replace(counts_like(expected, units=10**6), weights=weights)
    assert choose_template(run, base, counted) == templates[1]
    for lead, number in ((FAVOUR - 1, 0), (FAVOUR + 1, 3)):
        near = {template.pattern: 100.0 for template in templates}
        near[templates[3].pattern] -= lead
        misfits = lambda base, template, marginals, near=near: near[template.pattern]  # noqa: E731
        monkeypatch.setattr("twinset.run.releases.prompt_misfit", misfits)
        assert choose_template(run, SimpleNamespace(), None) == templates[number]


def test_the_nearest_template_is_the_models_and_spends_nothing(tiny_base, monkeypatch):
    """Training is behind it, and the ledger says that it was chosen."""
    seen, kind = [], "a question"
    keep = lambda trainer, batches, context: seen.append(context.records.prompts)  # noqa: E731
    monkeypatch.setattr("twinset.run.story.run_training", keep)
    misfit = lambda base, template, marginals: 100.0 * (kind not in template.pattern)  # noqa: E731
    monkeypatch.setattr("twinset.run.releases.prompt_misfit", misfit)
    model = finetune(prepared(tiny_base, steps=1, batch_size=8))
    assert model.template.pattern == "Write a question with mood: {mood}:"
    assert seen == [model.prompts]
    released = [e.what for e in model.ledger.events if isinstance(e, GaussianRelease)]
    assert released == ["label counts", "token marginals"]
    number = len(candidate_templates(SCHEMA))
    line = f"the {number} prompt templates of which the noisy counts chose one"
    assert any(line in each for each in model.ledger.public_inputs)
