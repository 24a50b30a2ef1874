"""Every option of a run and the plan that follows from them; light to import."""

from twinset.config.run_config import (
    RECORDS,
    ROWS,
    MismatchForm,
    NoisePolicyName,
    PolicyConfig,
    PrivacyConfig,
    RunConfig,
    SamplingConfig,
    SpeedConfig,
    TrainingConfig,
)

__all__ = [
    "MismatchForm",
    "NoisePolicyName",
    "PolicyConfig",
    "PrivacyConfig",
    "RECORDS",
    "ROWS",
    "RunConfig",
    "SamplingConfig",
    "SpeedConfig",
    "TrainingConfig",
]
