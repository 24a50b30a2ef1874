"""`python -m evaluation.papers.kerrigan`: does public text make private training possible?

Kerrigan, Slack and Tuyls 2020: a language model of public text, of private text, and of one after
the other, without noise and with σ = 0.1 and 1.1. All results but the plan are computed on private
lines and stay with their owner. A command that was stopped goes on with the row it was at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.command import command_line, run_command
from evaluation.papers.contest import Contest, cases
from evaluation.papers.corpora import Corpora, Lines, Paths, read
from evaluation.papers.learning import plan_of
from evaluation.papers.models import Contestant, FolderShape, parameters
from evaluation.papers.perplexityfigure import write_figure
from evaluation.papers.perplexitytable import as_markdown
from evaluation.papers.published import DELTA, SIGMAS
from evaluation.papers.rows import Rows
from evaluation.papers.sizes import CONTEXT, Size, size_named
from evaluation.papers.words import Subwords, Tokens, Words
from twinset.artefact import sha256_file, write_text
from twinset.console import Console
from twinset.errors import InputError
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.rounding import up_decimals

NAME = "kerrigan"
# Numbers kept for each weight: weight, gradient, clipped sum, Adam's two moments.
_COPIES, _BYTES = 5, 4

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_FILE: Any = typer.Option(help="One record a line: .txt, or a table with a column text; .gz too.")


@app.command()
def kerrigan(
    public: Annotated[Path, _FILE],
    private_train: Annotated[Path, _FILE],
    private_dev: Annotated[Path, _FILE],
    private_test: Annotated[Path, _FILE],
    size: Annotated[str, typer.Option(help="tiny, cpu or full.")] = "cpu",
    seeds: Annotated[int, typer.Option(min=1, help="Times that each row is made.")] = 3,
    gpt2: Annotated[
        Path | None, typer.Option(help="Folder of a public GPT-2 to begin from.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for .json, .md and .png.")] = Path(
        "runs/kerrigan"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
) -> None:
    """Make the rows that the results lack, then the table with its verdict, and the figure."""
    paths = Paths(public, private_train, private_dev, private_test)
    wanted = size_named(size, gpt2)
    if dry_run:
        lines = read(paths, wanted, scored=False)
        typer.echo("\n".join(_plan(wanted, _corpora(wanted, lines))))
        return
    rows = _open(output, size, wanted, paths)
    lines = read(paths, wanted)
    corpora = _corpora(wanted, lines)
    rows.facts = {"blocks": _blocks(wanted, corpora, lines)}
    with Console() as console:
        Contest(rows, corpora, console).run(list(cases(wanted.contestants, seeds)))
    rows.write()
    table = as_markdown(rows)
    write_text(output / f"{NAME}.md", table)
    write_figure(rows, output / f"{NAME}.png")
    typer.echo(table, nl=False)


def _corpora(size: Size, lines: Lines) -> dict[str, Corpora]:
    """Return the texts by contestant: words of the public text, or a folder's own tokens."""
    of_words = Corpora.of(lines, Words.of(lines.public, size.vocabulary))
    return {
        c.name: Corpora.of(lines, _own_tokens(c.shape.folder))
        if isinstance(c.shape, FolderShape)
        else of_words
        for c in size.contestants
    }


def _own_tokens(folder: Path) -> Tokens:
    """Return a folder's own tokens.

    Raises:
        InputError: its model cannot be used.
    """
    from twinset.basemodel import load_base

    base = load_base(str(folder))
    if base.model.config.max_position_embeddings < CONTEXT:
        raise InputError(f"--gpt2 {folder}: reads fewer than {CONTEXT} tokens; name a larger one")
    return Subwords(base.tokenizer, folder.name, base.model.config.vocab_size)


def _open(output: Path, name: str, size: Size, paths: Paths) -> Rows:
    """Return the rows there are.

    Raises:
        InputError: they are of other settings, or there can be no such folder.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {output}: no folder ({error.strerror})") from None
    files = {
        kind: f"{path.name}, SHA-256 {sha256_file(path)}" for kind, path in asdict(paths).items()
    }
    settings = {"size": name, "sizes": _plain(size), "context": CONTEXT, "files": files}
    return Rows.open(output / f"{NAME}.json", settings, command_line("evaluation.papers.kerrigan"))


def _plain(size: Size) -> dict[str, Any]:
    """Return a size as JSON knows it; a folder by what its weights are."""
    found = asdict(size)
    for plain, contestant in zip(found["contestants"], size.contestants, strict=True):
        if isinstance(contestant.shape, FolderShape):
            weights = sorted(contestant.shape.folder.glob("*.safetensors"))
            plain["shape"] = {path.name: sha256_file(path) for path in weights}
    return found


def _blocks(size: Size, corpora: dict[str, Corpora], lines: Lines) -> list[dict[str, Any]]:
    """Return the facts of each kind of tokens, with the models that share it."""
    found: dict[str, dict[str, Any]] = {}
    for contestant in size.contestants:
        one = corpora[contestant.name]
        kind = one.tokens.description
        if kind not in found:
            found[kind] = one.facts(lines) | {"contestants": {}}
        found[kind]["contestants"][contestant.name] = contestant.paper
    return list(found.values())


def _plan(size: Size, corpora: dict[str, Corpora]) -> Iterator[str]:
    """Yield what would be done: a line for each phase of each model."""
    for contestant in size.contestants:
        one = corpora[contestant.name]
        count = parameters(contestant.shape, one.tokens.size)
        yield (
            f"{contestant.name}: {count:,} parameters, {one.tokens.size:,} tokens, weights with "
            f"sums and optimiser {count * _COPIES * _BYTES / 2**30:.2f} GiB"
        )
        plan = plan_of(len(one.public), contestant.public, 0.0)
        yield f"  public: {plan.steps:,} steps of {plan.batch_size} from {plan.records:,} lines"
        for sigma in SIGMAS:
            yield f"  private: {_private_phase(contestant, len(one.private), sigma)}"


def _private_phase(contestant: Contestant, lines: int, sigma: float) -> str:
    plan = plan_of(lines, contestant.private, sigma)
    spent = "none"
    if sigma:
        event = SubsampledGaussian(sigma, plan.sample_rate, plan.steps)
        spent = f"{up_decimals(epsilon([event], DELTA))} at δ = {DELTA:g}"
    return (
        f"{plan.steps:,} steps of {plan.batch_size} expected from {plan.records:,} lines, "
        f"q = {plan.sample_rate:.3g}, σ = {sigma:g}, learning rate {plan.learning_rate:g}, "
        f"ε = {spent}"
    )


if __name__ == "__main__":
    run_command(app)
