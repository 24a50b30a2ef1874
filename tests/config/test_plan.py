"""What N decides: whether anything is trained, whether there is a teacher, and what takes ε."""

from dataclasses import replace

import pytest

from twinset.config import UNJUDGED_GUIDANCE
from twinset.config.options import run_config
from twinset.config.plan import make_plan, plan_selection, settled
from twinset.privacy.accounting.accountant import gaussian_noise_multiplier

RECORDS, MANY, FEW = 3128, 10_000, 50


def untrained(**options):
    return run_config({"steps": 0, "teacher_share": 0.1} | options)


@pytest.mark.parametrize(
    ("options", "records", "begun", "steps"),
    [
        ({"epsilon": 1.0}, 19_999, None, 0),
        ({"epsilon": 1.0}, 20_000, None, None),
        ({"epsilon": 1.0, "steps": 4}, FEW, None, 4),
        ({"epsilon": 1.0, "marginal_share": 0.0}, FEW, None, None),
        ({"epsilon": 1.0}, FEW, 40, None),  # resumed, by whatever rule: its ε is spent
        ({"epsilon": 1.0}, 20_000, 0, 0),
    ],
)
def test_few_records_for_epsilon_train_nothing(options, records, begun, steps):
    assert settled(run_config(options), records, begun).training.steps == steps


@pytest.mark.parametrize(
    ("options", "records", "has_teacher", "guidance"),
    [
        ({}, MANY, True, 0.0),
        ({}, FEW, False, UNJUDGED_GUIDANCE),
        ({"guidance": 1.5}, MANY, True, 1.5),
        # What the teacher's noise is then decides, not what it would be beside training.
        ({"steps": 0}, FEW, False, UNJUDGED_GUIDANCE),
    ],
)
def test_rows_that_a_teacher_judges_need_no_guidance_and_no_wrong_prompts(
    options, records, has_teacher, guidance
):
    config = settled(run_config(options), records)
    assert (config.privacy.teacher_share > 0, config.sampling.guidance) == (has_teacher, guidance)
    assert (make_plan(records, config).mismatch_weight == 0) == has_teacher


@pytest.mark.parametrize(
    ("method", "steps", "rate"),
    [("ia3", None, 0.05), ("ia3", 40, 0.025), ("lora", 8, 0.006), ("full", 8, 1e-4)],
)
def test_few_steps_move_as_far_as_many(method, steps, rate):
    plan = make_plan(MANY, run_config({"method": method, "steps": steps}))
    assert plan.learning_rate == pytest.approx(rate)


# -- a run that trains nothing: noisy counts and a teacher take all of ε ---------------------------


@pytest.mark.parametrize(
    ("budget", "marginal", "teacher"), [(1.0, 0.5, 0.1), (8.0, 0.0, 0.5), (8.0, 0.99, 0.0)]
)
def test_without_steps_counts_and_teacher_take_all_of_epsilon(budget, marginal, teacher):
    config = untrained(epsilon=budget, marginal_share=marginal, teacher_share=teacher)
    plan = make_plan(RECORDS, config, plan_selection(RECORDS, config.privacy, 1, 1))
    assert plan.steps == 0 and plan.noise_multiplier == 0.0
    assert (plan.marginal_noise > 0, plan.teacher_noise > 0) == (marginal > 0, teacher > 0)
    assert 0.999 * budget < plan.epsilon <= budget
    name = "teacher_noise" if teacher else "marginal_noise"
    less = replace(plan, **{name: getattr(plan, name) / 1.01})
    assert less.epsilon > budget  # the test can fail


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 50.0, 300.0])
@pytest.mark.parametrize("has_columns", [False, True])
def test_the_shares_of_releases_add_up_at_any_epsilon(epsilon, has_columns):
    config = run_config({"epsilon": epsilon, "teacher_share": 0.06})
    plan = make_plan(MANY, config, has_columns=has_columns)
    budget = gaussian_noise_multiplier(epsilon, plan.target_delta) ** -2
    spent = sum(each.noise_multiplier**-2 for each in plan.releases)
    assert spent / budget == pytest.approx(0.815 if has_columns else 0.615)
    assert 0.99 * epsilon < plan.epsilon <= epsilon
