"""What a private run counts beside its training: never exactly, whatever its plan says."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.helpers.commands import texts
from twinset.config.options import run_config
from twinset.pipeline.finetune import finetune
from twinset.pipeline.prepare import prepare
from twinset.pipeline.request import Source
from twinset.privacy.accounting.events import GaussianRelease

SHORT = {"epsilon": 50, "steps": 1, "batch_size": 8, "max_tokens": 12, "teacher_share": 0.2}


def released(tiny_base, **changes):
    """Run with a plan that was changed behind the options' back; return what the ledger has."""
    frame = pd.DataFrame({"text": texts(), "label": ["good", "bad"] * 30})
    config = run_config({"base_model": str(tiny_base), **SHORT})
    prepared = prepare(Source(frame, "text", ("label",)), config)
    model = finetune(replace(prepared, plan=replace(prepared.plan, **changes)))
    return [e.what for e in model.ledger.events if isinstance(e, GaussianRelease)]


def test_every_release_is_in_the_ledger(tiny_base):
    assert released(tiny_base) == ["label counts", "token marginals", "teacher"]


@pytest.mark.parametrize("release", ["marginal_noise", "teacher_noise"])
def test_without_noise_in_its_plan_nothing_is_released(tiny_base, release):
    """Fail closed: exact counts would be in no ledger."""
    with pytest.raises(RuntimeError, match="without noise"):
        released(tiny_base, **{release: 0.0})
