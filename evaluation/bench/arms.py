"""What each part of a twin adds: accuracy of classifiers that learn from its rows, and MAUVE.

    python -m evaluation.bench.arms --train train.csv --test heldout.csv

The arms are real rows, rows of the base model without private data, and twins of at most the same
ε. Twins follow noisy word counts alone, or counts and the private teacher (the default for small
tables), or both and large private steps. All other arms are experiments and not part of twinset.
Some train fewer numbers than adapters of rank 8. Some choose among more rows than are wanted, by a
noisy histogram or by the counts that were released. Label values are taken as public. The noise of
the histogram is seeded, so only its ε is that of a release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from twinset import Twinset
from twinset.config import TrainingConfig
from twinset.errors import InputError
from twinset.models.adapters import prepare_trainable
from twinset.models.base_model import load_base
from twinset.models.hidden_states import Whitening, states_of_records
from twinset.models.layers import fuse
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals
from twinset.sampling.label_tables import CLEAR, TokenTilt
from twinset.sampling.tilt_fitting import fit_tilt
from twinset.sampling.twin_model import TwinModel

from ..fidelity.texts import mauve
from ..papers.mattern import load_tables, score_classifier
from ..papers.study import Comparison, Study, main
from ..utility.classifiers import SentenceEncoder, make_classifiers
from ..utility.usefulness import train_on

REAL, NONE, WORDS, DEFAULT, TRAINED = (
    "real rows",
    "no private data",
    "word counts",
    "word counts and teacher",
    "word counts, teacher and training",
)
SUBSPACE, REFRESHED, STEERING, BIASES, FACTORS, RANK_1, SOFT_PROMPT = (
    "training along public directions",
    "training along public directions, found twice",
    "training of a vector a layer",
    "training of biases",
    "training of factors",
    "training of rank 1",
    "training of a soft prompt",
)
TOPICS, VOTES, COUNTS = (
    "rows chosen by topics",
    "rows chosen by votes",
    "rows chosen by the released counts",
)
STEPS: dict[str, Any] = {"method": "lora", "steps": 8, "batch_size": 1024, "mismatch_weight": 0.0}
# at ε = 8 a histogram at σ = 3 costs less than the rest
CHOSEN: dict[str, Any] = {"steps": 0, "epsilon_left": 0.97}
ARMS: dict[str, dict[str, Any]] = {
    NONE: {"epsilon": 1e-3, "steps": 0, "marginal_share": 0.0, "teacher_share": 0.0},
    WORDS: {"steps": 0, "teacher_share": 0.0},
    DEFAULT: {"steps": 0},
    TRAINED: STEPS | {"learning_rate": 0.01},
    SUBSPACE: STEPS | {"learning_rate": 0.05},
    REFRESHED: STEPS | {"learning_rate": 0.05},
    STEERING: STEPS | {"learning_rate": 0.02, "method": "full"},
    BIASES: STEPS | {"learning_rate": 0.01, "method": "full"},
    FACTORS: STEPS | {"learning_rate": 0.05, "method": "ia3"},
    RANK_1: STEPS | {"learning_rate": 0.03, "lora_rank": 1},
    TOPICS: CHOSEN,
    VOTES: CHOSEN,
    COUNTS: {"steps": 0},
    SOFT_PROMPT: STEPS | {"learning_rate": 0.003, "method": "full"},  # the last: not any base can
}
DIRECTIONS, PUBLIC_ROWS = 200, 600  # directions, and the rows of the base whose gradients span them
TOPICS_IN_ALL, HISTOGRAM_NOISE = 32, 3.0  # σ over the one count that a record adds
POOL = 3  # rows that are written for each one that is kept
CUT = 4  # tokens that a row may lose where it was cut
PROMPT_PLACES = 8  # first tokens of a prompt, which get a vector each
SMALL: dict[str, Any] = {
    "base_model": "gpt2-mini",
    "records": 120,
    "tested": 60,
    "rows": 16,
    "epsilon": 8.0,
    "max_tokens": 16,
}
CPU = SMALL | {"records": 3_200, "tested": 600, "rows": 1_200, "max_tokens": 64}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": SMALL,
    "cpu": CPU,
    "full": CPU | {"base_model": "smollm2-135m-text", "tested": None},
}


def load_cut_tables(paths: Mapping[str, Path], size: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the private table, and real rows and test rows cut where a run cuts its own.

    So MAUVE does not see lengths. The last two have a column of all labels together.
    """
    tables, tokenizer = load_tables(paths, size), load_base(size["base_model"]).tokenizer
    cut = {"private": tables["train"]}
    for name, rows in tables.items():
        ids = tokenizer([*rows["text"]], add_special_tokens=False)["input_ids"]
        texts = [tokenizer.decode(each[: size["max_tokens"]]) for each in ids]
        cut[name] = joined(rows.assign(text=texts), list(rows.columns[1:]))
    return cut


def measure_arm(
    arm: str, seed: int, tables: Mapping[str, pd.DataFrame], size: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return students' accuracies on real test rows, MAUVE, and ε of all that an arm releases."""
    private, train, test = (tables[name] for name in ("private", "train", "test"))
    labels = list(private.columns[1:])
    if arm == REAL:
        rows, spent = train.sample(min(size["rows"], len(train)), random_state=seed), None
    else:
        rows, spent = write_rows(arm, seed, private, size)
        rows = joined(rows, labels)
    accuracies = {f"accuracy, {name}": score_classifier(rows, test, name) for name in labels}
    encoder, fewest = SentenceEncoder(), min(len(rows), len(test))
    for name, make in make_classifiers(("tfidf", "minilm"), embeddings=encoder).items():
        student = train_on(rows, "text", ("all labels",), make, seed)
        right = student.predict(test["text"]) == test["all labels"]
        accuracies[f"accuracy, all labels, {name}"] = float(right.mean())
    ours, real = (each.sample(fewest, random_state=seed)["text"].tolist() for each in (rows, test))
    accuracies["MAUVE"] = mauve(encoder.encode(ours), encoder.encode(real), seed).value
    return {**accuracies, "epsilon": spent}


def write_rows(
    arm: str, seed: int, private: pd.DataFrame, size: Mapping[str, Any]
) -> tuple[pd.DataFrame, float | None]:
    """Return rows of an arm, and what they spend."""
    changed: Any = nullcontext()
    released: list[TokenMarginals] = []
    if arm in (SUBSPACE, REFRESHED):
        public = PublicGradients(seed, private, size)
        again = ARMS[arm]["steps"] // 2 if arm == REFRESHED else None
        changed = patch("torch.optim.Adam", partial(AdamAlongDirections.of, public, again))
    elif arm in FEW_NUMBERS:
        changed = patch("twinset.training.clipped_sum.prepare_trainable", FEW_NUMBERS[arm])
    elif arm == COUNTS:

        def keep(counts: TokenMarginals, *others: Any) -> TokenTilt:
            released.append(counts)
            return fit_tilt(counts, *others)

        changed = patch("twinset.run.story.fit_tilt", keep)
    with changed:
        twinset = fit_twinset(arm, seed, private, size)
    if arm == NONE:
        return rows_of_base(twinset, size["rows"]), None
    if arm not in (TOPICS, VOTES, COUNTS):
        return twinset.sample(size["rows"]), twinset.guarantee.epsilon
    pool = twinset.sample(POOL * size["rows"])
    if arm == COUNTS:
        chosen = choose_by_counts(pool, released[0], size["rows"], twinset.model, seed)
        return chosen, twinset.guarantee.epsilon
    chosen = choose_rows(pool, private, size["rows"], twinset.model, arm == TOPICS, seed)
    ledger = twinset.model.ledger
    return chosen, epsilon([*ledger.events, GaussianRelease(HISTOGRAM_NOISE, arm)], ledger.delta)


def fit_twinset(arm: str, seed: int, private: pd.DataFrame, size: Mapping[str, Any]) -> Twinset:
    """Return an arm's fitted model."""
    labels = list(private.columns[1:])
    options = {"epsilon": size["epsilon"], **ARMS[arm]}
    options["epsilon"] *= options.pop("epsilon_left", 1.0)
    if "batch_size" in options:
        options["batch_size"] = min(options["batch_size"], len(private))
    twinset = Twinset(
        base_model=size["base_model"],
        prompt="product-review" if "product" in labels else size.get("prompt", "film-review"),
        max_tokens=size["max_tokens"],
        max_redraws=1_000,
        max_minutes=None,
        seed=seed,
        **options,
    )
    # declared in every arm, as noisy counts at ε = 0.001 would select none
    values = {name: sorted(private[name].unique()) for name in labels}
    return twinset.fit(private, "text", labels, labels=values)


def rows_of_base(twinset: Twinset, wanted: int) -> pd.DataFrame:
    """Return equally many rows of each label combination. Noisy counts at ε = 0.001 say nothing."""
    combinations = twinset.model.schema.combinations
    counts = dict.fromkeys(combinations, wanted // len(combinations))
    return twinset.model.sample(counts, twinset.config.sampling)


def joined(rows: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Return the rows with a column of all labels together."""
    return rows.assign(**{"all labels": rows[labels].astype(str).agg(" | ".join, axis=1)})


# --- fewer trained numbers ----------------------------------------------------------------------


class AdamAlongDirections(torch.optim.Optimizer):
    """Adam on the coordinates of public directions (k, all numbers), orthonormal.

    It gets a noisy gradient, so what it does with it spends nothing. Noise in other directions is
    lost, and so is signal (Yu et al. 2021, "Do not Let Privacy Overbill Utility", with own rows).
    """

    public: PublicGradients
    again: int | None  # steps after which directions are found again, at the weights as they are
    done: int
    directions: Tensor
    place: nn.Parameter
    adam: torch.optim.Optimizer
    options: dict[str, Any]

    @classmethod
    def of(
        cls,
        public: PublicGradients,
        again: int | None,
        weights: list[nn.Parameter],
        rate: float,
        **options: Any,
    ) -> AdamAlongDirections:
        """Return one that begins where the weights are."""
        made = cls(weights, {"lr": rate})
        made.public, made.again, made.done, made.options = public, again, 0, options
        made.turn_to(public.directions(weights))
        return made

    def turn_to(self, directions: Tensor) -> None:
        """Begin along directions."""
        self.directions, self.place = directions, nn.Parameter(torch.zeros(len(directions)))
        rate = self.param_groups[0]["lr"]
        self.adam = torch.optim.AdamW([self.place], rate, weight_decay=0.0, **self.options)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move along the directions, at the rate that a schedule has set."""
        (group,) = self.param_groups
        gradients = torch.cat([w.grad.flatten() for w in group["params"]])
        if self.done == self.again:
            self.turn_to(self.public.directions(group["params"]))
        self.done, before = self.done + 1, self.place.detach().clone()
        self.place.grad = self.directions @ gradients
        self.adam.param_groups[0]["lr"] = group["lr"]
        self.adam.step()
        move = (self.place.detach() - before) @ self.directions
        with torch.no_grad():
            sizes = [w.numel() for w in group["params"]]
            for weight, part in zip(group["params"], move.split(sizes), strict=True):
                weight += part.view_as(weight)


class PublicGradients:
    """Gradients of rows that the base wrote, of the numbers of adapters."""

    def __init__(self, seed: int, private: pd.DataFrame, size: Mapping[str, Any]) -> None:
        twinset, base = fit_twinset(NONE, seed, private, size), load_base(size["base_model"])
        self._model = prepare_trainable(fuse(base.model), TrainingConfig(method="lora", seed=seed))
        self._rows: list[tuple[Tensor, int]] = []  # (1, T) ids, and how many are the prompt's
        rows = rows_of_base(twinset, PUBLIC_ROWS)[["text", *private.columns[1:]]]
        for text, *combination in rows.itertuples(index=False):
            prompt = twinset.model.prompts[tuple(combination)]
            own = base.tokenizer(" " + text, add_special_tokens=False)["input_ids"]
            self._rows.append((torch.tensor([prompt + own[: size["max_tokens"]]]), len(prompt)))

    def directions(self, at: list[nn.Parameter]) -> Tensor:
        """Return the leading directions (k, numbers) at these weights of the adapters.

        One factor of an adapter starts at 0, so at first they move that factor alone.
        """
        weights, gradients = [p for p in self._model.parameters() if p.requires_grad], []
        with torch.no_grad():
            for own, theirs in zip(weights, at, strict=True):
                own.copy_(theirs)
        for row, prompt in self._rows:
            targets = row.clone()
            targets[:, :prompt] = -100
            found = torch.autograd.grad(self._model(input_ids=row, labels=targets).loss, weights)
            gradients.append(torch.cat([each.flatten() for each in found]))
        return torch.linalg.svd(torch.stack(gradients), full_matrices=False).Vh[:DIRECTIONS]


def train_endings(endings: tuple[str, ...], model: Any, training: TrainingConfig) -> Any:
    """Return a model of which only the biases are trained of layers whose names end so."""
    model.requires_grad_(False)
    for name, layer in model.named_modules():
        if name.endswith(endings) and hasattr(layer, "bias"):
            if layer.bias is None:
                layer.bias = nn.Parameter(layer.weight.new_zeros(layer.out_features))
            layer.bias.requires_grad_()
    return model


class PromptedPositions(nn.Module):
    """A table of positions, the first of which have a further vector each."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        # all later positions share the last row, which stays 0 and gets no gradient
        self.own = nn.Embedding(PROMPT_PLACES + 1, table.embedding_dim, padding_idx=PROMPT_PLACES)
        nn.init.zeros_(self.own.weight)

    def forward(self, positions: Tensor) -> Tensor:
        """Return (…, d) vectors of positions."""
        own: Tensor = self.own(positions.clamp(max=PROMPT_PLACES))
        return own + self.table(positions)


def train_soft_prompt(model: Any, training: TrainingConfig) -> Any:
    """Return a GPT-2 of which only vectors are trained that its prompt's first tokens get.

    Raises:
        InputError: the model has no table of positions, to which they are added in the end.
    """
    model.requires_grad_(False)
    table = getattr(model.base_model, "wpe", None)
    if table is None:
        raise InputError(
            f"{SOFT_PROMPT} needs a GPT-2, such as gpt2-mini. All other arms are done."
        )
    model.base_model.wpe = prompted = PromptedPositions(table)

    def merge() -> Any:
        with torch.no_grad():
            table.weight[:PROMPT_PLACES] += prompted.own.weight[:PROMPT_PLACES]
        model.base_model.wpe = table
        return model

    model.merge_and_unload = merge
    return model


FEW_NUMBERS = {
    STEERING: partial(train_endings, ("mlp.c_proj", "mlp.down_proj")),
    BIASES: partial(train_endings, ("_proj", "c_attn", "c_fc")),
    SOFT_PROMPT: train_soft_prompt,
}


# --- chosen rows --------------------------------------------------------------------------------


def choose_rows(
    pool: pd.DataFrame,
    private: pd.DataFrame,
    wanted: int,
    model: TwinModel,
    by_topic: bool,
    seed: int,
) -> pd.DataFrame:
    """Return rows of a pool, by how many private records of their label are near.

    Each record adds one to one count, and each count has noise. Topics are clusters of the pool.
    A label keeps its share of the pool, and takes its topics' rows in proportion to the counts. Or
    records vote for rows, and those with most votes are taken (one round of Private Evolution).
    """
    from sklearn.cluster import KMeans

    labels, questions = list(private.columns[1:]), model.questions
    ours, theirs = (
        [questions.tokens(text, model.text_tokens) for text in rows["text"]]
        for rows in (pool, private)
    )
    states = np.stack(questions.states_of_texts(ours))[:, 0]  # (rows, d), by the first question
    whiten = Whitening.fit(states, len(pool), 0.0)
    near_pool = np.stack([*map(whiten, states)])
    read = sorted(states_of_records(questions, theirs), key=itemgetter(0))
    near_private = np.stack([whiten(found[0]) for _, found in read])
    clusters = min(TOPICS_IN_ALL, len(pool))
    topics = KMeans(clusters, n_init=2, random_state=seed).fit(near_pool) if by_topic else None
    rng, kept = np.random.default_rng(seed), list[int]()
    of_pool, of_private = (
        joined(rows, labels)["all labels"].to_numpy() for rows in (pool, private)
    )
    for label in sorted(set(of_pool)):
        own = rng.permutation(np.flatnonzero(of_pool == label))
        seen, room = near_private[of_private == label], round(wanted * len(own) / len(pool))
        centres, places = near_pool[own], np.arange(len(own))
        if topics:
            centres, places = topics.cluster_centers_, topics.labels_[own]
        # Rows have one length. Centres have not.
        away = np.square(centres).sum(1) - 2 * seen @ centres.T  # (records, centres), less |seen|²
        nearest = away.argmin(1)
        size = len(centres)
        counts = np.bincount(nearest, minlength=size) + rng.normal(0, HISTOGRAM_NOISE, size)
        if topics:
            share = np.maximum(counts, 0.01)[places]  # a row's chance, before others of its topic
            share = share / np.bincount(places, minlength=size)[places]
            order = np.argsort(-np.log(rng.random(len(own))) / share)
        else:
            order = np.argsort(-counts)
        kept.extend(own[order][:room].tolist())
    return pool.iloc[kept]


def choose_by_counts(
    pool: pd.DataFrame, released: TokenMarginals, wanted: int, model: TwinModel, seed: int
) -> pd.DataFrame:
    """Return rows of a pool that have words and lengths as often as the released counts say.

    A row's chance is log-linear in its words and length, for each label value. Strengths are the
    likeliest under the noise of the counts. They are lowered until the effective number of rows is
    what is wanted. This is post-processing.
    """
    end = model.tokenizer.eos_token_id
    bins = LengthBins(model.text_tokens, end)
    texts = [model.questions.tokens(text, model.text_tokens) for text in pool["text"]]
    # a row that was cut has lost its last word
    lengths = [bins.of([*ids, end] if len(ids) < bins.longest - CUT else ids) for ids in texts]
    combinations = pool[list(pool.columns[1:])].itertuples(index=False)
    labels = np.array([model.schema.value_numbers(c) for c in combinations])  # (rows, attributes)
    features, targets, noises = [], [], []
    for own, counts, of_lengths in zip(labels.T, released.counts, released.lengths, strict=True):
        for value in range(len(counts)):
            words = np.flatnonzero(counts[value] > CLEAR * released.noise)
            found = np.zeros((len(pool), len(words) + len(bins)))
            for row in np.flatnonzero(own == value):
                tokens, share = released.weights.of(texts[row])
                found[row, : len(words)] = share * np.isin(words, tokens)
                found[row, len(words) + lengths[row]] = 1.0
            features.append(found)
            targets += [counts[value][words], of_lengths[value]]
            noises += [released.noise[words], np.full(len(bins), released.deviation)]
    rows = torch.tensor(np.concatenate(features, 1))  # (rows, features)
    units = float(sum(each.sum() for each in released.lengths)) / len(released.lengths)
    target, noise = (torch.tensor(np.concatenate(x)) / units for x in (targets, noises))
    strengths = torch.zeros(rows.shape[1], dtype=rows.dtype, requires_grad=True)
    search = torch.optim.LBFGS([strengths], max_iter=200, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        search.zero_grad()
        loss = (rows @ strengths).logsumexp(0) - target @ strengths
        # the noise of counts, and that of a share of so few rows
        spread = noise**2 + target.clamp(min=1 / units) / wanted
        loss = loss + 0.5 * spread @ strengths**2
        loss.backward()
        return loss

    search.step(distance)
    scores, tempered = (rows @ strengths).detach(), 1.0
    while 1 / (tempered * scores).softmax(0).square().sum() < wanted:
        tempered *= 0.9
    rng = np.random.default_rng(seed)
    order = (tempered * scores).numpy() + rng.gumbel(size=len(pool))
    return pool.iloc[np.argsort(-order)[:wanted]]


STUDY = Study(
    name="arms",
    title="What each part of a twin is worth",
    claim="small tables are best learned by noisy word counts and a private classifier",
    files={
        "train": "a table to make twins of, with text, sentiment and perhaps product",
        "test": "real rows that no twin is made of",
    },
    sizes=SIZES,
    arms=lambda size: (REAL, *ARMS),
    load=load_cut_tables,
    measure=measure_arm,
    comparisons=[
        Comparison(figure, ours, theirs)
        for figure in ("accuracy, all labels, tfidf", "MAUVE")
        for ours, theirs in (
            (DEFAULT, REAL),
            (DEFAULT, NONE),
            (DEFAULT, WORDS),
            *((arm, DEFAULT) for arm in [*ARMS][3:]),
        )
    ],
    picture="MAUVE",
)

if __name__ == "__main__":
    main(STUDY)
