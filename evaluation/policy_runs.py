"""Runs with several noise policies: the request, each one's options, the rows, and the training.

Some rows are for training and some are held out. Nothing here knows a score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from twinset.bounds import check_options, setting
from twinset.config import ROWS, PrivacyConfig, RunConfig
from twinset.config.plan import settled
from twinset.errors import InputError
from twinset.models.base_model import context_length, load_base
from twinset.models.layers import choose_execution, fuse
from twinset.policies import policy_names
from twinset.progress import Progress
from twinset.run.generate import finetune, prepare
from twinset.run.request import Source
from twinset.run.story import read_source
from twinset.sampling.allocation import proportional
from twinset.sampling.rows import RowGroups, draw_groups
from twinset.sampling.sampler import Sampler
from twinset.sampling.twin_model import TwinModel, twin_frame
from twinset.table.labels import TABLE, LabelRules
from twinset.table.read import read_frame
from twinset.table.records import Records, with_joined_text, without_reserved
from twinset.table.schema import Combination, Schema
from twinset.table.templates import Template, load_template
from twinset.table.tokenization import prompt_tokens, text_budget

from .findings import RUNS
from .release import Twin, forms_of, public_records, take_records

BASELINE_FILE = "no-private-data.parquet"  # in a run's `internal/`
TRAINED_ALL_THE_SAME = (
    "these models are trained, although `twinset generate` skips training for few records. "
    "`--steps 0` skips it here too, `generate --steps 40` trains there too."
)
POLICIES = policy_names()
NO_PRIVACY = "none"  # a policy here: what training without noise gives, and gives away
HELD_OUT_SHARE = 5  # one row in 5, if no held-out table is given
HELD_OUT_ROWS = 2000  # at most: embeddings of more take minutes
SAME_PROMPT = 'all models use the prompt "{}". Set `prompt` to use another, such as that of a run.'


@dataclass(frozen=True)
class ComparisonRequest:
    """What is compared."""

    source: Source  # the private table
    policies: Sequence[str] = POLICIES  # names in `POLICIES`, or `NO_PRIVACY`
    seeds: int = setting(3, bounds=RUNS)  # how many runs of each. The first seed is the config's.
    rows: int = setting(1000, bounds=ROWS)  # of each twin
    test: str | None = None  # held-out real rows. None keeps a fifth of the table.
    # Names in `classifiers.CLASSIFIERS`. Empty: no classifier.
    classifiers: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and owners, because planted canaries have none."""
        check_options(self)
        if self.source.owner is not None:
            raise InputError("`owner`: a comparison protects single rows. Leave it out.")


@dataclass(frozen=True)
class Data:
    """The rows: those for training, those held out, and their prompts."""

    train: Records
    heldout: Records
    template: Template
    text: str  # name of the text column
    attributes: tuple[str, ...]  # names of the label columns
    account: Mapping[str, Any] = field(default_factory=dict)  # that models count in, for `Source`

    def train_twin(
        self, frame: pd.DataFrame, config: RunConfig, rows: int, progress: Progress
    ) -> tuple[TwinModel, Twin]:
        """Fine-tune on a table of these columns, and write `rows` rows."""
        known = LabelRules().settled(self.train.schema, self.train.whose)
        columns: dict[str, Any] = {"prompt": self.template, "labels": known, **self.account}
        source = Source(frame, self.text, self.attributes, **columns)
        return train_twin(source, config, rows, progress)

    def settings(self, config: RunConfig) -> dict[str, Any]:
        """Return what every run depends on, except its policy. Tables appear as hashes."""
        options = asdict(config)
        del options["policy"]["noise_policy"]  # it is in the key of each row instead
        rows = {"train": self.train.fingerprint(), "held out": self.heldout.fingerprint()}
        return {**rows, "prompt": self.template.pattern, "options": options}


def read_data(
    request: ComparisonRequest, seed: int, progress: Progress, reserved: Sequence[str] = ()
) -> Data:
    """Read the private table and its held-out rows."""
    source = request.source
    frame, records, _ = read_source(source, progress)
    # its figures are for the owner alone, so label values may be those of the table
    found = {n: Counter(records.values_of(n)) for n in records.undeclared}
    notes: list[str] = []
    records = records.with_values(found, TABLE, notes)
    for note in notes:
        progress.say(note)
    records, _ = without_reserved(records, frame, reserved, source.name, source.strict)
    schema, asked = records.schema, source.prompt
    template = asked if isinstance(asked, Template) else load_template(asked, schema)
    columns = template, schema.text, tuple(attribute.name for attribute in schema.attributes)
    if source.prompt is None:
        progress.say(SAME_PROMPT.format(template.pattern))
    rng = np.random.default_rng(seed)
    if request.test is None:
        if len(records) < HELD_OUT_SHARE:
            raise InputError(f"{source.name}: too few rows to hold some out. Give `test` rows.")
        many = min(len(records) // HELD_OUT_SHARE, HELD_OUT_ROWS)
        order = rng.permutation(len(records))
        held, trained = (take_records(records, places) for places in (order[:many], order[many:]))
        return Data(trained, held, *columns)
    frame = read_frame(request.test, **forms_of(source.reading, source.data, request.test)[1])
    joined, _, _ = with_joined_text(frame, source.text, list(frame), request.test)
    rules = source.labels.settled(schema, {})
    held = public_records(joined, schema, rules, request.test, progress.say)
    held, _ = without_reserved(held, joined, reserved, request.test, source.strict)
    return Data(records, take_records(held, rng.permutation(len(held))[:HELD_OUT_ROWS]), *columns)


def policy_config(config: RunConfig, name: str) -> RunConfig:
    """Return the options of one policy's runs, or refuse an unknown policy."""
    if name == NO_PRIVACY:
        return replace(config, privacy=replace(config.privacy, target_epsilon=None))
    if config.privacy.target_epsilon is None:
        raise InputError(f"`epsilon` is needed. Without privacy take `policies={NO_PRIVACY}`.")
    if name not in POLICIES:
        known = ", ".join((*POLICIES, NO_PRIVACY))
        raise InputError(f"`policies`: there is no policy {name!r}. There are {known}.")
    return replace(config, policy=replace(config.policy, noise_policy=name))


def train_twin(
    source: Source, config: RunConfig, rows: int, progress: Progress
) -> tuple[TwinModel, Twin]:
    """Fine-tune once and sample once, with the parts of `twinset generate`.

    Rows are protected one by one. Because several models are compared, the clock chooses no steps.
    The model is trained even if a run alone would train nothing, and a note says so.
    """
    of_records = PrivacyConfig().max_records_per_owner  # without effect
    privacy = replace(config.privacy, max_records_per_owner=of_records)
    training = replace(config.training, max_minutes=None)
    changed = replace(config, privacy=privacy, training=training)

    prepared = prepare(source, changed, command="compare")
    if settled(config, len(prepared.records)).training.steps != config.training.steps:
        progress.say(TRAINED_ALL_THE_SAME)
    model = finetune(prepared, progress)
    frame = model.sample(proportional(model.label_counts, rows), config.sampling, progress)
    return model, Twin.from_ledger(frame, model.ledger)


def write_untrained_twin(
    config: RunConfig,
    schema: Schema,
    template: Template,
    counts: Mapping[Combination, int],
    progress: Progress,
) -> pd.DataFrame:
    """Return rows from the untrained base model, with the same prompts as for the twin's model.

    Config, template and rows of every label combination are the twin's. The schema is the private
    table's, which is public.
    """
    training, dtype = config.training, choose_execution(config)[0]
    base = load_base(training.base_model, dtype=dtype, device=config.speed.device, say=progress.say)
    prompts = prompt_tokens(template, schema.combinations, base.tokenizer)
    longest = text_budget(prompts, context_length(base.model), training.max_tokens)
    # The same sampler as for the twin, but without adapters, token marginals and teacher.
    sampling = config.sampling.settled(bool(config.privacy.teacher_share))
    asked, groups = (fuse(base.model), base.tokenizer, prompts, sampling, longest), RowGroups()
    draw_groups(lambda stream: Sampler(*asked, stream), counts, base.model.device, progress, groups)
    rows = groups.rows()
    return twin_frame(schema, [row.text for row in rows], [row.combination for row in rows])
