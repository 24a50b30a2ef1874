"""The ledger of a fine-tuning that has spent nothing yet: what it rests on, and what is public."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from twinset.config import RunConfig
from twinset.config.plan import Plan
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.ledger import Ledger, MechanismRun
from twinset.privacy.statement.wording import caveats
from twinset.table.labels import MERGED, OWNER, PROMPT, TABLE
from twinset.table.templates import Template

_WHOSE = {
    OWNER: "declared by the owner",
    PROMPT: "declared by the words that the prompt template has for them",
    TABLE: "taken from the table: public by assumption",
    MERGED: "taken from the table, rare spellings being merged: public by assumption",
}


def open_ledger(
    plan: Plan,
    config: RunConfig,
    templates: Sequence[Template],
    base_origin: str,
    by_owner: bool,
    randomness: Randomness,
    weight_scale: WeightScale | None,
    whose_labels: Mapping[str, str],
) -> Ledger:
    """Open the ledger of a run. It is given no record.

    Args:
        plan: the run's plan.
        config: the run's options.
        templates: of the prompts: of several one is chosen by what is released.
        base_origin: where the base model came from.
        by_owner: whether all records of an owner are protected as one.
        randomness: of batches and noise.
        weight_scale: of privacy weights, where records have them.
        whose_labels: by attribute, who says what values it has, as `Records` has it.
    """
    noise = config.policy.policy_class
    run = MechanismRun(
        delta=plan.target_delta,
        target_epsilon=plan.target_epsilon,
        records=plan.records,
        sample_rate=plan.sample_rate,
        max_grad_norm=config.privacy.max_grad_norm,
        randomness=randomness,
        policy=noise.name,
        policy_form=noise.form,
        by_owner=by_owner,
        group_size=config.privacy.group_size,
    )
    public = tuple(_public_inputs(templates, config, base_origin, by_owner, whose_labels))
    return Ledger.open(run, public, caveats(noise.name, noise.form), weight_scale)


def _public_inputs(
    templates: Sequence[Template],
    config: RunConfig,
    base_origin: str,
    by_owner: bool,
    whose_labels: Mapping[str, str],
) -> Iterator[str]:
    policy = config.policy
    yield "the names, order and types of the columns, and which of them are guessed"
    for name in templates[0].attributes:
        yield f"the set of label values of {name!r}, {_WHOSE[whose_labels.get(name, TABLE)]}"
    yield f"the number of {'owners' if by_owner else 'records'}"
    yield (
        "encoding and delimiter of the table's file, and whether it has so many records that some "
        "are held out where nobody says how many"
    )
    yield _templates_line(templates)
    yield f"the base model {base_origin} and everything it was trained on"
    yield f"the longest text kept, {config.training.max_tokens} tokens"
    yield "all options of the run"
    if config.training.is_timed:
        yield (
            "the number of steps and the batch size, which follow from these and from the speed of "
            "the machine on made-up tokens"
        )
    yield from policy.policy_class.public_inputs(policy)


def _templates_line(templates: Sequence[Template]) -> str:
    first = f"{templates[0].pattern!r} with its wording"
    if len(templates) == 1:
        return f"the prompt template {first}"
    return (
        f"the {len(templates)} prompt templates of which one was chosen by what was counted: "
        f"{first}, the same for other kinds of text, and built-in ones that fit the labels"
    )
