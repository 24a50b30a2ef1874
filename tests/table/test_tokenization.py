"""Records as token sequences: what carries loss, in what order, and what is refused."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.helpers.refusals import refusal
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template, wrong_combinations
from twinset.table.tokenization import TokenisedRecords, prompt_tokens, text_budget, tokenise

CONTEXT = 64
TEXTS = [
    "The story was great and I loved every minute of it.",
    "  Do not buy this one!\n",
    "Cheap – and it looks good…",
]
PRODUCTS = ("book", "film", "pan", "product", "kitchen")


def records(texts=TEXTS, products=PRODUCTS) -> Records:
    attributes = (Attribute("product", "str", products),)
    labels = [(products[i % len(products)],) for i in range(len(texts))]
    return Records(list(texts), labels, Schema("text", "str", attributes, ("text", "product")))


def template(pattern: str = "Write a review about a {product}:") -> Template:
    return Template("mine", pattern, {}, ("product",))


def tokens(tokenizer, max_tokens: int = 48, table: Records | None = None) -> TokenisedRecords:
    return tokenise(table or records(), template(), tokenizer, CONTEXT, max_tokens)


def test_loss_lies_on_the_text_and_its_end_and_nowhere_else(tokenizer):
    made = tokens(tokenizer)
    sequences = made.sequences([0, 1, 2], 1, (0, 1))
    for row, (i, _) in enumerate(product(range(3), range(2))):
        with_loss = sequences.input_ids[row][sequences.loss_mask[row]].tolist()
        assert with_loss == made.texts[i]
        assert with_loss[-1] == tokenizer.eos_token_id
        assert with_loss.count(tokenizer.eos_token_id) == 1
        prompt_length = int(sequences.loss_mask[row].long().argmax())
        prompt = tokenizer.decode(sequences.input_ids[row, :prompt_length])
        assert prompt.startswith("Write a review about a ") and prompt.endswith(":")
        after = prompt_length + len(with_loss)
        assert not sequences.loss_mask[row, after:].any()


def test_decoding_gives_the_text_back_behind_one_space(tokenizer):
    made = tokens(tokenizer)
    for text, ids in zip(TEXTS, made.texts, strict=True):
        assert tokenizer.decode(ids[:-1]) == " " + text.strip()


def test_a_long_text_is_cut_and_does_not_end(tokenizer):
    whole = tokens(tokenizer)
    lengths = [len(ids) for ids in whole.texts]
    assert whole.truncated == 0
    budget = min(lengths)
    cut = tokens(tokenizer, max_tokens=budget)
    assert cut.truncated == sum(length > budget for length in lengths) == 2
    for full, ids in zip(whole.texts, cut.texts, strict=True):
        assert ids == full[:budget]
        assert (tokenizer.eos_token_id in ids) == (len(full) <= budget)


def test_one_token_more_than_the_budget_is_cut(tokenizer):
    length = len(tokens(tokenizer).texts[0])
    for budget, ends in ((length, True), (length - 1, False)):
        made = tokens(tokenizer, budget, records(TEXTS[:1]))
        assert (made.texts[0][-1] == tokenizer.eos_token_id) is ends
        assert made.truncated == (not ends)


@pytest.mark.parametrize(("mismatched", "per_unit"), [(0, 1), (1, 2), (3, 4), (4, 5), (9, 5)])
def test_a_unit_is_the_right_prompt_and_then_distinct_wrong_ones(tokenizer, mismatched, per_unit):
    made = tokens(tokenizer)
    sequences = made.sequences([2, 0], mismatched, (0, 1))
    assert (sequences.per_unit, sequences.units) == (per_unit, 2)
    by_prompt = {tuple(ids): label for label, ids in made.prompts.items()}
    for unit, i in enumerate([2, 0]):
        labels = []
        for row in range(unit * per_unit, (unit + 1) * per_unit):
            length = int(sequences.loss_mask[row].long().argmax())
            labels.append(by_prompt[tuple(sequences.input_ids[row, :length].tolist())])
        assert labels[0] == made.labels[i]
        assert len(set(labels)) == per_unit


def _rows(made: TokenisedRecords, indices: list[int], seed: tuple[int, int]) -> dict[int, list]:
    """Each record's own rows, padding taken away."""
    sequences = made.sequences(indices, 2, seed)
    end = sequences.loss_mask.long().cumsum(1).argmax(1) + 1
    rows = [ids[:n].tolist() for ids, n in zip(sequences.input_ids, end, strict=True)]
    k = sequences.per_unit
    return {i: rows[n * k : (n + 1) * k] for n, i in enumerate(indices)}


def test_a_records_sequences_do_not_depend_on_who_else_is_in_the_batch(tokenizer):
    """Else adding one record could change every other's gradient, and C would bound nothing."""
    made = tokens(tokenizer, table=records(TEXTS * 8))
    everyone = _rows(made, list(range(24)), (0, 1))
    for others in ([5], [23, 5], list(range(5, 24)), list(range(23, -1, -1))):
        assert _rows(made, others, (0, 1))[5] == everyone[5]


def test_control_one_generator_for_all_would(tokenizer):
    made = tokens(tokenizer, table=records(TEXTS * 8))

    def drawn(indices):
        rng = np.random.default_rng(0)
        combinations = tuple(made.prompts)
        return {i: wrong_combinations(made.labels[i], combinations, 2, rng) for i in indices}

    everyone, without_first = drawn(range(24)), drawn(range(1, 24))
    moved = sum(everyone[i] != without_first[i] for i in range(1, 24))
    assert moved > 12


def test_wrong_prompts_change_with_the_step_and_cover_all_others(tokenizer):
    made = tokens(tokenizer)
    seen = {str(_rows(made, [0], (0, step))[0][1:]) for step in range(40)}
    assert len(seen) > 4
    assert _rows(made, [0], (0, 3)) == _rows(made, [0], (0, 3))


def test_a_prompt_longer_than_the_context_is_refused(tokenizer):
    long = template("Write a review about a {product}, and make it " + "very " * 60 + "good:")
    message = refusal(tokenise, records(), long, tokenizer, CONTEXT, 48)
    assert "reads 64 in all; shorten `prompt`" in message


@pytest.mark.parametrize(
    ("longest", "max_tokens", "budget"), [(10, 200, 54), (10, 20, 20), (56, 200, 8)]
)
def test_the_token_budget_is_what_the_longest_prompt_leaves(longest, max_tokens, budget):
    assert text_budget({("a",): [1] * longest, ("b",): [1]}, CONTEXT, max_tokens) == budget


def test_a_prompt_that_leaves_too_few_tokens_is_refused():
    prompts = {("a",): [1] * 57, ("b",): [1]}
    assert "longest prompt has 57 tokens" in refusal(text_budget, prompts, CONTEXT, 200)


def test_no_sequence_is_longer_than_the_context(tokenizer):
    made = tokenise(records([" ".join(TEXTS)] * 5), template(), tokenizer, CONTEXT, 10**6)
    sequences = made.sequences(range(5), 4, (0, 1))
    assert sequences.input_ids.shape[1] == CONTEXT
    assert made.truncated == 5


def test_mean_length_counts_own_prompt_and_text():
    made = TokenisedRecords(
        [[1, 2], [3]], [("a",), ("b",)], {("a",): [7], ("b",): [8, 9, 9]}, 0, CONTEXT
    )
    assert made.mean_length == (1 + 2 + 3 + 1) / 2


def test_prompts_are_plain_tokens(tokenizer):
    prompts = prompt_tokens(template(), [("book",), ("pan",)], tokenizer)
    assert tokenizer.decode(prompts[("pan",)]) == "Write a review about a pan:"
    assert tokenizer.eos_token_id not in prompts[("pan",)]


def test_padding_comes_after_the_text():
    made = TokenisedRecords([[1, 2], [3]], [("a",), ("a",)], {("a",): [7]}, 0, context=3)
    sequences = made.sequences([0, 1], 3, (0, 0))
    assert sequences.input_ids.tolist() == [[7, 1, 2], [7, 3, 0]]
    assert sequences.loss_mask.tolist() == [[False, True, True], [False, True, False]]


def test_a_row_is_as_wide_as_its_own_record_asks_never_its_neighbours(tokenizer):
    prompts = {("a",): [7] * 4, ("b",): [8] * 6}
    texts = [[1] * 3, [1] * 10, [1] * 11, [1] * 40]
    made = TokenisedRecords(texts, [("a",), ("b",)] * 2, prompts, 0, context=50)
    assert [made.padded_length(i) for i in range(4)] == [16, 16, 32, 48]
    assert replace(made, context=46).padded_length(3) == 46  # never wider than the model reads
    for i in range(4):
        assert made.sequences([i], 1, (0, 0)).input_ids.shape == (2, made.padded_length(i))
