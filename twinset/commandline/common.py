"""What commands share: options as flags, the options of a run, and how results are printed.

Knows how typer reads a signature, but no single command.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from twinset.commandline.entry_point import with_flags
from twinset.config.options import OPTIONS, PANELS, Option, merge, run_config, run_options
from twinset.errors import InputError, printable
from twinset.files.limits import SMALL, read_text
from twinset.table.schema import read_line

if TYPE_CHECKING:
    from twinset.config import RunConfig
    from twinset.run.request import OutputPaths, Result, Source
    from twinset.sampling.allocation import RowsRequest

Data = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV, Excel, Parquet, Feather, JSON or JSONL file, data-set folder or hub name. "
        "- reads standard input."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Stop after the plan. Write nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
# Options of what measures a twin.
OF_REAL_ROWS = ("text", "attribute", "split", "encoding", "delimiter", "multiline")
LogFile = Annotated[
    Path | None, typer.Option(help="Append progress to this file. Keep it private.")
]
Policies = Annotated[str, typer.Option(help="Noise policies. none: without privacy.")]
Test = Annotated[str | None, typer.Option(help="Real rows to test on. Omitted: a fifth.")]
# What `--help` shows of a command with many options. `--help-all` shows them all.
USUAL = (
    *("text", "attribute", "labels", "owner", "hold_out", "epsilon", "max_minutes", "rows"),
    *("run", "output", "resume", "overwrite"),
)
MANY = 15  # options
KEYWORD = inspect.Parameter.KEYWORD_ONLY
CONFIG = inspect.Parameter(
    "config",
    KEYWORD,
    default=None,
    annotation=Annotated[
        str | None, typer.Option(help="TOML file of options by their names.", metavar="FILE")
    ],
)


class Command(TyperCommand):
    """A command whose `--help` fits a screen. The reference and `--help-all` have all options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the usual options, or all of them."""
        params: list[Any] = self.params
        others = [p for p in params if p.name in OPTIONS and p.name not in USUAL]
        is_short = any(p.name == "help_all" for p in params) and not ctx.meta.get("help_all")
        try:
            for option in others if is_short else ():
                option.hidden = True
            super().format_help(ctx, formatter)
        finally:
            for option in others:
                option.hidden = False


def _show_all(ctx: typer.Context, is_asked: bool) -> None:
    """Show the help of all options, and exit."""
    if is_asked:
        ctx.meta["help_all"] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def takes(
    *options: Option, has_file: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options and, if an options file makes sense, --config.

    The command gets the used options, by name, as its argument `given`.
    """
    names, flags = [option.name for option in options], []
    for option in sorted(options, key=lambda option: option.is_expert):  # experts' come last
        has_no_default = option.default is None or option.kind is bool
        shown = "" if has_no_default else f" Default: {option.default}."
        shown += f" {str(option.bounds).capitalize()}." if option.bounds else ""
        info = typer.Option(
            option.flag,
            help=with_flags(option.help) + shown,
            metavar=option.values,
            rich_help_panel=next((title for title in PANELS if option in PANELS[title]), None),
        )
        # No option is required. One that is not used is False, or None.
        unused: Any = None
        kind: Any = option.kind | None
        if option.kind is bool:
            unused, kind = False, bool
        elif option.repeatable:
            kind = list[option.kind] | None  # type: ignore[name-defined]
        annotation = Annotated[kind, info]
        flags.append(inspect.Parameter(option.name, KEYWORD, default=unused, annotation=annotation))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def parsed(config: str | None = None, **arguments: Any) -> None:
            arguments.pop("help_all", None)
            values = {name: arguments.pop(name) for name in names}
            # typer gives None, False or an empty list for an option that was not used
            used = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values.items()
                if value is not None and value is not False and value != []
            }
            # a file may hold options of other commands: one file serves them all
            merged = merge(used, config)
            command(given={k: v for k, v in merged.items() if k in names}, **arguments)

        own = inspect.signature(command, eval_str=True).parameters.values()
        before = [p for p in own if p.kind is not KEYWORD]
        after = [p for p in own if p.kind is KEYWORD and p.name != "given"]
        signature = [*before, *flags, *[CONFIG] * has_file, *after]
        if has_file and len(options) > MANY:
            said = "Show every option."
            info = typer.Option("--help-all", is_eager=True, callback=_show_all, help=said)
            kind = Annotated[bool, info]
            signature.append(inspect.Parameter("help_all", KEYWORD, default=False, annotation=kind))
        parsed.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in signature}
        return parsed

    return decorate


def read_values(line: str) -> list[str]:
    """Return the values of a line, or those of a file that it names, one per line."""
    if not line.startswith("@"):
        return read_line(line)
    try:
        content = read_text(Path(line[1:]), SMALL).removeprefix("\ufeff")
    except InputError:
        raise
    except (OSError, ValueError):
        raise InputError(f"{line[1:]} cannot be read. Name a UTF-8 file.") from None
    lines = re.split(r"\r\n|\r|\n", content)  # no other character ends a value
    return [line for line in lines if line.strip()]


# How an option is written and read that says something of several columns, or of several files.
PAIRS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "labels": ("COLUMN=VALUE,VALUE or COLUMN=@FILE", read_values),
    "bins": ("COLUMN=NUMBER,NUMBER,NUMBER", lambda line: list(map(float, read_line(line)))),
    "kind": ("COLUMN=KIND", str),
    "values": ("COLUMN=VALUE,VALUE or COLUMN=@FILE", read_values),
    "range": ("COLUMN=LOW:HIGH", lambda ends: tuple(map(float, ends.partition(":")[::2]))),
    "share": ("START=NUMBER", float),
}


def read_pairs(given: Iterable[str], option: str) -> dict[str, Any]:
    """Return what an option of `PAIRS` says, by column or by the beginning of files' names.

    Values with a comma, or blanks at an end, are put in double quotes, as in CSV. A long list of
    values may be a file with one value per line.

    Raises:
        InputError: something is not written as the option is, or a file cannot be read.

    >>> read_pairs(["city=York,New York", 'size="S, slim",M'], "labels")
    {'city': ['York', 'New York'], 'size': ['S, slim', 'M']}
    >>> read_pairs(["rating=0,2.5,5"], "bins"), read_pairs(["age=18:99"], "range")
    ({'rating': [0.0, 2.5, 5.0]}, {'age': (18.0, 99.0)})
    """
    (how, read), found = PAIRS[option], dict[str, Any]()
    for one in given:
        # a value may have a "=", else the name of a column
        has_values = option in ("labels", "values")
        name, _, values = one.partition("=") if has_values else one.rpartition("=")
        unclear = f"`{option}={one[:60]}`: unclear. Write {how}"
        if not name or not values or name in found:
            raise InputError(f"{unclear}, once for each name.")
        try:
            found[name] = read(values)
        except InputError as error:
            raise InputError(f"`{option}`: {error}") from None
        except ValueError:
            raise InputError(f"{unclear}.") from None
    return found


def read_names(text: str) -> list[str]:
    """Return the names of a line of CSV.

    >>> read_names('age, "city, country"')
    ['age', 'city, country']
    """
    with suppress(ValueError):
        if (names := read_line(text)) and all(names):
            return names
    raise InputError(f"`columns={text[:60]}`: write NAME,NAME, all or none")


def listed(text: str) -> tuple[str, ...]:
    """Return the names between commas, each once.

    >>> listed("uniform, none,uniform")
    ('uniform', 'none')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def source_of(data: str, given: dict[str, Any]) -> Source:
    """Return the table that the options name."""
    from twinset.run.request import Source

    same = "split drop_empty merge_labels drop_undeclared delimiter encoding multiline strict "
    same += "budget budget_file each_row_is_someone"
    reading: dict[str, Any] = {name: given[name] for name in same.split() if name in given}
    # `--kind` is given once for each column, hence the singular
    pairs = {name: name for name in ("labels", "bins", "values")}
    pairs |= {"kind": "kinds", "range": "ranges"}
    reading |= {name: read_pairs(given.get(option, ()), option) for option, name in pairs.items()}
    columns = given.get("columns", ("none",))
    reading["columns"] = [name for one in columns for name in read_names(one)]
    text, owner, prompt = (given.get(option) for option in ("text", "owner", "prompt"))
    labels, held = given.get("attribute", ()), given.get("hold_out", 0.0)
    return Source.of(data, text, labels, owner, prompt, held, reading)


def request_of(
    given: dict[str, Any], any_policy: bool = False
) -> tuple[RunConfig, RowsRequest, OutputPaths]:
    """Return the options of the model, the requested rows, and where results go."""
    from twinset.run.request import OutputPaths
    from twinset.sampling.allocation import RowsRequest

    config = run_config(run_options(given), any_policy)
    same = ("format", "overwrite", "resume", "accept_spend")
    places: dict[str, Any] = {name: given[name] for name in same if name in given}
    places |= {name: Path(given[name]) for name in ("run", "output") if name in given}
    paths = OutputPaths(**places, guard_formulas=not given.get("no_formula_guard", False))
    asked = given.get("rows"), given.get("rows_per_label", ()), given.get("plan_file")
    rows = RowsRequest(*asked, tuple(given.get("where", ())))
    return config, rows, paths


def form_of(given: dict[str, Any], *tables: Path | None) -> tuple[str | None, dict[str, Any]]:
    """Return text column and form of real rows. Refuse missing tables before slow imports."""
    from twinset.run.request import check_there

    for path in filter(None, tables):
        check_there(path)
    return given.get("text"), {name: given[name] for name in OF_REAL_ROWS[2:] if name in given}


def show(data: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print plain values as JSON, or the same as lines for people.

    Both may quote files from others, so neither has a character that controls a terminal.
    """
    if as_json:
        text = json.dumps(data, ensure_ascii=False, default=str)
        typer.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))
    else:
        typer.echo(printable("\n".join(lines)))


def show_result(result: Result, as_json: bool) -> None:
    """Print what a run made and its guarantee in one sentence. The card has the details."""
    from twinset.privacy.statement.wording import paragraphs
    from twinset.release.card import CARD
    from twinset.release.publish import beside

    claim, twin = result.guarantee, result.twin
    made: dict[str, Any] = {"run": result.run, "twin": result.twin, "rows": result.rows}
    lines = [f"{name}: {value}" for name, value in made.items() if value]
    stated = {"epsilon": claim.epsilon, "delta": claim.delta, "guarantee": claim.sentence}
    said = paragraphs(claim.sentence)
    if claim.epsilon is not None:  # its first sentence. If it is None, all sentences are shown
        places = [*beside(twin)[:1], twin.with_name(CARD)] if twin else []
        card = next((p for p in places if p.is_file()), (result.run or Path()) / "model" / CARD)
        said = [said[0], f"Limits of this guarantee, and what it takes as public: {card}"]
    show(made | stated, [*lines, *said], as_json)
