"""What the site needs besides its pages: the page of commands, and a hook of mkdocs for links.

The pages are read in the repository too, where links to other files work unchanged. On the site
they lead to the repository, or are plain text. SECURITY.md is a page of the site.

    python docs/site.py    # writes docs/cli.md from the command line itself
"""

import html
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
THREATS = "threat-model.md"  # what the site calls SECURITY.md


def link(text: str, path: str, anchor: str, repository: str) -> str:
    """Return a link to a file of the repository. Without an address of it, name the file.

    >>> link("all figures", "evaluation/x.md", "", "https://example.org/twinset")
    '[all figures](https://example.org/twinset/blob/main/evaluation/x.md)'
    >>> link("all figures", "evaluation/x.md", "#one", "")
    'all figures (`evaluation/x.md`)'
    >>> link("x.py", "twinset/x.py", "", "")
    '`twinset/x.py`'
    >>> link("the threat model", "SECURITY.md", "#one", "")
    '[the threat model](threat-model.md#one)'
    """
    if path == "SECURITY.md":
        return f"[{text}]({THREATS}{anchor})"
    if repository:
        return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
    name = posixpath.basename(path)
    return f"`{path}`" if text.endswith(name) else f"{text} (`{path}`)"


def from_docs(markdown: str) -> str:
    """Rewrite the links of a page at the top of the repository as if it were in `docs/`.

    >>> from_docs("[a](docs/a.md#b), [c](c.py), [d](#d), [e](https://example.org)")
    '[a](a.md#b), [c](../c.py), [d](#d), [e](https://example.org)'
    """
    outside = re.sub(r"\]\((?!#|https?:|docs/)", "](../", markdown)
    return outside.replace("](docs/", "](")


def on_files(files: Any, config: Any) -> Any:
    """Add SECURITY.md to the pages of the site."""
    from mkdocs.structure.files import File

    source = Path(config.docs_dir).parent / "SECURITY.md"
    files.append(File.generated(config, THREATS, content=from_docs(source.read_text("utf-8"))))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead out of `docs/`."""
    repository = config.repo_url or ""
    return OUTSIDE.sub(lambda m: link(m[1], m[2], m[3] or "", repository), markdown)


def as_page(said: str) -> str:
    r"""Return typer's page of commands with an example, whole sentences, and defaults as code.

    >>> print(as_page("# `twinset`\n\n* `plan`: Show what...\n\n## `twinset plan`\n\nShow what."))
    # Command line
    <BLANKLINE>
    * [`plan`](#twinset-plan): Show what.
    <BLANKLINE>
    ## `twinset plan`
    <BLANKLINE>
    Show what.
    >>> as_page("* `--top-p <float>`: Nucleus sampling. Default: 0.95. From 0.001 to 1.")
    '* `--top-p <float>`: Nucleus sampling. Default: `0.95`. From `0.001` to `1`.'
    >>> as_page("* `--seeds <int>`: Runs per policy.  [default: 3; 1<=x<=100]")
    '* `--seeds <int>`: Runs per policy. Default: `3; 1<=x<=100`.'
    """
    page = said.replace("# `twinset`\n", "# Command line\n", 1)
    for name, sentence in re.findall(r"^## `twinset ([\w-]+)`\n\n(.+)$", page, flags=re.M):
        whole = f"* [`{name}`](#twinset-{name}): {sentence}"
        page = re.sub(rf"^\* `{name}`: .*$", lambda _, whole=whole: whole, page, flags=re.M)
    page = re.sub(r" Default: (.+?)\.(?=$| From )", r" Default: `\1`.", page, flags=re.M)
    page = re.sub(r" From ([\d.e+-]+) to ([\d.e+-]+)\.$", r" From `\1` to `\2`.", page, flags=re.M)
    page = re.sub(r"  \[default: (.+)\]$", r" Default: `\1`.", page, flags=re.M)
    return re.sub(r"  \[([\d.<=x]+)\]$", r" Range: `\1`.", page, flags=re.M)


if __name__ == "__main__":
    typer = [sys.executable, "-m", "typer", "twinset.commandline.app", "utils", "docs"]
    said = subprocess.run([*typer, "--name", "twinset"], check=True, capture_output=True, text=True)
    Path(__file__).with_name("cli.md").write_text(as_page(html.unescape(said.stdout)), "utf-8")
