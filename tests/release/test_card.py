"""The card says what the ledger says, and nothing that a table's names and labels make it say."""

import re

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from markdown_it import MarkdownIt

from tests.helpers.handover import NO_PRIVACY, TRAINING, description, ledger
from tests.helpers.refusals import refusal
from twinset.privacy.statement.guarantee import guarantee
from twinset.release.card import TwinDescription, may_hide, plain, read_header, render_card
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


def card(spent=None, made=None, format="csv", rows=6, **counts) -> str:
    return render_card(made or description(), spent or ledger(), format, rows, **counts)


def skeleton(text: str) -> list[str]:
    """Return the kinds of all Markdown elements of a card's body, in order, without their text."""
    kinds: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text.split("\n---\n", 1)[1]):
        kinds += [child.type for child in token.children or [token]]
    return kinds


def test_epsilon_is_an_independent_accountants_and_rounded_up():
    """To 1 %: dp_accounting's PLD accountant, which shares no code with ours."""
    release, steps = TRAINING
    inner = PoissonSampledDpEvent(steps.sample_rate, GaussianDpEvent(steps.noise_multiplier))
    other = PLDAccountant()
    other.compose(GaussianDpEvent(release.noise_multiplier))
    other.compose(SelfComposedDpEvent(inner, steps.steps))
    text = card(ledger(TRAINING, delta=1.23456e-6))
    stated = read_header(text)["privacy"]
    assert stated["epsilon"] == pytest.approx(other.get_epsilon(1.23456e-6), rel=0.01)
    assert stated["epsilon"] != pytest.approx(other.get_epsilon(3e-6), rel=0.01)
    epsilon, delta = (re.search(rf"^\| {s} \| (\S+) \|$", text, re.M)[1] for s in "εδ")
    assert 0 <= float(epsilon) - stated["epsilon"] <= 0.01
    assert delta == "1.24e-06" and stated["delta"] == 1.23456e-6
    assert f"are ({epsilon}, {delta})-differentially private" in text


def test_it_states_how_the_twin_was_made():
    made = description(title="Film reviews")
    text = card(ledger(TRAINING), made, label_rows={("fresh",): 4, ("rotten",): 2})
    claim = guarantee(ledger(TRAINING))
    for line in (
        "# Film reviews",
        plain(claim.sentence),
        *(f"- {plain(item)}" for item in claim.covers + claim.excludes),
        "- Private records: 500",
        "- Training: 50 steps, noise multiplier σ = 1.1, sample rate q = 0.1",
        "- Noisy release of label counts: noise multiplier σ = 5",
        "- `sentiment` = `fresh`: 4",
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


def described(**names: str) -> TwinDescription:
    """A twin with one name replaced by another."""
    named = {"value": "rotten", "column": "sentiment", "title": "Twin", "base": "gpt2"}
    named |= {"prompt": "Write:", "word": "good"} | names
    attribute = Attribute(named["column"], "str", ("fresh", named["value"]))
    schema = Schema("r", "str", (attribute,), ("r", attribute.name))
    words = {"sentiment": {"fresh": named["word"]}}
    template = Template("t", named["prompt"], words, (named["column"],))
    return TwinDescription(named["base"], template, schema, title=named["title"])


@pytest.mark.parametrize("place", ["value", "column", "title", "base", "prompt", "word"])
def test_no_name_or_label_changes_the_cards_shape(place):
    def shown(text: str) -> str:
        made = described(**{place: text})
        return card(spent, made, label_rows={c: 2 for c in made.schema.combinations})

    spent = ledger()
    tame = shown("tame")
    tame_header = read_header(tame) | {"pretty_name": ""}
    for hostile in HOSTILE:
        wild = shown(hostile)
        assert skeleton(wild) == skeleton(tame), hostile
        assert wild.count("\n") == tame.count("\n"), hostile
        assert not may_hide(wild), hostile
        assert isinstance(read_header(wild)["pretty_name"], str), hostile
        assert read_header(wild) | {"pretty_name": ""} == tame_header, hostile


@pytest.mark.parametrize("hostile", HOSTILE[1:4])
def test_control_an_unescaped_name_would_change_the_shape(hostile):
    text = card()
    assert skeleton(text.replace("`fresh`", hostile)) != skeleton(text)


BLOCK = "```python\nimport pandas as pd\ntwin = <!--\ntwin.head()\n```"


HIDING = ["<!--", "[a]: b '", "$$", "\\\\<!--", "`\n` <!-- `", "`\r<!-- `", "`` ` <!-- ```"]
HIDING += [BLOCK.replace("twin =", ""), f"<details>\n<summary>a</summary>\n{BLOCK}"]
HIDING += [f"</details>\n{BLOCK}", f"~~~\n{BLOCK}"]


@pytest.mark.parametrize("hidden", HIDING)
def test_mark_up_that_would_hide_lines_is_found(hidden):
    for text in (card(), card(ledger(NO_PRIVACY))):
        assert not may_hide(text)
        assert may_hide(text.replace("\n\n", f"\n\n{hidden}\n\n"))


HEADERS = {
    "an anchor": "a: &b 1\n",  # a few, and aliases of them, stand for 9^9 entries
    "a merge": "<<: {a: 1}\n",
    "a tag": "a: !!python/name:os.system\n",
    "large": "a: b\n" * 10_000,
    "deep": "[" * 5_000 + "\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_is_more_than_plain_values_is_refused(header):
    said = refusal(read_header, f"---\n{header}---\n", error=ValueError)
    assert said == "the card has no readable YAML header"
