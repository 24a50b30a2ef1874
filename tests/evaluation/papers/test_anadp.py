"""Paper 001: its texts, its three methods, its noise, and a run from the command to its files."""

import json
import math
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.leakage.names import digits_of
from evaluation.papers import anadp
from evaluation.papers.anadp import FORMS, IMPORTANCE, METHODS, SETS, Anadp, Labels, read_rows
from evaluation.papers.email_leakage import DIGITS, EXPOSURE, PARTS, RANKS, Passages, apart, passage
from evaluation.papers.noise import ATTACK, PolicyMaker
from evaluation.papers.study import read_size
from evaluation.papers.study_rows import Results
from tests.conftest import _tokenizer
from tests.helpers import oracle
from tests.helpers.models import save_tiny_encoder
from tests.helpers.study_runs import notes_of, stopped_and_finished
from tests.privacy import test_classifier_clipping as classifiers
from twinset.config import PolicyConfig
from twinset.detectors.entities import PIPELINE
from twinset.errors import InputError
from twinset.policies import MechanismParams
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.mechanism.randomness import Randomness

with_pii = pytest.mark.skipif(
    find_spec("spacy") is None or find_spec(PIPELINE) is None, reason="needs twinset[pii]"
)
FULL, LORA, ADAPTERS = METHODS
NO_DP, UNIFORM, PUBLISHED, SOUND = FORMS
GOOD, BAD = "lovely bright warm kind".split(), "dull grey cold harsh".split()
NAMES = "Ada Quill,Otto Zeller,Kurt Oakes,Vera Nettle".split(",")
ROWS = len(SETS) * len(METHODS) * len(FORMS)


def labelled(column, labels, count, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = labels[rng.integers(len(labels))]
        words = (GOOD if labels.index(label) % 2 else BAD)[rng.integers(4)]
        text = f"The film was {words} and {words} no. {rng.integers(99)}"
        rows.append({"text": text, column: label})
    return pd.DataFrame(rows)


def emails(count=80):
    rng = np.random.default_rng(0)
    bodies = [
        f"Please ask {NAMES[rng.integers(4)]} about it,\n\n call {rng.integers(200, 999)}-555-"
        f"{rng.integers(10**4):04d} today."
        for _ in range(count)
    ]
    return pd.DataFrame({"body": [*bodies, None, "No number here."]})


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    """Folder of a random two-layer BERT and its tokenizer."""
    sizes = {"intermediate_size": 24, "max_position_embeddings": 40}
    return save_tiny_encoder(_tokenizer(), tmp_path_factory.mktemp("encoder"), **sizes)


@pytest.fixture
def options(options_of, tiny_encoder):
    labels = {
        "sst2": ("sentiment", ["neg", "pos"]),
        "ag-news": ("topic", list("abcd")),
        "yelp": ("sentiment", ["neutral", "negative", "positive"]),
    }
    tables = {
        f"{name}-{part}": labelled(*how, 150, seed)
        for name, how in labels.items()
        for seed, part in enumerate(("train", "test"))
    }
    public = "\n".join(f"Call the {word} desk." for word in GOOD * 30)
    return options_of(tables | {"emails": emails(), "public": public}, "--encoder", tiny_encoder)


def test_the_full_size_is_the_papers():
    size = read_size("anadp", "full")
    assert (size["encoder"], anadp.RANK) == ("roberta-base", 16)
    recipes = [one for method in METHODS for one in size["recipes"][method].values()]
    assert len(recipes) == 2 * len(METHODS)
    assert {(one["epochs"], one["max_grad_norm"]) for one in recipes} == {(50, 10.0)}


def test_the_notes_say_the_policys_own_constants():
    notes, options = notes_of("anadp"), PolicyConfig()
    assert f"β₁ = {options.importance_beta1:g}, β₂ = {options.importance_beta2:g}" in notes
    high, low = options.importance_high, options.importance_low
    assert f"α = {options.importance_alpha:g}, quantiles {high:g} and {low:g}" in notes
    bound = options.importance_bound
    assert f"within 1/{bound:g} and {bound:g}" in notes and f"ε of σ/{bound:g}" in notes


# --- data ----------------------------------------------------------------------------------------


def test_as_many_rows_of_each_label_are_taken(tmp_path):
    path, labels = tmp_path / "a.csv", SETS["Yelp"]
    said = ["negative"] * 5 + ["neutral"] * 20 + ["positive"] * 9
    frame = pd.DataFrame({"text": [f"t{i}" for i in range(34)], "sentiment": said})
    frame.to_csv(path, index=False)
    rows = read_rows(path, labels, None)
    assert sorted(rows["label"]) == ["negative"] * 5 + ["positive"] * 5
    assert rows["label"].equals(frame["sentiment"].loc[rows.index].rename("label"))
    assert rows["text"].equals(frame["text"].loc[rows.index])
    assert len(read_rows(path, labels, 7)) == 6
    with pytest.raises(InputError, match="no column 'topic'"):
        read_rows(path, SETS["AG News"], None)
    with pytest.raises(InputError, match="fewer than two labels"):
        read_rows(path, Labels("sentiment", ("neutral", "positive")), None)


def test_a_passage_ends_with_its_number_and_begins_with_a_word():
    body = "x" * 90 + " y" * 60 + " ring 713-555-0199 or 713-555-0100"
    found = passage(body)
    assert found.endswith(" ring 713-555-0199") and found.startswith("y ")
    assert passage("no number") is None


def test_no_number_is_both_trained_on_and_held_out():
    texts = [f"a 713-555-{n:04d} b 713-555-{n + 1:04d}" for n in range(40)]
    train, heldout = apart([*texts, *(f"call 602-555-{n:04d}" for n in range(40))])

    def numbers(parts):
        return {digits_of(text[i : i + 12]) for text in parts for i in (2, 5, 17)}

    assert train and heldout
    shared = {n for n in numbers(train) & numbers(heldout) if len(n) == DIGITS}
    assert not shared


@with_pii
def test_facts_of_e_mails_are_counts_alone(tmp_path):
    emails().to_csv(tmp_path / "emails.csv", index=False)
    (tmp_path / "public.txt").write_text("Call the desk.\n" * 20)
    read = Passages.read(
        tmp_path / "emails.csv", tmp_path / "public.txt", read_size("anadp", "tiny")
    )
    facts = read.facts()
    assert facts["passages"]["held-out"] == pytest.approx(0.25 * 80, abs=3)
    assert facts["names"]["train"] > 0
    assert all(isinstance(n, int) for v in facts.values() for n in _leaves(v))
    with pytest.raises(InputError, match="no column 'body'"):
        pd.DataFrame({"text": ["a"]}).to_csv(tmp_path / "b.csv")
        Passages.read(tmp_path / "b.csv", tmp_path / "public.txt", read_size("anadp", "tiny"))


def _leaves(value):
    return value.values() if isinstance(value, dict) else [value]


# --- what is trained -----------------------------------------------------------------------------


def tuned(family, method, tables=True):
    torch.manual_seed(0)
    model = anadp.tune(classifiers.build(family).float(), method, 3, tables).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # as after some steps: neither B of LoRA nor an adapter is zero
        for name, p in model.named_parameters():
            if p.requires_grad and ("lora_B" in name or ".up." in name):
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["BertConfig", "RobertaConfig"])
def test_clipping_is_exact_for_every_method(family, method):
    model, rows = tuned(family, method), classifiers.random_rows(5, 1)
    found, right = classifiers.clipped(model, rows, 3), classifiers.expected(model, rows)
    bad = [name for name in right.sums if name.endswith("key.bias")]  # nothing, to rounding
    for name in bad:
        assert max(sums.pop(name).norm() for sums in (found.sums, right.sums)) < 1e-14
    assert oracle.largest_error(found, right) < classifiers.EXACT


def test_control_an_adapter_left_out_of_the_norm_is_seen():
    """Measured: far above what passes."""
    model, rows = tuned("BertConfig", ADAPTERS), classifiers.random_rows(5, 1)
    right = classifiers.expected(model, rows)
    for name, p in model.named_parameters():
        if ".up." in name:
            p.requires_grad_(False)
    found = classifiers.clipped(model, rows, 5)
    assert max(abs(a - b) for a, b in zip(found.norms, right.norms, strict=True)) > 1e-2


@pytest.mark.parametrize("family", ["BertConfig", "RobertaConfig"])
def test_only_what_a_method_says_is_trained(family):
    kinds = {
        method: {n for n, p in tuned(family, method).named_parameters() if p.requires_grad}
        for method in METHODS
    }
    assert any("word_embeddings" in n for n in kinds[FULL])
    frozen = {n for n, p in tuned(family, FULL, False).named_parameters() if not p.requires_grad}
    assert frozen == {n for n in kinds[FULL] if ".embeddings." in n}
    assert {"lora_" in n or "classifier" in n or "pooler" in n for n in kinds[LORA]} == {True}
    assert sum("lora_A" in n for n in kinds[LORA]) == 2 * 6  # q, k, v, output; two of the network
    assert sum(".down.weight" in n for n in kinds[ADAPTERS]) == 2 * 2
    words = (".down.", ".up.", "LayerNorm", "classifier", "pooler")
    assert all(any(word in n for word in words) for n in kinds[ADAPTERS])


@pytest.mark.parametrize("method", [LORA, ADAPTERS])
def test_a_method_begins_with_the_model_as_it_was(method):
    rows, plain = classifiers.random_rows(3, 1), classifiers.build("BertConfig")
    tuned = anadp.tune(classifiers.build("BertConfig"), method, 3).double().eval()
    ids = rows.input_ids
    assert torch.allclose(tuned(input_ids=ids).logits, plain(input_ids=ids).logits)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_spends_what_it_says(form):
    maker, private = PolicyMaker(anadp.POLICIES.get(form)), form != NO_DP
    norm = 1.0 if private else math.inf
    policy = maker(MechanismParams(1.2 if private else 0.0, norm, 0.1, Randomness.from_os()))
    weights = [torch.linspace(-1, 1, 40).reshape(4, 10)]
    for _ in range(3):
        policy.scales()
        noisy, event = policy.release([torch.ones(4, 10)], [0])
        policy.update_statistics(weights, noisy)
    stated, least = (epsilon([SubsampledGaussian(s, 0.1, 3)], anadp.DELTA) for s in (1.2, 0.6))
    assert maker.nominal(anadp.DELTA) == (stated if form == PUBLISHED else None)
    spent = epsilon([event] * 3, anadp.DELTA)
    expected = {NO_DP: math.inf, UNIFORM: stated, SOUND: stated, PUBLISHED: least}
    assert spent == pytest.approx(expected[form])
    noise = anadp.mean_noise(policy, ["h.0.q.weight"])
    assert set(noise) == ({"h.0.q.weight"} if form in IMPORTANCE else set())


# --- what is found ------------------------------------------------------------------------------


def made_up(tmp_path, accuracy):
    """Rows of three seeds with these accuracies by form, on all sets and by all methods."""
    results = Results(tmp_path / "anadp.json", {})
    for key in Anadp("tiny").keys(3):
        if len(key) == 4:
            noise = [["0", "q", 0.5 + key.seed / 10], ["-", "classifier", 2.0]]
            row = {"accuracy": accuracy[key.form] + key.seed / 1000, "noise": noise}
            results.rows[tuple(key)] = row
    return results


def test_the_gap_won_back_is_a_share_of_what_noise_costs(tmp_path):
    found = made_up(tmp_path, {NO_DP: 0.9, UNIFORM: 0.7, PUBLISHED: 0.8, SOUND: 0.75})
    assert anadp.share_won_back(found, LORA, PUBLISHED) == pytest.approx(0.5)
    assert anadp.share_won_back(found, LORA, NO_DP) == pytest.approx(1)
    free = made_up(tmp_path, dict.fromkeys(FORMS, 0.7))
    assert anadp.share_won_back(free, LORA, PUBLISHED) is None


def test_noise_by_place_is_a_geometric_mean_over_seeds(tmp_path):
    cells = anadp.noise_of(made_up(tmp_path, dict.fromkeys(FORMS, 0.7)), "SST-2", LORA, SOUND)
    assert cells["0", "q"] == pytest.approx((0.5 * 0.6 * 0.7) ** (1 / 3))
    assert cells["-", "classifier"] == pytest.approx(2.0)


def test_leakage_is_of_numbers_trained_on_less_held_out_ones(tmp_path):
    """A model that knows all such numbers better has not leaked those it was trained on."""
    results = Results(tmp_path / "anadp.json", {})
    bits = {NO_DP: (6.0, 3.0), UNIFORM: (2.0, 2.0), PUBLISHED: (4.0, 4.0), SOUND: (2.5, 2.0)}
    for form, pair in bits.items():
        for seed in range(3):
            known = zip(PARTS, pair, strict=True)
            parts = {part: {EXPOSURE: value + seed, RANKS: None} for part, value in known}
            row = {"known": parts, "epsilon": None, "epsilon_nominal": None}
            results.rows[anadp.LEAKAGE, form, seed] = row
    rows = {form: anadp.leakage(results, EXPOSURE, form) for form in FORMS}
    shown = {form: row["train less held-out"].value for form, row in rows.items()}
    assert shown == {NO_DP: 3.0, UNIFORM: 0.0, PUBLISHED: 0.0, SOUND: 0.5}
    assert rows[SOUND]["less no privacy"].value == -2.5
    assert rows[SOUND]["less uniform"].value == 0.5 and rows[UNIFORM]["less uniform"] is None
    nobody = [anadp.leakage(results, RANKS, form) for form in FORMS]
    assert not any(row["train less held-out"] for row in nobody)  # no name was found at all


@pytest.mark.slow
@with_pii
def test_from_the_command_to_its_files(options, monkeypatch):
    done = stopped_and_finished(Anadp, options, monkeypatch, anadp, "classify", after=3)
    assert done.before == len(IMPORTANCE) + len(FORMS) + 3
    assert done.calls == ROWS
    for row in done.found["rows"]:
        check(row)
    everything = json.dumps(done.found) + done.page
    assert not any(name.split()[1] in everything for name in NAMES)  # nobody is named
    assert "555-" not in everything


def check(row):
    """ε is what the form's theorem says, and noise by importance went somewhere."""
    kind, form = row["key"][0], row["key"][-2]
    if kind == ATTACK:
        refuted = [found["lower_bound"] > found["claimed"] for found in row["findings"]]
        assert any(refuted) == (form == PUBLISHED)
        return
    nominal, spent = row["epsilon_nominal"], row["epsilon"]
    assert (nominal is not None) == (form == PUBLISHED)
    if form == NO_DP:
        assert (spent, row["noise_multiplier"]) == (None, 0.0)
    elif form == PUBLISHED:
        assert nominal == pytest.approx(anadp.EPSILON, abs=0.05) and spent > 2 * nominal
    else:
        assert spent == pytest.approx(anadp.EPSILON, abs=0.05) and spent <= anadp.EPSILON
    if kind == anadp.LEAKAGE:
        for part in row["known"].values():
            assert 0 <= part[RANKS] <= 1 and 0 <= part[EXPOSURE] <= DIGITS * math.log2(10)
    else:
        assert 0 <= row["accuracy"] <= 1
        assert bool(row["noise"]) == (form in IMPORTANCE)
