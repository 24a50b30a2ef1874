"""What runs with several noise policies share: the request, each one's options, and the rows.

Some rows are trained on and some held out. Knows no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pandas as pd

from evaluation.limits import RUNS
from evaluation.twins import Twin, train_twin
from evaluation.utility.classifiers import CLASSIFIERS
from twinset.config import ROWS, NoisePolicyName, RunConfig
from twinset.config.bounds import check_options, within
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.run.prepare import read_source, template_of
from twinset.run.request import Source
from twinset.sampling.twin_model import TwinModel, twin_frame
from twinset.table.label_rules import LabelRules
from twinset.table.records import Records, read_records
from twinset.table.templates import Template

POLICIES: tuple[NoisePolicyName, ...] = get_args(NoisePolicyName)
NO_PRIVACY = "none"  # a policy here: what training without noise gives, and gives away
HELD_OUT_SHARE = 5  # one row in so many, where no held-out table is given
HELD_OUT_ROWS = 2000  # at most: embeddings of more take minutes
SAME_PROMPT = 'every model is behind "{}"; `prompt` names another, such as the one a run has chosen'


@dataclass(frozen=True)
class ComparisonRequest:
    """What is compared.

    Args:
        source: the private table.
        policies: names in `POLICIES`, or `NO_PRIVACY`.
        seeds: how many runs of each; the first seed is that of `config`.
        rows: of each twin.
        test: real rows, held out; None keeps a fifth of the table.
        classifiers: names in `classifiers.CLASSIFIERS`.
    """

    source: Source
    policies: Sequence[str] = POLICIES
    seeds: int = within(3, RUNS)
    rows: int = within(1000, ROWS)
    test: str | None = None
    classifiers: Sequence[str] = CLASSIFIERS

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and owners: planted canaries have none."""
        check_options(self)
        if self.source.owner is not None:
            raise InputError("`owner`: rows are protected one by one here; leave it out")


@dataclass(frozen=True)
class Data:
    """The rows: those trained on, those held out, and what the prompts make of them."""

    train: Records
    heldout: Records
    template: Template

    @property
    def text(self) -> str:
        """Name of the text column."""
        return self.train.schema.text

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return tuple(attribute.name for attribute in self.train.schema.attributes)

    def train_twin(
        self, frame: pd.DataFrame, config: RunConfig, rows: int, progress: Progress
    ) -> tuple[TwinModel, Twin]:
        """Fine-tune on a table of these columns, and write so many rows."""
        known = LabelRules().settled(self.train.schema, self.train.whose)
        source = Source(frame, self.text, self.attributes, prompt=self.template, labels=known)
        return train_twin(source, config, rows, progress)

    def settings(self, config: RunConfig) -> dict[str, Any]:
        """Return what every run depends on, but its policy; the tables by their hashes."""
        options = config.to_dict()
        del options["policy"]["noise_policy"]
        return {
            "train": self.train.fingerprint(),
            "held out": self.heldout.fingerprint(),
            "prompt": self.template.pattern,
            "options": options,
        }


def read_data(
    request: ComparisonRequest, seed: int, progress: Progress, reserved: Sequence[str] = ()
) -> Data:
    """Read the private table and what is held out of it.

    Raises:
        InputError: a table cannot be used.
    """
    source = request.source
    _, records, _ = read_source(source, progress, reserved=reserved)
    template = template_of(source, records.schema)
    if source.prompt is None:
        progress.say(SAME_PROMPT.format(template.pattern))
    rng = np.random.default_rng(seed)
    if request.test is None:
        if len(records) < HELD_OUT_SHARE:
            raise InputError(f"{source.name}: too few rows to hold some out; give others as `test`")
        held_out = min(len(records) // HELD_OUT_SHARE, HELD_OUT_ROWS)
        order = rng.permutation(len(records))
        return Data(take(records, order[held_out:]), take(records, order[:held_out]), template)
    schema = records.schema
    names = [attribute.name for attribute in schema.attributes]
    rules = source.labels.settled(schema, {}) if source.labels.changes_rows else None
    heldout, _ = read_records(
        request.test,
        source.text or schema.text,
        names,
        drop_empty=source.drop_empty,
        reserved=reserved,
        rules=rules,
        layout=source.layout,
    )
    if not set(heldout.labels) <= set(schema.combinations):
        raise InputError(f"`test={request.test}`: has labels that {source.name} lacks")
    tested = take(heldout, rng.permutation(len(heldout))[:HELD_OUT_ROWS])
    return Data(records, replace(tested, schema=schema), template)


def policy_config(config: RunConfig, name: str) -> RunConfig:
    """Return the options of one policy's runs.

    Raises:
        InputError: there is no such policy, or it contradicts an option.
    """
    if name == NO_PRIVACY:
        return replace(config, privacy=replace(config.privacy, target_epsilon=None))
    if config.privacy.target_epsilon is None:
        raise InputError(f"`epsilon` is needed; without privacy take `policies={NO_PRIVACY}`")
    policy = next((policy for policy in POLICIES if policy == name), None)
    if policy is None:
        known = ", ".join((*POLICIES, NO_PRIVACY))
        raise InputError(f"`policies`: there is no policy {name!r}; there are {known}")
    return replace(config, policy=replace(config.policy, noise_policy=policy))


def take(records: Records, places: np.ndarray) -> Records:
    """Return the records at these places."""
    texts, labels = [records.texts[i] for i in places], [records.labels[i] for i in places]
    return Records(texts, labels, records.schema, whose=records.whose)


def table(records: Records) -> pd.DataFrame:
    """Return records as a table again."""
    return twin_frame(records.schema, records.texts, records.labels)
