"""The importance policy: its equations, its geometry, and that it is uniform where it must be."""

import pytest
import torch

from twinset.policies import Importance, Uniform
from twinset.policies.importance import ImportanceOptions, factored, noise_factor, normalised
from twinset.privacy.randomness import Randomness

SHAPES = [(4, 6), (6,), (5, 3)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def policy(options=None, seed=1, sigma=0.8):
    return Importance(sigma, 2.0, 0.1, Randomness.for_tests(seed), options)


def test_averages_follow_equations_3_and_4():
    options = ImportanceOptions(beta1=0.5, beta2=0.25)
    learnt = policy(options)
    theta, first, second = (torch.tensor([x]) for x in (2.0, -3.0, 1.0))
    learnt.learn([theta], [first])  # |g θ| = 6
    assert (learnt._sensitivity[0].item(), learnt._deviation[0].item()) == (3.0, 0.75 * 3.0)
    learnt.learn([theta], [second])  # |g θ| = 2, S̄ = 2.5
    assert learnt._sensitivity[0].item() == 2.5
    assert learnt._deviation[0].item() == pytest.approx(0.25 * 2.25 + 0.75 * 0.5)


def test_normalisation_follows_equations_6_and_7():
    importance, options = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]), ImportanceOptions(alpha=0.4)
    scaled = (importance - 3) / 2  # median 3, quartiles 2 and 4
    smooth = 0.6 * scaled + 0.4 * scaled.mean()
    torch.testing.assert_close(normalised(importance, options), smooth - (smooth.mean() - 1))
    assert float(normalised(importance, options).mean()) == pytest.approx(1.0)


def test_more_important_means_less_noise_within_the_bound():
    factors = noise_factor(torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0]), ImportanceOptions(bound=3.0))
    assert bool((factors.diff() <= 0).all())
    assert float(factors.max()) == 3.0 and float(factors.min()) == pytest.approx(1 / 3)


def test_importance_that_tells_nothing_apart_leaves_the_plain_geometry():
    for scale in factored([torch.zeros(4, 6), torch.zeros(6)], ImportanceOptions()):
        assert bool(
            (scale.times_(torch.ones(4, 6) if scale.rows is not None else torch.ones(6)) == 1).all()
        )


def test_scales_come_from_what_was_released_and_fit():
    learnt = policy()
    assert learnt.scales() == []  # nothing was released yet
    for step in range(3):
        learnt.learn(tensors(100), tensors(step))
    scales = learnt.scales()
    assert all(scale.fits(torch.Size(shape)) for scale, shape in zip(scales, SHAPES, strict=True))
    assert len({round(float(scale.columns[0]), 6) for scale in scales}) > 1


def test_noise_is_that_of_the_geometry():
    """The release divided by s is the sum plus N(0, σ²C²): two thirds of it would be noticed."""
    learnt = policy(sigma=1.5)
    learnt.learn([torch.randn(300, 200)], [torch.randn(300, 200)])
    (scale,) = learnt.scales()
    (noisy,), event = learnt.release([torch.zeros(300, 200)])
    z = noisy / scale.times_(torch.ones(300, 200))
    assert float(z.std()) == pytest.approx(3.0, rel=0.02)
    assert float(noisy.std()) != pytest.approx(3.0, rel=0.02)
    assert event.noise_multiplier == 1.5 and event.sample_rate == 0.1


def test_with_a_bound_of_one_it_is_uniform_bit_for_bit():
    same = policy(ImportanceOptions(bound=1.0))
    uniform = Uniform(0.8, 2.0, 0.1, Randomness.for_tests(1))
    for step in range(3):
        same.learn(tensors(100), tensors(step))
        same.scales()
        (mine, event), (theirs, other) = same.release(tensors(step)), uniform.release(tensors(step))
        assert all(map(torch.equal, mine, theirs)) and event == other
