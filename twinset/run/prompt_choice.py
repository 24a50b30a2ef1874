"""Which prompt a run takes where nobody names one: that whose rows are most like what it counted.

Templates, and whether one is chosen, follow from public facts; which one, from released counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twinset.config import RunConfig
from twinset.config.plan import Plan
from twinset.models.base_model import BaseModel, context_length
from twinset.privacy.mechanism.counts import TokenMarginals
from twinset.progress import Progress
from twinset.sampling.decoding import attention_span
from twinset.sampling.twin_model import TwinModel
from twinset.sampling.untilted_rows import PROMPT_PHASE, prompt_misfit
from twinset.table.schema import Schema
from twinset.table.templates import Template, candidate_templates, fitting_prompts
from twinset.table.tokenization import longest_prompt

FEWEST_RECORDS = 200  # that a prompt is chosen by
FEWEST_PRODUCT = 1000.0  # of records and ε: below, noise would choose (docs/tuning.md)
FAVOUR = 2 * math.log(1000)  # of the usual prompt: another one must be so much likelier


def chooses_prompt(plan: Plan, config: RunConfig) -> bool:
    """Return whether what a run counts tells one prompt from another."""
    epsilon = math.inf if plan.target_epsilon is None else plan.target_epsilon
    enough = plan.records >= FEWEST_RECORDS and plan.records * epsilon >= FEWEST_PRODUCT
    return enough and config.privacy.marginal_share > 0


def candidates(
    schema: Schema, usual: Template, base: BaseModel, longest: int
) -> tuple[Template, ...]:
    """Return the templates that a run may choose from, the usual one first; none: there is one.

    Behind each of them a text has as much room as behind the usual one: its length was counted
    before.

    Args:
        schema: of the table.
        usual: the template where none is chosen.
        base: the base model.
        longest: text kept, in tokens.
    """
    spans = context_length(base.model), attention_span(base.model)

    def room(template: Template) -> list[int]:
        prompt = longest_prompt(template, schema.combinations, base.tokenizer)
        return [min(span - prompt, longest) for span in spans]

    own = room(usual)
    others = [each for each in candidate_templates(schema) if each != usual]
    fitting = [each for each in others if room(each) == own]
    return (usual, *fitting) if fitting else ()


def nearest_template(
    templates: Sequence[Template], base: TwinModel, marginals: TokenMarginals, progress: Progress
) -> Template:
    """Return the template behind which rows have tokens most as they were counted.

    The base model writes some rows behind each. No record has a say but by what was released: the
    choice is post-processing, and costs no ε. It is a release all the same, as the counts are, and
    is shown to nobody before these are kept.

    Args:
        templates: the usual one first, which is taken where noise may have made another nearest.
        base: the base model, with lengths as counted.
        marginals: released by the run.
        progress: is notified of how many were tried.
    """
    misfits = []
    for done, template in enumerate(templates, start=1):
        misfits.append(prompt_misfit(base, template, marginals))
        progress.count(PROMPT_PHASE, done, len(templates))
    misfits[0] -= FAVOUR
    return templates[int(np.argmin(misfits))]


def choice_line(templates: Sequence[Template]) -> str:
    """Say which prompts one will be chosen from."""
    return (
        f"the prompt will be that of {len(templates)} behind which words are most as they are "
        f'counted, such as "{templates[1].pattern}"; `prompt` names one instead'
    )


def chosen_line(template: Template) -> str:
    """Say which one it was."""
    return f'the prompt was "{template.pattern}", nearest to the words that were counted'


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
