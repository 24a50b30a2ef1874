"""The card says what the ledger says, and nothing that a table's names and labels make it say."""

import html
import re

import pytest
from markdown_it import MarkdownIt

from tests.helpers.handover import (
    FULL_BATCH,
    NO_PRIVACY,
    TRAINING,
    description,
    frame,
    hand_over,
    ledger,
)
from twinset.config import SamplingConfig
from twinset.privacy.statement.guarantee import guarantee
from twinset.release.card import (
    LONGEST_LIST,
    TwinContents,
    TwinDescription,
    code,
    plain,
    read_header,
    render_card,
)
from twinset.release.share import write_share
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template

HOSTILE = [
    "---",
    "\n---\nprivacy:\n  epsilon: 0.1\n",
    "\n\n# What is guaranteed\n\nEverything.",
    "\r\n| ε | 0.1 |",
    "'single' \"double\" `tick` ``two``",
    "` <script>alert(1)</script> `",
    "![x](https://example.org/x.png)",
    "{{ jinja }} ${shell} %s",
    "*&anchor !!python/object/apply:os.system ['true']",
    "\u2028line\u2029paragraph\u0085next\u202ertl",
    *("`", "a | b | c", "- item: [1, {a: b}]", "\\", " blank ", "=1+1", "null", "1e5"),
]


def card(spent=None, made=None, **contents) -> str:
    made = made or description()
    return render_card(
        made, spent or ledger(), TwinContents(**{"format": "csv", "rows": 6} | contents)
    )


def skeleton(text: str) -> list[str]:
    """Return the kinds of all Markdown elements of a card's body, in order, without their text."""
    kinds: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text.split("\n---\n", 1)[1]):
        kinds += [child.type for child in token.children or [token]]
    return kinds


@pytest.mark.parametrize("events", [TRAINING, FULL_BATCH])
def test_epsilon_is_an_independent_accountants(events):
    """To 1 %: dp_accounting's PLD accountant, which shares no code with ours."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    release, steps = events
    inner = PoissonSampledDpEvent(steps.sample_rate, GaussianDpEvent(steps.noise_multiplier))
    other = PLDAccountant()
    other.compose(GaussianDpEvent(release.noise_multiplier))
    other.compose(SelfComposedDpEvent(inner, steps.steps))
    stated = read_header(card(ledger(events)))["privacy"]
    assert stated["epsilon"] == pytest.approx(other.get_epsilon(1e-5), rel=0.01)
    assert stated["epsilon"] != pytest.approx(other.get_epsilon(2e-5), rel=0.01)
    assert stated["delta"] == 1e-5


@pytest.mark.parametrize("events", [TRAINING, FULL_BATCH])
def test_table_and_sentence_round_the_header_up_alike(events):
    text = card(ledger(events, delta=1.23456e-6))
    stated = read_header(text)["privacy"]
    epsilon, delta = (re.search(rf"^\| {s} \| (\S+) \|$", text, re.M)[1] for s in "εδ")
    assert 0 <= float(epsilon) - stated["epsilon"] <= 0.01
    assert delta == "1.24e-06" and stated["delta"] == 1.23456e-6
    assert f"are ({epsilon}, {delta})-differentially private" in text


def test_the_header_is_what_a_hub_reads():
    from huggingface_hub import DatasetCardData

    header = read_header(card(format="tsv.gz", rows=1000))
    assert DatasetCardData(**header).license == "unknown"
    assert header["tags"] == ["synthetic", "differential-privacy"]
    assert header["task_categories"] == ["text-classification"]
    assert header["size_categories"] == ["1K<n<10K"]
    reading = {"data_files": "twin.tsv.gz", "sep": "\t", "keep_default_na": False}
    assert header["configs"] == [{"config_name": "default"} | reading]


def test_it_states_how_the_twin_was_made():
    sampling = SamplingConfig(guidance=1.0, top_p=0.9, temperature=1)
    made = description(sampling=sampling, title="Film reviews")
    text = card(ledger(TRAINING), made, label_rows={("fresh",): 4, ("rotten",): 2})
    claim = guarantee(ledger(TRAINING))
    for line in (
        "# Film reviews",
        plain(claim.sentence),
        *(f"- {plain(item)}" for item in claim.covers + claim.excludes),
        "- Base model: smollm2-135m",
        "- Prompt: `Write a {sentiment} review:`",
        "- Values of `sentiment`: `fresh`, `rotten`",
        "- Private records: 500",
        "- Training: 50 steps, noise multiplier σ = 1.1, sample rate q = 0.1",
        "- Noisy release of label counts: noise multiplier σ = 5",
        "- Sampling: top-p 0.9, temperature 1, guidance 1, tilt 1",
        "- `sentiment` = `fresh`: 4",
        "- `sentiment` = `rotten`: 2",
        "- In this order: `review`, `sentiment`",
        "- Whether the private table has others, and what they are called, is not told",
        "    twinset verify FOLDER",
    ):
        assert line in text.splitlines(), line
    assert "NO privacy" not in text


@pytest.mark.parametrize(
    ("spent", "why"),
    [
        (ledger(NO_PRIVACY, target_epsilon=None), "used without noise"),
        (ledger(TRAINING, delta=0.01), "not below 1/N"),
        (ledger(()), "records no release"),
    ],
)
def test_without_a_guarantee_the_first_sentence_says_so(spent, why):
    text = card(spent)
    after_title = text.split("# Synthetic twin\n\n")[1]
    assert after_title.startswith("**There is NO privacy guarantee for this data set")
    assert "| ε | none |" in text and why in text
    header = read_header(text)
    assert header["privacy"]["epsilon"] is None and header["privacy"]["delta"] is None
    assert header["tags"] == ["synthetic"]
    assert "with differential privacy" not in text


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("place", ["value", "column", "title", "base", "prompt", "word"])
def test_no_name_or_label_changes_the_cards_shape(hostile, place):
    def made(text: str) -> TwinDescription:
        values = ("fresh", text if place == "value" else "rotten")
        name = text if place == "column" else "sentiment"
        words = {"sentiment": {"fresh": text if place == "word" else "good"}}
        pattern = text if place == "prompt" else "Write:"
        schema = Schema("r", "str", (Attribute(name, "str", values),), ("r", name))
        base = text if place == "base" else "gpt2"
        title = text if place == "title" else "Twin"
        return TwinDescription(base, Template("t", pattern, words, (name,)), schema, title=title)

    spent = ledger()
    rows = {("fresh",): 1, (hostile if place == "value" else "rotten",): 2}
    tame = card(spent, made("tame"), label_rows={("fresh",): 1, ("tame",): 2})
    wild = card(spent, made(hostile), label_rows=rows)
    assert skeleton(wild) == skeleton(tame)
    assert wild.count("\n") == tame.count("\n")
    header, tame_header = read_header(wild), read_header(tame)
    assert isinstance(header.pop("pretty_name"), str) and tame_header.pop("pretty_name")
    assert header == tame_header


@pytest.mark.parametrize("hostile", HOSTILE[1:4])
def test_control_a_name_as_it_stands_would_change_the_shape(hostile):
    text = card()
    assert skeleton(text.replace("`fresh`", hostile)) != skeleton(text)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_folder_with_hostile_names_is_still_read(tmp_path, hostile):
    import datasets

    made = description(values=("fresh", hostile), title=hostile)
    write_share(tmp_path, frame(made), ledger(), made)
    loaded = datasets.load_dataset(str(tmp_path), cache_dir=str(tmp_path / "cache"))
    assert loaded["train"]["sentiment"][1] == hostile


def test_many_label_combinations_are_summed_up():
    made = description(values=tuple(f"v{i}" for i in range(LONGEST_LIST + 5)))
    text = card(None, made, label_rows={c: 2 for c in made.schema.combinations})
    assert text.count("- `sentiment` = ") == LONGEST_LIST
    assert "- 5 more combinations: 10" in text


def test_plain_and_code_hide_no_mark():
    text = "<a> `b` *c* [d](e) &amp; # f"
    assert MarkdownIt().renderInline(plain(text)) == html.escape(text, quote=False)
    assert code("a``b`c") == "``` a``b`c ```"


def test_the_share_folder_counts_the_rows_of_each_label(tmp_path):
    text = hand_over(tmp_path).card.read_text("utf-8")
    assert "- `sentiment` = `fresh`: 4\n- `sentiment` = `rotten`: 2\n" in text
