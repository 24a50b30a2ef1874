"""What is filtered and what is not, and where unfinished rows end: with controls of both kinds."""

import json

import pandas as pd
import pytest

from tests.helpers.commands import run_twinset
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.sampling.rows import RowGroups
from twinset.sampling.sampler import LEAST_LEFT, Row, cut_at_sentence, is_unwanted

DEBRIS = [
    "Too heavy.\nLabels: Chicago Movie Shame, Screw Up, Bad Taste",
    "Labels:Class",
    "This review focuses on the acting.",
    "Too repetitive.\nWrite a review about a speaker: A great find.",
    "Rewrite the sentence to make it positive.",
    "Your review should be at least 50 words long.",
    "As an AI language model, I have not seen it.",
    "Good. <br /><br />Go.",
    "All rights reserved.",
    "A fine film.\nRead more",
    "#### Review",
]
VULGAR = ["What a shitty film", "FUCK this", "he is a real dickhead", "Bullshit."]
PLAIN = [
    "This film focuses on a family, and the reviewer will write a review about it.",
    "The label says class: it was a gift.",  # not a heading
    "I would love to read more about this movie.",
    "Agent: Please write to us at https://example.org. Customer: I will.",
    "-----Original Message-----\nFrom: Anna",
    "He graduated summa cum laude and lives in Scunthorpe with a cockatoo, an ass and a titmouse.",
    "The class was assessed; she passed with 5 stars ****",
    "3 < 5 and 7 > 2; Dick Van Dyke drank a cocktail.",
    "",
]


@pytest.mark.parametrize("text", DEBRIS)
def test_debris_is_found(text):
    assert is_unwanted(text, "debris") and is_unwanted(text, "all")
    assert not is_unwanted(text, "vulgar") and not is_unwanted(text, "none")


@pytest.mark.parametrize("text", VULGAR)
def test_vulgar_words_are_found(text):
    assert is_unwanted(text, "vulgar") and is_unwanted(text, "all")
    assert not is_unwanted(text, "debris") and not is_unwanted(text, "none")


@pytest.mark.parametrize("text", PLAIN)
def test_what_looks_alike_stays(text):
    assert not is_unwanted(text, "all")


def test_a_long_text_is_searched_in_no_time():
    import time

    began = time.process_time()
    for text in ("<a" * 50_000, "write a " * 20_000, "_" * 100_000, "\n" * 50_000):
        is_unwanted(text, "all")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It was a fine film. I was glad to", "It was a fine film."),
        ("It was fine! “Really?” she asked me and", "It was fine! “Really?” she asked me and"),
        ("All of it was fun (mostly.) Then the", "All of it was fun (mostly.)"),
        ("The plot by Mr. Smith and Dr. No", "The plot by Mr. Smith and Dr. No"),
        ("It cost 3.50 dollars and broke", "It cost 3.50 dollars and broke"),
        ("Sehr gut gemacht. Ärger gab", "Sehr gut gemacht."),
        ("这部电影非常好看。但是", "这部电影非常好看。"),
        ("Ok. And then a very long unfinished one", "Ok. And then a very long unfinished one"),
        ("Whole. And whole.", "Whole. And whole."),
        ("", ""),
    ],
)
def test_an_unfinished_text_ends_with_its_last_sentence(text, left):
    assert cut_at_sentence(text) == left
    assert text.startswith(left) and len(left) >= LEAST_LEFT * len(text)


def test_groups_keep_how_much_was_filtered(tmp_path):
    kept = RowGroups(tmp_path)
    kept.write(0, [Row(("a",), "x", 2, 1), Row(("b",), "y")])
    kept.write(1, [Row(("a",), "z", 3)])
    for groups in (kept, RowGroups(tmp_path)):
        assert [(row.filtered, row.unfinished) for row in groups.rows()] == [
            (2, 1),
            (0, 0),
            (3, 0),
        ]
    (tmp_path / "rows-000002.json").write_text('[[["a"], "of before there was a filter"]]')
    assert kept.read(2) == [Row(("a",), "of before there was a filter")]


@pytest.mark.parametrize("options", [{"endings": "drop"}, {"filter": "rude"}, {"filter": True}])
def test_what_is_no_such_choice_is_refused(options):
    with pytest.raises(InputError, match=f"`{next(iter(options))}`"):
        SamplingConfig(**options)


def test_the_card_counts_what_was_filtered_and_the_rows_stay_as_many(
    tmp_path, monkeypatch, capsys, tiny_base
):
    monkeypatch.chdir(tmp_path)
    texts = [f"The film of number {n} was good and long." for n in range(24)]
    pd.DataFrame({"review": texts, "mood": ["a", "b"] * 12}).to_csv("t.csv", index=False)
    given = (
        "--steps",
        "2",
        "--batch-size",
        "8",
        "--max-tokens",
        "16",
        "--quiet",
        "--format",
        "csv",
    )
    columns = ("--text", "review", "--attribute", "mood", "--base-model", tiny_base, "--rows", "12")
    # a list of one, which half of what a random model writes holds
    monkeypatch.setattr(
        "twinset.sampling.sampler.is_unwanted",
        lambda text, kinds: kinds == "debris" and len(text) % 2 == 1,
    )
    made = run_twinset(
        capsys,
        *("generate", "t.csv", *columns, *given, "--run", "run", "--filter", "debris"),
        *("--endings", "redraw"),
    )
    assert made.code == 0, made.err
    twin = pd.read_csv("run/share/twin.csv", keep_default_na=False)
    assert len(twin) == 12
    card = (tmp_path / "run/share/README.md").read_text("utf-8")
    lines = [line for line in card.splitlines() if "drawn again" in line]
    assert all(int(line.split(": ")[1].split()[0]) > 0 for line in lines)
    assert "by public lists" in lines[0] and "short texts are more frequent here" in lines[1]
    again = run_twinset(
        capsys, "sample", "run", "--rows", "6", "--quiet", "--overwrite", "--format", "csv"
    )
    assert again.code == 0, again.err
    assert "drawn again" not in (tmp_path / "run/share/README.md").read_text("utf-8")
    stored = json.loads((tmp_path / "run/internal/config.json").read_text())["sampling"]
    assert (stored["filter"], stored["endings"]) == ("debris", "redraw")
