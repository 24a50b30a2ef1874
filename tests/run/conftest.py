"""What all tests of runs share."""

import pytest

from twinset.privacy.accounting.accountant import epsilon


@pytest.fixture(scope="package", autouse=True)
def cheap_runs():
    """One accountant: the second takes as long as all the rest, and `verify`'s tests have it.

    Fewer rows of the base model find a tilt. How good that is makes no difference here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinset.release.verify.prv_epsilon", epsilon)
        patch.setattr("twinset.sampling.tilt_fitting.REFERENCE_ROWS", 12)
        patch.setattr("twinset.sampling.tilt_fitting.WEIGHT_ROWS", 8)
        yield
