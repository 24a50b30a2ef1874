"""What a run counts in its private records beside its training: labels, tokens and lengths.

And what follows from that before the training: the prompt, where nobody named one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from twinset.privacy.accounting.events import NonPrivateAccess
from twinset.privacy.mechanism.counts import (
    TokenMarginals,
    release_label_counts,
    release_token_marginals,
    without_negatives,
)
from twinset.run.finetuning_run import FinetuningRun
from twinset.run.prompt_choice import nearest_template
from twinset.sampling.text_lengths import TextLengths
from twinset.sampling.twin_model import TwinModel
from twinset.sampling.untilted_rows import token_weights
from twinset.table.schema import Combination
from twinset.table.templates import Template

OWNERS_AT_ONCE = 10_000

LabelCounts = dict[Combination, int]


@dataclass(frozen=True)
class NoisyCounts:
    """What was counted before training: once, however often the run is resumed.

    Args:
        labels: texts of each label combination.
        marginals: texts by label value and token, and by length; None: not asked for.
        template: of the prompts, chosen by these where nobody named one.
    """

    labels: LabelCounts
    marginals: TokenMarginals | None
    template: Template


def noisy_counts(run: FinetuningRun) -> NoisyCounts:
    """Return what a resumed run has counted, or count, and record what that spends."""
    template, state = run.prepared.template, run.resume_state
    if state:
        return NoisyCounts(state.counts, state.marginals, template)
    labels = label_counts(run)
    if not run.prepared.config.privacy.marginal_share:
        return NoisyCounts(labels, None, template)
    base = run.twin_model(run.prepared.base.model, labels)
    marginals = token_marginals(run, base)
    return NoisyCounts(labels, marginals, _template(run, base, marginals))


def label_counts(run: FinetuningRun) -> LabelCounts:
    """Count labels with noise, and record what that spends; without privacy, as they are."""
    records, plan = run.prepared.records, run.prepared.plan
    labels, combinations, most = records.labels, records.schema.combinations, 1
    if records.owners is not None:
        labels = [labels[i] for i in _counted(run).tolist()]
        most = run.prepared.config.privacy.max_records_per_owner
    if plan.target_epsilon is None:
        run.ledger.record(NonPrivateAccess("labels were counted without noise"))
        counts = Counter(labels)
        return {c: counts[c] for c in combinations}
    noise = plan.label_count_noise
    noisy, event = release_label_counts(labels, combinations, noise, run.randomness, most)
    run.ledger.record(event)
    return dict(zip(combinations, without_negatives(noisy), strict=True))


def _counted(run: FinetuningRun) -> np.ndarray:
    return np.fromiter((record for unit in _units(run) for record in unit), np.int64)


def _units(run: FinetuningRun) -> Iterator[list[int]]:
    """Yield the records of each unit that are counted: of an owner as many as enter a step."""
    units = run.units
    for start in range(0, len(units), OWNERS_AT_ONCE):
        some = np.arange(start, min(start + OWNERS_AT_ONCE, len(units)))
        yield from units.draw(some, run.randomness.sampling)


def token_marginals(run: FinetuningRun, base: TwinModel) -> TokenMarginals:
    """Count texts by label and token, and by length, with noise, and record what that spends.

    For what it guarantees see `twinset.privacy.statement.theorems`, TOKEN_MARGINALS. What tokens
    count follows from rows of the base model, which no record was shown to, and from labels
    counted.
    """
    noise = run.release_noise(run.prepared.plan.marginal_noise)
    schema = run.prepared.records.schema
    numbers = {c: schema.value_numbers(c) for c in schema.combinations}
    marginals, event = release_token_marginals(
        run.tokens.of_units(_shown(run), numbers),
        [len(attribute.values) for attribute in schema.attributes],
        token_weights(base, run.progress),
        noise,
        run.randomness,
        run.length_bins,
    )
    if event is not None:
        run.ledger.record(event)
    return marginals


def _template(run: FinetuningRun, base: TwinModel, marginals: TokenMarginals) -> Template:
    """Return the template of the prompts: see `nearest_template`, where nobody named one."""
    if not run.prepared.candidates:
        return run.prepared.template
    base.lengths = TextLengths.of(run.length_bins, marginals)
    return nearest_template(run.prepared.candidates, base, marginals, run.progress)


def _shown(run: FinetuningRun) -> Iterator[list[int]]:
    """Yield the records of each unit, and notify of those that are counted."""
    count = partial(run.progress.count, "texts counted", total=len(run.units))
    for done, unit in enumerate(_units(run), start=1):
        yield unit
        count(done)
