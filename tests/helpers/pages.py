"""A page as a tree of elements, for tests that ask what a browser would see."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


@dataclass
class Element:
    name: str
    attributes: dict
    parent: "Element | None" = None
    children: list = field(default_factory=list)
    words: str = ""

    def find(self, *names):
        for child in self.children:
            if not names or child.name in names:
                yield child
            yield from child.find(*names)

    @property
    def text(self):
        return self.words + "".join(child.text for child in self.children)


class Page(HTMLParser):
    """A tree of elements, and whether every one of them was closed where it should be."""

    def __init__(self, html):
        super().__init__()
        self.root = self.at = Element("root", {})
        self.feed(html)
        assert self.at is self.root, f"<{self.at.name}> is not closed"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_endtag(self, tag):
        assert self.at.name == tag, f"</{tag}> closes <{self.at.name}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.words += data


def all_elements(page):
    return [page.root, *page.root.find()]


def one(elements):
    (element,) = elements
    return element


def answers(html):
    """What the page answers to the three questions."""
    elements = [e for e in all_elements(Page(html)) if e.attributes.get("class") == "answer"]
    return [e.text for e in elements if e.parent.name == "article"]
