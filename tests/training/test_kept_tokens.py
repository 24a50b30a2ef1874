"""Tokens on the disk: made once, whoever opens them."""

import pytest

from tests.table.test_tokenization import CONTEXT, records
from twinset.table.templates import Template
from twinset.table.tokenization import FACTS, TokenisedRecords, tokenise


def template(pattern="Write a review about a {product}:") -> Template:
    return Template("mine", pattern, {}, ("product",))


@pytest.mark.parametrize("change", [None, "prompt", "unfinished"])
def test_only_other_tokens_are_made_anew(tokenizer, tmp_path, monkeypatch, change):
    texts, plain = [], type(tokenizer).__call__
    monkeypatch.setattr(
        type(tokenizer),
        "__call__",
        lambda self, x, **more: texts.extend(x) or plain(self, x, **more),
    )
    table = records()
    first = tokenise(table, template(), tokenizer, CONTEXT, 6, tmp_path)
    assert len(texts) == len(table) and first.truncated > 0
    if change == "unfinished":
        (tmp_path / FACTS).unlink()
    other = template("Review of a {product}:") if change == "prompt" else template()
    again = tokenise(table, other, tokenizer, CONTEXT, 6, tmp_path)
    assert len(texts) == (1 if change is None else 2) * len(table)
    assert list(again.texts) == list(first.texts) and list(again.labels) == list(first.labels)
    assert (again.prompts == first.prompts) == (change != "prompt")
    assert again.truncated == first.truncated


def test_behind_other_prompts_texts_are_not_made_again(tokenizer, tmp_path):
    """Workers open the folder: they must train behind the prompts that rank 0 chose."""
    first, prompts = tokenise(records(), template(), tokenizer, CONTEXT, 48, tmp_path), {}
    for combination in first.prompts:
        prompts[combination] = tokenizer.encode(f"Review of {combination[0]}:")
    changed, opened = first.behind(prompts), TokenisedRecords.open(tmp_path)
    assert changed.prompts == opened.prompts == prompts != first.prompts
    assert list(changed.texts) == list(opened.texts) == list(first.texts)
