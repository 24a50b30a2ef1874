"""docs/architecture.md lists the files that a record passes."""

import re

import numpy as np
import pytest

from docs.make_trip import PAGE, Trip, Way, counts, parts_of, trips
from tests.helpers.documents import PAGES, ROOT
from twinset.sampling.sampler import Row, RowGroups

SLACK = 3  # files that come or go before the page must be made again


@pytest.fixture(scope="module")
def runs(tiny_base) -> list[Trip]:
    return list(trips(str(tiny_base)))


@pytest.fixture(scope="module")
def way(runs) -> Way:
    return Way.between(*runs)


def test_the_count_on_the_page_is_that_of_a_run(way):
    _, listing, _ = parts_of(PAGE.read_text("utf-8"))
    files, folders = counts(listing)
    assert abs(files - len(way.files)) <= SLACK, "the way has changed: run `make docs`"
    assert abs(folders - len(way.folders)) <= 1, "the way has changed: run `make docs`"


@pytest.mark.parametrize(
    ("phase", "file"),
    [
        ("table", "data/records.py"),
        ("table", "data/tokenization.py"),
        ("loop", "privacy/clipping/engine.py"),
        ("loop", "privacy/mechanism/noise.py"),
        ("twin", "release/share.py"),
    ],
)
def test_a_record_passes_what_it_must(way, phase, file):
    assert (phase, file) in way.functions


def test_what_sees_no_record_is_not_listed(way):
    others = {"privacy/mechanism/poisson.py", "privacy/statement/ledger.py", "config/options.py"}
    others |= {"release/rendering.py", "release/card.py", "files/checkpoints.py"}
    others |= {"policies/mechanism_params.py", "sampling/token_sampling.py"}
    assert not way.files & others


def test_a_run_on_the_same_text_with_the_same_seed_differs_nowhere(runs):
    first, _, other_seed, again = runs
    assert Way.between(first, again, other_seed, again).functions.keys() <= {
        place for place in first.seen if place[0] == "twin"
    }
    assert not Way.between(first, first, again, again).functions


def kept(text: str) -> RowGroups:
    """A row in another object."""
    groups = RowGroups()
    groups.write(0, [Row((), text)])
    return groups


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("good", "bad", True),
        ({"rows": [[501, 502]]}, {"rows": [[502, 501]]}, True),
        ([3, 4], [4, 3], False),
        (np.array([3, 501]), np.array([501, 3]), True),
        (np.array([3, 501], np.uint64), np.array([501, 3], np.uint64), False),
        ([Row((), "good")], [Row((), "bad")], True),
        (kept("good"), kept("bad"), False),
        (3, 4, False),
        (0.5, 0.25, False),
        ("hash 0123456789abcdef", "hash fedcba9876543210", False),
    ],
)
def test_texts_and_tokens_differ_and_what_is_neither_does_not(one, other, differs):
    first, second = (set(Trip().values_in(value)) for value in (one, other))
    assert (first != second) is differs


@pytest.mark.parametrize("page", [*PAGES, "SECURITY.md", "CONTRIBUTING.md"])
def test_paths_that_a_page_names_exist(page):
    text = (ROOT / page).read_text("utf-8")
    named = re.findall(r"`((?:twinset|evaluation|tests|prompts|docs)/[\w./-]+)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
