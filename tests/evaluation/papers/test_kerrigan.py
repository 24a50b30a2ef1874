"""Paper 003: its feed-forward model, its baselines, and a run from the command to its files."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from evaluation.papers import kerrigan
from evaluation.papers.feedforward import feed_forward
from evaluation.papers.kerrigan import BOTH, DELTA, GROUP_SIZES, LEVELS, Corpora, Kerrigan, Run
from evaluation.papers.language_model import perplexity, tokenised
from evaluation.papers.study import read_size
from evaluation.papers.study_rows import Results
from evaluation.papers.texts import Words
from tests.helpers import oracle
from tests.helpers.study_runs import notes_of, run_study, stopped_and_finished
from twinset.errors import InputError
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian, event_from_dict, event_to_dict
from twinset.privacy.accounting.group_privacy import group_epsilon
from twinset.privacy.accounting.rounding import up_decimals
from twinset.privacy.clipping import ClippingEngine
from twinset.training.mismatch_loss import MismatchLoss

PREVIOUS, HIDDEN = 4, (7, 6, 5)
LINES = ["so it goes so it goes so", "it it it it it it it it", "and so on", "on"]  # with ties
C = 0.5


def model_of(tokens, embedding):
    torch.manual_seed(0)
    return feed_forward(tokens.size, embedding, HIDDEN, PREVIOUS).double()


def window_by_window(model, line):
    """The same loss written again: one word at a time, its window laid out by hand."""
    layers, table, losses = model.base_model.layers, model.base_model.table, []
    seen = [0]  # begin
    for word in line:
        shown = [None] * (PREVIOUS - len(seen[-PREVIOUS:])) + seen[-PREVIOUS:]
        width = table.embedding_dim if table else 1
        zeros = torch.zeros(width, dtype=torch.float64)
        numbers = [zeros if w is None else _vector(table, w) for w in shown]
        hidden = torch.cat(numbers)
        for layer in layers:
            hidden = (layer.weight @ hidden + layer.bias).clamp(min=0)
        weight, bias = model.head.weight[:, :-1], model.head.weight[:, -1]
        losses.append(cross_entropy((weight @ hidden + bias)[None], torch.tensor([word])))
        seen.append(word)
    return torch.stack(losses).mean()


def _vector(table, word):
    return table.weight[word] if table else torch.tensor([float(word)], dtype=torch.float64)


@pytest.mark.parametrize("embedding", [3, 0], ids=["vectors", "numbers"])
@pytest.mark.parametrize("norm", [C, 1e9], ids=["clipped", "whole"])
def test_the_clipped_sum_is_that_of_whole_lines(embedding, norm):
    tokens = Words.of(LINES)
    records = tokenised(LINES, tokens, 64)
    model = model_of(tokens, embedding)
    parameters = list(model.parameters())
    gradients = [
        list(torch.autograd.grad(window_by_window(model, line), parameters))
        for line in records.texts
    ]
    names = [name for name, _ in model.named_parameters()]
    expected = oracle.clip_and_sum(gradients, names, norm)
    assert norm > 1 or max(expected.norms) > C, "nothing was clipped"

    engine = ClippingEngine(model, norm)
    engine.zero()
    reports = [  # several physical batches, padded in different ways
        engine.add(records.sequences(part, 0, (0, 0)), MismatchLoss(0.0, "bounded"))
        for part in ([0, 2], [1], [3])
    ]
    engine.close()
    norms = torch.cat([report.norms for report in reports])[[0, 2, 1, 3]].tolist()
    found = oracle.Clipped(norms, dict(zip(names, engine.sums, strict=True)))
    assert oracle.largest_error(found, expected) < 1e-5


def test_words_clipped_one_by_one_would_be_another_sum():
    """A negative control: the unit is the line, not its windows."""
    tokens = Words.of(LINES)
    model, records = model_of(tokens, 3), tokenised(LINES[:1], tokens, 64)
    engine = ClippingEngine(model, C)
    engine.zero()
    engine.add(records.sequences([0], 0, (0, 0)), MismatchLoss(0.0, "bounded"))
    engine.close()
    assert oracle.norm(engine.sums) <= C * (1 + 1e-6)
    line, parameters, total = records.texts[0], list(model.parameters()), 0.0
    for end in range(1, len(line) + 1):
        loss = window_by_window(model, line[:end]) * end
        loss = loss - (window_by_window(model, line[: end - 1]) * (end - 1) if end > 1 else 0)
        found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        total = total + found * min(1.0, C / float(found.norm()))
    assert float(total.norm()) > 1.5 * C


@pytest.mark.parametrize("embedding", [3, 0], ids=["vectors", "numbers"])
def test_a_position_sees_its_window_and_nothing_else(embedding):
    model = model_of(Words.of(LINES), embedding)
    ids = torch.tensor([[0, 1, 2, 3, 4, 1, 2]])
    before = model(ids).logits
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = 5
        moved = (model(changed).logits != before).any(-1)[0].nonzero().squeeze(1).tolist()
        assert set(moved) <= set(range(place, place + PREVIOUS))
        assert place in moved


def test_the_output_layer_has_a_bias():
    model = model_of(Words.of(LINES), 3)
    with torch.no_grad():
        model.head.weight[:, :-1] = 0
    logits = model(torch.tensor([[0, 1]])).logits[0]
    assert torch.equal(logits, model.head.weight[:, -1].expand(2, -1))


@pytest.fixture
def options(options_of, sentences):
    endings = {"public": "indeed", "private-train": "lol", "private-dev": "lol", "private-test": ""}
    numbered = enumerate(endings.items())
    return options_of({name: sentences(120, seed, end) for seed, (name, end) in numbered})


def test_the_full_size_has_the_papers_networks():
    models = [m for m in read_size("kerrigan", "full")["models"] if "paper" in m]
    hidden = {(m["paper"], *m["shape"]["hidden"]) for m in models}
    assert hidden == {("small", 500, 250, 50), ("large", 10_000, 5_000, 1_000)}


def test_the_notes_say_what_the_accountant_says_of_the_script():
    """The script's 12,000 batches of 64 from 689,763 examples."""
    notes = notes_of("kerrigan")
    for sigma in (0.1, 1.1):
        paper = kerrigan.TABLE_1["small", BOTH, sigma]["paper: ε"]
        ours = up_decimals(epsilon([SubsampledGaussian(sigma, 64 / 689_763, 12_000)], DELTA))
        assert f"{ours} at σ = {sigma:g}" in notes and f"{paper} at σ = {sigma:g}" in notes


def test_a_folder_that_reads_too_little_is_refused(options, tiny_base):
    with pytest.raises(InputError, match="reads fewer than 256 tokens"):
        run_study(Kerrigan, *options, "--gpt2", tiny_base)


def test_a_private_text_of_unknown_words_is_refused(options):
    with open(options[3], "w") as file:
        file.write("nothing known")
    with pytest.raises(InputError, match="--private-train: shares no word with the public text"):
        run_study(Kerrigan, *options)


def test_word_counts_are_the_texts_own():
    lines = {"public": ["so it goes", "so it went"], "train": ["so"], "dev": ["it"]}
    lines["test"] = ["so went so"]
    corpora = Corpora.of(lines, Words.of(lines["public"]))
    shares = {"so": 3 / 11, "went": 2 / 11}  # one is added to each of the five numbers' counts
    expected = math.exp(-(2 * math.log(shares["so"]) + math.log(shares["went"])) / 3)
    assert perplexity(corpora.counts_groups(corpora.test)) == pytest.approx(expected)


def test_people_with_several_lines_are_less_safe_than_one(tmp_path):
    step = SubsampledGaussian(1.1, 0.01, 50)  # the same training twice: one block
    row = {"events": [event_to_dict(step)]}
    rows = {Run("model", BOTH, 1.1, seed): row for seed in range(2)}
    table = list(kerrigan.people(Results(tmp_path / "a.json", {}, rows=rows)))
    alone = epsilon([step], DELTA)
    assert [row["lines of a person, γ"] for row in table] == list(map(str, GROUP_SIZES))
    for size, row in zip(GROUP_SIZES, table, strict=True):
        theirs, ours = row["paper: ε ÷ γ"], row["ε at δ = 1e-05"]
        assert theirs == up_decimals(alone / size)
        assert ours == up_decimals(group_epsilon([step], DELTA, size))
        assert size == 1 or float(ours) > alone > float(theirs)


@pytest.mark.slow
def test_from_the_command_to_its_files(options, monkeypatch):
    done = stopped_and_finished(Kerrigan, options, monkeypatch, kerrigan, "train_model", after=9)
    assert done.calls == len(done.found["rows"]) == 3 * len(LEVELS)  # public text once a model
    for row in done.found["rows"]:
        check_epsilon(row)
    for said in ("3787.68", "1473.48", "9.75", "words as numbers", "SHA-256", "lines of a person"):
        assert said in done.page


def check_epsilon(row):
    """ε is the accountant's, of exactly the steps that the row took."""
    _, start, sigma, _ = row["key"]
    events = [event_from_dict(event) for event in row["events"]]
    if start == kerrigan.PUBLIC:
        assert (row["epsilon"], events) == (0.0, [])
    elif not sigma:
        assert row["epsilon"] is None
    else:
        (event,) = events
        assert event.noise_multiplier == sigma
        assert event.sample_rate * 120 == pytest.approx(64)
        assert event.steps == round(2 * 120 / 64)
        assert row["epsilon"] == epsilon(events, DELTA)
