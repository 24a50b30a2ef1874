"""A hook of mkdocs: on the site, links to files of the repository lead to it, or are plain text.

The pages are read in the repository too, where such links work as they stand.
"""

import posixpath
import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def link(text: str, path: str, anchor: str, repository: str) -> str:
    """Return a link to a file of the repository. Without an address of it, name the file.

    >>> link("all figures", "evaluation/x.md", "", "https://example.org/twinset")
    '[all figures](https://example.org/twinset/blob/main/evaluation/x.md)'
    >>> link("all figures", "evaluation/x.md", "#one", "")
    'all figures (`evaluation/x.md`)'
    >>> link("x.py", "twinset/x.py", "", "")
    '`twinset/x.py`'
    """
    if repository:
        return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
    name = posixpath.basename(path)
    return f"`{path}`" if text.endswith(name) else f"{text} (`{path}`)"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead out of `docs/`."""
    repository = config.repo_url or ""
    return OUTSIDE.sub(lambda m: link(m[1], m[2], m[3] or "", repository), markdown)
