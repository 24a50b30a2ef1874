"""docs/architecture.md lists the files that a record passes."""

import re

import numpy as np
import pytest

from docs import make_trip
from tests.helpers.documents import PAGES, ROOT

SLACK = 3  # files that come or go before the page must be made again


@pytest.fixture(scope="module")
def trip(tiny_base):
    return make_trip.trace(str(tiny_base))


def test_the_count_on_the_page_is_that_of_a_run(trip):
    _, listing, _ = make_trip.parts_of(make_trip.PAGE.read_text("utf-8"))
    files, folders = make_trip.counts(listing)
    assert abs(files - len(trip.files)) <= SLACK, "the way has changed: run `make docs`"
    assert abs(folders - len(trip.folders)) <= 1, "the way has changed: run `make docs`"


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
def test_a_record_passes_what_it_must(trip, phase, file):
    assert (phase, file) in trip.seen


def test_what_sees_no_record_is_not_listed(trip):
    others = {"privacy/mechanism/poisson.py", "privacy/statement/ledger.py", "config/options.py"}
    assert not trip.files & others


@pytest.mark.parametrize(
    ("numbers", "found"), [([1, 2, 3, 4], True), ([2, 3], True), ([2, 4, 3], False), ([3], False)]
)
def test_tokens_of_the_mark_are_found(numbers, found):
    trip = make_trip.Trip(np.array([2, 3]))
    assert trip.holds(numbers) is found
    assert trip.holds({"rows": [np.array([numbers])]}) is found


@pytest.mark.parametrize("page", [*PAGES, "SECURITY.md", "CONTRIBUTING.md"])
def test_paths_that_a_page_names_exist(page):
    text = (ROOT / page).read_text("utf-8")
    named = re.findall(r"`((?:twinset|evaluation|tests|prompts|docs)/[\w./-]+)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
