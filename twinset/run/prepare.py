"""Everything that is read, checked and decided before the first private step, the quickest first.

The one way from a private table to a fine-tuning: for the command line, for Python, and for
`evaluation/`. Trains nothing, and writes nothing but what it is given a folder for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from twinset.config import PrivacyConfig, RunConfig
from twinset.config.plan import Plan, make_plan, settled, sized
from twinset.detectors import detector_named
from twinset.errors import InputError
from twinset.models.base_model import BaseModel, check_base, load_base, special_token_strings
from twinset.models.device import check_device
from twinset.models.nf4 import check_method
from twinset.privacy.mechanism.units import WeightScale
from twinset.progress import Progress, Silent
from twinset.run.estimate import Speed, usual_tokens
from twinset.run.hold_out import draw_held_out, held_out_line
from twinset.run.plan_in_time import PublicFacts, late_warnings, plan_in_time
from twinset.run.prompt_choice import candidates, choice_line, chooses_prompt, proposal
from twinset.run.request import Source
from twinset.run.table_notes import table_notes
from twinset.sampling.allocation import RowsRequest, explicit, usual_rows
from twinset.sampling.decoding import attention_span
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame
from twinset.table.records import Records, check_reserved, records_from_frame
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template, load_template, written_template
from twinset.table.tokenization import longest_prompt, prompt_tokens, text_budget, times_english


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the first private step; good for one fine-tuning.

    Args:
        records: the private records.
        template: renders their prompts.
        base: the base model, which a fine-tuning changes.
        plan: noise, steps and learning rate for as many records, or owners.
        config: the run's options.
        scale: of privacy weights, where records have them; read once, for ledger and weights.
        notes: about the table, for its owner alone: guesses, rows and columns left out.
        rows: of the twin, with `most` where there is no time for more; None: none are written.
        counts: the rows by label, where they were asked for so.
        speed: of this machine; None where it was not measured, as in a run that is resumed.
        labels: what the owner said of label values.
        reading: what the owner said of where the texts are; see `Source.reading`.
        held_out: records that are kept from the run; None: none.
        hold_out: share of them that was asked for; None: nobody did.
        candidates: templates of which one is chosen by what was counted; none: it is `template`.
    """

    records: Records
    template: Template
    base: BaseModel
    plan: Plan
    config: RunConfig
    scale: WeightScale | None = None
    notes: tuple[str, ...] = ()
    rows: RowsRequest | None = None
    counts: dict[Combination, int] | None = None
    speed: Speed | None = None
    labels: LabelRules = LabelRules()
    reading: Mapping[str, str | None] = field(default_factory=dict)
    held_out: Records | None = None
    hold_out: float | None = None
    candidates: tuple[Template, ...] = ()
    _used: list[bool] = field(default_factory=list, repr=False, compare=False)
    _usual: list[int] = field(default_factory=list, repr=False, compare=False)  # reckoned once

    def use(self) -> None:
        """Note that a fine-tuning takes the base model.

        Raises:
            RuntimeError: another one did before, and has changed it.
        """
        if self._used:
            raise RuntimeError("a fine-tuning has changed this base model; prepare the next anew")
        self._used.append(True)

    @property
    def owned(self) -> int | None:
        """Number of records that owners have; None: each record is protected by itself."""
        return None if self.records.owners is None else len(self.records)

    @property
    def usual_tokens(self) -> int:
        """Mean tokens of a record with its prompt. Private: no plan may depend on it."""
        if not self._usual:
            longest, most = max(map(len, self.prompts.values())), self.config.training.max_tokens
            texts, tokenizer = self.records.texts, self.base.tokenizer
            self._usual.append(usual_tokens(texts, tokenizer, longest, most))
        return self._usual[0]

    @property
    def prompts(self) -> dict[Combination, list[int]]:
        """Token ids of every label combination's prompt."""
        combinations = self.records.schema.combinations
        return prompt_tokens(self.template, combinations, self.base.tokenizer)

    def public_facts(self) -> PublicFacts:
        """Return all that a plan's time may depend on beside options, N and base model."""
        combinations, tokenizer = self.records.schema.combinations, self.base.tokenizer
        templates = self.candidates or (self.template,)
        longest = max(longest_prompt(each, combinations, tokenizer) for each in templates)
        most = 1 if self.owned is None else self.config.privacy.max_records_per_owner
        facts = PublicFacts(longest, 0, most, prompts=len(self.candidates))
        if self.rows is None:
            return facts
        if asked := sum(self.counts.values()) if self.counts else self.rows.rows:
            return replace(facts, rows=asked)
        usual = usual_rows(round(self.plan.records * facts.records_each))
        return replace(facts, rows=min(usual, self.rows.most or usual), may_be_fewer=True)


def prepare(
    source: Source,
    config: RunConfig,
    rows: RowsRequest | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
    begun_with: tuple[int, int] | None = None,
    held_rows: Sequence[int] | None = None,
) -> Prepared:
    """Read and check everything, the quickest first; train nothing.

    Args:
        source: of the private table.
        config: the run's options.
        rows: of the twin; `None`: none are written.
        progress: is notified of what was found.
        folder: private to its owner: a large table is kept there, without a name. None: nothing is
            written, and the table is in memory.
        begun_with: steps and batch size of the run that is resumed, which goes on as it was begun;
            `None`: they are chosen, by the time that this machine takes where that may matter.
        held_rows: of the table, from 0, held out of the run that is resumed; `None`: drawn anew.

    Raises:
        InputError: something cannot be used.
    """
    progress = progress or Silent()
    _check_owner(source, config.privacy)
    check_method(config.training)
    check_device(config.speed.device, config.speed.processes)
    frame, records, notes = read_source(source, progress, folder)
    template = template_of(source, records.schema)
    counts = explicit(records.schema, rows or RowsRequest())
    check_base(config.training.base_model)
    base = load_base(config.training.base_model, device=config.speed.device, say=progress.say)
    check_reserved(records, frame, special_token_strings(base.tokenizer), source.name)
    if held_rows is None:
        drawn = draw_held_out(len(records.units(config)), source.hold_out)
        held_rows = records.rows_of(drawn)
    records, held_out = records.split(held_rows)
    if held_out is not None:
        progress.say(held_out_line(len(held_out)))
    config = settled(config, len(records.units(config)), begun_with[0] if begun_with else None)
    planned = sized(config, *begun_with) if begun_with and config.training.is_timed else config
    prepared = _planned(records, template, planned, base)
    if source.prompt is None:  # a resumed run has chosen already
        prepared = _with_candidates(prepared, progress if begun_with is None else Silent())
    asked = prepared.config.training.batch_size
    more_tokens = times_english(records.texts, base.tokenizer)
    about = tuple(table_notes(prepared.plan, more_tokens, asked))
    for note in about:
        progress.say(note)
    prepared = replace(
        prepared,
        config=config,
        notes=(*notes, *about),
        rows=rows,
        counts=counts,
        labels=source.labels,
        reading=source.reading,
        held_out=held_out,
        hold_out=source.hold_out,
    )
    return _in_time(prepared, progress) if begun_with is None else prepared


def prepare_records(
    records: Records, template: Template, config: RunConfig, base: BaseModel | None = None
) -> Prepared:
    """Check and plan what is to be done with records in hand, as `prepare` does, whatever it takes.

    That no text holds a special token of the base model, and that their label values are public, is
    for whoever made the records. There is no teacher but where the options ask for one.

    Args:
        records: the private records.
        template: renders their prompts.
        config: the run's options.
        base: a base model that nobody has trained; `None` loads the one that `config` names.

    Raises:
        InputError: the method's library is missing, the prompts do not fit into the model's
            context, the plan cannot be made, or the noise policy lacks something.
    """
    config = replace(config, training=replace(config.training, max_minutes=None))  # as it says
    check_method(config.training)
    base = base or load_base(config.training.base_model, device=config.speed.device)
    return _planned(records, template, config, base)


def _planned(records: Records, template: Template, config: RunConfig, base: BaseModel) -> Prepared:
    prompts = prompt_tokens(template, records.schema.combinations, base.tokenizer)
    text_budget(prompts, attention_span(base.model), config.training.max_tokens)
    plan = make_plan(len(records.units(config)), config)
    _check_policy(config, records)
    policy, is_private = config.policy, config.privacy.target_epsilon is not None
    scale = policy.policy_class.weight_scale(policy, base) if is_private else None
    return Prepared(records, template, base, plan, config, scale)


def _in_time(prepared: Prepared, progress: Progress) -> Prepared:
    """Take fewer visits and rows where there is less time; of `prepared` only what is public."""
    facts, config, rows = prepared.public_facts(), prepared.config, prepared.rows
    plan, most, speed = plan_in_time(prepared.plan, config, prepared.base, facts, progress)
    if speed is not None:
        shown = speed.at(prepared.usual_tokens)  # to the owner, once the plan is chosen
        for warning in late_warnings(plan, config, shown, most):
            progress.warn(warning)
    if rows is not None and facts.may_be_fewer:
        rows = replace(rows, most=most)
    return replace(prepared, plan=plan, speed=speed, rows=rows)


def read_source(
    source: Source, progress: Progress, folder: Path | None = None, reserved: Sequence[str] = ()
) -> tuple[pd.DataFrame, Records, tuple[str, ...]]:
    """Return the private table, its records, and the notes about it that `progress` is notified of.

    Args:
        source: of the table.
        progress: is notified of the notes.
        folder: see `prepare`.
        reserved: special tokens that no text or label may contain, where they are known.

    Raises:
        InputError: the table cannot be used.
    """
    frame = source.data
    if not isinstance(frame, pd.DataFrame):
        frame = read_frame(frame, source.split, folder, source.layout)
    records, notes = records_from_frame(
        frame,
        source.text,
        source.attributes,
        source=source.name,
        drop_empty=source.drop_empty,
        reserved=reserved,
        owner=source.owner,
        rules=replace(source.labels, prompt=written_template(source.prompt)),
        strict=source.strict,
        folder=folder,
    )
    for note in notes:
        progress.say(note)
    return frame, records, tuple(notes)


def template_of(source: Source, schema: Schema) -> Template:
    """Return the prompt template that was asked for, checked against the table's schema."""
    if isinstance(source.prompt, Template):
        return source.prompt
    return load_template(source.prompt, schema)


def _with_candidates(prepared: Prepared, progress: Progress) -> Prepared:
    """Let a prompt be chosen by what is counted, or propose some where nothing is."""
    schema, usual, config = prepared.records.schema, prepared.template, prepared.config
    longest, chooses = config.training.max_tokens, chooses_prompt(prepared.plan, config)
    if chooses and (found := candidates(schema, usual, prepared.base, longest)):
        progress.say(choice_line(found))
        return replace(prepared, candidates=found)
    if line := proposal(schema, usual):
        progress.say(line)
    return prepared


def _check_owner(source: Source, privacy: PrivacyConfig) -> None:
    """Refuse what would do nothing with an owner, or without one."""
    if source.owner is not None and privacy.group_size is not None:
        raise InputError(
            "`group_size` is of records that are protected one by one, and with `owner` all of an "
            "owner are one; leave one of them out"
        )
    usual = PrivacyConfig().max_records_per_owner
    if source.owner is None and privacy.max_records_per_owner != usual:
        raise InputError("`max_records_per_owner` does nothing without `owner`; name the column")


def _check_policy(config: RunConfig, records: Records) -> None:
    """Refuse, before anything slow, what a policy lacks.

    Raises:
        InputError: there is no such detector, or the policy is about records and not about their
            owners.
    """
    policy, by_owner = config.policy, records.owners is not None
    policy.policy_class.check(policy, config.training.steps, config.training.method, by_owner)
    if policy.policy_class.masks(policy):
        detector_named(policy.detector)
