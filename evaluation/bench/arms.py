"""What each part of a twin adds: accuracy of classifiers that learn from its rows, and MAUVE.

    python -m evaluation.bench.arms --train train.csv --test heldout.csv

The arms are real rows, rows of the base model without private data, and twins of at most the same
ε. Twins follow noisy word counts alone, or counts and the private teacher (the default for small
tables), or both and large private steps. Four more arms are experiments and not part of twinset.
Steps along public directions, and steps of one vector a layer, train fewer numbers than adapters.
Topics and votes choose among more rows than are wanted, by a noisy histogram. Label values are
taken as public. The noise of the histogram is seeded, so only its ε is that of a release.
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
from torch import Tensor

from twinset import Twinset
from twinset.config import TrainingConfig
from twinset.models.adapters import prepare_trainable
from twinset.models.base_model import load_base
from twinset.models.hidden_states import Whitening, states_of_records
from twinset.models.layers import fuse
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import GaussianRelease
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
SUBSPACE, STEERING, TOPICS, VOTES = (
    "training along public directions",
    "training of a vector a layer",
    "rows chosen by topics",
    "rows chosen by votes",
)
STEPS: dict[str, Any] = {"steps": 8, "batch_size": 1024, "mismatch_weight": 0.0}
# at ε = 8 a histogram at σ = 3 costs less than the rest
CHOSEN: dict[str, Any] = {"steps": 0, "epsilon_left": 0.97}
ARMS: dict[str, dict[str, Any]] = {
    NONE: {"epsilon": 1e-3, "steps": 0, "marginal_share": 0.0, "teacher_share": 0.0},
    WORDS: {"steps": 0, "teacher_share": 0.0},
    DEFAULT: {"steps": 0},
    TRAINED: STEPS | {"learning_rate": 0.01},
    SUBSPACE: STEPS | {"learning_rate": 0.05},
    STEERING: STEPS | {"learning_rate": 0.02, "method": "full"},
    TOPICS: CHOSEN,
    VOTES: CHOSEN,
}
DIRECTIONS, PUBLIC_ROWS = 200, 600  # directions, and the rows of the base whose gradients span them
TOPICS_IN_ALL, HISTOGRAM_NOISE = 32, 3.0  # σ over the one count that a record adds
POOL = 3  # rows that are written for each one that is kept
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
    if arm == SUBSPACE:
        directions = find_directions(seed, private, size)
        changed = patch("torch.optim.Adam", partial(AdamAlongDirections.of, directions))
    if arm == STEERING:
        changed = patch("twinset.training.clipped_sum.prepare_trainable", train_vectors)
    with changed:
        twinset = fit_twinset(arm, seed, private, size)
    if arm == NONE:
        return rows_of_base(twinset, size["rows"]), None
    if arm not in (TOPICS, VOTES):
        return twinset.sample(size["rows"]), twinset.guarantee.epsilon
    pool = twinset.sample(POOL * size["rows"])
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

    directions: Tensor
    place: torch.nn.Parameter
    adam: torch.optim.Optimizer

    @classmethod
    def of(
        cls, directions: Tensor, weights: list[torch.nn.Parameter], rate: float, **options: Any
    ) -> AdamAlongDirections:
        """Return one that begins where the weights are."""
        made = cls(weights, {"lr": rate})
        made.directions, made.place = directions, torch.nn.Parameter(torch.zeros(len(directions)))
        made.adam = torch.optim.AdamW([made.place], rate, weight_decay=0.0, **options)
        return made

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move along the directions, at the rate that a schedule has set."""
        (group,), before = self.param_groups, self.place.detach().clone()
        self.place.grad = self.directions @ torch.cat([w.grad.flatten() for w in group["params"]])
        self.adam.param_groups[0]["lr"] = group["lr"]
        self.adam.step()
        move = (self.place.detach() - before) @ self.directions
        with torch.no_grad():
            sizes = [w.numel() for w in group["params"]]
            for weight, part in zip(group["params"], move.split(sizes), strict=True):
                weight += part.view_as(weight)


def find_directions(seed: int, private: pd.DataFrame, size: Mapping[str, Any]) -> Tensor:
    """Return the leading directions (k, numbers) of gradients of rows that the base wrote.

    One factor of an adapter starts at 0, so they move that factor alone.
    """
    twinset, base = fit_twinset(NONE, seed, private, size), load_base(size["base_model"])
    public = rows_of_base(twinset, PUBLIC_ROWS)
    model = prepare_trainable(fuse(base.model), TrainingConfig(seed=seed))
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients, labels = [], list(private.columns[1:])
    for text, *combination in public[["text", *labels]].itertuples(index=False):
        prompt = twinset.model.prompts[tuple(combination)]
        own = base.tokenizer(" " + text, add_special_tokens=False)["input_ids"]
        row = torch.tensor([prompt + own[: size["max_tokens"]]])
        targets = row.clone()
        targets[:, : len(prompt)] = -100
        found = torch.autograd.grad(model(input_ids=row, labels=targets).loss, weights)
        gradients.append(torch.cat([each.flatten() for each in found]))
    return torch.linalg.svd(torch.stack(gradients), full_matrices=False).Vh[:DIRECTIONS]


def train_vectors(model: Any, training: TrainingConfig) -> Any:
    """Return a model of which only a vector is trained that each layer's last product adds."""
    model.requires_grad_(False)
    for name, layer in model.named_modules():
        if name.endswith(("mlp.c_proj", "mlp.down_proj")):
            if layer.bias is None:
                layer.bias = torch.nn.Parameter(layer.weight.new_zeros(layer.out_features))
            layer.bias.requires_grad_()
    return model


# --- rows chosen by a noisy histogram -----------------------------------------------------------


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
            *((arm, DEFAULT) for arm in (TRAINED, SUBSPACE, STEERING, TOPICS, VOTES)),
        )
    ],
    picture="MAUVE",
)

if __name__ == "__main__":
    main(STUDY)
