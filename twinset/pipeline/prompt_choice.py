"""Which prompt a run takes where nobody names one: that whose rows are most like what was counted.

Templates, and whether one is chosen, follow from public facts; which one, from released counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twinset.config import RunConfig
from twinset.config.plan import Plan
from twinset.data.schema import Schema
from twinset.data.templates import Template, candidate_templates, fitting_prompts
from twinset.data.tokenization import longest_prompt
from twinset.models.base_model import BaseModel, context_length
from twinset.privacy.mechanism.token_marginals import TokenMarginals
from twinset.progress import Progress
from twinset.sampling.twin_model import PROMPT_PHASE, TwinModel

FEWEST_RECORDS = 200  # that a prompt is chosen by
FEWEST_PRODUCT = 1000.0  # of records and ε: below, noise would choose (docs/tuning.md)


def chooses_prompt(plan: Plan, config: RunConfig) -> bool:
    """Return whether what a run counts tells one prompt from another."""
    epsilon = math.inf if plan.target_epsilon is None else plan.target_epsilon
    enough = plan.records >= FEWEST_RECORDS and plan.records * epsilon >= FEWEST_PRODUCT
    return enough and config.privacy.marginal_share > 0


def candidates(
    schema: Schema, usual: Template, base: BaseModel, longest: int
) -> tuple[Template, ...]:
    """Return the templates that a run may choose from.

    Behind each of them a text has as much room as behind the usual one: its length was counted
    before.

    Args:
        schema: of the table.
        usual: the template where none is chosen.
        base: the base model.
        longest: text kept, in tokens.
    """

    def room(template: Template) -> int:
        prompt = longest_prompt(template, schema.combinations, base.tokenizer)
        return min(context_length(base.model) - prompt, longest)

    found = candidate_templates(schema)
    return tuple(each for each in found if room(each) == room(usual))


def nearest_template(
    templates: Sequence[Template], base: TwinModel, marginals: TokenMarginals, progress: Progress
) -> Template:
    """Return the template behind which rows have tokens most as they were counted.

    The base model writes some rows behind each. No record has a say but by what was released: the
    choice is post-processing, and costs no ε.

    Args:
        templates: at least one.
        base: the base model, with lengths as counted.
        marginals: released by the run.
        progress: is notified of the prompts tried, and of the one that is taken.
    """
    misfits = []
    for done, template in enumerate(templates, start=1):
        misfits.append(base.misfit(template, marginals))
        progress.count(PROMPT_PHASE, done, len(templates))
    chosen = templates[int(np.argmin(misfits))]
    progress.say(f'the prompt is "{chosen.pattern}", nearest to the words that were counted')
    return chosen


def choice_line(templates: Sequence[Template]) -> str:
    """Say which prompts one will be chosen from."""
    return (
        f"the prompt will be that of {len(templates)} behind which words are most as they are "
        f'counted, with noise, such as "{templates[min(1, len(templates) - 1)].pattern}"; `prompt` '
        "names one instead"
    )


def proposal(schema: Schema, usual: Template) -> str | None:
    """Propose prompts where none is chosen: which one is taken may decide how good the twin is."""
    fitting = fitting_prompts(schema)
    written = [f"`prompt={name}`" if "{" not in name else f'`prompt="{name}"`' for name in fitting]
    if not written:
        return None
    return (
        f'the prompt is "{usual.pattern}"; what says more of the texts mostly makes a better '
        f"twin: {' or '.join(written)} may fit, or write your own"
    )
