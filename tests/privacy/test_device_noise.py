"""Noise made where a sum lies: its bits are ChaCha20's, its multiples those of real numbers."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tests.helpers.pretended import DEVICE, pretending
from tests.privacy.test_gaussian_grid import pair_of, rounded, sums
from tests.privacy.test_noise import bits_of, is_gaussian
from twinset.privacy.mechanism import chacha20, device_noise, noise
from twinset.privacy.mechanism.chacha20 import BLOCKS, ChaCha20
from twinset.privacy.mechanism.device_noise import LEAST, MARGIN, MOST, DeviceGrid, polar
from twinset.privacy.mechanism.noise import add_gaussian_, add_gaussian_to_each_, grid_step
from twinset.privacy.mechanism.randomness import KeyStream, Randomness

CPU = torch.device("cpu")
KEY, REFINEMENT = bytes(range(32)), bytes([1] * 32)


def stream_from(first: int, key: bytes = KEY) -> ChaCha20:
    stream = ChaCha20(key)
    stream._next = first
    return stream


def drawn(stream: ChaCha20, blocks: int) -> bytes:
    return stream.draw(blocks, CPU).numpy().tobytes()


@pytest.mark.parametrize(
    ("key", "block", "starts"),
    [
        (bytes(32), 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (bytes(32), 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
        (bytes(31) + b"\1", 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
        (
            b"\0\xff" + bytes(30),
            2,
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca",
        ),
    ],
)
def test_the_stream_is_that_of_rfc_8439(key, block, starts):
    """Appendix A.1, as far as the nonce is zero."""
    assert drawn(stream_from(block, key), 1).hex().startswith(starts)


@pytest.mark.parametrize("first", [0, 2**31 - 3, 2**32 - 3, 2**63 - 3, BLOCKS - 6])
def test_the_bits_are_those_of_another_implementation(first):
    """Which counts to 2³² only; its nonce begins where the counter's upper half stands here."""
    counters = (i.to_bytes(8, "little") + bytes(8) for i in range(first, first + 6))
    ciphers = (Cipher(algorithms.ChaCha20(KEY, counter), None) for counter in counters)
    expected = b"".join(cipher.encryptor().update(bytes(64)) for cipher in ciphers)
    assert drawn(stream_from(first), 6) == expected
    assert drawn(stream_from(first), 5) != expected[64:]


def test_no_block_is_drawn_twice():
    stream, whole = ChaCha20(KEY), drawn(ChaCha20(KEY), 12)
    assert b"".join(drawn(stream, n) for n in (3, 1, 0, 8)) == whole
    assert len({whole[i : i + 64] for i in range(0, len(whole), 64)}) == 12
    last = stream_from(BLOCKS - 2)
    last.draw(2, CPU)
    with pytest.raises(OverflowError):
        last.draw(1, CPU)


KEYS = """
from twinset.privacy.mechanism.randomness import Randomness
for _ in range(2):
    print(Randomness.from_os().on_device._key)
"""


def test_no_key_is_used_twice():
    asked = [sys.executable, "-c", KEYS]
    said = [subprocess.run(asked, capture_output=True, text=True, check=True) for _ in range(2)]
    assert len({line for done in said for line in done.stdout.splitlines()}) == 4
    for randomness in (Randomness.from_os(), Randomness.for_tests(5)):
        streams = (randomness.sampling, *randomness.noise, *randomness.refinement)
        keys_show = {bits_of(stream) for stream in streams}
        assert drawn(randomness.on_device, 1)[:32] not in keys_show
        own = KeyStream(np.array(randomness.on_device._key, "<i4").tobytes())
        assert bits_of(own) not in keys_show  # nor is it the key of another cipher's stream


def words_and_turns() -> tuple[torch.Tensor, torch.Tensor]:
    """Return some of all sizes, and the ends of what tables, series and this level are for."""
    raw, sizes = np.random.default_rng(1), range(38, 63)
    near = [part * 2**n + i for n in sizes for part in (1, 3) for i in (-1, 0, 1)]
    ends = [LEAST, MOST, *near, *(2**63 - n for n in near)]
    common = raw.integers(LEAST, MOST, 3000).tolist()
    tail = (2.0**63 * np.exp(-raw.uniform(0, 17, 1000))).astype(np.int64).tolist()
    words = [word for word in (*ends, *common, *tail) if LEAST <= word <= MOST]
    turns = raw.integers(-(2**63), 2**63 - 1, len(words))
    turns[:5] = [0, -1, 1, 2**63 - 1, -(2**63)]
    return torch.tensor(words), torch.from_numpy(turns)


def largest_error(words: torch.Tensor, turns: torch.Tensor) -> float:
    """How far numbers are from the ends of what their bits leave open."""
    found = polar(words, turns).view(2, -1).T.tolist()
    drawn_pairs = zip(words.tolist(), turns.tolist(), found, strict=True)
    return max(
        float(abs(true - number))
        for word, turn, pair in drawn_pairs
        for more in (0, (1 << 64) - 1)
        for true, number in zip(
            pair_of((word << 64 | more, 127), turn << 64 | more, 128), pair, strict=True
        )
    )


def test_numbers_err_by_less_than_the_margin(monkeypatch):
    words, turns = words_and_turns()
    assert MARGIN / 8 < largest_error(words, turns) < MARGIN / 2  # as the module derives it
    usual = (words > 1 << 55) & (words < MOST - (1 << 55))
    assert largest_error(words[usual], turns[usual]) < 2.0**-47
    plain = device_noise._table
    monkeypatch.setattr(
        device_noise, "_table", lambda *given: [x.float().double() for x in plain(*given)]
    )
    assert largest_error(words, turns) > MARGIN  # tables of float32


def noisy(exact, std, step):
    out = torch.from_numpy(exact.copy())
    DeviceGrid(ChaCha20(KEY), KeyStream(REFINEMENT)).add(out, std, step)
    return out.numpy()


def truth(exact, std, step):
    """Return the multiples by mpmath, from the bits of the key alone."""
    stream, of_all = ChaCha20(KEY), []
    for start in range(0, len(exact), device_noise.AT_ONCE):
        count = min(device_noise.AT_ONCE, len(exact) - start)
        drawn_bits = device_noise.pairs_of(stream, -(-count // 2), CPU)
        pairs = [
            pair_of((word << 64 | 1 << 63, 127), turn << 64 | 1 << 63, 128)
            for word, turn in zip(*(x.tolist() for x in drawn_bits), strict=True)
        ]
        of_all += [z for both in zip(*pairs, strict=True) for z in both][:count]
    return np.array(rounded(exact, of_all, std, step), float).astype(exact.dtype)


@pytest.mark.parametrize(
    ("dtype", "scale", "std"),
    [
        (np.float32, 1.0, 0.8),
        (np.float64, 1.0, 0.3),
        (np.float64, 1e15, 0.3),  # multiples that have more bits than a float64
        (np.float32, 1e9, 100.0),
        (np.float32, 1e-30, 1e-30),
        (np.float32, 1e-44, 1e20),
    ],
)
def test_every_released_number_is_rounded_as_the_real_one(dtype, scale, std, monkeypatch):
    monkeypatch.setattr(device_noise, "AT_ONCE", 1500)
    exact, step = (sums(4001, np.float64) * scale).astype(dtype), grid_step(std)
    expected = truth(exact, std, step)
    assert np.array_equal(noisy(exact, std, step), expected)
    own = torch.full((len(exact),), std, dtype=torch.float64)
    assert np.array_equal(noisy(exact, own, device_noise.grid_steps(own)), expected)
    monkeypatch.setattr(device_noise, "SLACK", 1.0)  # all are left to the processor
    assert np.array_equal(noisy(exact[:301], std, step), truth(exact[:301], std, step))


def test_without_a_margin_some_would_be_wrong(monkeypatch):
    """On a grid so fine that bits of the real number beyond this level's are asked for."""
    exact, step = sums(2001, np.float64), 2.0**-45
    assert np.array_equal(noisy(exact, 0.8, step), truth(exact, 0.8, step))
    monkeypatch.setattr(device_noise, "MARGIN", 0.0)
    monkeypatch.setattr(device_noise, "SLACK", 0.0)
    assert not np.array_equal(noisy(exact, 0.8, step), truth(exact, 0.8, step))


def test_words_beyond_this_level_are_left_to_the_processor(monkeypatch):
    seen = []
    monkeypatch.setattr(
        device_noise.ExactPair, "nearest", lambda *given, sine: seen.append(sine) or 7.0
    )
    words = torch.tensor([0, LEAST - 1, LEAST, MOST, MOST + 1, 2**63 - 1])
    monkeypatch.setattr(device_noise, "pairs_of", lambda *_: (words, torch.arange(6) << 40))
    out = noisy(np.zeros(11), 1.0, 2.0**-6)
    assert (out == 7.0).tolist() == ([True, True, False, False, True, True] * 2)[:11]
    assert seen == [False] * 4 + [True] * 3


def test_the_noise_is_gaussian_and_what_is_not_finite_stays():
    out = noisy(np.full(200_000, 0.3, np.float32), 2.5, grid_step(2.5))
    draws = (out - np.float32(0.3)).astype(float)
    assert is_gaussian(draws, 2.5)
    assert not is_gaussian(draws, 2.5 * 2 / 3) and not is_gaussian(draws, 2.5 * 3 / 2)
    assert not np.signbit(out[out == 0]).any()
    ends = noisy(np.array([np.inf, 1.0, -np.inf, np.nan, 1e300]), 1e-3, grid_step(1e-3))
    assert np.isfinite(ends).tolist() == [False, True, False, False, True]
    assert ends[0] == np.inf and ends[2] == -np.inf and ends[4] == 1e300


@pytest.mark.parametrize("scaled", [False, True])
def test_noise_is_made_on_the_device_and_nothing_is_copied_from_it(monkeypatch, scaled):
    count, randomness = 10_001, Randomness.for_tests(1)
    scales = torch.linspace(0.5, 2, count) if scaled else torch.ones(count)
    with pretending() as reads:
        there, own = torch.zeros(count).to(DEVICE), scales.to(DEVICE) if scaled else None
        add_gaussian_(there, 1.0, Randomness.for_tests(2), own)  # tries the device, once
        there.zero_()
        reads.clear()
        add_gaussian_(there, 1.0, randomness, own)
        assert reads["copies"] == 0 and reads["values"] == 1 + scaled  # whether any is left
        here, again, std = torch.zeros(count), Randomness.for_tests(1), scales.double()
        DeviceGrid(again.on_device, again.refinement[0]).add(
            here, std, device_noise.grid_steps(std)
        )
        assert torch.equal(there.cpu(), here)
        monkeypatch.setattr(device_noise, "is_exact_on", lambda device: False)  # the control
        add_gaussian_(there, 1.0, randomness, own)
        assert reads["copies"] > 1


def test_a_device_with_one_other_bit_gets_its_noise_from_the_processor(monkeypatch):
    plain = chacha20._blocks

    def blocks(key, first, count, device):
        found = plain(key, first, count, device)
        if device != CPU:
            found[-1, -1] ^= 1
        return found

    monkeypatch.setattr(chacha20, "_blocks", blocks)
    device_noise.is_exact_on.cache_clear()
    with pretending():
        there, here = torch.zeros(50).to(DEVICE), torch.zeros(50)
        for total in (there, here):
            add_gaussian_(total, 0.7, Randomness.for_tests(5))
        assert torch.equal(there.cpu(), here)
        monkeypatch.undo()
        device_noise.is_exact_on.cache_clear()
        add_gaussian_(there.zero_(), 0.7, Randomness.for_tests(5))
        assert not torch.equal(there.cpu(), here)


SIZES = [(3, 5), (700,), (2, 40)]
STRETCH = [torch.linspace(0.5, 2, math.prod(size)).view(size) for size in SIZES]


def to_each(device, scales=()):
    totals = [torch.zeros(size).to(device) for size in SIZES]
    add_gaussian_to_each_(totals, 1.5, Randomness.for_tests(3), [s.to(device) for s in scales])
    return flat(totals)


def flat(tensors):
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


def to_first(count, *scales):
    total = torch.zeros(count).to(DEVICE)
    return add_gaussian_(total, 1.5, Randomness.for_tests(3), *scales).cpu()


def test_tensors_of_a_processor_get_their_noise_one_by_one():
    randomness = Randomness.for_tests(3)
    apart = [add_gaussian_(torch.zeros(size), 1.5, randomness) for size in SIZES]
    assert torch.equal(to_each(CPU), flat(apart))


def test_tensors_of_a_device_get_their_noise_joined(monkeypatch):
    with pretending():
        assert torch.equal(to_each(DEVICE), to_first(795))
        assert torch.equal(to_each(DEVICE, STRETCH), to_first(795, flat(STRETCH).to(DEVICE)))
        monkeypatch.setattr(noise, "JOINED", 720)  # the first two, and the last one
        assert torch.equal(to_each(DEVICE)[:715], to_first(715))
        assert not torch.equal(to_each(DEVICE), to_first(795))
