"""Records as token sequences: what carries loss, in what order, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.refusals import refusal
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import Template, wrong_combinations
from twinset.table.tokenization import FACTS, TokenisedRecords, text_budget, tokenise

CONTEXT = 64
TEXTS = [
    "The story was great and I loved every minute of it.",
    "  Do not buy this one!\n",
    "Cheap – and it looks good…",
]
PRODUCTS = ("book", "film", "pan", "product", "kitchen")


def records(texts=TEXTS) -> Records:
    attributes = (Attribute("product", "str", PRODUCTS),)
    labels = [(PRODUCTS[i % len(PRODUCTS)],) for i in range(len(texts))]
    return Records(list(texts), labels, Schema("text", "str", attributes, ("text", "product")))


def template(pattern="Write a review about a {product}:") -> Template:
    return Template("mine", pattern, {}, ("product",))


def tokens(tokenizer, max_tokens=48, texts=TEXTS):
    return tokenise(records(texts), template(), tokenizer, CONTEXT, max_tokens)


@pytest.mark.parametrize(("mismatched", "k"), [(1, 2), (9, 5)])
def test_a_unit_is_the_right_prompt_and_then_distinct_wrong_ones(tokenizer, mismatched, k):
    """Loss lies on the text and its end and nowhere else."""
    made, chosen = tokens(tokenizer), [2, 0]
    sequences = made.sequences(chosen, mismatched, (0, 1))
    assert (sequences.per_unit, sequences.units) == (k, 2)
    by_prompt = {tuple(ids): label for label, ids in made.prompts.items()}
    for unit, i in enumerate(chosen):
        labels = []
        for row in range(unit * k, unit * k + k):
            ids, mask = sequences.input_ids[row], sequences.loss_mask[row]
            with_loss, length = ids[mask].tolist(), int(mask.long().argmax())
            assert with_loss == made.texts[i] and with_loss.count(tokenizer.eos_token_id) == 1
            assert with_loss[-1] == tokenizer.eos_token_id
            assert not mask[length + len(with_loss) :].any()
            label = by_prompt[tuple(ids[:length].tolist())]
            assert tokenizer.decode(ids[:length]) == f"Write a review about a {label[0]}:"
            labels.append(label)
        assert labels[0] == made.labels[i] and len(set(labels)) == k


def test_a_long_text_is_cut_and_does_not_end(tokenizer):
    whole = tokens(tokenizer)
    lengths = [len(ids) for ids in whole.texts]
    assert whole.truncated == 0
    for budget in (min(lengths), lengths[0], lengths[0] - 1):
        cut = tokens(tokenizer, budget)
        assert cut.truncated == sum(length > budget for length in lengths)
        for full, ids in zip(whole.texts, cut.texts, strict=True):
            assert ids == full[:budget]
            assert (tokenizer.eos_token_id in ids) == (len(full) <= budget)
    long = tokens(tokenizer, 10**6, [" ".join(TEXTS)] * 5)
    assert long.sequences(range(5), 4, (0, 1)).input_ids.shape[1] == CONTEXT
    assert long.truncated == 5


def test_further_texts_follow_and_take_their_room_from_the_text(tokenizer):
    end, further = tokenizer.eos_token, {"my_title": ["One line", "", "x " * 200]}
    plain = tokens(tokenizer)
    made = tokenise(records(), template(), tokenizer, CONTEXT, 48, further=further)
    assert tokenizer.decode(made.texts[0]) == f" {TEXTS[0]}{end}\n\nmy title: One line{end}"
    assert made.texts[1] == plain.texts[1]
    cue = tokenizer.encode("\n\nmy title:", add_special_tokens=False)
    for budget in (48, 16):  # a long one is cut, and so is the text before it
        made = tokenise(records(), template(), tokenizer, CONTEXT, budget, further=further)
        start = len(plain.texts[2]) if budget == 48 else budget // 2
        assert len(made.texts[2]) <= budget
        assert made.texts[2][:start] == plain.texts[2][:start]
        assert made.texts[2][start : start + len(cue)] == cue[: budget - start]


def rows_of(made: TokenisedRecords, indices: list[int], seed: tuple[int, int]) -> dict[int, list]:
    """Each record's own rows, padding taken away."""
    sequences = made.sequences(indices, 2, seed)
    end = sequences.loss_mask.long().cumsum(1).argmax(1) + 1
    rows = [ids[:n].tolist() for ids, n in zip(sequences.input_ids, end, strict=True)]
    k = sequences.per_unit
    return {i: rows[n * k : (n + 1) * k] for n, i in enumerate(indices)}


def test_a_records_sequences_do_not_depend_on_its_batch(tokenizer):
    """Else adding one record could change every other's gradient, and C would bound nothing."""
    made = tokens(tokenizer, texts=TEXTS * 8)
    everyone = rows_of(made, list(range(24)), (0, 1))
    for others in ([5], [23, 5], list(range(5, 24)), list(range(23, -1, -1))):
        assert rows_of(made, others, (0, 1))[5] == everyone[5]
    assert len({str(rows_of(made, [0], (0, step))[0][1:]) for step in range(40)}) > 4

    def drawn(indices):  # the control: one generator for all would
        rng, combinations = np.random.default_rng(0), tuple(made.prompts)
        return {i: wrong_combinations(made.labels[i], combinations, 2, rng) for i in indices}

    everyone, without_first = drawn(range(24)), drawn(range(1, 24))
    assert sum(everyone[i] != without_first[i] for i in range(1, 24)) > 12


@pytest.mark.parametrize(
    ("longest", "max_tokens", "budget"), [(10, 200, 54), (10, 20, 20), (56, 200, 8), (57, 200, 0)]
)
def test_the_token_budget_is_what_the_longest_prompt_leaves(longest, max_tokens, budget):
    prompts = {("a",): [1] * longest, ("b",): [1]}
    if budget:
        assert text_budget(prompts, CONTEXT, max_tokens) == budget
    else:
        said = refusal(text_budget, prompts, CONTEXT, max_tokens)
        assert "longest prompt has 57 tokens" in said


def test_a_row_is_as_wide_as_its_own_record_asks_never_its_neighbours():
    prompts = {("a",): [7] * 4, ("b",): [8] * 6}
    texts = [[1] * 3, [1] * 10, [1] * 11, [1] * 40]
    made = TokenisedRecords(texts, [("a",), ("b",)] * 2, prompts, 0, context=50)
    assert [made.padded_length(i) for i in range(4)] == [16, 16, 32, 48]
    assert replace(made, context=46).padded_length(3) == 46  # never wider than the model reads
    for i in range(4):
        found = made.sequences([i], 1, (0, 0))
        assert found.input_ids.shape == (2, made.padded_length(i))
        assert (
            found.input_ids[0].tolist()[:13]
            == [*made.prompts[made.labels[i]], *texts[i], *[0] * 9][:13]
        )


# -- kept on the disk: made once, whoever opens them ----------------------------------------------


@pytest.mark.parametrize("change", [None, "prompt", "unfinished"])
def test_tokens_are_reused_unless_they_would_differ(tokenizer, tmp_path, monkeypatch, change):
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


def test_other_prompts_reuse_the_tokens_of_texts(tokenizer, tmp_path):
    """Workers open the folder: they must train behind the prompts that rank 0 chose."""
    first, prompts = tokenise(records(), template(), tokenizer, CONTEXT, 48, tmp_path), {}
    for combination in first.prompts:
        prompts[combination] = tokenizer.encode(f"Review of {combination[0]}:")
    changed, opened = first.behind(prompts), TokenisedRecords.open(tmp_path)
    assert changed.prompts == opened.prompts == prompts != first.prompts
    assert list(changed.texts) == list(opened.texts) == list(first.texts)
