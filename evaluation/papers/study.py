"""How a paper's main experiment is run again: rows that can be resumed, then a page and a figure.

How a paper is written, `NAME` being one short word:

1. `NAME.toml`: the help of the options that name `[files]`, which may be `[optional_files]`, and
   public `[models]`; a table for each of the sizes `tiny` (minutes), `cpu` (two cores, about an
   hour) and `full` (as published), with a comment on each number. Nothing else depends on the size.
   What is left out of a table is unlimited (`size.get("private_lines")`). `[[reported]]` are the
   lines of the paper's own tables.
2. `NAME.py`, from top to bottom: a `NamedTuple` for each kind of row, seed last, which is the key
   of the row; data, models and training, down to a row of plain values; the tables of the page,
   made of `Results` alone, and the figure; the `Study`; and `if __name__ == "__main__":
   main(TheStudy)`. What is long and stands for itself, such as a model, is a module of its own.
3. `NAME.md`: prose by hand. Title and claim; `## Verdict`, what the published rows say of the
   claim; the line `<!-- results -->`; the page's headings and notes, with `{{ tables.name }}` where
   a table belongs; `## How the paper was read`. Each decimal number of the verdict must stand in a
   table of the page, so what the verdict rests on gets a table.
4. `results/NAME.json`, `.md`, `.png`: the published rows. After a change of prose or tables
   `python -m evaluation.papers.NAME --page --output evaluation/papers/results` writes the page
   again; it needs no data. `test_study.py` checks that page against rows and prose. With
   `--elsewhere` rows that are missing are made on another machine, and say so.
5. `tests/evaluation/papers/test_NAME.py`: the mathematics of the paper's mechanism with its
   negative controls, and one slow run of size `tiny`, stopped and resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from evaluation.papers.page import Prose
from evaluation.papers.run_context import RunContext
from evaluation.papers.study_rows import Results
from evaluation.papers.texts import LINES, drawn, read_lines
from evaluation.results_store import Key
from evaluation.run_command import command_line, resumable, run_command
from twinset.errors import InputError
from twinset.files.atomic import sha256_file, write_text, writing
from twinset.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
PUBLISHED = HERE / "results"  # the rows that verdicts speak of
SIZES = ("tiny", "cpu", "full")


class Study(ABC):
    """A paper's main experiment, of one size, on some files.

    `keys` must do without files; `tables` and `figure` without anything but the results.

    Args:
        size_name: tiny, cpu or full.
        paths: the files, by name; none for a dry run or a page.
        models: public models that replace those of the size, by name; folders or hub names.
    """

    name: ClassVar[str]  # of its files

    def __init__(
        self,
        size_name: str,
        paths: Mapping[str, Path] | None = None,
        models: Mapping[str, str] | None = None,
    ) -> None:
        self.size_name, self.paths = size_name, dict(paths or {})
        self.size = read_size(self.name, size_name) | dict(models or {})

    @classmethod
    def options(cls, kind: str) -> dict[str, str]:
        """Return the help of each option that names one of `files`, `optional_files`, `models`."""
        named = _read_toml(cls.name).get(kind, {})
        return {name: text.format(lines=LINES) for name, text in named.items()}

    @abstractmethod
    def keys(self, seeds: int) -> Iterable[Key]:
        """Yield the key of each row there should be; rows that others start from come first."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Return what else the page says of the data: ready for JSON, and no private text."""

    @abstractmethod
    def row(self, key: Any, run: RunContext) -> Mapping[str, Any]:
        """Make one row: plain values, ready for JSON."""

    @abstractmethod
    def tables(self, results: Results) -> Mapping[str, Any]:
        """Return what the page's template calls `tables`; every row is there.

        A table is a list of rows, each from column name to cell; there may be several by name.
        """

    @abstractmethod
    def figure(self, results: Results) -> Figure:
        """Draw the figure; every row is there."""

    def lines(self, name: str, most: str) -> list[str]:
        """Return the lines of a file of texts, of which the size takes at most its number `most`.

        Raises:
            InputError: the file cannot be used.
        """
        return drawn(read_lines(self.paths[name]), self.size.get(most))

    def sources(self) -> dict[str, str]:
        """Return each file's name and contents, as a hash."""
        return {name: fingerprint(path) for name, path in self.paths.items()}

    def settings(self) -> dict[str, Any]:
        """Return everything that a row depends on, but its key: ready for JSON."""
        models = self.options("models")
        folders = {name: Path(str(self.size.get(name))).expanduser() for name in models}
        named = {name: fingerprint(path) for name, path in folders.items() if path.is_dir()}
        return {"size": self.size_name, "sources": self.sources(), "sizes": self.size | named}


def main(study: type[Study]) -> None:
    """Run the command of a study; bad input ends it with one line and exit code 2."""
    run_command(partial(run, study))


def run(study: type[Study], arguments: Sequence[str] | None = None) -> None:
    """Print what would be done; or make the rows that are missing, then the page and the figure.

    Raises:
        InputError: a file cannot be used, or the results there are of other settings.
    """
    options = _parser(study).parse_args(arguments)
    known = {name: value for name, value in vars(options).items() if value is not None}
    made = study(
        options.size,
        {name: known[name] for name in _files(study) if name in known},
        {name: known[name] for name in study.options("models") if name in known},
    )
    if options.dry_run:
        typer.echo("\n".join(dry_run(made, options.seeds)))
        return
    if options.page:
        results = Results.load(options.output / f"{study.name}.json")
    else:
        with resumable() as progress:
            results = _make_rows(made, options, progress)
    typer.echo(publish(made, results), nl=False)


def read_size(name: str, size_name: str) -> dict[str, Any]:
    """Return the numbers of a size of a study."""
    return dict(_read_toml(name)[size_name])


def reported(name: str, *columns: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the lines of a paper's own tables, by the values of some of their columns."""
    return {tuple(line[c] for c in columns): line for line in _read_toml(name)["reported"]}


def paper_cells(line: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page shows of a line of the paper's tables: its columns "paper: …"."""
    return {name: value for name, value in line.items() if name.startswith("paper: ")}


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text("utf-8"))


def dry_run(study: Study, seeds: int) -> Iterator[str]:
    """Yield the numbers of the size, and the rows of the first seed; nothing is trained."""
    for name, value in study.size.items():
        several = value if isinstance(value, list) else [value]
        yield from (f"{name} = {json.dumps(one, ensure_ascii=False)}" for one in several)
    keys = list(study.keys(seeds))
    yield from (f"  {_words(key)}" for key in keys if key[-1] == 0)
    yield f"{len(keys)} rows with {seeds} seeds"


def publish(study: Study, results: Results) -> str:
    """Write the page and the figure beside the rows; return the page.

    Raises:
        InputError: some rows are missing.
    """
    seeds = 1 + max((int(key[-1]) for key in results.rows), default=0)
    if missing := [key for key in study.keys(seeds) if tuple(key) not in results.rows]:
        raise InputError(f"{results.path}: {len(missing)} rows are missing; run the rest first")
    page = page_of(study, results)
    write_text(results.path.with_suffix(".md"), page)
    with writing(figure := results.path.with_suffix(".png")):
        study.figure(results).savefig(figure, dpi=150)
    return page


def page_of(study: Study, results: Results) -> str:
    """Return the page; the verdict stands in that of the published rows alone."""
    prose, figure = Prose.read(HERE / f"{study.name}.md"), f"{study.name}.png"
    published = results.path.resolve().parent == PUBLISHED.resolve()
    return prose.page(study.tables(results), results, figure, published)


def fingerprint(path: Path) -> str:
    """Return the name of a file or folder, and a hash of its contents.

    Raises:
        InputError: it cannot be read.
    """
    try:
        if not path.is_dir():
            return f"{path.name}, SHA-256 {sha256_file(path)}"
        files = sorted(p for p in path.rglob("*") if p.is_file())
        hashes = [f"{sha256_file(p)}  {p.relative_to(path)}" for p in files]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    joined = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return f"{path.name}/, {len(hashes)} files, SHA-256 of their list {joined}"


def _parser(study: type[Study]) -> argparse.ArgumentParser:
    """Return the options of a study; they are data, which typer has no way to take."""
    doc = study.__doc__ or ""
    parser = argparse.ArgumentParser(f"python -m evaluation.papers.{study.name}", description=doc)
    for name, text in _files(study).items():
        parser.add_argument(_option(name), type=Path, metavar="FILE", help=text)
    for name, text in study.options("models").items():
        parser.add_argument(_option(name), metavar="MODEL", help=text)
    lengths = "tiny: minutes; cpu: two cores, about an hour; full: as published"
    parser.add_argument("--size", choices=SIZES, default="cpu", help=lengths)
    parser.add_argument("--seeds", type=_positive, default=3, help="times that each row is made")
    output = Path("runs") / study.name
    parser.add_argument("--output", type=Path, default=output, help="for .json, .md and .png")
    dry = "print the numbers of the size and the rows; needs no files"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    again = "write page and figure of finished rows again; needs no files"
    parser.add_argument("--page", action="store_true", help=again)
    moved = "add to rows of another machine or other versions; rows made here say so"
    parser.add_argument("--elsewhere", action="store_true", help=moved)
    return parser


def _files(study: type[Study]) -> dict[str, str]:
    return study.options("files") | study.options("optional_files")


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _words(key: Any) -> str:
    """Return a key, a named tuple, but for its seed, as words."""
    return ", ".join(f"{n} {v}" for n, v in key._asdict().items() if n != "seed")


def _make_rows(study: Study, options: argparse.Namespace, progress: Progress) -> Results:
    """Make every row that is missing; the weight cache is removed once none is.

    Raises:
        InputError: a file is not named, or the rows there are were made under other settings.
    """
    if missing := [name for name in study.options("files") if name not in study.paths]:
        option = _option(missing[0])
        raise InputError(f"{option}: name a file; only --dry-run and --page need none")
    output: Path = options.output
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {output}: no folder ({error.strerror})") from None
    path, command = output / f"{study.name}.json", command_line(f"evaluation.papers.{study.name}")
    results = Results.resume(path, study.settings(), command, options.elsewhere)
    results.facts = dict(study.facts())
    context = RunContext(progress, path.with_name(f".{study.name}-{results.digest}"))
    for turn, key in results.missing(study.keys(options.seeds)):
        progress.say(f"row {turn}: {_words(key)}, seed {key[-1]}")
        results.add(key, study.row(key, context))
    shutil.rmtree(context.folder, ignore_errors=True)
    return results
