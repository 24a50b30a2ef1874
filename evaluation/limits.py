"""Bounds of options that several commands take. Knows no command."""

from __future__ import annotations

from twinset.config.bounds import Bounds

RUNS = Bounds(1, 1000)  # of each policy or classifier
ATTACKED = Bounds(2, 10**8)  # members, and as many others
SECRETS = Bounds(1, 1000)  # of each number of copies
PLANTED = Bounds(0, 10**5)  # copies of a secret
LENGTHS = Bounds(1, 18)  # digits of a secret
CANARIES = Bounds(0, 10**6)
