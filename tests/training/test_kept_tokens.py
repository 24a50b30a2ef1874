"""Tokens on the disk: made once, whoever opens them."""

import pytest

from tests.table.test_tokenization import CONTEXT, records, template
from twinset.table.tokenization import FACTS, TokenisedRecords, tokenise


class Counting:
    """A tokenizer that counts the texts it is given."""

    def __init__(self, tokenizer):
        self._tokenizer, self.texts = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, texts, **options):
        self.texts += len(texts)
        return self._tokenizer(texts, **options)


def test_what_was_tokenised_is_not_tokenised_again(tokenizer, tmp_path):
    counting, table = Counting(tokenizer), records()
    first = tokenise(table, template(), counting, CONTEXT, 6, tmp_path)
    assert counting.texts == len(table) and first.truncated > 0
    again = tokenise(table, template(), counting, CONTEXT, 6, tmp_path)
    assert counting.texts == len(table)
    assert list(again.texts) == list(first.texts) and list(again.labels) == list(first.labels)
    assert (again.prompts, again.truncated) == (first.prompts, first.truncated)


@pytest.mark.parametrize("change", ["prompt", "context", "unfinished"])
def test_other_tokens_are_made_anew(tokenizer, tmp_path, change):
    counting, table = Counting(tokenizer), records()
    tokenise(table, template(), counting, CONTEXT, 48, tmp_path)
    if change == "unfinished":
        (tmp_path / FACTS).unlink()
    other = template("Review of a {product}:") if change == "prompt" else template()
    context = CONTEXT - 1 if change == "context" else CONTEXT
    made = tokenise(table, other, counting, context, 48, tmp_path)
    assert counting.texts == 2 * len(table)
    assert made.prompts == tokenise(table, other, tokenizer, context, 48).prompts


def test_behind_other_prompts_texts_are_not_made_again(tokenizer, tmp_path):
    """Workers open the folder: they must train behind the prompts that rank 0 chose."""
    first, prompts = tokenise(records(), template(), tokenizer, CONTEXT, 48, tmp_path), {}
    for combination in first.prompts:
        prompts[combination] = tokenizer.encode(f"Review of {combination[0]}:")
    changed, opened = first.behind(prompts), TokenisedRecords.open(tmp_path)
    assert changed.prompts == opened.prompts == prompts != first.prompts
    assert list(changed.texts) == list(opened.texts) == list(first.texts)
