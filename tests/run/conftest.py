"""What all tests of runs share."""

import pytest

from twinset.privacy.accounting.accountant import epsilon


@pytest.fixture(scope="package", autouse=True)
def one_accountant():
    """The second accountant takes as long as all the rest of a run. `verify`'s tests have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinset.release.verify.prv_epsilon", epsilon)
        yield
