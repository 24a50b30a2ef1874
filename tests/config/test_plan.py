"""The plan of a run that trains nothing: noisy counts and a teacher take all of ε."""

from dataclasses import replace

import pytest

from twinset.config.options import run_config
from twinset.config.plan import make_plan, with_teacher
from twinset.errors import InputError
from twinset.privacy.accounting.accountant import epsilon

RECORDS = 3128


def untrained(**options):
    return run_config({"steps": 0, "teacher_share": 0.1} | options)


@pytest.mark.parametrize("budget", [1.0, 8.0])
@pytest.mark.parametrize("shares", [(0.5, 0.1), (0.0, 0.5), (0.5, 0.0)])
def test_without_steps_counts_and_teacher_take_all_of_epsilon(budget, shares):
    marginal, teacher = shares
    config = untrained(epsilon=budget, marginal_share=marginal, teacher_share=teacher)
    plan = make_plan(RECORDS, config)
    assert plan.steps == 0 and plan.noise_multiplier == 0.0
    assert (plan.marginal_noise > 0, plan.teacher_noise > 0) == (marginal > 0, teacher > 0)
    assert 0.999 * budget < plan.epsilon <= budget
    name = "teacher_noise" if teacher else "marginal_noise"
    less = replace(plan, **{name: getattr(plan, name) / 1.01})
    assert epsilon(less.events, plan.target_delta) > budget  # the test can fail


def test_without_steps_each_release_keeps_its_part():
    trained = make_plan(RECORDS, untrained(steps=8))
    plan = make_plan(RECORDS, untrained())
    ratio = trained.marginal_noise / trained.teacher_noise
    assert plan.marginal_noise / plan.teacher_noise == pytest.approx(ratio)
    assert plan.teacher_noise < trained.teacher_noise
    assert plan.label_count_noise == trained.label_count_noise


def test_without_steps_and_releases_only_labels_are_counted():
    plan = make_plan(RECORDS, untrained(marginal_share=0.0, teacher_share=0.0))
    assert [event.what for event in plan.events] == ["label counts"]
    assert plan.epsilon < 0.41


def test_without_steps_and_privacy_nothing_has_noise():
    plan = make_plan(RECORDS, untrained(epsilon=None))
    assert not (plan.marginal_noise or plan.teacher_noise or plan.events or plan.is_covered)


def test_without_steps_a_teacher_pays_for_fewer_records():
    """What its noise is by then decides, not what it would be beside training."""
    teachers = {
        steps: [
            bool(with_teacher(run_config({"steps": steps}), n).privacy.teacher_share)
            for n in (50, 100, 200)
        ]
        for steps in (0, 8)
    }
    assert teachers[0] == [False, True, True] and teachers[8] == [False, False, True]


@pytest.mark.parametrize("policy", ["adaptive", "selective", "importance"])
def test_a_policy_of_steps_is_refused_without_steps(policy):
    with pytest.raises(InputError, match=r"`noise_policy=.*`steps=0` takes none"):
        untrained(noise_policy=policy)


def test_too_few_records_for_training_are_enough_without():
    with pytest.raises(InputError, match="`steps=0`"):
        make_plan(60, run_config({"epsilon": 1.0}))
    assert make_plan(60, run_config({"epsilon": 1.0, "steps": 0})).epsilon <= 1.0
