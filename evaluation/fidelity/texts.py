"""Measures of a table's texts (length, repetition, vocabulary, perplexity) and of their embeddings.

Each has an interval. A row is a list of its words or a vector, and rows are in random order. This
module knows no columns and not how a twin was made. Most of these numbers depend on the number of
rows, so compare tables of the same size only. Measures that correct for size say so. Those of
vectors depend on the encoder too.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..findings import Goal, Score, mean, proportion

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BLOCKS = 10  # of the jackknife
LONGEST_NGRAM = 4  # n-gram diversity and BLEU-4 both stop here
DRAWN = 10_000  # n-grams that the distinct ones are counted among
PARTS, PART_ROWS = 5, 200  # of self-BLEU: pairs within a part grow with the square of its rows
SMOOTHING = 0.1  # of a match, for n-grams without any
PERPLEXITY_ROWS = 100  # a model of 135 million parameters reads some hundred a minute on one core
PERPLEXITY_TOKENS = 512  # of a row. The rest is not read.
SCALING = 5.0  # c of MAUVE, as its authors chose
MIXTURES = 25  # points of the divergence curve
EXPLAINED = 0.9  # of the variance, in the dimensions that are clustered
ROWS_A_CLUSTER = 10
CLUSTERINGS, CLUSTER_STEPS = 5, 500
NEIGHBOURS = 3  # of precision and recall, as their authors chose

# A run of letters and digits, with an apostrophe inside it. Scripts that put no space between words
# give long ones: rows are still comparable, numbers are not those of other tools.
_WORD = re.compile(r"\w+(?:['’]\w+)*")

Row = Sequence[str]  # the words of one text
OfRows = Callable[[np.ndarray], float]  # the numbers of some rows → a measure of these


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.casefold())


def count_ngrams(rows: Sequence[Row], n: int) -> csr_array:
    """Count each n-gram in each row: (rows, n-grams). An n-gram stays within its row."""
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    found = [list(zip(*(row[shift:] for shift in range(n)), strict=False)) for row in rows]
    if not any(found):  # scikit-learn refuses an empty vocabulary
        return csr_array((len(rows), 0))
    return csr_array(CountVectorizer(analyzer=list).fit_transform(found))


def leave_out_blocks(rows: int) -> list[np.ndarray]:
    """Return the numbers of all rows, and of those left when each block is taken out in turn.

    A single row has no blocks.
    """
    everything = np.arange(rows)
    blocks = range(min(BLOCKS, rows)) if rows > 1 else ()
    return [everything, *(everything[everything % BLOCKS != block] for block in blocks)]


def jackknife(
    name: str, measure: OfRows, rows: int, goal: Goal, minimum: float, maximum: float
) -> Score:
    """Return a measure of all rows with Student's t interval of the jackknife, cut at the range.

    The share of distinct words or a divergence depends on the number of rows. The bootstrap, which
    repeats rows, would be biased. Leaving out one block of rows at a time shifts all values alike,
    and the shift cancels (Shao and Tu 1995, "The Jackknife and Bootstrap", §2.3). The interval is
    for the same number of other rows from the same sources. It is rather too wide than too narrow
    (Efron and Stein 1981). With fewer than two blocks it is the whole range.

    Rows are in random order. `measure` takes the numbers of some, and NaN leaves that block out.
    """
    from scipy.stats import t

    value, *without = (float(measure(kept)) for kept in leave_out_blocks(rows))
    value = min(max(value, minimum), maximum)  # rounding may have left the range
    without, half = [each for each in without if math.isfinite(each)], math.inf
    if (free := len(without) - 1) > 0:
        half = float(t.ppf(0.975, free)) * math.sqrt(free * float(np.var(without)))
    low, high = max(minimum, value - half), min(maximum, value + half)
    return Score(name, value, low, high, goal, minimum, maximum, rows)


def length_scores(lengths: np.ndarray) -> list[Score]:
    """Return mean and median of the texts' lengths (N,) in words.

    Range 0 to ∞. The best value is that of real rows, not more and not less. The mean has Student's
    t interval. The median's is between two order statistics, which is valid for any distribution
    (David and Nagaraja 2003, "Order Statistics", §7.1).
    """
    from scipy.stats import binom

    values = sorted(lengths.tolist())
    n = len(values)
    rank = int(binom.ppf(0.025, n, 0.5))  # fewer than 2.5 % of samples have less below the median
    low, high = (values[rank - 1], values[n - rank]) if rank else (0.0, math.inf)
    middle = float(np.median(values))
    return [
        mean("mean length", values, "match", 0.0, math.inf),
        Score("median length", middle, low, high, "match", 0.0, math.inf, n),
    ]


def drawable_ngrams(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return, for n = 1 … 4, how many n-grams can be drawn whatever block of rows is left out."""
    orders = range(1, LONGEST_NGRAM + 1)
    sizes = np.array([[max(0, len(row) - n + 1) for n in orders] for row in rows])  # (rows, 4)
    possible = np.array([sizes[kept].sum(axis=0) for kept in leave_out_blocks(len(rows))])
    return tuple(np.minimum(possible.min(axis=0), DRAWN).tolist())


def diversity_scores(rows: Sequence[Row], drawn: Sequence[int]) -> list[Score]:
    """Return distinct-1 to distinct-3 and n-gram diversity, if they can be taken.

    Distinct-n is the share of different n-grams (Li et al. 2016, "A Diversity-Promoting Objective
    Function for Neural Conversation Models"), range 0 to 1. N-gram diversity is the sum of
    distinct-1 to distinct-4 (Padmakumar and He 2024, "Does Writing with Language Models Reduce
    Content Diversity?"), range 0 to 4. The best value is that of real rows. Lower means that the
    twin repeats itself, higher that it combines words at random.

    Both fall as a table grows. So they are the expectation for a fixed number of n-grams drawn
    from the table (rarefaction, Hurlbert 1971), which any two tables can share. `drawn` says how
    many, for n = 1 … 4. N-grams that the table lacks are not drawn.
    """
    wanted = [min(pair) for pair in zip(drawn, drawable_ngrams(rows), strict=True)]
    orders = [n for n, number in enumerate(wanted, start=1) if number]
    grams = {n: count_ngrams(rows, n) for n in orders}  # (rows, n-grams) each

    def share_distinct(orders: Sequence[int], kept: np.ndarray) -> float:
        return sum(expected_distinct(grams[n][kept].sum(axis=0), wanted[n - 1]) for n in orders)

    named = [(f"distinct-{n}", [n]) for n in orders[:3]]
    if len(orders) == LONGEST_NGRAM:
        named.append(("n-gram diversity", orders))
    return [
        jackknife(name, partial(share_distinct, some), len(rows), "match", 0.0, float(len(some)))
        for name, some in named
    ]


def expected_distinct(counts: np.ndarray, drawn: int) -> float:
    """Return the expected share of distinct items among `drawn` ones, without replacement.

    >>> [round(expected_distinct(np.array([3, 1]), drawn), 3) for drawn in (4, 2)]
    [0.5, 0.75]
    """
    from scipy.stats import hypergeom

    often, types = np.unique(counts[counts > 0], return_counts=True)
    missed = hypergeom.pmf(0, int(counts.sum()), often, drawn)  # no draw is of that type
    return float(types @ (1 - missed) / drawn)


def self_bleu(rows: Sequence[Row], twin_rows: int) -> Score | None:
    """Return self-BLEU: how much each row resembles the others. None without two rows.

    Source: Zhu et al. 2018, "Texygen". It is the mean over disjoint parts of the table of each
    row's BLEU-4 with all others of its part as references. Range 0 to 1. The best value is that of
    real rows. Higher means that rows resemble each other too much.

    It rises with the rows of a part, so the twin's size decides that in every table. A part is at
    most a fifth of the twin, so that there is an interval, unless a fifth would be a single row.
    The interval is Student's over the parts. It is about other rows from the same source.
    """
    size = min(PART_ROWS, twin_rows // PARTS) if twin_rows >= 2 * PARTS else twin_rows
    size = min(size, len(rows))
    if size < 2:
        return None
    parts = [rows[i * size : (i + 1) * size] for i in range(min(PARTS, len(rows) // size))]
    values = [statistics.fmean(row_self_bleus(part)) for part in parts]
    return replace(mean("self-BLEU", values, "match", 0.0, 1.0), n=len(parts) * size)


def row_self_bleus(rows: Sequence[Row]) -> list[float]:
    """Return each row's BLEU-4 (Papineni et al. 2002) with all others as references: (N,).

    An n-gram order without any match counts as 0.1 of one match (method 1 of Chen and Cherry 2014).
    A row that shares no word at all scores 0.
    """
    lengths = np.array(list(map(len, rows)))
    logs = np.zeros((LONGEST_NGRAM, len(rows)))
    for shift in range(LONGEST_NGRAM):
        counts = count_ngrams(rows, shift + 1).astype(np.int32).toarray()  # (N, n-grams)
        # A row is matched with the one that has an n-gram most often, or where that is the row
        # itself with the next one. Comparing all pairs would be quadratic.
        second, first = np.partition(counts, -2, axis=0)[-2:]
        matched = np.minimum(counts, np.where(counts == first, second, first)).sum(axis=1)
        if shift == 0:
            shares_none = matched == 0
        logs[shift] = np.log(np.where(matched, matched, SMOOTHING) / np.maximum(1, lengths - shift))
    # The reference length nearest to the row's own, the shorter of two (BLEU's brevity).
    apart = 2.0 * np.abs(lengths[:, None] - lengths) + (lengths > lengths[:, None])  # (N, N)
    np.fill_diagonal(apart, np.inf)
    brevity = np.minimum(0, 1 - lengths[apart.argmin(axis=1)] / np.maximum(1, lengths))
    return np.where(shares_none, 0, np.exp(brevity + logs.mean(axis=0))).tolist()


def vocabulary_scores(rows: Sequence[Row], train: Sequence[Row]) -> list[Score]:
    """Compare the words of a table with those of equally many private rows.

    Three measures, all in 0 to 1. First, the share of our distinct words that train knows, which
    should equal a second real sample's. Second, the share of train's text that our words make up,
    which should be high. Third, the Jensen–Shannon divergence of both distributions in bits, which
    should be low (Lin 1991). All depend on the number of rows. Empty if a table has no words.
    """
    from scipy.spatial.distance import jensenshannon

    both = count_ngrams([*rows, *train], 1)  # (2 N, words)
    ours, real = both[: len(rows)], both[len(rows) :]
    if not (ours.sum() and real.sum()):
        return []

    def compare(measure: Callable[..., float], kept: np.ndarray) -> float:
        mine, its = ours[kept].sum(axis=0), real[kept].sum(axis=0)
        return measure(mine, its) if mine.any() and its.any() else math.nan

    measures: tuple[tuple[str, Callable[..., float], Goal], ...] = (
        ("words known to train", lambda mine, its: (its[mine > 0] > 0).mean(), "match"),
        ("words of train covered", lambda mine, its: its[mine > 0].sum() / its.sum(), "maximise"),
        (
            "Jensen–Shannon divergence of words",
            lambda mine, its: jensenshannon(mine, its, base=2) ** 2,  # scipy's is the root
            "minimise",
        ),
    )
    return [
        jackknife(name, partial(compare, measure), len(rows), goal, 0.0, 1.0)
        for name, measure, goal in measures
    ]


def public_perplexity(
    texts: Sequence[str], model: Any, tokenizer: Any, on_progress: Callable[[int, int], object]
) -> Score | None:
    """Return how usual texts seem to a model that never saw private data. None without a token.

    It is exp of the mean nats per token, without any prompt. Range 1 to ∞. The best value is that
    of real rows: lower means blander texts, higher stranger ones.
    """
    from twinset.training.record_weights import text_nats

    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    # one position less than the context: the start token takes it
    longest = min(PERPLEXITY_TOKENS, int(model.config.max_position_embeddings) - 1)
    ids = [row[:longest] for row in ids if row]
    if not ids:
        return None
    tokens = np.array(list(map(len, ids)))
    nats = text_nats(model, tokenizer, ids, on_progress).numpy() * tokens  # (N,) of whole texts

    def perplexity(kept: np.ndarray) -> float:
        return math.exp(nats[kept].sum() / tokens[kept].sum())

    name = "perplexity under a public model"
    return jackknife(name, perplexity, len(ids), "match", 1.0, math.inf)


def mauve(ours: np.ndarray, real: np.ndarray, seed: int) -> Score:
    """Return MAUVE: how far two clouds can be told apart, by mass and by support.

    Source: Pillutla et al. 2021, "MAUVE: Measuring the Gap Between Neural Text and Human Text", §3
    and appendix. Both clouds are cut into the same k-means clusters. MAUVE is the area under the
    curve of exp(-c KL) of both histograms against their mixtures, c = 5. Range 0 to 1, and 1 means
    that both are alike.

    The authors take the best of five clusterings. The mean of their areas, taken here, varies half
    as much with the seed. They use embeddings of GPT-2, and others give other numbers. The interval
    is the jackknife's over rows of both tables, with the clusters fixed. Both are (N, d) unit
    vectors in random order.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    rows, vectors = len(ours), np.concatenate([ours, real])  # (2 N, d)
    differing = len(np.unique(vectors, axis=0))
    labels = [np.zeros(2 * rows, dtype=int)]  # of one point repeated there is no component
    if differing > 1:
        reduced = PCA(EXPLAINED, svd_solver="full").fit_transform(vectors)
        wanted = min(max(2, round(rows / ROWS_A_CLUSTER)), differing)
        labels = [
            KMeans(wanted, n_init=1, max_iter=CLUSTER_STEPS, random_state=each).fit_predict(reduced)
            for each in range(seed, seed + CLUSTERINGS)
        ]

    def area(kept: np.ndarray) -> float:
        sides = [(each[:rows][kept], each[rows:][kept]) for each in labels]
        histograms = [[np.bincount(side, minlength=2 * rows) for side in both] for both in sides]
        return statistics.fmean(divergence_curve_area(*both) for both in histograms)

    return jackknife("MAUVE", area, rows, "maximise", 0.0, 1.0)


def divergence_curve_area(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the area under the divergence curve of two histograms (k,), in counts or shares.

    >>> round(divergence_curve_area(np.array([1, 1]), np.array([5, 5])), 3)
    1.0
    >>> round(divergence_curve_area(*np.eye(2)), 3)
    0.004
    """
    from scipy.special import rel_entr

    p, q = ours / ours.sum(), real / real.sum()
    weight = np.linspace(0, 1, MIXTURES)[:, None]
    mixture = weight * p + (1 - weight) * q  # (mixtures, clusters)
    x = np.exp(-SCALING * rel_entr(q, mixture).sum(axis=1))
    y = np.exp(-SCALING * rel_entr(p, mixture).sum(axis=1))
    return float(-np.trapezoid(np.concatenate([[0], y, [1]]), np.concatenate([[1], x, [0]])))


def precision_recall(ours: np.ndarray, real: np.ndarray) -> list[Score]:
    """Return the share of our rows in the real region, and of real rows in ours.

    Source: Kynkäänniemi et al. 2019, "Improved Precision and Recall Metric for Assessing Generative
    Models", eq. 2. A table's region is everything that is as near to one of its rows as that row's
    third nearest neighbour in the table. Range 0 to 1, higher is better. Low precision means that
    the twin writes texts unlike any real row, low recall that it lacks kinds of real rows.

    There is none if a table has one row. The intervals are Wilson's. They are about the counted
    rows, with the region fixed.
    """
    from scipy.spatial.distance import cdist

    if min(len(ours), len(real)) < 2:
        return []
    found = []
    for name, rows, region in (("precision", ours, real), ("recall", real, ours)):
        nearest = min(NEIGHBOURS, len(region) - 1)  # place 0 in the order is the row itself
        radii = np.partition(cdist(region, region), nearest)[:, nearest]  # (M,)
        inside = (cdist(rows, region) <= radii).any(axis=1)  # (N,)
        found.append(proportion(f"{name} of embeddings", int(inside.sum()), len(rows)))
    return found


def frechet_distance(ours: np.ndarray, real: np.ndarray) -> Score | None:
    """Return the Fréchet distance, with each table as a Gaussian. None for a table of one row.

    Source: Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6:
    |m - m'|² + tr(C + C' - 2 (C C')^½). Range 0 to ∞, lower is better. It falls with the number of
    rows, also between samples of one distribution, so compare distances for the same number only.
    The interval is the jackknife's, over rows of both tables, (N, d) each and in random order.
    """
    ours, real = ours.astype(np.float64), real.astype(np.float64)

    def distance(kept: np.ndarray) -> float:
        if len(kept) < 2:  # of one row there is no covariance
            return math.nan
        one, other = ours[kept], real[kept]
        covariances = [np.atleast_2d(np.cov(each, rowvar=False)) for each in (one, other)]
        values, axes = np.linalg.eigh(covariances[0])
        root = (axes * np.sqrt(np.clip(values, 0, None))) @ axes.T  # C^½
        # C C' has the eigenvalues of C^½ C' C^½, which is symmetric: no complex roots
        product = np.linalg.eigvalsh(root @ covariances[1] @ root)
        shared = np.sqrt(np.clip(product, 0, None)).sum()
        apart = ((one.mean(axis=0) - other.mean(axis=0)) ** 2).sum()
        return float(apart + sum(map(np.trace, covariances)) - 2 * shared)

    if len(ours) < 2:
        return None
    name = "Fréchet distance of embeddings"
    return jackknife(name, distance, len(ours), "minimise", 0.0, math.inf)
