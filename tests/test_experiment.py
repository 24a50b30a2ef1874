"""How any experiment is run: what it says, how it goes on, and what is left of it."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from evaluation.papers.experiment import described, run
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of, ratio
from evaluation.papers.options import Options
from evaluation.papers.page import table
from evaluation.papers.report import Paper, Report, Section
from evaluation.papers.summary import as_table, read_summary
from evaluation.papers.verdict import Verdict, Word, together, word_of
from evaluation.papers.workshop import Workshop
from twinset.errors import InputError
from twinset.progress import Silent


@dataclass(frozen=True)
class Toss:
    coin: str
    seed: int

    @property
    def key(self):
        return (self.coin, self.seed)


@dataclass
class Coins:
    """An experiment: two coins, tossed; it breaks off at the row numbered `stop`."""

    bias: float = 0.9
    stop: int | None = None
    made: list = field(default_factory=list)

    name, size, paper = "coins", "tiny", Paper("Nobody (2020)", "Coins", "one coin is | better")

    def plan(self):
        yield f"two coins, bias {self.bias}"

    def cases(self, seeds):
        return [Toss(coin, seed) for seed in range(seeds) for coin in ("fair", "other")]

    def sources(self):
        return {"coins": "a purse"}

    def settings(self):
        return {"bias": self.bias}

    def facts(self):
        return {"coins": 2}

    def row(self, case, workshop):
        if len(self.made) == self.stop:
            raise KeyboardInterrupt
        self.made.append(case.key)
        coin = torch.nn.Linear(1, 1)
        workshop.once(f"seed {case.seed}", coin, lambda: self.made.append("weights"))
        return {"heads": 0.5 if case.coin == "fair" else self.bias + case.seed / 100}

    def report(self, rows):
        fair, other = (
            {seed: row["heads"] for seed, row in rows.by_seed(coin).items()}
            for coin in ("fair", "other")
        )
        found = difference(other, fair)
        verdict = Verdict("coins", f"differ by {found}", word_of(found.above(0)))
        sections = [Section("Heads", table(["coin"], [["fair"]]))]
        return Report([verdict], "0.1", str(found), sections, ["a coin is fair or it is not"])

    def figure(self, rows):
        return Figure()


@pytest.fixture
def options(tmp_path):
    return Options(2, tmp_path / "out", False)


def test_a_plan_makes_nothing(options, capsys):
    coins = Coins()
    run(coins, Options(2, options.output, True))
    assert capsys.readouterr().out == "two coins, bias 0.9\n4 rows with 2 seeds\n"
    assert not coins.made and not options.output.exists()


def test_what_was_stopped_goes_on(options, capsys):
    with pytest.raises(KeyboardInterrupt):
        run(Coins(stop=2), options)
    kept = json.loads((options.output / "coins.json").read_text())
    assert len(kept["rows"]) == 1 and kept["summary"] is None
    again = Coins()
    run(again, options)
    # the weights that were kept are not made again
    assert again.made == [("other", 0), ("fair", 1), "weights", ("other", 1)]
    assert {path.name for path in options.output.iterdir()} == {
        "coins.json",
        "coins.md",
        "coins.png",
    }
    assert capsys.readouterr().out == (options.output / "coins.md").read_text()
    last = Coins()
    run(last, options)
    assert not last.made
    with pytest.raises(InputError, match=r"other settings \(bias\)"):
        run(Coins(bias=0.4), options)


@pytest.mark.parametrize(("bias", "word"), [(0.9, Word.HELD), (0.1, Word.NOT_HELD)])
def test_page_and_summary_say_what_was_found(options, bias, word):
    run(Coins(bias=bias), options)
    page = (options.output / "coins.md").read_text()
    for line in (
        "# Coins: Nobody (2020)",
        "![Coins](coins.png)",
        "- size: tiny",
        "- coins: a purse",
    ):
        assert line in page.splitlines()
    assert f": **{word}**\n" in page and "- a coin is fair or it is not" in page
    found = read_summary(options.output / "coins.json")
    assert found.word == word
    line = as_table([found])[-1]
    assert line.startswith(r"| Nobody (2020) | “one coin is \| better” | 0.1 |")
    assert line.endswith(f"| {word} |")


def test_one_seed_decides_nothing_by_itself(options):
    run(Coins(), Options(1, options.output, False))
    assert read_summary(options.output / "coins.json").word == Word.UNDECIDED


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"summary": null}', '{"summary": {}}'])
def test_results_that_are_not_finished_have_no_summary(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match="no finished experiment"):
        read_summary(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("hh", Word.HELD),
        ("nn", Word.NOT_HELD),
        ("uu", Word.UNDECIDED),
        ("hn", Word.PARTLY),
        ("hu", Word.PARTLY),
        ("pn", Word.PARTLY),
        ("nu", Word.UNDECIDED),
    ],
)
def test_words_come_together(words, word):
    letters = {str(one)[0]: one for one in Word}
    assert together(letters[letter] for letter in words) == word


def test_files_and_folders_are_told_by_their_contents(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    first, whole = described(tmp_path / "a.txt"), described(tmp_path)
    assert first.startswith("a.txt, SHA-256 ca978112")
    (tmp_path / "a.txt").write_text("b")
    assert described(tmp_path / "a.txt") != first and described(tmp_path) != whole
    with pytest.raises(InputError, match="cannot be read"):
        described(tmp_path / "none")


def test_weights_are_made_once(tmp_path):
    shop = Workshop(Silent(), tmp_path / "kept")
    torch.manual_seed(0)
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    assert shop.once("a", first, lambda: torch.nn.init.ones_(first.weight))
    assert not shop.once("a", second, pytest.fail)
    assert torch.equal(second.weight, torch.ones(2, 2))
    assert shop.once("b", third, lambda: None)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_means_and_differences_over_seeds():
    assert mean_of([1.0]) == Interval(1.0, -math.inf, math.inf, 1)
    found = mean_of([0.8, 0.9, 0.85])
    assert found.text(3) == "0.850 [0.726, 0.974]"
    assert mean_of([0.9, 1.0], 0.0, 1.0).high == 1.0
    assert geometric_mean([10.0]).text(1) == "10.0"
    assert difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.5, 2: 2.4}).above(0) is True
    with pytest.raises(ValueError):
        difference({0: 1.0}, {1: 1.0})


def groups(perplexity, seeds):
    """Groups of 10 tokens each, by seed, of about this perplexity."""
    rng, tokens = np.random.default_rng(int(perplexity)), np.full(20, 10.0)
    spread = rng.normal(0, 0.01, (seeds, 20))
    return {
        seed: np.column_stack([10 * (math.log(perplexity) + spread[seed]), tokens])
        for seed in range(seeds)
    }


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_ratio_is_of_the_same_seeds(seeds):
    found = ratio(groups(80, 3), groups(100, seeds))
    assert found.seeds == seeds
    assert found.value == pytest.approx(0.8, rel=0.02)
    assert found.low < found.value < found.high < 2
    with pytest.raises(ValueError):
        ratio(groups(80, 1), {})
