"""What a run releases in addition to its steps: label values, noisy counts, a prompt and a teacher.

Each function records what it spends in the ledger before it returns the release. This module also
opens the ledger. At that point nothing is spent, and the ledger states what is taken as public.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from twinset.config import RunConfig
from twinset.config.plan import MOST_READ, Plan, make_plan, plan_selection, settled, sized
from twinset.errors import InputError
from twinset.files.atomic import append_json
from twinset.models.base_model import context_length
from twinset.models.hidden_states import (
    FIT_PHASE,
    PHASE,
    READ_PHASE,
    Teacher,
    Whitening,
    states_of_records,
)
from twinset.privacy.accounting.accountant import compose
from twinset.privacy.accounting.events import (
    COLUMNS,
    RELEASES,
    TEACHER,
    Event,
    GaussianRelease,
    LabelSelection,
    MaskedAccess,
    NonPrivateAccess,
)
from twinset.privacy.mechanism.counts import (
    LengthBins,
    TokenMarginals,
    release_label_counts,
    release_token_marginals,
    select_label_values,
    without_negatives,
)
from twinset.privacy.mechanism.gate import Gate, Measured, Noisy
from twinset.privacy.mechanism.randomness import poisson_batches
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.mechanism.vector_sum import Regressions, fit_regressions
from twinset.privacy.statement.ledger import Ledger
from twinset.run.columns import ColumnRelease
from twinset.run.request import Run
from twinset.run.run_folder import LABEL_VALUES, MEASURED_NOISE, SETTINGS
from twinset.sampling.column_model import ColumnModel
from twinset.sampling.decoding import attention_span
from twinset.sampling.label_tables import TextLengths
from twinset.sampling.tilt_fitting import PROMPT_PHASE, prompt_misfit, reference_rows, token_weights
from twinset.sampling.twin_model import TwinModel
from twinset.table.labels import OWNER, PROMPT, SELECTED, TABLE, check_number_of_values
from twinset.table.schema import Combination, LabelValue
from twinset.table.templates import Template, candidate_templates
from twinset.table.tokenization import prompt_tokens, text_budget

OWNERS_AT_ONCE = 10_000  # drawn together: each owner's records take memory
FEWEST_RECORDS = 200  # that a prompt is chosen by
FEWEST_PRODUCT = 1000.0  # of records and ε: below, noise would choose (tuning.md)
FAVOUR = 2 * math.log(1000)  # of the default prompt: another must be 1,000 times as likely

WHO_DECLARED = {
    OWNER: "declared by the owner",
    PROMPT: "declared by the words that the prompt template has for them",
    TABLE: "taken from the table: public by assumption",
}


Found = dict[str, dict[LabelValue, int]]  # by column, values and how many records have them


def find_selection(run: Run) -> LabelSelection | None:
    """Return how values of undeclared labels will be selected. None: by no noisy counts.

    Raises:
        InputError: there are too few records for two values. N and the options alone tell this.
    """
    records, names = len(run.records.units(run.config)), len(run.records.undeclared)
    selection = plan_selection(records, run.config.privacy, names, run.most)
    if selection is None:
        return None
    surely = selection.threshold + math.ceil(2 * selection.deviation)
    if 2 * surely > records * run.most:
        raise InputError(
            f"noisy counts surely make a label value public if {surely} records have it. "
            f"{records * run.most} records are too few for two values. Declare `labels`, or take "
            "a larger `epsilon`."
        )
    if 2 * surely > records:
        run.progress.warn(
            f"noisy counts surely make a label value public if {surely} records have it. "
            f"{records} owners with one record each are too few for two values. Then ε would be "
            "spent, and the run refused. If you know the values, declare `labels`."
        )
    return selection


def find_label_values(run: Run, spends: bool) -> tuple[Found, str]:
    """Return which values of undeclared columns may become public, and who says so.

    Without privacy they are the table's values. A resumed run takes the values selected earlier. If
    nothing is spent, exact counts show which are likely to be selected, but only to the owner.
    """
    records, known = run.records, dict[str, Any]()
    names, units = list(records.undeclared), records.units(run.config)
    if run.selection is None:  # all is declared, or there is no privacy
        for label_column in records.undeclared.values():  # of the whole table, held-out rows too
            check_number_of_values(label_column)
        return {n: dict(Counter(records.values_of(n)).most_common()) for n in names}, TABLE
    if run.folder and run.folder.is_resumed:
        known = json.loads((run.folder.internal / SETTINGS).read_text("utf-8"))
    kept = known.get("selected") or {}
    if kept.keys() == set(names):
        run.selected = {name: dict(pairs) for name, pairs in kept.items()}
        run.waiting.append(run.selection)
        return run.selected, SELECTED
    rows: list[int] | None = None
    if records.owners is not None:
        drawn = units.draw(np.arange(len(units)), run.randomness.sampling)
        rows = [row for unit in drawn for row in unit]
    values = [records.values_of(name, rows) for name in names]
    if spends and not known:  # a run that was begun with other settings will be refused
        noisy = select_label_values(values, run.selection, run.randomness)
        counted = run.gate.release(noisy, LABEL_VALUES)
        run.selected = dict(zip(names, counted, strict=True))
        return run.selected, SELECTED
    found, least = Found(), run.selection.threshold
    for name, column in zip(names, values, strict=True):
        counts = Counter(column).most_common()
        found[name] = {value: count for value, count in counts if count >= least}
        likely, rare = ", ".join(map(repr, found[name])) or "none", len(counts) - len(found[name])
        others = f" The other {rare} probably will not." if rare else ""
        run.progress.say(
            f"noisy counts will decide which values of {name!r} become public. Values of {least} "
            f"records or more probably will: {likely}.{others} `labels` declares values."
        )
    return found, SELECTED


def plan_ledger(run: Run, plan: Plan, scale: WeightScale | None) -> Ledger:
    """Return the facts of a run's ledger, and as its events all that the plan may spend."""
    config, policy = run.config, plan.policy_class
    events: list[Event] = plan.events_after(plan.steps)
    if not events:
        events = [NonPrivateAccess("there is no noise, or none that a theorem covers")]
    if any(phase.reads_masked for phase in policy.before) and plan.steps:
        events.append(MaskedAccess(config.policy.detector))
    return Ledger.open(
        run.randomness,
        policy.name,
        policy.form,
        run.records.owners is not None,
        delta=plan.target_delta,
        target_epsilon=plan.target_epsilon,
        records=plan.records,
        sample_rate=plan.sample_rate,
        max_grad_norm=config.privacy.max_grad_norm,
        caveats=policy.theorem.caveats,
        weight_scale=scale,
        group_size=config.privacy.group_size,
        events=events,
    )


def enter_account(run: Run, events: Sequence[Event] = ()) -> None:
    """Count a run in its table's account, if any, with all that it may spend, before it does.

    These are the events of its plan. Until it has one, they are those of the plan that follows from
    the number of units. A resumed run says itself what it has spent and may spend.

    Raises:
        InputError: there is no such plan, or the account refuses the run.
    """
    config, records, made = run.config, run.records, getattr(run, "plan", None)
    units = len(records.units(config))
    labels = run.selection.attributes if run.selection else len(records.undeclared)
    others, has_columns = run.undeclared_columns, records.others is not None

    def planned(target: float | None) -> Ledger:
        privacy = replace(config.privacy, target_epsilon=target)
        of_labels, of_columns = (
            plan_selection(units, privacy, many, run.most, of_labels)
            for many, of_labels in ((labels, True), (others, False))
        )
        given = of_labels, of_columns, has_columns
        asked = settled(replace(config, privacy=privacy), units, None, *given)
        if made is not None:
            asked = sized(asked, made.steps, made.batch_size)
        plan, scale = make_plan(units, asked, *given), run.scale
        if made is None and target is not None:
            scale = config.policy.policy_class.weight_scale(config.policy, run.base)
        return plan_ledger(run, plan, scale)

    target = config.privacy.target_epsilon
    ledger = planned(target) if made is None else plan_ledger(run, made, run.scale)
    if events:
        ledger = replace(ledger, events=[*compose(events)])
    if run.account is not None:
        run.account.enter(ledger, planned)


def open_ledger(run: Run) -> Ledger:
    """Open the ledger of a run that has a plan and has spent nothing.

    Reads no text and no record's label. Of the records it uses only two public facts: who declared
    the label values, and whether owners are protected. It records the selection of label values.
    """
    plan, config, by_owner = run.plan, run.config, run.records.owners is not None
    policy = config.policy.policy_class
    templates = run.candidates or (run.template,)
    prompt = f"{templates[0].pattern!r} with its wording"
    units = "owners" if by_owner else "records"
    public = [
        "the names, order and types of the columns, and which of them are guessed",
        *(
            f"the set of label values of {name!r}, {WHO_DECLARED[whose]}"
            for name in templates[0].attributes
            if (whose := run.records.whose.get(name, TABLE)) != SELECTED
        ),
        f"the number of {units}",
        f"encoding and delimiter of the table's file, and whether it has enough {units} that some "
        "are held out by default",
        f"the prompt template {prompt}"
        if len(templates) == 1
        else f"the {len(templates)} prompt templates of which the noisy counts chose one: {prompt},"
        " the same for other kinds of text, and built-in ones that fit the labels",
        f"the base model {run.base.origin}, whose weights have the SHA-256 {run.base.weights}, and "
        "everything it was trained on",
        f"the longest text kept, {config.training.max_tokens} tokens",
        *(
            [
                "declared kinds, values and ranges of other columns, and types that their source "
                "states"
            ]
            if run.records.others is not None
            else []
        ),
        "all options of the run",
    ]
    if config.training.is_timed:
        public.append(
            "the number of steps and the batch size, which follow from these and from the speed of "
            "the machine on made-up tokens"
        )
    if run.rows_seconds is not None:
        public.append("the number of rows, which follows from how fast the machine wrote them")
    public += policy.public_inputs(config.policy)
    facts = plan_ledger(run, plan, run.scale)
    if run.waiting != ([run.selection] if run.selection else []):
        raise RuntimeError("label values were taken from exact counts")
    return replace(facts, public_inputs=tuple(public), events=[*run.waiting])


def counted_units(run: Run, what: str) -> Iterator[list[int]]:
    """Yield the records of each unit that are counted: for an owner at most those in one step."""
    for start in range(0, len(run.units), OWNERS_AT_ONCE):
        numbers = np.arange(start, min(start + OWNERS_AT_ONCE, len(run.units)))
        drawn = run.units.draw(numbers, run.randomness.sampling)
        for done, unit in enumerate(drawn, start=start + 1):
            yield unit
            run.progress.count(what, done, len(run.units))


def count_labels(run: Run) -> dict[Combination, int]:
    """Count labels with noise and record what that spends. Without privacy, count exactly."""
    records, plan = run.records, run.plan
    labels, combinations = records.labels, records.schema.combinations
    if records.owners is not None:
        labels = [labels[i] for unit in counted_units(run, "labels counted") for i in unit]
    if plan.target_epsilon is None:
        exact, why = Counter(labels), NonPrivateAccess("labels were counted without noise")
        return run.gate.release(Noisy({c: exact[c] for c in combinations}, why))
    noise = plan.label_count_noise
    noisy = release_label_counts(labels, combinations, noise, run.randomness, run.most)
    counts = without_negatives(run.gate.release(noisy))
    return dict(zip(combinations, counts, strict=True))


def count_columns(run: Run) -> ColumnModel | None:
    """Release noisy tables of the other columns, and record what that spends. None: no columns.

    For its guarantee see `twinset.privacy.statement.theorems`, COLUMNS.
    """
    frame = run.records.other_columns()
    if frame is None:
        return None
    schema, plan = run.records.schema, run.plan
    noise = plan.column_noise
    number = {c: i for i, c in enumerate(schema.combinations)}
    release = ColumnRelease(
        {str(name): frame[name] for name in frame},
        np.array([number[c] for c in run.records.labels], np.int64),
        len(number),
        list(counted_units(run, "columns counted")),
        run.source.columns,
        noise,
        plan.column_selection,
        run.gate,
        run.randomness,
        run.config.privacy.group_size or 1,
    )
    whole = run.gate.parts_of(GaussianRelease(noise, COLUMNS)) if noise else nullcontext()
    with whole:
        return release.find_model([run.label_counts[c] for c in schema.combinations])


def count_tokens(run: Run, base: TwinModel) -> TokenMarginals:
    """Count texts by label and token, and by length, with noise, and record what that spends.

    For its guarantee see `twinset.privacy.statement.theorems`, TOKEN_MARGINALS. The weights of
    tokens follow from noisy label counts and from rows of the base model, which saw no record.
    """
    schema, tokens = run.records.schema, run.tokens
    numbers = {c: schema.value_numbers(c) for c in schema.combinations}
    noisy = release_token_marginals(
        (
            [(tokens.texts[i], numbers[tokens.labels[i]]) for i in unit]
            for unit in counted_units(run, "texts counted")
        ),
        [len(attribute.values) for attribute in schema.attributes],
        token_weights(base, run.progress),
        run.plan.marginal_noise,
        run.randomness,
        LengthBins(longest_text(run), run.base.tokenizer.eos_token_id),
    )
    return run.gate.release(noisy)


def open_gate(run: Run) -> Gate:
    """Return the gate that all releases of a run pass.

    What is released before there is a ledger waits for it. How much noise a release had as
    measured is kept in `internal/`, as it tells of the exact sums. `twinset audit` reads it.
    """

    def keep(event: RELEASES, name: str, sums: Sequence[Measured]) -> None:
        if run.folder is None:
            return
        figures: dict[str, Any] = {"release": name, "noise": None}  # nothing to select from
        if sums:
            found = Measured.together(sums)
            noise = found.noise / event.noise_multiplier
            figures |= {"noise": noise, "numbers": found.numbers}
        append_json(run.folder.internal / MEASURED_NOISE, figures)

    return Gate(run.waiting.append, run.config.privacy.target_epsilon is not None, keep)


def longest_text(run: Run) -> int:
    """Return the length in tokens of the longest text that is trained on."""
    most = run.config.training.max_tokens
    return text_budget(run.tokens.prompts, run.tokens.context, most)


# -- the prompt, if none was given ---------------------------------------------------------------


def chooses_prompt(plan: Plan, config: RunConfig) -> bool:
    """Return whether the counts of a run can tell one prompt from another."""
    epsilon = math.inf if plan.target_epsilon is None else plan.target_epsilon
    enough = plan.records >= FEWEST_RECORDS and plan.records * epsilon >= FEWEST_PRODUCT
    return enough and config.privacy.marginal_share > 0


def find_candidates(run: Run) -> tuple[tuple[Template, ...], str]:
    """Return the templates to choose from, the default one first, and a note about them.

    If there is no choice, the list is empty. A text has the same room after each of them as after
    the default one, because its length is counted earlier. All of this follows from public facts.
    """
    schema, usual, base = run.records.schema, run.template, run.base
    if not chooses_prompt(run.plan, run.config):
        return (), f'the prompt is "{usual.pattern}". A prompt that says more makes a better twin.'
    spans = context_length(base.model), attention_span(base.model)
    templates = [usual, *(t for t in candidate_templates(schema) if t != usual)]
    ids = [prompt_tokens(t, schema.combinations, base.tokenizer) for t in templates]
    prompts = [max(map(len, each.values())) for each in ids]  # lengths of the longest
    longest = run.config.training.max_tokens
    rooms = [[min(span - prompt, longest) for span in spans] for prompt in prompts]
    found = tuple(t for t, room in zip(templates, rooms, strict=True) if room == rooms[0])
    if len(found) == 1:
        return (), ""
    return found, (
        f"one of {len(found)} prompts will be taken, by the noisy word counts, such as "
        f'"{found[1].pattern}". `prompt` names one instead.'
    )


def choose_template(run: Run, base: TwinModel, marginals: TokenMarginals) -> Template:
    """Return the candidate whose base-model rows match the counted tokens best.

    If noise may have made another candidate the best, the first one is taken. The choice is
    post-processing and costs no ε. Like the counts it is a release, so it stays hidden until the
    counts are saved.
    """
    base.lengths = TextLengths.from_counts(marginals)
    misfits = []
    run.progress.count(PROMPT_PHASE, 0, len(run.candidates))
    for done, template in enumerate(run.candidates, start=1):
        misfits.append(prompt_misfit(base, template, marginals))
        run.progress.count(PROMPT_PHASE, done, len(run.candidates))
    misfits[0] -= FAVOUR
    return run.candidates[int(np.argmin(misfits))]


# -- the teacher ---------------------------------------------------------------------------------


def teacher_event(run: Run) -> GaussianRelease | None:
    """Return what the teacher spends, or None without a teacher or without privacy."""
    if not run.config.privacy.teacher_share:
        return None
    noise = run.plan.teacher_noise
    return GaussianRelease(noise, TEACHER) if noise else None


def fit_teacher(run: Run, model: TwinModel) -> Teacher:
    """Fit the teacher to a trained model's hidden states with noise, and record what that spends.

    For its guarantee see `twinset.privacy.statement.theorems`, TEACHER. Units are sampled at
    random, which protects them at least as well as reading all. The ledger counts it as reading
    all.
    """
    schema, event = run.records.schema, teacher_event(run)
    noise = event.noise_multiplier if event else 0.0
    expected, questions = min(len(run.units), MOST_READ), model.questions
    end = model.tokenizer.eos_token_id
    # The scale of each attribute's hidden states is that of rows which the model wrote.
    rows = [ids for some in reference_rows(model, run.progress).values() for ids in some]
    texts = [[i for i in ids if i != end] for ids in rows]
    reread, fitted = (partial(run.progress.count, n) for n in (READ_PHASE, FIT_PHASE))
    states = np.stack(questions.states_of_texts(texts, reread))
    each_state = np.moveaxis(states, 1, 0)  # (attributes, rows, hidden)
    whitenings = [Whitening.fit(states, expected, noise) for states in each_state]
    # About `expected` units are read.
    rate = expected / len(run.units)
    (chosen,) = poisson_batches(len(run.units), rate, 1, run.randomness)
    drawn = run.units.draw(chosen, run.randomness.sampling)
    drawn = [unit for unit in drawn if unit]  # of others no record is left
    records = [record for unit in drawn for record in unit]
    # (n, c + 1) for each attribute. No record changes a bit of another's.
    vectors = [np.empty((len(records), w.projection.shape[1] + 1)) for w in whitenings]
    read = [[token for token in run.tokens.texts[i] if token != end] for i in records]
    for done, (i, found) in enumerate(states_of_records(questions, read), start=1):
        for each, whiten, state in zip(vectors, whitenings, found, strict=True):
            each[i] = whiten(state)
        run.progress.count(PHASE, done, len(records))
    places = {c: schema.value_numbers(c) for c in schema.combinations}
    labels = np.array([places[run.tokens.labels[i]] for i in records], np.int64)
    position = iter(range(len(records)))
    data = Regressions(
        vectors,
        list(labels.reshape(-1, len(whitenings)).T),
        [len(attribute.values) for attribute in schema.attributes],
        [[next(position) for _ in unit] for unit in drawn],
        expected,
    )
    noisy = fit_regressions(data, noise, run.randomness, count=fitted)
    return Teacher(whitenings, run.gate.release(noisy), questions.layer)
