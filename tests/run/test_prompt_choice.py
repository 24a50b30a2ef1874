"""A prompt that nobody named: the one whose rows have words as counted, at no further ε."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from twinset.config.options import run_config
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, TokenWeights
from twinset.progress import Progress, Silent
from twinset.run.generate import finetune, prepare
from twinset.run.releases import FAVOUR, choose_template, chooses_prompt
from twinset.run.request import Source
from twinset.sampling.label_tables import TextLengths
from twinset.sampling.tilt_fitting import (
    PROMPT_ROWS,
    chance_in_whole,
    expected_tokens,
    misfit,
    openings,
    untilted_rows,
)
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import builtin_templates, candidate_templates, kinds_of_text

MOOD = Attribute("mood", "str", ("bad", "good"))
SCHEMA = Schema("text", "str", (MOOD,), columns=("text", "mood"))
RECORDS = 220
TABLE = pd.DataFrame(
    {
        "text": [f"The film was slow and number {i} was fine." for i in range(RECORDS)],
        "mood": ["bad", "good"] * (RECORDS // 2),
    }
)


class Heard(Progress):
    """Keep what a run says."""

    def __init__(self):
        self.said = []
        self.say = self.said.append


def prepared(base, prompt=None, **options):
    asked = {"epsilon": 50, "steps": 0, "max_tokens": 12, "teacher_share": 0} | options
    config = run_config({"base_model": str(base), **asked})
    return prepare(Source(TABLE, "text", ("mood",), prompt=prompt), config)


def test_candidates_are_every_kind_of_text_and_what_fits():
    found = [template.pattern for template in candidate_templates(SCHEMA)]
    kinds = kinds_of_text()
    assert found[: len(kinds)] == [f"Write {kind} with mood: {{mood}}:" for kind in kinds]
    assert found[len(kinds) :] == [builtin_templates()["personal-note"].pattern]
    assert kinds[0] in builtin_templates()["generic"].pattern
    # A prompt of 10,000 characters cannot grow by a kind of text.
    long = Attribute("mood", "str", ("x" * 9970, "good"))
    found = candidate_templates(Schema("text", "str", (long,), columns=("text", "mood")))
    assert 0 < len(found) < len(kinds)


def test_few_records_or_a_named_prompt_choose_nothing(tiny_base):
    made = prepared(tiny_base)
    assert made.candidates
    for records, epsilon, share, chooses in (
        (200, 8.0, 0.1, True),
        (199, 8.0, 0.1, False),
        (900, 1.0, 0.1, False),
        (1000, 1.0, 0.1, True),
        (200, None, 0.1, True),
        (5000, 8.0, 0.0, False),
    ):
        plan = replace(made.plan, records=records, target_epsilon=epsilon)
        privacy = replace(made.config.privacy, marginal_share=share)
        assert chooses_prompt(plan, replace(made.config, privacy=privacy)) == chooses
    named = prepared(tiny_base, prompt="generic")
    assert named.candidates == prepared(tiny_base, prompt="{mood}:").candidates == ()
    assert not any("chosen by" in each for each in finetune(named).ledger.public_inputs)


def counts_like(expected, units=1000, deviation=5.0):
    """Return noisy counts of texts whose tokens are as expected, as many with each label."""
    tokens = len(next(iter(expected.values())))
    parts = np.array([each * units / len(expected) for each in expected.values()])
    noise = np.random.default_rng(0).normal(0, deviation, parts.shape)
    return TokenMarginals([parts + noise], deviation, units, TokenWeights.equal(tokens, 0))


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


def test_labels_that_no_row_has_decide_nothing():
    """Of a hundred labels thirty have rows: these are as expected, whatever their share."""
    many = Attribute("mood", "int64", tuple(range(100)))
    schema = Schema("text", "str", (many,), columns=("text", "mood"))
    shares = dict.fromkeys(schema.combinations, 0.01)
    alike = dict.fromkeys(schema.combinations, np.linspace(0, 0.5, 300))
    counted = counts_like(alike, units=100_000, deviation=1e-3)
    some = dict(list(alike.items())[:30])
    assert misfit(counted, schema, shares, some) < 1e-3
    assert misfit(counted, schema, shares, {c: 2 * each for c, each in some.items()}) > 1000


def test_a_chance_in_an_opening_tells_that_in_a_whole_text():
    bins = LengthBins(64, end=0)
    lengths = TextLengths([np.eye(len(bins))[[5, -1]]])  # bad texts of 9 to 11, good of 64
    for c, length in ((("bad",), 10), (("good",), 64)):
        shares = lengths.shares_of(SCHEMA, c)
        chance = chance_in_whole(np.array([0.0, 0.3]), 8.0, shares, bins.means)
        assert chance == pytest.approx([0, 1 - 0.7 ** (length / 8)], abs=0.01)


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
    monkeypatch.setattr(
        "twinset.run.story.run_training",
        lambda trainer, batches, context: seen.append(context.records.prompts),
    )
    monkeypatch.setattr(
        "twinset.run.releases.prompt_misfit",
        lambda self, template, marginals: 100.0 * (kind not in template.pattern),
    )
    heard = Heard()
    model = finetune(prepared(tiny_base, steps=1, batch_size=8), heard)
    assert model.template.pattern == "Write a question with mood: {mood}:"
    assert seen == [model.prompts]
    assert any(line.startswith(f'the prompt was "{model.template.pattern}"') for line in heard.said)
    released = [e.what for e in model.ledger.events if isinstance(e, GaussianRelease)]
    assert released == ["label counts", "token marginals"]
    number = len(candidate_templates(SCHEMA))
    line = f"the {number} prompt templates of which one was chosen by what was counted"
    assert any(line in each for each in model.ledger.public_inputs)
