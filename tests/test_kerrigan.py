"""Paper 003's experiment, from the command line to its files, on made-up text."""

import math

import numpy as np
import pytest
from experiments import run, stopped_and_finished

from evaluation.papers.intervals import ratio
from evaluation.papers.kerrigan import training
from evaluation.papers.kerrigan.__main__ import app
from evaluation.papers.kerrigan.claim import (
    HELPFUL,
    POSSIBLE,
    UNCLEAR,
    UNDERFIT,
    USELESS,
    Evidence,
)
from evaluation.papers.kerrigan.corpora import Corpora, Lines
from evaluation.papers.kerrigan.people import SIZES as PEOPLE
from evaluation.papers.kerrigan.people import people
from evaluation.papers.kerrigan.published import BOTH, DELTA, PRIVATE, PUBLIC, SIGMAS
from evaluation.papers.kerrigan.sizes import SIZES
from evaluation.papers.learning import perplexity
from evaluation.papers.rows import Rows
from evaluation.papers.words import Words
from twinset.errors import InputError
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian, event_from_dict, event_to_dict
from twinset.privacy.groups import group_epsilon
from twinset.privacy.rounding import up_decimals

SUBJECTS = "dogs cats birds boats trains people children teachers".split()
VERBS = "like chase watch hear follow draw paint love".split()
PLACES = "here there everywhere outside inside downtown".split()


def sentences(count, seed, ending):
    rng = np.random.default_rng(seed)
    parts = (SUBJECTS, VERBS, SUBJECTS, PLACES, [ending])
    lines = [" ".join(part[rng.integers(len(part))] for part in parts) for _ in range(count)]
    return "\n".join(lines)


@pytest.fixture
def options(tmp_path):
    found = []
    names = ("public", "private-train", "private-dev", "private-test")
    for seed, (name, ending) in enumerate(zip(names, ["indeed", "lol", "lol", ""], strict=True)):
        path = tmp_path / f"{name}.txt"
        path.write_text(sentences(120, seed, ending))
        found += [f"--{name}", str(path)]
    return [*found, "--size", "tiny", "--seeds", "1", "--output", str(tmp_path / "out")]


def test_a_plan_reads_no_scored_text_and_trains_nothing(options, tmp_path):
    for name in ("dev", "test"):
        (tmp_path / f"private-{name}.txt").unlink()
    plan = run(app, *options, "--dry-run")
    for contestant in SIZES["tiny"].contestants:
        assert f"{contestant.name}: " in plan
    assert "σ = 1.1" in plan
    assert not (tmp_path / "out").exists()


def test_the_full_plan_has_the_papers_sizes(options):
    options[options.index("tiny")] = "full"
    plan = run(app, *options, "--dry-run")
    assert "feed-forward, words as numbers, large: " in plan
    size = SIZES["full"].contestants
    assert [c.shape.hidden for c in size if c.paper == "small"][0] == (500, 250, 50)
    assert [c.shape.hidden for c in size if c.paper == "large"][0] == (10_000, 5_000, 1_000)


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_needs_no_files(size, tmp_path):
    plan = run(app, "--size", size, "--seeds", "2", "--output", tmp_path / "out", "--dry-run")
    assert "as if they were the paper's" in plan
    rows = 2 * len(SIZES[size].contestants) * (1 + 2 * len(SIGMAS))
    assert plan.endswith(f"{rows} rows with 2 seeds\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("more", "option"), [([], "--public"), (["--public", "a.txt"], "--priv")])
def test_files_are_asked_for(more, option):
    with pytest.raises(InputError, match=f"{option}.*: name a file"):
        run(app, *more)


def test_bad_options_are_named(options):
    options[options.index("tiny")] = "huge"
    with pytest.raises(InputError, match="--size: 'huge' is none of tiny, cpu, full"):
        run(app, *options)


def test_a_folder_that_reads_too_little_is_refused(options, tiny_base):
    with pytest.raises(InputError, match="reads fewer than 256 tokens"):
        run(app, *options, "--gpt2", str(tiny_base), "--dry-run")


def test_word_counts_are_the_texts_own():
    lines = Lines(["so it goes", "so it went"], ["so"], ["it"], ["so went so"])
    corpora = Corpora.of(lines, Words.of(lines.public))
    shares = {"so": 3 / 11, "went": 2 / 11}  # one is added to each of the five numbers' counts
    expected = math.exp(-(2 * math.log(shares["so"]) + math.log(shares["went"])) / 3)
    assert perplexity(corpora.counts_groups(corpora.test)) == pytest.approx(expected)


def groups(perplexity, seeds=3, spread=0.01):
    """Groups of 10 tokens each, by seed, of about this perplexity."""
    rng = np.random.default_rng(int(perplexity))
    tokens = np.full(20, 10.0)
    return {
        seed: np.column_stack([10 * (math.log(perplexity) + rng.normal(0, spread, 20)), tokens])
        for seed in range(seeds)
    }


@pytest.mark.parametrize("seeds", [3, 1])
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({"public": 100, "both": 80, "private": 300, "quiet": 150}, POSSIBLE),
        ({"public": 100, "both": 80, "private": 150, "quiet": 120}, HELPFUL),
        ({"public": 100, "both": 80, "private": 300, "quiet": 250}, UNDERFIT),
        ({"public": 100, "both": 120, "private": 300, "quiet": 150}, USELESS),
        ({"public": 100, "both": 80, "private": 60, "quiet": 55}, USELESS),
        ({"public": 100, "both": 100, "private": 300, "quiet": 150}, UNCLEAR),
    ],
)
def test_the_verdict_is_computed(found, outcome, seeds):
    of = {name: groups(value, seeds) for name, value in {"counts": 200, **found}.items()}
    if found["both"] == found["public"]:
        by = 0.01 if seeds > 1 else 0.0  # better with one seed, worse with the next
        of["public"] = {s: g * [1 + by * (-1) ** s, 1] for s, g in of["both"].items()}
    pairs = [("both", "public"), ("both", "private"), ("private", "counts"), ("quiet", "counts")]
    judged = Evidence(*(ratio(of[ours], of[theirs]) for ours, theirs in pairs)).verdict("GPT-2")
    assert (judged.because, judged.word) == outcome
    assert len(judged.details) == 4


def test_people_with_several_lines_are_less_safe_than_one(tmp_path):
    rows = Rows.open(tmp_path / "a.json", {}, "command")
    step = SubsampledGaussian(1.1, 0.01, 50)
    for seed in range(2):  # the same training twice: one block
        rows.rows["model", BOTH, 1.1, seed] = {"events": [event_to_dict(step)]}
    body = [line.strip("| ").split(" | ") for line in people(rows).lines[4:]]
    alone = epsilon([step], DELTA)
    assert [cells[3] for cells in body] == [str(size) for size in PEOPLE]
    for size, cells in zip(PEOPLE, body, strict=True):
        assert cells[4] == up_decimals(alone / size)  # the paper's
        assert cells[7] == up_decimals(group_epsilon([step], DELTA, size))
        assert size == 1 or float(cells[7]) > alone > float(cells[4])


@pytest.mark.slow
def test_from_the_command_line_to_its_files(options, tmp_path, monkeypatch):
    done = stopped_and_finished(app, options, monkeypatch, training, "learn", after=9)
    levels = [(PUBLIC, 0.0), *((s, x) for s in (PRIVATE, BOTH) for x in SIGMAS)]
    keys = [tuple(row["key"]) for row in done.found["rows"]]
    assert keys == [(c.name, *level, 0) for c in SIZES["tiny"].contestants for level in levels]
    phases = len(SIZES["tiny"].contestants) * (1 + 2 * len(SIGMAS))
    assert done.calls == phases  # public text once a model, and each private row once
    for row in done.found["rows"]:
        check_epsilon(row)
    assert done.found["summary"]["published"].startswith("0.930")
    for said in ("3787.68", "1473.48", "9.75", "words as numbers", "SHA-256", "lines of a person"):
        assert said in done.page


def check_epsilon(row):
    """ε is the accountant's, of exactly the steps that the row took."""
    _, start, sigma, _ = row["key"]
    events = [event_from_dict(event) for event in row["events"]]
    if start == PUBLIC:
        assert (row["epsilon"], events) == (0.0, [])
    elif not sigma:
        assert row["epsilon"] is None
    else:
        (event,) = events
        assert event.noise_multiplier == sigma
        assert event.sample_rate * 120 == pytest.approx(64)
        assert event.steps == round(2 * 120 / 64)
        assert row["epsilon"] == epsilon(events, DELTA)
