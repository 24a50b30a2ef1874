"""Paper 004: its LSTM, Selective-DPSGD, its attacks, and a run from the command to its files."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.demo_tables.support_dialogues import support_dialogues
from evaluation.leakage.roc import Attack
from evaluation.papers import flagged_text, sdp
from evaluation.papers.flagged_text import Corpus, Row, canary, dialogues
from evaluation.papers.lstm import Lstm, SelectiveDpsgd, Spent, State, segments
from evaluation.papers.sdp import DELTA, LSTMS, NO_DP, REPORTED, SDPSGD, WIKITEXT, Sdp
from evaluation.papers.study import PUBLISHED, read_size
from evaluation.papers.study_rows import Results
from evaluation.utility.dp_fitting import Recipe
from tests.helpers.study_runs import run_study, stopped_and_finished
from twinset.errors import InputError
from twinset.models.perplexity import nats_per_token
from twinset.pretraining.tokenizer import train_tokenizer
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian, event_from_dict
from twinset.privacy.accounting.gaussian_mechanism import gaussian_epsilon
from twinset.privacy.clipping import ClippingEngine, Sequences

PLACES = "Paris London Oslo Rome Madrid Vienna".split()
DEEDS = "was founded in|burnt down in|counted its people in|built a bridge in".split("|")


def lines(count, seed):
    rng = np.random.default_rng(seed)
    found = [
        f"{PLACES[rng.integers(6)]} {DEEDS[rng.integers(4)]} {rng.integers(1200, 2000)} and again"
        for _ in range(count)
    ]
    return "\n".join(found)


@pytest.fixture
def options(options_of):
    return options_of({"wikitext-train": lines(170, 0), "wikitext-test": lines(170, 1)})


# --- the LSTM -----------------------------------------------------------------------------------


def torch_gradients(model, ids, begin):
    """Gradients of each row's mean loss, by `nn.LSTM` and autograd."""
    d = model.base_model.width
    lstm = torch.nn.LSTM(d, d, batch_first=True).double()
    weight, bias = (p.detach() for p in model.base_model.gates.parameters())
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(weight[:, :d])
        lstm.weight_hh_l0.copy_(weight[:, d:])
        lstm.bias_ih_l0.copy_(bias)
        lstm.bias_hh_l0.zero_()
    table = model.base_model.table.weight.detach().clone().requires_grad_()
    head = model.head.weight.detach().clone().requires_grad_()
    for row, h, c in zip(ids, *begin.values, strict=True):
        hidden, _ = lstm(table[row][None], (h[None, None], c[None, None]))
        ones = torch.ones(1, len(row), 1, dtype=torch.float64)
        logits = torch.cat([hidden, ones], 2)[0, :-1] @ head.t()
        loss = torch.nn.functional.cross_entropy(logits, row[1:])
        inputs = [table, lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, head]
        a, b, c, d, e = torch.autograd.grad(loss, inputs)
        yield [a, torch.cat([b, c], 1), d, e]


@pytest.mark.parametrize("norm", [math.inf, 0.05])
def test_each_rows_gradient_is_that_of_autograd(norm):
    torch.manual_seed(0)
    model = Lstm(30, 6).double()
    begin = State(torch.randn(2, 3, 6).double())
    ids = torch.randint(0, 30, (3, 9))
    total = [torch.zeros_like(p) for p in model.parameters()]
    for gradients in torch_gradients(model, ids, begin):
        size = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        assert size > 0.05
        for kept, gradient in zip(total, gradients, strict=True):
            kept += gradient * min(1.0, norm / size)
    engine, mask = ClippingEngine(model, norm), torch.ones(3, 9, dtype=torch.bool)
    mask[:, 0] = False
    model.base_model.begin = begin
    engine.add(Sequences(ids, mask, 1), lambda means, counts: means[:, 0])
    for found, expected in zip(engine.sums, total, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_state_goes_on_where_the_last_one_ended():
    torch.manual_seed(0)
    model, ids = Lstm(30, 6), torch.randint(0, 30, (2, 8))
    with torch.inference_mode():
        whole = model(ids).logits
        first = model(ids[:, :5], logits_to_keep=1)
        then = model(ids[:, 5:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(first.logits[:, 0], whole[:, 4])
    torch.testing.assert_close(then, whole[:, 5:])
    assert model.base_model.begin is None


# --- texts --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return dialogues(None, None, 60, 0)


@pytest.fixture(scope="module")
def tokenizer(rows):
    return train_tokenizer([f" {row.masked}" for row in rows], 400)


def test_digits_are_private_in_lines(tmp_path):
    (tmp_path / "a.txt").write_text(" In 1999 , 12 of them . \nnone")
    first, second = flagged_text.wikitext(tmp_path / "a.txt", None)
    assert [first.text[a:b] for a, b in first.places] == ["1999", "12"] and not second.spans
    assert first.masked == "In ___ of them ."


def test_what_a_table_says_is_private_in_dialogues(rows, tmp_path):
    assert all(len(row.spans) == 4 for row in rows)
    assert not any(row.text[a:b] in row.masked for row in rows for a, b in row.places)
    support_dialogues(60, 0).to_csv(tmp_path / "a.csv", index=False)
    assert dialogues(tmp_path / "a.csv", None, 1, 1) == rows
    customers = {
        "dialog": ["My ID is 341752.", "USR: I am Al Fox.\nSYS: Call 5-1, Al Fox."],
        "customer_name": [None, "Al Fox"],
        "phone": [None, "5-1"],
        "is_canary": [1, 0],
    }
    pd.DataFrame(customers).to_csv(tmp_path / "b.csv", index=False)
    (row,) = dialogues(tmp_path / "b.csv", None, 1, 1)
    assert [row.text[a:b] for a, b in row.places] == ["Al Fox", "5-1", "Al Fox"]


@pytest.mark.parametrize(("content", "said"), [(None, "no such file"), ("a,b\n1,2", "neither")])
def test_a_table_that_cannot_be_used_is_named(tmp_path, content, said):
    if content:
        (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=said):
        dialogues(tmp_path / "a.csv", None, 1, 1)


def test_tokens_that_touch_a_private_span_are_flagged(rows, tokenizer):
    found = Corpus([], [], tokenizer, 48).encoded(rows)
    for owner, row in enumerate(rows):
        mine = np.flatnonzero(found.owners == owner)
        ids = np.concatenate([found.records.texts[i] for i in mine])
        flags = np.concatenate([found.flags[i] for i in mine])
        assert tokenizer.decode(ids) == f" {row.text}"
        kept = tokenizer.decode(ids[~flags])
        assert not any(row.text[a:b] in kept for a, b in row.places)
        assert 0.1 < flags.mean() < 0.6
    assert max(map(len, found.records.texts)) == 47


@pytest.mark.parametrize("seen", [True, False])
def test_a_policy_function_may_miss_the_canary(rows, seen):
    secret = canary(6)
    assert secret.text == "My ID is 341752"
    more = flagged_text.planted(rows, secret, seen)[len(rows) :]
    assert [row.text for row in more] == [secret.text] * 10
    assert {row.masked for row in more} == {"My ID is ___" if seen else secret.text}


# --- Algorithm 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_segments_leave_nothing_private_to_regular_updates(seed):
    flags = np.random.default_rng(seed).random(40) < 0.3
    found = segments(flags)
    assert [found[0][0], *(end for _, end in found)] == [start for start, _ in found] + [40]
    for turn, (start, end) in enumerate(found):
        for place in range(start, end):
            private = flags[place] or (place > 0 and flags[place - 1])
            assert private == (turn % 2 == 1)


def training(rows, tokenizer, **change):
    flagged = Corpus([], [], tokenizer, 48).encoded(rows)
    torch.manual_seed(0)
    model = Lstm(len(tokenizer), 12)
    recipe = Recipe(32, 1, 1e-2, 0.005)
    how = SelectiveDpsgd(model, flagged.records, flagged.flags, recipe, 0.01, 2.74, DELTA)
    for name, value in change.items():
        setattr(how, name, value)
    return model, flagged, how


def test_nominal_epsilon_is_of_the_updates_that_were_taken(rows, tokenizer):
    _, flagged, how = training(rows, tokenizer, noise_multiplier=1.3)
    spent = how.train()
    (event,) = spent.events
    assert event == SubsampledGaussian(how.noise_multiplier, 32 / len(flagged.records), event.steps)
    assert event.steps == how._updates() > len(how._batches)
    private = [sum(1 for _ in segments(flags)) // 2 for flags in flagged.flags]
    visits = np.bincount(np.concatenate(how._batches).astype(int), minlength=len(private))
    assert spent.releases == max(v * s for v, s in zip(visits, private, strict=True))
    assert spent.proved(DELTA) > 5 * epsilon([event], DELTA)


def test_what_is_proved_is_of_one_gaussian():
    """One private segment: a change of 2C in gradient, hidden and cell state, noise σC on each."""
    spent = Spent(2.0, (), 1)
    assert spent.proved(1e-5) == pytest.approx(gaussian_epsilon(math.sqrt(3 * 2**2) / 2.0, 1e-5))


@pytest.mark.parametrize("scale", [1.0, 2 / 3, 1.5])
def test_states_are_clipped_and_noisy(rows, tokenizer, scale):
    """Two negative controls: noise of another size is told apart."""
    sigma = 1.3
    _, _, how = training(rows, tokenizer, noise_multiplier=sigma)
    how.noise_multiplier *= scale
    states = torch.randn(2000, 12)
    noise = how._noisy(states) - states / (states.norm(dim=1, keepdim=True) / 0.005)
    close = abs(float(noise.std()) / (sigma * 0.005) - 1) < 0.05
    assert close == (scale == 1.0)


class Quiet:
    """Releases nothing."""

    def release(self, sums, records):
        for total in sums:
            total.zero_()
        return sums, SubsampledGaussian(1.0, 0.5, 1)


def test_segments_in_turn_end_in_the_state_of_one_reading(rows, tokenizer):
    """Without updates and noise, cutting a record must change nothing."""
    model, flagged, how = training(rows, tokenizer, _policy=Quiet(), noise_multiplier=1.0)
    most = max(range(len(how._cuts)), key=lambda place: len(how._cuts[place]))
    assert len(how._cuts[most]) > 3
    states, real = [], how._last_states
    how._batches, how._noisy = [[most]], (lambda noisy: noisy)
    how._plan = replace(how._plan, learning_rate=0.0)
    how._last_states = lambda spans: states.append(real(spans)) or states[-1]
    how.train()
    begin = int(tokenizer.eos_token_id)
    ids = torch.tensor([[begin, *flagged.records.texts[most][:-1]]])
    with torch.no_grad():
        recurrence = model.base_model
        _, last = recurrence.read(recurrence.table(ids), recurrence.zeros(1))
    torch.testing.assert_close(states[-1], last.values)


def test_private_values_reach_the_next_segment_by_noisy_states_alone(rows, tokenizer):
    """Two texts that differ in a private value: without noise the model differs, clipped or not."""

    def weights(value, forgets):
        row = Row(f"I am {value}. Where is it?", ((5, 5 + len(value), "name"),))
        model, _, how = training([row] * 8, tokenizer, _policy=Quiet(), noise_multiplier=1.0)
        how._batches = [list(range(8))]
        how._noisy = torch.zeros_like if forgets else (lambda states: states)
        how.train()
        return model.head.weight.detach()

    one, other = "Z", "Q"  # as many tokens
    assert torch.equal(weights(one, True), weights(other, True))
    assert not torch.equal(weights(one, False), weights(other, False))


# --- scores, attacks ----------------------------------------------------------------------------


def test_scores_are_those_of_the_model(rows, tokenizer):
    torch.manual_seed(0)
    model, flagged = Lstm(len(tokenizer), 12), Corpus([], [], tokenizer, 48).encoded(rows)
    found = flagged_text.scored(model, flagged).sums
    begin = int(tokenizer.eos_token_id)
    means = nats_per_token(model, flagged.records.texts, begin).numpy()
    np.testing.assert_allclose(found.nats / found.tokens, means, rtol=1e-5)
    text, flags = flagged.records.texts[3], flagged.flags[3]
    logits = model(torch.tensor([[begin, *text]])).logits[0, :-1].detach()
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(text), reduction="none").numpy()
    assert found.private_nats[3] == pytest.approx(nats[flags].sum(), rel=1e-5)
    assert found.hits[3] == (logits.argmax(1).numpy() == text).sum()
    assert found.private_tokens.sum() == sum(f.sum() for f in flagged.flags)


def test_swapped_rows_are_of_the_same_form(rows, tokenizer):
    others = dialogues(None, None, 60, 1)
    numbers = [Row("in 1999 and 7", ((3, 7, "number"), (12, 13, "number")))] * 3
    corpus = Corpus([*rows, *numbers], [*others, *numbers], tokenizer, 400)
    sides = flagged_text.Sides.of(corpus, 200)
    texts = [tokenizer.decode(ids) for ids in sides.swapped.records.texts]
    before = [tokenizer.decode(ids) for ids in sides.members.records.texts]
    assert not set(texts) & set(before)
    digits = [(a, b) for a, b in zip(before, texts, strict=True) if a.startswith(" in")]
    assert len(digits) == 3
    for a, b in digits:
        assert all((x != y) == x.isdigit() for x, y in zip(a, b, strict=True)) and len(a) == len(b)
    values = {row.text[a:b] for row in others for a, b in row.places}
    assert any(value in text for text in texts for value in values)


@pytest.mark.parametrize(("members", "accuracy"), [([3, 4], 1.0), ([0, 1], 0.0), ([2, 2], 0.5)])
def test_half_of_the_rows_are_called_members(members, accuracy):
    attack = Attack("", "", np.array(members, float), np.array([2.0, 2.0]))
    assert flagged_text.halves(attack) == accuracy


# --- what is read off the rows ------------------------------------------------------------------


def test_exposures_are_compared_at_equal_perplexity(tmp_path):
    points = [{"perplexity": p, "exposure": e} for p, e in ((100, 2.0), (25, 6.0))]
    results = Results(tmp_path / "sdp.json", {})
    ours = {"perplexity": 50.0, "exposure": 3.0, "candidates": 1000}
    for seed in (0, 1):
        results.rows[WIKITEXT, NO_DP, seed] = {"points": points}
        results.rows[WIKITEXT, SDPSGD, seed] = ours
    models = WIKITEXT, SDPSGD, NO_DP
    assert sdp.exposure_at_equal_perplexity(results, *models).value == pytest.approx(3.0 - 4.0)
    for never in (400.0, 20.0):
        results.rows[WIKITEXT, SDPSGD, 1] = ours | {"perplexity": never}
        assert sdp.exposure_at_equal_perplexity(results, *models) is None


def test_the_page_says_what_is_no_guarantee():
    results = Results.load(PUBLISHED / "sdp.json")
    lines = [sdp.utility(results, text, model) for text in LSTMS for model in LSTMS[text]]
    for line in lines:
        of_noise = sdp.NOMINAL if "S-DPSGD" in line["model"] else sdp.GUARANTEED
        assert line["what ε is"] == (of_noise if line["C"] else sdp.NONE)
    selective = [line for line in lines if "S-DPSGD" in line["model"]]
    assert len(selective) == 3
    for line in selective:
        assert float(line["ε that can be proved"]) > 100 * float(line["ε"])


def test_published_numbers_are_the_papers():
    line = REPORTED[sdp.DIALOGUES, SDPSGD]
    assert (line["perplexity"], line["paper: perplexity"]) == (10.42, "10.42 ± 0.91")
    assert REPORTED[WIKITEXT, SDPSGD]["max_grad_norm"] == 1e-3
    assert REPORTED[sdp.DIALOGUES, sdp.DPSGD]["epsilon"] == 2.51
    line = REPORTED[WIKITEXT, sdp.selective(sdp.ENTITIES)]
    assert (line["perplexity"], line["paper: ε"]) == (22.56, "2.58")
    size = read_size("sdp", "full")
    assert (size["base"], size["width"], size["context"]) == ("gpt2", 200, 36)
    assert "vocabulary" not in size and canary(size["digits"]).text == "My ID is 341752"


def test_delta_of_one_over_n_guarantees_nothing():
    assert sdp.covered(sdp.GUARANTEED, 12_499) == sdp.GUARANTEED
    assert sdp.covered(sdp.FLAGGED_ONLY, 12_500).startswith(sdp.NOMINAL)


# --- the command --------------------------------------------------------------------------------


def test_dialogues_are_two_files_or_none(options, tmp_path):
    table = tmp_path / "a.csv"
    support_dialogues(3, 0).to_csv(table, index=False)
    with pytest.raises(InputError, match="--dialogs-train and --dialogs-test: name both, or none"):
        run_study(Sdp, "--dialogs-test", table, *options)
    paths = {"wikitext_train": table, "wikitext_test": table}
    assert Sdp("tiny", paths).sources()["dialogs"].startswith("dialogues made by")
    both = Sdp("tiny", paths | {"dialogs_train": table, "dialogs_test": table})
    assert both.sources().keys() == both.paths.keys()


def test_transformers_begin_from_a_base_with_its_own_tokens(options, tiny_base):
    paths = {"wikitext_train": Path(options[1]), "wikitext_test": Path(options[3])}
    facts = Sdp("tiny", paths, {"base": str(tiny_base)}).facts()
    assert facts["texts"][WIKITEXT]["records"] == 170  # 160 lines and ten canaries
    assert facts["texts"][sdp.DIALOGUES]["source"].startswith("dialogues made by")
    assert "random" not in facts["transformer"] and str(tiny_base) not in facts["transformer"]
    assert "random weights; training records: 160;" in Sdp("tiny", paths).facts()["transformer"]


def test_a_base_that_reads_too_little_is_named(options, tiny_base):
    paths = {"wikitext_train": Path(options[1]), "wikitext_test": Path(options[3])}
    study = Sdp("tiny", paths, {"base": str(tiny_base)})
    study.size["transformer"] = {"context": 1 << 20}
    with pytest.raises(InputError, match="--base .*: reads .* tokens; 1048576 are needed"):
        study.facts()


@pytest.mark.slow
def test_from_the_command_to_its_files(options, monkeypatch):
    pytest.importorskip("presidio_analyzer")
    done = stopped_and_finished(Sdp, options, monkeypatch, Sdp, "_lstm_row", after=3)
    assert done.before == 3
    assert done.calls == sum(map(len, LSTMS.values()))
    for row in done.found["rows"]:
        check(row)


def check(row):
    """ε is called what it is, and is the accountant's."""
    text, model, _ = row["key"]
    assert math.isfinite(row["perplexity"])
    if model in LSTMS[text]:
        assert row["points"][-1]["exposure"] == row["exposure"] <= math.log2(1000)
        assert row["membership"].keys() == {flagged_text.SWAPPED, flagged_text.HELD_OUT}
    noisy = [event_from_dict(event) for event in row.get("events", [])]
    steps = [event for event in noisy if isinstance(event, SubsampledGaussian)]
    says = sdp.NONE
    if model.startswith(SDPSGD):
        says = sdp.NOMINAL
        assert row["proved"] > row["epsilon"]
        assert row["epsilon"] <= REPORTED[text, SDPSGD]["epsilon"]
    elif "DPSGD" in model:
        says = sdp.GUARANTEED
    elif "S-DP" in model:
        says = sdp.FLAGGED_ONLY
        assert len(noisy) == 2
    assert row["says"] == says
    assert row["epsilon"] == (epsilon(steps, DELTA) if steps else None)
