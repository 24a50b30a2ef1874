"""Paper 001's experiment, from the command line to its files, on made-up text."""

import json
import math
from importlib.util import find_spec

import numpy as np
import oracle
import pandas as pd
import pytest
import test_classifier_clipping as classifiers
import torch
from conftest import _tokenizer
from experiments import run, stopped_and_finished

from evaluation.leakage.names import digits_of
from evaluation.papers.anadp import experiment
from evaluation.papers.anadp.__main__ import app
from evaluation.papers.anadp.cases import ATTACK, LEAKAGE, cases
from evaluation.papers.anadp.claim import guarantee, protection, utility, verdicts
from evaluation.papers.anadp.corpora import SETS, SST2, YELP, Labels, read_rows
from evaluation.papers.anadp.experiment import Anadp
from evaluation.papers.anadp.found import EXPOSURE, RANKS, Found, gap_closed
from evaluation.papers.anadp.noise import FORMS, IMPORTANCE, NO_DP, PUBLISHED, SOUND, UNIFORM, Maker
from evaluation.papers.anadp.passages import Passages, apart, passage
from evaluation.papers.anadp.published import DELTA, EPSILON
from evaluation.papers.anadp.sizes import SIZES
from evaluation.papers.anadp.training import DIGITS
from evaluation.papers.anadp.tuning import ADAPTERS, FULL, LORA, METHODS, Tuning
from evaluation.papers.intervals import Interval
from evaluation.papers.page import as_markdown
from evaluation.papers.rows import Rows
from evaluation.papers.verdict import Word
from twinset.detectors.entities import PIPELINE
from twinset.errors import InputError
from twinset.policies import Setting
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.randomness import Randomness

with_pii = pytest.mark.skipif(
    find_spec("spacy") is None or find_spec(PIPELINE) is None, reason="needs twinset[pii]"
)
GOOD, BAD = "lovely bright warm kind".split(), "dull grey cold harsh".split()
NAMES = "Ada Quill,Otto Zeller,Kurt Oakes,Vera Nettle".split(",")
ROWS = len(SETS) * len(METHODS) * len(FORMS)


def labelled(path, column, labels, count, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = labels[rng.integers(len(labels))]
        words = (GOOD if labels.index(label) % 2 else BAD)[rng.integers(4)]
        rows.append({"text": f"The film was {words} and {words} no. {rng.integers(99)}"})
        rows[-1][column] = label
    pd.DataFrame(rows).to_csv(path, index=False)


def emails(path, count=80):
    rng = np.random.default_rng(0)
    bodies = [
        f"Please ask {NAMES[rng.integers(4)]} about it,\n\n call {rng.integers(200, 999)}-555-"
        f"{rng.integers(10**4):04d} today."
        for _ in range(count)
    ]
    pd.DataFrame({"body": [*bodies, None, "No number here."]}).to_csv(path, index=False)
    return bodies


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    """Folder of a random two-layer BERT and its tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    folder, tokenizer = tmp_path_factory.mktemp("encoder"), _tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=40,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def options(tmp_path, tiny_encoder):
    found = []
    sets = [("sst2", "sentiment", ["neg", "pos"]), ("ag-news", "topic", list("abcd"))]
    for name, column, labels in [*sets, ("yelp", "sentiment", ["neutral", "negative", "positive"])]:
        for seed, part in enumerate(("train", "test")):
            path = tmp_path / f"{name}-{part}.csv"
            labelled(path, column, labels, 150, seed)
            found += [f"--{name}-{part}", str(path)]
    emails(tmp_path / "emails.csv")
    (tmp_path / "public.txt").write_text("\n".join(f"Call the {w} desk." for w in GOOD * 30))
    found += ["--emails", str(tmp_path / "emails.csv"), "--public", str(tmp_path / "public.txt")]
    found += ["--encoder", str(tiny_encoder), "--size", "tiny", "--seeds", "1"]
    return [*found, "--output", str(tmp_path / "out")]


# --- plan and files ------------------------------------------------------------------------------


def test_a_plan_reads_no_test_rows_and_trains_nothing(options, tmp_path):
    for name in ("sst2", "ag-news", "yelp"):
        (tmp_path / f"{name}-test.csv").unlink()
    plan = run(app, *options, "--dry-run")
    for dataset in SETS:
        for method in METHODS:
            assert f"  {dataset}, {method}: " in plan
    assert str(tmp_path) not in plan
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_needs_no_files(size):
    plan = run(app, "--size", size, "--seeds", "2", "--dry-run")
    rows = 2 * (ROWS + len(FORMS)) + len(IMPORTANCE)
    assert plan.endswith(f"{rows} rows with 2 seeds\n")


def test_the_full_plan_has_the_papers_sizes():
    plan = run(app, "--size", "full", "--dry-run")
    for said in ("roberta-base, 128 tokens", "rank 16", "C = 10", "from 67,349", "ε = 8.00"):
        assert said in plan
    assert "3,289 steps of 1024" in plan  # 50 epochs


@pytest.mark.parametrize(("more", "option"), [([], "--sst2"), (["--public", "a.txt"], "--sst2")])
def test_files_are_asked_for(more, option):
    with pytest.raises(InputError, match=f"{option}.*: name a file"):
        run(app, *more)


# --- data ----------------------------------------------------------------------------------------


def test_as_many_rows_of_each_label_are_taken(tmp_path):
    path, labels = tmp_path / "a.csv", SETS[YELP]
    said = ["negative"] * 5 + ["neutral"] * 20 + ["positive"] * 9
    frame = pd.DataFrame({"text": [f"t{i}" for i in range(34)], "sentiment": said})
    frame.to_csv(path, index=False)
    rows = read_rows(path, labels, None)
    assert sorted(rows.labels) == ["negative"] * 5 + ["positive"] * 5
    assert dict(zip(frame["text"], said, strict=True)) | dict(
        zip(rows.texts, rows.labels, strict=True)
    ) == dict(zip(frame["text"], said, strict=True))
    assert len(read_rows(path, labels, 7).texts) == 6
    assert rows.largest_class == 0.5
    with pytest.raises(InputError, match="no column 'topic'"):
        read_rows(path, SETS["AG News"], None)
    with pytest.raises(InputError, match="fewer than two labels"):
        read_rows(path, Labels("sentiment", ("neutral", "positive"), 1, 2), None)


def test_a_passage_ends_with_its_number_and_begins_with_a_word():
    body = "x" * 90 + " y" * 60 + " ring 713-555-0199 or 713-555-0100"
    found = passage(body)
    assert found.endswith(" ring 713-555-0199") and found.startswith("y ")
    assert passage("no number") is None


def test_no_number_is_both_learnt_and_held_out():
    texts = [f"a 713-555-{n:04d} b 713-555-{n + 1:04d}" for n in range(40)]
    train, heldout = apart([*texts, *(f"call 602-555-{n:04d}" for n in range(40))])

    def numbers(parts):
        return {digits_of(text[i : i + 12]) for text in parts for i in (2, 5, 17)}

    assert train and heldout
    shared = {n for n in numbers(train) & numbers(heldout) if len(n) == DIGITS}
    assert not shared


@with_pii
def test_facts_of_e_mails_are_counts_alone(tmp_path):
    bodies = emails(tmp_path / "emails.csv")
    (tmp_path / "public.txt").write_text("Call the desk.\n" * 20)
    read = Passages.read(tmp_path / "emails.csv", tmp_path / "public.txt", SIZES["tiny"])
    facts = read.facts()
    assert facts["passages"]["held-out"] == pytest.approx(0.25 * len(bodies), abs=3)
    assert facts["names"]["train"] > 0
    assert all(isinstance(n, int) for v in facts.values() for n in _leaves(v))
    with pytest.raises(InputError, match="no column 'body'"):
        pd.DataFrame({"text": ["a"]}).to_csv(tmp_path / "b.csv")
        Passages.read(tmp_path / "b.csv", tmp_path / "public.txt", SIZES["tiny"])


def _leaves(value):
    return value.values() if isinstance(value, dict) else [value]


# --- what is trained -----------------------------------------------------------------------------


def tuned(family, method, tables=True):
    torch.manual_seed(0)
    model = Tuning(method, 3, tables)(classifiers.build(family).float()).double()
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
    tuned = Tuning(method, 3)(classifiers.build("BertConfig")).double().eval()
    ids = rows.input_ids
    assert torch.allclose(tuned(input_ids=ids).logits, plain(input_ids=ids).logits)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_spends_what_it_says(form):
    maker, private = Maker(form), form != NO_DP
    norm = 1.0 if private else math.inf
    policy = maker(Setting(1.2 if private else 0.0, norm, 0.1, Randomness.from_os()))
    weights = [torch.linspace(-1, 1, 40).reshape(4, 10)]
    for _ in range(3):
        policy.scales()
        noisy, event = policy.release([torch.ones(4, 10)], [0])
        policy.learn(weights, noisy)
    stated, least = (epsilon([SubsampledGaussian(s, 0.1, 3)], DELTA) for s in (1.2, 0.6))
    assert maker.nominal(DELTA) == (stated if form == PUBLISHED else None)
    spent = epsilon([event] * 3, DELTA)
    expected = {NO_DP: math.inf, UNIFORM: stated, SOUND: stated, PUBLISHED: least}
    assert spent == pytest.approx(expected[form])
    noise = maker.mean_noise(["h.0.q.weight"])
    assert set(noise) == ({"h.0.q.weight"} if form in IMPORTANCE else set())


# --- claim and page ------------------------------------------------------------------------------


def interval(low, high):
    return Interval((low + high) / 2, low, high, 3)


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        (((0.01, 0.02), (0.01, 0.03)), Word.HELD),
        (((-0.02, -0.01), (-0.03, -0.01)), Word.NOT_HELD),
        (((0.01, 0.02), (-0.01, 0.01)), Word.PARTLY),
        (((-0.01, 0.01), (-0.02, 0.02)), Word.UNDECIDED),
    ],
)
def test_utility_is_judged_by_intervals(bounds, word):
    gains = {method: interval(*pair) for method, pair in zip(METHODS, bounds, strict=False)}
    judged = utility(SOUND, gains)
    assert judged.word == word and len(judged.details) == 2


@pytest.mark.parametrize(("bound", "word"), [(3.0, Word.NOT_HELD), (1.5, Word.UNDECIDED)])
def test_a_stated_epsilon_falls_by_a_larger_bound_alone(bound, word):
    one = {"what": "one step", "claimed": 2.0, "delta": 0.05, "guaranteed": 4.5}
    assert guarantee([one | {"lower_bound": 1.0}, one | {"lower_bound": bound}]).word == word


ACCURACY = {NO_DP: 0.9, UNIFORM: 0.7, PUBLISHED: 0.8, SOUND: 0.75}
HIDDEN = {NO_DP: (0.6, 0.2), UNIFORM: (0.2, 0.2), PUBLISHED: (0.2, 0.2), SOUND: (0.2, 0.2)}


def made_up(tmp_path, known=HIDDEN, seeds=3):
    """Rows of these accuracies, and of these leaks: learnt from, held out."""
    rows = Rows.open(tmp_path / "anadp.json", {"size": "tiny", "sources": {}}, "command")
    counts = {"train": 120, "test": 60, "classes": 2, "guess": 0.5}
    pair = {"train": 40, "held-out": 13}
    rows.facts = {
        "sets": {name: counts for name in SETS},
        "e-mails": {"passages": pair, "names": pair, "cut": 0},
    }
    finding = {"what": "one step", "delta": 0.05, "trials": 100, "claimed": 2.0}
    for case in cases(seeds):
        kind, form, seed = case.key[0], case.form, case.key[-1]
        stated = EPSILON if form == PUBLISHED else None
        spent = {NO_DP: None, PUBLISHED: 30.5}.get(form, EPSILON)
        spending = {"epsilon": spent, "epsilon_nominal": stated, "noise_multiplier": 0.5}
        if kind == ATTACK:
            proved = {"lower_bound": 3.0, "guaranteed": 4.5} if form == PUBLISHED else {}
            found = finding | {"lower_bound": 1.0, "guaranteed": None} | proved
            rows.rows[case.key] = {"findings": [found]}
        elif kind == LEAKAGE:
            parts = zip(("train", "held-out"), known[form], strict=True)
            rows.rows[case.key] = spending | {
                "known": {
                    part: {RANKS: x + seed / 1000, "names": 9, EXPOSURE: 10 * x, "numbers": 9}
                    for part, x in parts
                }
            }
        else:
            noise = [["0", "q", 0.5 + seed / 10], ["-", "classifier", 2.0]]
            rows.rows[case.key] = spending | {
                "accuracy": ACCURACY[form] + seed / 1000 * (1 + FORMS.index(form)),
                "trained": 1000,
                "noise": noise if form in IMPORTANCE else [],
                "rows_per_second": 10.0,
            }
    return rows


@pytest.mark.parametrize(
    ("leaks", "word"),
    [
        ({}, Word.HELD),
        ({PUBLISHED: (0.6, 0.2)}, Word.NOT_HELD),  # as without privacy, and more than uniform
        ({PUBLISHED: (0.3, 0.2)}, Word.NOT_HELD),  # more than uniform
        ({NO_DP: (0.2, 0.2)}, Word.UNDECIDED),  # nothing to protect
    ],
)
def test_protection_is_judged_where_something_leaks(tmp_path, leaks, word):
    assert protection(PUBLISHED, Found(made_up(tmp_path, HIDDEN | leaks))).word == word


def test_the_gap_won_back_is_a_share_of_what_noise_costs(tmp_path):
    found = Found(made_up(tmp_path))
    assert gap_closed(found, LORA, PUBLISHED) == pytest.approx(0.5, abs=0.01)
    assert gap_closed(found, LORA, NO_DP) == pytest.approx(1)


def test_cells_are_geometric_means_over_seeds(tmp_path):
    cells = Found(made_up(tmp_path)).cells(SST2, LORA, SOUND)
    assert cells["0", "q"] == pytest.approx((0.5 * 0.6 * 0.7) ** (1 / 3))
    assert cells["-", "classifier"] == pytest.approx(2.0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_says_all_of_it(tmp_path, seeds):
    rows = made_up(tmp_path, seeds=seeds)
    anadp = Anadp("tiny", SIZES["tiny"], None)
    report = anadp.report(rows)
    page = as_markdown(anadp.paper, report, rows, "anadp.png")
    for said in (
        "consistently outperforms",
        "a guess is right",
        "30.50",
        "won back",
        "not at hand",
    ):
        assert said in page
    line = next(x for x in page.splitlines() if x.startswith("| LoRA | importance, published"))
    assert [cell.strip() for cell in line.split("|")][5:7] == ["8.00", "30.50"]
    words = [verdict.word for verdict in verdicts(Found(rows))]
    shown = Word.HELD if seeds > 1 else Word.UNDECIDED
    assert words == [shown] * 4 + [Word.NOT_HELD]
    assert report.summary(anadp.paper).word == Word.NOT_HELD  # the claim needs its ε to be one
    figure = anadp.figure(rows)
    assert len(figure.axes) >= len(SETS) + 2 + 2


@pytest.mark.slow
@with_pii
def test_from_the_command_line_to_its_files(options, tmp_path, monkeypatch):
    done = stopped_and_finished(app, options, monkeypatch, experiment, "classify", after=3)
    assert done.before == len(IMPORTANCE) + len(FORMS) + 3
    assert done.calls == ROWS
    assert [tuple(row["key"]) for row in done.found["rows"]] == [case.key for case in cases(1)]
    for row in done.found["rows"]:
        check(row)
    assert str(tmp_path) not in done.page.split("command")[0]
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
        assert nominal == pytest.approx(EPSILON, abs=0.05) and spent > 2 * nominal
    else:
        assert spent == pytest.approx(EPSILON, abs=0.05) and spent <= EPSILON
    if kind == LEAKAGE:
        for part in row["known"].values():
            assert 0 <= part[RANKS] <= 1 and 0 <= part[EXPOSURE] <= DIGITS * math.log2(10)
    else:
        assert 0 <= row["accuracy"] <= 1
        assert bool(row["noise"]) == (form in IMPORTANCE)
