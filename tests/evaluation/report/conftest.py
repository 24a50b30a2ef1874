"""The page of a run of which all is known."""

import pytest

from evaluation.report.page import build_report
from tests.helpers import reported
from tests.helpers.pages import Page


@pytest.fixture(scope="package")
def html(tmp_path_factory):
    return build_report(reported.everything_in(tmp_path_factory.mktemp("report")))


@pytest.fixture(scope="package")
def page(html):
    return Page(html)
