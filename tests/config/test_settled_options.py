"""What the options leave open is settled by the number of records, and what they say stays."""

from __future__ import annotations

from typing import Any

import pytest

from twinset.config import PrivacyConfig, RunConfig, SamplingConfig
from twinset.config.options import run_config
from twinset.config.plan import with_steps, with_teacher
from twinset.config.run_config import UNJUDGED_GUIDANCE

MANY, FEW = 10_000, 50


@pytest.mark.parametrize("records, share", [(MANY, True), (FEW, False)])
def test_few_records_have_no_teacher(records: int, share: bool) -> None:
    assert (with_teacher(RunConfig(), records).privacy.teacher_share > 0) is share


@pytest.mark.parametrize(
    "options, records, steps",
    [
        ({"epsilon": 1.0}, 69_999, 0),
        ({"epsilon": 1.0}, 70_000, None),
        ({"epsilon": 8.0}, 8_749, 0),
        ({"epsilon": 8.0}, 8_750, None),
        ({"epsilon": None}, FEW, None),
        ({"epsilon": 1.0, "steps": 4}, FEW, 4),
        ({"epsilon": 1.0, "marginal_share": 0.0}, FEW, None),
        ({"epsilon": 1.0, "tilt": 0.0}, FEW, None),  # counts that no row would follow
        ({"epsilon": 1.0, "max_minutes": None}, FEW, None),  # compared with others
        ({"epsilon": 1.0, "batch_size": 8}, FEW, None),
        ({"epsilon": 1.0, "noise_policy": "importance"}, FEW, None),
    ],
)
def test_few_records_for_epsilon_train_nothing(
    options: dict[str, Any], records: int, steps: int | None
) -> None:
    assert with_steps(run_config(options), records).training.steps == steps


@pytest.mark.parametrize("records", [FEW, 70_000])
@pytest.mark.parametrize("begun, steps", [(40, None), (0, 0)])
def test_a_run_that_is_resumed_trains_as_it_was_begun(
    records: int, begun: int, steps: int | None
) -> None:
    """By whatever rule of whatever version: its ε is spent."""
    assert with_steps(run_config({"epsilon": 1.0}), records, begun).training.steps == steps


@pytest.mark.parametrize(
    "config, records, guidance",
    [
        (RunConfig(), MANY, 0.0),
        (RunConfig(), FEW, UNJUDGED_GUIDANCE),
        (RunConfig(privacy=PrivacyConfig(teacher_share=0.0)), MANY, UNJUDGED_GUIDANCE),
        (RunConfig(sampling=SamplingConfig(teacher_redraws=0)), MANY, UNJUDGED_GUIDANCE),
        (RunConfig(sampling=SamplingConfig(guidance=1.5)), MANY, 1.5),
    ],
)
def test_rows_that_a_teacher_judges_need_no_guidance(
    config: RunConfig, records: int, guidance: float
) -> None:
    assert with_teacher(config, records).sampling.guidance == guidance
