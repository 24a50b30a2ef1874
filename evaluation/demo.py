"""`twinset demo`: a twin made on this machine, and how good it is.

The table is public, or made up, and plays the private one. All else is as in `twinset generate`.
The dialogues follow CustomerSim (Shi et al. 2022): an agenda of turns, several wordings of each,
and words for the gaps. Their personal data is made up and in known places.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twinset.config import PrivacyConfig, RunConfig, SamplingConfig, SpeedConfig, TrainingConfig
from twinset.errors import InputError
from twinset.models.assets import GPT2_MINI, Say, asset_path, silent
from twinset.models.base_model import load_base
from twinset.models.device import check_device
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.wording import paragraphs
from twinset.progress import Progress
from twinset.run.generate import generate, plan_run
from twinset.run.plan import WRITING, Phases, say_duration
from twinset.run.request import OutputPaths, Source
from twinset.sampling.allocation import RowsRequest
from twinset.table.read import write_frame

from .evaluate import FILE, EvaluationRequest, evaluate
from .findings import Findings
from .leakage.names import PLANTED, replay_planted
from .release import BASELINE, REAL, TWIN, Release
from .report.page import write_report

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.table import Table

EPSILON = 8.0
MINUTES, MINI_MINUTES = 6.0, 1.5  # that a demo may take, with gpt2-mini in place of its own base
FEWEST_ROWS = 100  # of each combination of labels
CHEAP = 60.0  # seconds of private steps that are always taken
EVALUATED = 300  # texts that a model reads at the end
HELD_OUT_SHARE = 0.2  # of the films
SUPPORT_ROWS, SUPPORT_HELD_OUT = 8000, 2000
SUPPORT_SEED = 1  # the dialogues of seed 0 were looked at while the recipe was chosen
TEXT, TOPIC, SATISFIED, SECRETS = "text", "topic", "satisfied", "secrets"
KINDS = ("name", "phone", "email", "address", "order_number", "tracking_number")
# Words for the gaps of dialogues, and the wordings of each turn.
_STATED = tomllib.loads(Path(__file__).with_name("support_dialogues.toml").read_text("utf-8"))
_WORDS = {name: words.split() for name, words in _STATED["words"].items()}
_TURNS = _STATED["turns"]


def load_reviews(say: Say = silent) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the training and the held-out film reviews. No film and no text is in both.

    Both tables have the columns `film`, `verdict` ("fresh" or "rotten") and `review`, and the same
    rows in the same order every time. The asset `demo-reviews` must be cached or downloadable.
    """
    corpus = pd.read_csv(asset_path("demo-reviews", say), compression="bz2")
    # No plots, no blank texts, the first of equal texts. Stray spaces are removed first: they make
    # two films of one, and two reviews of one.
    reviews = corpus[corpus["category"].isin(["fresh", "rotten"])].dropna(subset="text")
    names = {"movie_name": "film", "category": "verdict", "text": "review"}
    reviews = reviews.rename(columns=names)[[*names.values()]]
    for column in ("film", "review"):
        reviews[column] = reviews[column].str.split().str.join(" ")
    reviews = reviews[reviews["review"] != ""].drop_duplicates("review", ignore_index=True)
    # A hash of its name says on which side a film is, and no library version changes that.
    hashes = reviews["film"].map(lambda film: hashlib.sha256(film.encode()).digest()[:8])
    is_held_out = hashes.map(lambda d: int.from_bytes(d, "big") < HELD_OUT_SHARE * 2**64)
    return reviews[~is_held_out].reset_index(drop=True), reviews[is_held_out].reset_index(drop=True)


def make_dialogues(rows: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Return a table of support dialogues. With one seed, a longer table begins like a shorter one.

    No person, address or number is real. Telephone numbers are of the block 555-01xx, which is
    reserved for fiction, and e-mail uses the domains that RFC 2606 reserves. Columns are `text`,
    `topic` (delivery, refund, damage or moving), `satisfied` ("yes" or "no") and `secrets`: JSON of
    the private values in the text, by kind. Each value occurs there once.
    """
    rng = np.random.default_rng(seed)

    def choose(some: list[str] | str) -> str:
        return str(some[int(rng.integers(len(some)))])

    def draw_digits(many: int) -> str:  # the first is no zero
        return str(rng.integers(10 ** (many - 1), 10**many))

    table = []
    for _ in range(rows):
        # Every draw moves the generator, so the order of these lines decides the table.
        topic, satisfied = choose(list(_TURNS["wish"])), choose(list(_TURNS["last"]))
        first, last = choose(_WORDS["first"]), choose(_WORDS["last"])
        street = f"{choose(_WORDS['street'])} {choose(_WORDS['way'])}"
        town = f"{choose(_WORDS['town'])}, {choose(_WORDS['state'])}"
        secrets = {
            "name": f"{first} {last}",
            "phone": f"({draw_digits(3)}) 555-01{draw_digits(2)}",
            "email": f"{first}.{last}{draw_digits(2)}@{choose(_WORDS['domain'])}".lower(),
            "address": f"{rng.integers(1, 9999)} {street}, {town} {draw_digits(5)}",
            "order_number": f"{draw_digits(3)}-{draw_digits(5)}-{draw_digits(4)}",
        }
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        tail = "".join(choose(letters + "0123456789") for _ in range(7))
        # Two letters and eight digits or letters, with one digit at least.
        secrets["tracking_number"] = f"{choose(letters)}{choose(letters)}{tail}{draw_digits(1)}"
        asked = ["name", *sorted(rng.permutation(list(_TURNS["question"])[1:])[:2])]
        greeting, wish = choose(_TURNS["greeting"]), choose(_TURNS["wish"][topic])
        turns = [("SYS", greeting), ("USR", wish.format(thing=choose(_WORDS["thing"])))]
        for kind in asked:
            turns.append(("SYS", choose(_TURNS["question"][kind])))
            turns.append(("USR", choose(_TURNS["answer"][kind]).format(secrets[kind])))
        turns.append(("SYS", _TURNS["end"][topic].format(**secrets)))
        turns.append(("USR", choose(_TURNS["last"][satisfied])))
        said = {kind: secrets[kind] for kind in KINDS if kind in (*asked, "tracking_number")}
        text = "\n".join(f"{role}: {words}" for role, words in turns)
        labels = {TOPIC: topic, SATISFIED: satisfied}
        table.append({TEXT: text, **labels, SECRETS: json.dumps(said)})
    return pd.DataFrame(table)


@dataclass(frozen=True)
class Demo:
    """One demo."""

    name: str  # as `--data` takes it
    noun: str  # what its real rows are, for people
    # Makes or fetches the private and the held-out table, and tells its argument what it fetches
    tables: Callable[[Say], tuple[pd.DataFrame, pd.DataFrame]]
    text: str
    attributes: tuple[str, ...]
    prompt: str  # built-in template
    base_model: str  # that it takes unless another is named
    training: TrainingConfig  # recipe for any base model but gpt2-mini
    mini: TrainingConfig  # recipe for gpt2-mini
    rows_per_label: int  # rows of the twin for each combination of labels
    known_rows: int  # of the private table, those the real classifier learns from
    heldout_rows: int  # held-out rows that classifiers are tested on
    classifiers: tuple[str, ...]  # by name. The last is the judge of labels.
    embedded: bool = True  # whether texts are compared by embeddings, which are an asset
    # Column of the values planted in a row: JSON, kind → value. None: no values.
    secrets: str | None = None
    # What may move the guarantee. No teacher: in the time of a demo it can't read that many texts.
    privacy: PrivacyConfig = PrivacyConfig(target_epsilon=EPSILON, teacher_share=0.0)
    sampling: SamplingConfig = SamplingConfig()  # how rows are drawn


def make_support(say: Say) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the training and the held-out support dialogues."""
    table = make_dialogues(SUPPORT_ROWS + SUPPORT_HELD_OUT, SUPPORT_SEED)
    return table[:SUPPORT_ROWS], table[SUPPORT_ROWS:].reset_index(drop=True)


# The number of record visits that fit into the time. In few large steps, with a larger rate, they
# have less noise: tuning.md has the figures.
_RECIPE = TrainingConfig(
    method="lora", steps=4, batch_size=252, learning_rate=0.012, max_tokens=48, mismatch_weight=8.0
)
REVIEWS = Demo(
    name="reviews",
    noun="real reviews",
    tables=load_reviews,
    text="review",
    attributes=("verdict",),
    prompt="film-verdict",
    base_model="smollm2-135m-text",
    training=_RECIPE,
    mini=replace(_RECIPE, steps=10, batch_size=1008, learning_rate=0.008),
    rows_per_label=300,  # equally many of either: their mix differs from film to film
    known_rows=1500,
    heldout_rows=2500,
    classifiers=("tfidf", "minilm"),
)
SUPPORT = Demo(
    name="support",
    noun="support dialogues",
    tables=make_support,
    text=TEXT,
    attributes=(TOPIC, SATISFIED),
    prompt="support-dialogue",
    base_model=GPT2_MINI,
    training=replace(_RECIPE, max_tokens=192),
    # All weights: adapters of such a small model learn half as much. Wrong prompts did not help.
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


class _Counts(Progress):
    """Forwards counts only. The run itself will show the notes."""

    def __init__(self, progress: Progress) -> None:
        self._to = progress

    def count(
        self, what: str, done: int, total: int, share: float | None = None, more: str = ""
    ) -> None:
        """See `twinset.progress.Progress`."""
        self._to.count(what, done, total, share, more)


def run_demo(
    name: str,
    run: Path | None,
    progress: Progress,
    overwrite: bool,
    base_model: str | None,
    device: str,
) -> DemoReport:
    """Make a twin of a demo's table and measure it. It first measures how long that will take."""
    if name not in DEMOS:
        raise InputError(f"`data={name}`: is none of {', '.join(DEMOS)}")
    demo = DEMOS[name]
    base_model = base_model or demo.base_model
    recipe = demo.mini if base_model == GPT2_MINI else demo.training
    config = RunConfig(
        privacy=demo.privacy,
        training=replace(recipe, base_model=base_model, max_minutes=None),  # it announces its cost
        sampling=demo.sampling,
        speed=SpeedConfig(device=device),
    )
    check_device(device, 1)
    train, heldout = demo.tables(progress.say)
    load_base(base_model, say=progress.say)  # before anything is written
    with TemporaryDirectory() as folder:
        names = "demo.parquet", "known.parquet", "held-out.parquet"
        table, known, tested = (Path(folder, name) for name in names)
        write_frame(train, table)
        write_frame(train.sample(demo.known_rows, random_state=0), known)
        write_frame(heldout.sample(demo.heldout_rows, random_state=0), tested)
        source = Source(str(table), demo.text, demo.attributes, prompt=demo.prompt)
        total = demo.rows_per_label * len(train[list(demo.attributes)].drop_duplicates())
        progress.say("measuring how long the demo takes on this machine")
        planned = plan_run(source, None, config, total, _Counts(progress))
        config, per_label, line = fit_demo(demo, config, planned.phases, total)
        progress.say(line)
        rows = RowsRequest(per_label=(str(per_label),))
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
        planted = ([json.loads(cell) for cell in rows[demo.secrets]] for rows in (train, heldout))
        found = replay_planted(*texts, *planted)
        findings = replace(findings, measured=(*findings.measured, *found))
    findings.save(made / "internal" / FILE)
    write_report(made)
    return DemoReport(demo, findings, twin.head(3), made)


def fit_demo(
    demo: Demo, config: RunConfig, phases: Phases, total: int
) -> tuple[RunConfig, int, str]:
    """Return what fits into its minutes, the rows of each combination of labels, and what to say.

    There are fewer rows, or no private steps. `phases` are those of a plan for `total` rows.
    """
    times = dict(phases)
    is_mini = config.training.base_model == GPT2_MINI
    limit = 60 * (MINI_MINUTES if is_mini and demo.base_model != GPT2_MINI else MINUTES)
    # The base model writes the same number of rows. A minute is for loading and the classifiers.
    row, training = 2 * times["rows"] / demo.rows_per_label, times.get("training", 0.0)
    other = 60 + sum(times.values()) - training + (EVALUATED / total / WRITING - 1) * times["rows"]
    fits = int((limit - other - training) / row)
    line = ""
    if fits < FEWEST_ROWS and training > CHEAP:
        line = f". It trains nothing, because private steps would take {say_duration(training)}"
        steps = replace(config.training, steps=0, batch_size=None, learning_rate=None)
        config, training = replace(config, training=steps), 0.0
        fits = int((limit - other) / row)
    per_label = max(min(FEWEST_ROWS, demo.rows_per_label), min(fits, demo.rows_per_label))
    if per_label < demo.rows_per_label:
        line += f". It writes {per_label} rows a label in place of {demo.rows_per_label}"
    seconds = other + training + row * per_label
    if seconds > 61 * MINUTES and not is_mini:
        line += f". `base_model={GPT2_MINI}` is quicker"
    return config, per_label, f"the demo takes about {say_duration(seconds)} on this machine{line}"


@dataclass(frozen=True)
class DemoReport:
    """The demo's final output, printed by `rich`."""

    demo: Demo
    findings: Findings
    samples: pd.DataFrame  # a few rows of the twin
    run: Path

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        """Yield the tables, the rows and the paths."""
        from rich.text import Text

        demo, about, find = self.demo, self.findings.about, self.findings.find
        labelled = ("label",) * (len(demo.attributes) > 1)  # a column if there are several
        accuracies = _make_table(
            f"Accuracy of classifiers on {demo.noun} they have not seen",
            f"twin: ε = {up_decimals(about['epsilon'])}, δ = {up_digits(about['delta'])}",
            (*labelled, "trained on"),
            ("rows", "fidelity", *demo.classifiers),
        )
        for label, source in product(demo.attributes, (REAL, TWIN, BASELINE)):
            place = {"rows": source, "label": label}
            agreed = find("label fidelity", **place, classifier=demo.classifiers[-1])
            scores = [str(find("accuracy", **place, classifier=c)) for c in demo.classifiers]
            fidelity = f"{agreed.value:.2f}" if agreed else ""
            head = (*((label,) if labelled else ()), source, str(about["rows"][source]))
            accuracies.add_row(*head, fidelity, *scores)
        yield accuracies
        if demo.secrets:
            secrets = _make_table(
                "Planted personal data that occur in the twin, word for word",
                "private, held-out: of that table only. Held-out rows were never trained on.",
                ("kind",),
                ("private", "held-out: chance", "control: in the private rows"),
            )
            columns = ("replayed", "train only"), ("replayed", "held-out only"), (PLANTED, "train")
            planted = (m.place for m in self.findings.measured if m.score.name == PLANTED)
            for kind in (place["kind"] for place in planted):
                shares = [find(name, rows=rows, kind=kind) for name, rows in columns]
                hits = [f"{round(s.value * s.n):,} of {s.n:,}" if s else "" for s in shares]
                secrets.add_row(kind, *hits)
            yield Text()
            yield secrets
        yield Text("\nThree rows of the twin:")
        labels = self.samples[list(demo.attributes)].itertuples(index=False)
        for label, text in zip(labels, self.samples[demo.text], strict=True):
            yield Text(f"  {', '.join(label):7} {' '.join(text.split())}")
        yield Text(f"\n{paragraphs(str(about['guarantee']))[0]}\n")
        for part, what in (
            ("share", "the twin, its card and its ledger: may be handed over"),
            ("model", "the model that wrote it: as safe as the twin"),
            ("internal", "figures computed on private rows: stay here"),
        ):
            yield Text(f"  {self.run / part}  {what}")


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
