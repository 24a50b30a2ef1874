"""`twinset demo`: a twin made on this machine, and what it is worth.

The table is public, or made up, and plays the private one. Everything else is as in
`twinset generate`. Each demo says here which table it takes and how its twin is made and measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pandas as pd

from evaluation.evaluate import FILE, EvaluationRequest, evaluate
from evaluation.findings import Findings, Score
from evaluation.leakage.names import PLANTED, replay_planted
from evaluation.release import BASELINE, REAL, TWIN, Release
from evaluation.report.page import write_report
from twinset.config import PrivacyConfig, RunConfig, SamplingConfig, SpeedConfig, TrainingConfig
from twinset.errors import InputError
from twinset.models.assets import GPT2_MINI, Say
from twinset.models.base_model import load_base
from twinset.models.device import AUTO, check_device
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.wording import paragraphs
from twinset.progress import Progress, Silent
from twinset.run.generate import generate, plan_run
from twinset.run.request import OutputPaths, Source
from twinset.sampling.allocation import RowsRequest
from twinset.table.read import write_frame

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.table import Table


import hashlib
import tomllib
from typing import TYPE_CHECKING

import numpy as np

from twinset.models.assets import asset_path, silent

if TYPE_CHECKING:
    from pandas import DataFrame


HELD_OUT_SHARE = 0.2  # of the films

TEXT, TOPIC, SATISFIED, SECRETS = "text", "topic", "satisfied", "secrets"
KINDS = ("name", "phone", "email", "address", "order_number", "tracking_number")
# Words for the gaps of dialogues, and the wordings of each turn.
_STATED = tomllib.loads(Path(__file__).with_name("support_dialogues.toml").read_text("utf-8"))
_WORDS = {name: words.split() for name, words in _STATED["words"].items()}
_TURNS = _STATED["turns"]


def load_reviews(say: Say = silent) -> tuple[DataFrame, DataFrame]:
    """Return the training and the held-out film reviews. No film and no text is in both.

    Args:
        say: is called with what is fetched.

    Returns:
        Two tables with the columns `film`, `verdict` ("fresh" or "rotten") and `review`. They have
        the same rows in the same order every time.

    Raises:
        InputError: the asset `demo-reviews` is neither in the cache nor within reach.
    """
    import pandas as pd

    corpus = pd.read_csv(asset_path("demo-reviews", say), compression="bz2")
    reviews = tidy_corpus(corpus)
    held_out = reviews["film"].map(is_held_out)
    return reviews[~held_out].reset_index(drop=True), reviews[held_out].reset_index(drop=True)


def tidy_corpus(corpus: DataFrame) -> DataFrame:
    """Keep the reviews of the corpus: no plots, no blank texts, the first of equal texts.

    Stray spaces are removed first. They make two films of one, and two reviews of one.
    """
    reviews = corpus[corpus["category"].isin(["fresh", "rotten"])].dropna(subset="text")
    reviews = reviews.rename(
        columns={"movie_name": "film", "category": "verdict", "text": "review"}
    )[["film", "verdict", "review"]]
    for column in ("film", "review"):
        reviews[column] = reviews[column].str.split().str.join(" ")
    return reviews[reviews["review"] != ""].drop_duplicates("review", ignore_index=True)


def is_held_out(film: str) -> bool:
    """Tell on which side a film is, by a hash of its name that no library version changes."""
    digest = hashlib.sha256(film.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def make_dialogues(rows: int = 1000, seed: int = 0) -> DataFrame:
    """Return a table of support dialogues. With the same seed, more rows begin with the same ones.

    No person, address or number is real: telephone numbers are of the block 555-01xx, which is
    kept for fiction, and e-mail goes to the domains that RFC 2606 reserves.

    Args:
        rows: of the table.
        seed: decides everything.

    Returns:
        Columns `text`, `topic` (delivery, refund, damage or moving), `satisfied` ("yes" or "no"),
        and `secrets`: JSON of what is private in the text, by kind. Each value stands there once.

    Raises:
        ValueError: fewer than one row.
    """
    import pandas as pd

    if rows < 1:
        raise ValueError("there is no table of no rows")
    rng = np.random.default_rng(seed)
    return pd.DataFrame([_make_dialogue(rng) for _ in range(rows)])


def _make_dialogue(rng: np.random.Generator) -> dict[str, str]:
    # Every draw moves the generator, so the order of these lines decides the table.
    def choose(some: list[str] | str) -> str:
        return str(some[int(rng.integers(len(some)))])

    def draw_word(kind: str) -> str:
        return choose(_WORDS[kind])

    def draw_digits(many: int) -> str:  # the first is no zero
        return str(rng.integers(10 ** (many - 1), 10**many))

    topic, satisfied = choose(list(_TURNS["wish"])), choose(list(_TURNS["last"]))
    first, last = draw_word("first"), draw_word("last")
    street = f"{draw_word('street')} {draw_word('way')}"
    town = f"{draw_word('town')}, {draw_word('state')}"
    secrets = {
        "name": f"{first} {last}",
        "phone": f"({draw_digits(3)}) 555-01{draw_digits(2)}",
        "email": f"{first}.{last}{draw_digits(2)}@{draw_word('domain')}".lower(),
        "address": f"{rng.integers(1, 9999)} {street}, {town} {draw_digits(5)}",
        "order_number": f"{draw_digits(3)}-{draw_digits(5)}-{draw_digits(4)}",
    }
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    tail = "".join(choose(letters + "0123456789") for _ in range(7))
    # Two letters and eight digits or letters, with one digit at least.
    secrets["tracking_number"] = f"{choose(letters)}{choose(letters)}{tail}{draw_digits(1)}"
    asked = ["name", *sorted(rng.permutation(list(_TURNS["question"])[1:])[:2])]
    greeting, wish = choose(_TURNS["greeting"]), choose(_TURNS["wish"][topic])
    turns = [("SYS", greeting), ("USR", wish.format(thing=draw_word("thing")))]
    for kind in asked:
        turns += [
            ("SYS", choose(_TURNS["question"][kind])),
            ("USR", choose(_TURNS["answer"][kind]).format(secrets[kind])),
        ]
    turns += [
        ("SYS", _TURNS["end"][topic].format(**secrets)),
        ("USR", choose(_TURNS["last"][satisfied])),
    ]
    said = {kind: secrets[kind] for kind in KINDS if kind in (*asked, "tracking_number")}
    text = "\n".join(f"{role}: {words}" for role, words in turns)
    return {TEXT: text, TOPIC: topic, SATISFIED: satisfied, SECRETS: json.dumps(said)}


EPSILON = 8.0


@dataclass(frozen=True)
class Demo:
    """One demo.

    Args:
        name: as `--data` takes it.
        noun: what its real rows are, for people.
        tables: makes or fetches the private and the held-out table; is called with what it fetches.
        text: text column.
        attributes: label columns.
        prompt: built-in template.
        base_model: that it takes unless another is named.
        training: recipe for any base model but gpt2-mini.
        mini: recipe for gpt2-mini.
        rows_per_label: rows of the twin for each combination of labels.
        known_rows: of the private table, those the real classifier learns from.
        heldout_rows: held-out rows that classifiers are tested on.
        classifiers: by name; the last is the judge of labels.
        embedded: whether texts are compared by embeddings, which are an asset.
        secrets: column of what was planted in a row: JSON, kind → value. None: nothing was.
        privacy: what may move the guarantee.
        sampling: how rows are drawn.
    """

    name: str
    noun: str
    tables: Callable[[Say], tuple[pd.DataFrame, pd.DataFrame]]
    text: str
    attributes: tuple[str, ...]
    prompt: str
    base_model: str
    training: TrainingConfig
    mini: TrainingConfig
    rows_per_label: int
    known_rows: int
    heldout_rows: int
    classifiers: tuple[str, ...]
    embedded: bool = True
    secrets: str | None = None
    # No teacher: in the time of a demo it cannot read thousands of texts.
    privacy: PrivacyConfig = PrivacyConfig(target_epsilon=EPSILON, teacher_share=0.0)
    sampling: SamplingConfig = SamplingConfig()

    def config(self, base_model: str | None = None) -> RunConfig:
        """Return the options of its run; without a base model, the demo's own."""
        name = self.base_model if base_model is None else base_model
        recipe = self.mini if name == GPT2_MINI else self.training
        training = replace(recipe, base_model=name, max_minutes=None)  # it says what it takes
        return RunConfig(privacy=self.privacy, training=training, sampling=self.sampling)

    def planted(self, rows: pd.DataFrame) -> list[dict[str, str]]:
        """Return by row what was planted in it: kind → value."""
        return [json.loads(cell) for cell in rows[self.secrets]] if self.secrets else []


# As many record visits as fit into the time. Spent in few large steps, with a larger rate, they
# drown in less noise: docs/tuning.md has the figures.
_REVIEWS = TrainingConfig(steps=4, batch_size=252, learning_rate=0.012, max_tokens=48)

REVIEWS = Demo(
    name="reviews",
    noun="real reviews",
    tables=load_reviews,
    text="review",
    attributes=("verdict",),
    prompt="film-verdict",
    base_model="smollm2-135m-text",
    training=_REVIEWS,
    mini=replace(_REVIEWS, steps=10, batch_size=1008, learning_rate=0.008),
    rows_per_label=300,  # as many of either: how they are mixed differs from film to film
    known_rows=1500,
    heldout_rows=2500,
    classifiers=("tfidf", "minilm"),
)

SUPPORT_ROWS, SUPPORT_HELD_OUT = 8000, 2000
SUPPORT_SEED = 1  # the dialogues of seed 0 were looked at while the recipe was chosen


def _dialogues(say: Say) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = make_dialogues(SUPPORT_ROWS + SUPPORT_HELD_OUT, SUPPORT_SEED)
    return table[:SUPPORT_ROWS], table[SUPPORT_ROWS:].reset_index(drop=True)


SUPPORT = Demo(
    name="support",
    noun="support dialogues",
    tables=_dialogues,
    text=TEXT,
    attributes=(TOPIC, SATISFIED),
    prompt="support-dialogue",
    base_model=GPT2_MINI,
    training=replace(_REVIEWS, max_tokens=192),
    # All weights: in as many steps, adapters of so small a model learn half as much. Wrong prompts
    # would cost half the visits, and taught no label either. The longest dialogue has 184 tokens.
    mini=TrainingConfig(
        method="full",
        steps=10,
        batch_size=400,
        learning_rate=0.0025,
        max_tokens=192,
        mismatch_weight=0.0,
    ),
    rows_per_label=40,
    known_rows=1500,
    heldout_rows=SUPPORT_HELD_OUT,
    classifiers=("tfidf",),
    embedded=False,
    secrets=SECRETS,
)

DEMOS = {demo.name: demo for demo in (REVIEWS, SUPPORT)}


def demo_named(name: str) -> Demo:
    """Return a demo.

    Raises:
        InputError: there is none of that name.
    """
    if name not in DEMOS:
        raise InputError(f"`data={name}`: is none of {', '.join(DEMOS)}")
    return DEMOS[name]


def run_demo(
    demo: Demo = REVIEWS,
    run: Path | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
    base_model: str | None = None,
    device: str = AUTO,
) -> DemoReport:
    """Make a twin of the demo's table and measure it. It takes a few minutes.

    Args:
        demo: which one.
        run: the run folder. None takes the first free `runs/demo-<n>`.
        progress: is notified of what happens.
        overwrite: whether an existing run may be replaced.
        base_model: asset, local folder or hub name. None takes the demo's own.
        device: that computes, as `device_of` takes it.

    Raises:
        InputError: an asset is out of reach, the run folder cannot be written, or the device is not
            there.
    """
    progress = progress or Silent()
    config = replace(demo.config(base_model), speed=SpeedConfig(device=device))
    check_device(device, 1)
    train, heldout = demo.tables(progress.say)
    load_base(config.training.base_model, say=progress.say)  # before anything is written
    with TemporaryDirectory() as folder:
        table, known, tested = (
            Path(folder, name) for name in ("demo.parquet", "known.parquet", "held-out.parquet")
        )
        write_frame(train, table)
        write_frame(train.sample(demo.known_rows, random_state=0), known)
        write_frame(heldout.sample(demo.heldout_rows, random_state=0), tested)
        source = Source(str(table), demo.text, demo.attributes, prompt=demo.prompt)
        rows = RowsRequest(per_label=(str(demo.rows_per_label),))
        total = demo.rows_per_label * len(train[list(demo.attributes)].drop_duplicates())
        planned = plan_run(source, None, config, total, Silent())
        # The base model then writes as many rows. A minute is for loading and the classifiers.
        minutes = 1 + (planned.seconds + dict(planned.phases)["rows"]) / 60
        progress.say(f"the demo takes about {minutes:.0f} min on this machine (measured just now)")
        made = generate(source, config, rows, OutputPaths(run, overwrite=overwrite), progress).run
        assert made is not None
        request = EvaluationRequest(
            known, tested, classifiers=demo.classifiers, embedded=demo.embedded
        )
        release = Release.read(made, device=device)
        findings = evaluate(release, request, f"twinset demo --data {demo.name}", progress)
    twin = release.twin.frame
    if demo.secrets:  # count how many of the planted values the twin holds
        texts = twin[demo.text].tolist(), train[demo.text].tolist()
        found = replay_planted(*texts, demo.planted(train), demo.planted(heldout))
        findings = replace(findings, measured=(*findings.measured, *found))
    findings.save(made / "internal" / FILE)
    write_report(made)
    return DemoReport(demo, findings, twin.head(3), made)


@dataclass(frozen=True)
class DemoReport:
    """What the demo shows at its end. `rich` prints it.

    Args:
        demo: which one.
        findings: the figures.
        samples: a few rows of the twin.
        run: the run folder.
    """

    demo: Demo
    findings: Findings
    samples: pd.DataFrame
    run: Path

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        """Yield the tables, the rows and the paths."""
        from rich.text import Text

        yield self._make_accuracies()
        if self.demo.secrets:
            yield Text()
            yield self._make_secrets()
        yield Text("\nThree rows of the twin:")
        labels = self.samples[list(self.demo.attributes)].itertuples(index=False)
        for label, text in zip(labels, self.samples[self.demo.text], strict=True):
            yield Text(f"  {', '.join(label):7} {' '.join(text.split())}")
        yield Text("\n".join(("", *paragraphs(str(self.findings.about["guarantee"])), "")))
        for part, what in (
            ("share", "the twin, its card and its ledger: may be handed over"),
            ("model", "the model that wrote it: as safe as the twin"),
            ("internal", "figures computed on private rows: stay here"),
        ):
            yield Text(f"  {self.run / part}  {what}")

    def _make_accuracies(self) -> Table:
        """Return accuracies and label fidelity by what classifiers were trained on."""
        about, several = self.findings.about, len(self.demo.attributes) > 1
        *_, judge = self.demo.classifiers
        table = _make_table(
            f"Accuracy of classifiers on {self.demo.noun} they have not seen",
            f"twin: ε = {up_decimals(about['epsilon'])}, δ = {up_digits(about['delta'])}",
            ("label",) * several + ("trained on",),
            ("rows", "fidelity", *self.demo.classifiers),
        )
        for label in self.demo.attributes:
            for source in (REAL, TWIN, BASELINE):
                place = {"rows": source, "label": label}
                agreed = self.findings.find("label fidelity", **place, classifier=judge)
                table.add_row(
                    *(label,) * several,
                    source,
                    str(about["rows"][source]),
                    f"{agreed.value:.2f}" if agreed else "",
                    *(
                        str(self.findings.find("accuracy", **place, classifier=name))
                        for name in self.demo.classifiers
                    ),
                )
        return table

    def _make_secrets(self) -> Table:
        """Return how many of the planted values stand in the twin, by kind."""
        table = _make_table(
            "Planted personal data that stand in the twin, word for word",
            "private, held-out: values of that table alone; held-out rows were never trained on",
            ("kind",),
            ("private", "held-out: chance", "control: in the private rows"),
        )

        def count_hits(score: Score | None) -> str:
            return f"{round(score.value * score.n):,} of {score.n:,}" if score else ""

        for kind in (m.place["kind"] for m in self.findings.measured if m.score.name == PLANTED):
            counted = (
                ("replayed", "train only"),
                ("replayed", "held-out only"),
                (PLANTED, "train"),
            )
            scores = (self.findings.find(name, rows=rows, kind=kind) for name, rows in counted)
            table.add_row(kind, *map(count_hits, scores))
        return table


def _make_table(
    title: str, caption: str, words: tuple[str, ...], numbers: tuple[str, ...]
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True  # fits 80 columns
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
