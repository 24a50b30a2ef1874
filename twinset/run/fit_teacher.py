"""The private teacher of a run: what the trained model makes of records, and noisy regressions."""

from __future__ import annotations

import numpy as np

from twinset.config.plan import MOST_READ
from twinset.models.record_states import states_of_records
from twinset.models.teacher import PHASE, Teacher, Whitening, components_for
from twinset.privacy.accounting.events import TEACHER, GaussianRelease
from twinset.privacy.mechanism.randomness import poisson_batches
from twinset.privacy.mechanism.vector_sum import Regressions, fit_regressions
from twinset.run.finetuning_run import FinetuningRun
from twinset.sampling.twin_model import TwinModel
from twinset.sampling.untilted_rows import reference_rows


def fit_teacher(run: FinetuningRun, model: TwinModel) -> Teacher:
    """Fit the teacher with noise, and record what that spends.

    For what it guarantees see `twinset.privacy.statement.theorems`, TEACHER. Units that are drawn
    by chance are protected at least as well as if all were read, and are accounted for as these.
    """
    schema, event = run.prepared.records.schema, teacher_event(run)
    noise = event.noise_multiplier if event else 0.0
    expected = min(len(run.units), MOST_READ)
    whitenings = _whitenings(run, model, components_for(expected, noise))
    drawn = _drawn(run, expected)
    places = {c: schema.value_numbers(c) for c in schema.combinations}
    records = [record for unit in drawn for record in unit]
    vectors = _vectors(run, model, whitenings, records)
    labels = np.array([places[run.tokens.labels[i]] for i in records], np.int64)
    position = iter(range(len(records)))
    data = Regressions(
        vectors,
        list(labels.reshape(-1, len(whitenings)).T),
        [len(attribute.values) for attribute in schema.attributes],
        [[next(position) for _ in unit] for unit in drawn],
        expected,
    )
    weights = fit_regressions(data, noise, run.randomness)
    if event:
        run.ledger.record(event)
    return Teacher(whitenings, weights, model.questions.layer)


def teacher_event(run: FinetuningRun) -> GaussianRelease | None:
    """Return what the teacher spends; None: there is none, or no privacy."""
    if not run.prepared.config.privacy.teacher_share:
        return None
    noise = run.release_noise(run.prepared.plan.teacher_noise)
    return GaussianRelease(noise, TEACHER) if noise else None


def _whitenings(run: FinetuningRun, model: TwinModel, components: int) -> list[Whitening]:
    """Return the scale of each attribute's hidden states: that of rows which the model wrote."""
    questions, end = model.questions, model.tokenizer.eos_token_id
    rows = [ids for some in reference_rows(model, run.progress).values() for ids in some]
    states = np.stack(questions.of_rows([[i for i in ids if i != end] for ids in rows]))
    return [Whitening.of(states[:, i], components) for i in range(states.shape[1])]


def _drawn(run: FinetuningRun, expected: int) -> list[list[int]]:
    """Return the records of the units that are read: so many in the mean."""
    rate = expected / len(run.units)
    (units,) = poisson_batches(len(run.units), rate, 1, run.randomness)
    return run.units.draw(units, run.randomness.sampling)


def _vectors(
    run: FinetuningRun, model: TwinModel, whitenings: list[Whitening], records: list[int]
) -> list[np.ndarray]:
    """Return (n, c + 1) for each attribute; no record changes a bit of another's."""
    end = model.tokenizer.eos_token_id
    read = [[token for token in run.tokens.texts[i] if token != end] for i in records]
    found = [np.empty((len(records), whiten.numbers)) for whiten in whitenings]
    for done, (i, states) in enumerate(states_of_records(model.questions, read), start=1):
        for each, whiten, state in zip(found, whitenings, states, strict=True):
            each[i] = whiten(state)
        run.progress.count(PHASE, done, len(records))
    return found
