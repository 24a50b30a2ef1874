import math

import pytest

from twinset.privacy.accounting.accountant import compose
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
    event_from_dict,
    event_to_dict,
)

EVENTS = [
    SubsampledGaussian(1.1, 0.01, 100),
    GaussianRelease(20.0, "label counts"),
    NonPrivateAccess("tuning"),
    IndividualGaussian(1.1, 0.01, 100, 0.4),
    MaskedAccess("patterns"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_round_trip(event):
    assert event_from_dict(event_to_dict(event)) == event


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "laplace"}, {"kind": None}, {"kind": ["subsampled_gaussian"]}, {"extra": 1},
        {"steps": 0}, {"steps": 1.0}, {"steps": True},
        {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"sample_rate": math.nan},
        {"sample_rate": "0.1"}, {"noise_multiplier": 0.0}, {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf}, {"noise_multiplier": math.nan}, {"noise_multiplier": True},
    ],
)  # fmt: skip
def test_what_names_no_mechanism_is_refused(change):
    with pytest.raises(ValueError):
        event_from_dict(event_to_dict(EVENTS[0]) | change)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan, True, "0.5"])
def test_a_share_of_the_norm_lies_above_0_and_is_at_most_1(share):
    with pytest.raises(ValueError):
        IndividualGaussian(1.1, 0.01, 100, share)


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_a_privacy_weight_lies_between_0_and_1(weight):
    with pytest.raises(ValueError):
        IndividualGaussian(1.1, 0.01, 100, 0.5).at(weight)


@pytest.mark.parametrize("event", EVENTS)
def test_a_missing_field_is_refused(event):
    plain = event_to_dict(event)
    for name in plain:
        with pytest.raises(ValueError):
            event_from_dict({k: v for k, v in plain.items() if k != name})


def test_blank_reasons_are_refused():
    with pytest.raises(ValueError, match="reason"):
        NonPrivateAccess(" ")
    with pytest.raises(ValueError, match="what"):
        GaussianRelease(1.0, "")


def test_an_unknown_event_is_not_written():
    with pytest.raises(TypeError, match="str is not an event"):
        event_to_dict("noise")


def test_compose_merges_only_neighbours_of_equal_sigma_and_rate():
    step, other = SubsampledGaussian(1.0, 0.1, 2), SubsampledGaussian(1.0, 0.2, 2)
    count, access = GaussianRelease(5.0, "label counts"), NonPrivateAccess("tuning")
    found = compose([step, step, other, count, count, access, access, step])
    assert found == (SubsampledGaussian(1.0, 0.1, 4), other, count, count, access, step)
