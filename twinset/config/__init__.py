"""Every option of a run and the plan that follows from them. Light to import."""

from twinset.config.run_config import (
    RECORDS,
    ROWS,
    MismatchForm,
    PrivacyConfig,
    RunConfig,
    SamplingConfig,
    SpeedConfig,
    TrainingConfig,
)
from twinset.policies import PolicyConfig

__all__ = [
    "MismatchForm",
    "PolicyConfig",
    "PrivacyConfig",
    "RECORDS",
    "ROWS",
    "RunConfig",
    "SamplingConfig",
    "SpeedConfig",
    "TrainingConfig",
]
