"""Every link of README, docs and the other pages leads somewhere, anchors too."""

import pytest

from tests.helpers.documents import PAGES, ROOT, anchors, links

OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def broken(page: str, link: str) -> bool:
    """Tell whether a link of a page leads nowhere."""
    target, _, anchor = link.partition("#")
    path = (ROOT / page).parent / target if target else ROOT / page
    return not path.exists() or bool(anchor) and anchor not in anchors(path)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_links_lead_somewhere(page):
    inside = [link for link in links(page) if "://" not in link]
    assert not [link for link in inside if broken(page, link)]


@pytest.mark.parametrize("link", ["docs/none.md", "docs/cli.md#none", "#none"])
def test_a_broken_link_is_found(link):
    assert broken("README.md", link)


def test_the_index_lists_every_page():
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert pages - {"README.md"} <= {link.partition("#")[0] for link in links("docs/README.md")}


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 180
