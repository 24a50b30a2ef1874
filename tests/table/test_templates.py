"""Prompt templates: what is accepted, what is refused, and what a prompt looks like."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.refusals import refusal
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template, builtin_templates, load_template, wrong_combinations


def schema(**attributes) -> Schema:
    found = tuple(Attribute(name, "str", tuple(values)) for name, values in attributes.items())
    return Schema("review", "str", found, ("review", *attributes))


REVIEWS = schema(sentiment=["negative", "positive"], product=["dvd", "kitchen"])
FIVE = [1, 2, 3, 4, 5]
GENERIC = "Write a text with sentiment: positive and product: dvd:"


@pytest.mark.parametrize(
    ("source", "table", "combination", "prompt"),
    [
        (None, REVIEWS, ("positive", "dvd"), GENERIC),
        ("product-review", REVIEWS, ("positive", "dvd"), "Write a positive review about a dvd:"),
        ("Rate {star rating}, {star rating}!", schema(**{"star rating": FIVE}), (4,), "Rate 4, 4!"),
        ("{a:b!r}:", schema(**{"a:b!r": ["a", "b"]}), ("a",), "a:"),
        ("{a} {b}:", schema(a=["{b}", "x"], b=["1", "2"]), ("{b}", "2"), "{b} 2:"),
    ],
)
def test_a_combination_becomes_its_prompt(source, table, combination, prompt):
    template = load_template(source, table)
    assert template.render(combination) == prompt
    assert Template.from_dict(json.loads(json.dumps(asdict(template)))) == template


@pytest.mark.parametrize(
    ("source", "table", "parts"),
    [
        ("no-such", REVIEWS, "no-such|film-review|generic|product-review"),
        ("{sentiment} {product} {tone}", REVIEWS, "{tone}|sentiment, product|`attributes`"),
        ("{sentiment} {product} {", REVIEWS, "brace"),
        ("{sentiment.__class__} {product}", REVIEWS, "{sentiment.__class__}"),
        ("{sentiment!r} {product}", REVIEWS, "{sentiment!r}"),
        (None, schema(**{"a{b": ["x", "y"]}), "a{b|Rename"),
        (None, schema(**{"": ["x", "y"]}), "column ''|without a name|Rename"),
        ("{a}{b}:", schema(a=["x", "xy"], b=["yz", "z"]), "('x', 'yz')|('xy', 'z')"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_in_one_line(source, table, parts):
    message = refusal(load_template, source, table)
    assert all(part in message for part in parts.split("|")), message


OWN = """
prompt = "Write a {stars} review:"
[wording.stars]
1 = "very bad"
5 = "very good"
"""


def test_a_file_of_ones_own_has_wording_for_the_values_it_names(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    template = load_template(path, schema(stars=FIVE))
    assert template.name == "mine.toml"
    said = [template.render((stars,)) for stars in (1, 2, 5.0)]
    assert said == [f"Write a {word} review:" for word in ("very bad", "2", "very good")]


def test_builtins_are_those_promised_and_fit_their_own_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they are found from any folder
    promised = (
        "product-review film-review film-verdict e-mail support-message support-dialogue"
        " clinical-note personal-note news generic"
    )
    assert list(builtin_templates()) == sorted(promised.split())
    files = {path.stem for path in Path(__file__).parents[2].glob("prompts/*.toml")}
    assert files == set(builtin_templates())  # none is left out of the package
    for name, written in builtin_templates().items():
        assert written.pattern.endswith(":")
        template = load_template(name, schema(**written.example_values))
        assert "{" not in template.render(tuple(v[0] for v in written.example_values.values()))


def test_wrong_combinations_are_distinct_wrong_and_drawn_evenly():
    combinations, rng = schema(a="pqr", b="xy").combinations, np.random.default_rng(0)
    for count in (0, 1, 5, 9):
        wrong = wrong_combinations(("p", "x"), combinations, count, rng)
        assert len(wrong) == len(set(wrong)) == min(count, 5)
    draws = [wrong_combinations(("p", "x"), combinations, 2, rng) for _ in range(3000)]
    counts = {c: sum(c in draw for draw in draws) for c in combinations}
    assert counts.pop(("p", "x")) == 0
    assert all(abs(count - 1200) < 5 * np.sqrt(3000 * 0.4 * 0.6) for count in counts.values())
