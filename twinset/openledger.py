"""The ledger of a fine-tuning that has spent nothing yet: what it rests on, and what is public."""

from __future__ import annotations

from collections.abc import Iterator

from twinset.config import RunConfig
from twinset.plan import Plan
from twinset.policies import POLICIES
from twinset.privacy.ledger import Ledger
from twinset.privacy.randomness import Randomness
from twinset.privacy.sentences import caveats
from twinset.privacy.weightscale import WeightScale
from twinset.records import Records
from twinset.templates import Template


def open_ledger(
    records: Records,
    template: Template,
    config: RunConfig,
    base_origin: str,
    plan: Plan,
    randomness: Randomness,
    weight_scale: WeightScale | None,
) -> Ledger:
    """Open the ledger of a run.

    Args:
        records: of which only the schema is told, and whether they have owners.
        template: of the prompts.
        config: the run's options.
        base_origin: where the base model came from.
        plan: the run's plan.
        randomness: of batches and noise.
        weight_scale: of privacy weights, where records have them.
    """
    noise = POLICIES[config.policy.key]
    by_owner = records.owners is not None
    return Ledger.open(
        records=plan.records,
        target_epsilon=plan.target_epsilon,
        delta=plan.target_delta,
        sample_rate=plan.sample_rate,
        max_grad_norm=config.privacy.max_grad_norm,
        policy=noise.name,
        policy_form=noise.form,
        randomness=randomness,
        public_inputs=tuple(_public_inputs(template, config, base_origin, by_owner)),
        caveats=caveats(noise.name, noise.form),
        weight_scale=weight_scale,
        owners=by_owner,
        group_size=config.privacy.group_size,
    )


def _public_inputs(
    template: Template, config: RunConfig, base_origin: str, by_owner: bool
) -> Iterator[str]:
    policy = config.policy
    yield "the names, order and types of the columns, and the set of label values"
    yield f"the number of {'owners' if by_owner else 'records'}"
    yield f"the prompt template {template.pattern!r} with its wording"
    yield f"the base model {base_origin} and everything it was trained on"
    yield f"the longest text kept, {config.training.max_tokens} tokens"
    yield "all options of the run"
    if policy.masks:
        yield f"the detector {policy.detector!r}, which looks at one record at a time"
    if policy.noise_policy == "adaptive":
        yield "the constants of the privacy weights, and the texts that they were fitted on"
    if policy.noise_policy == "selective":
        yield "every label, and every text as that detector leaves it"
