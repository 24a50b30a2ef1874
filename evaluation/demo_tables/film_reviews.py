"""The demo's private table: short film reviews labelled fresh or rotten, split by film.

Knows where the public corpus has its plots, repeats and blanks; knows nothing of training.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from twinset.models.assets import Say, asset_path, silent

if TYPE_CHECKING:
    from pandas import DataFrame

HELD_OUT_SHARE = 0.2


def demo_reviews(say: Say = silent) -> tuple[DataFrame, DataFrame]:
    """Return the training and the held-out reviews; no film and no review text is in both.

    Columns: `film`, `verdict` ("fresh" or "rotten"), `review`. The same rows in the same order
    every time.

    Raises:
        InputError: the asset `demo-reviews` is neither in the cache nor within reach.
    """
    import pandas as pd

    corpus = pd.read_csv(asset_path("demo-reviews", say), compression="bz2")
    reviews = tidy(corpus)
    held_out = reviews["film"].map(is_held_out)
    return reviews[~held_out].reset_index(drop=True), reviews[held_out].reset_index(drop=True)


def tidy(corpus: DataFrame) -> DataFrame:
    """Keep the reviews of the corpus: no plots, no blank texts, the first of equal texts.

    Stray spaces are taken out first: they make two films of one, and two reviews of one.
    """
    reviews = corpus[corpus["category"].isin(["fresh", "rotten"])].dropna(subset="text")
    reviews = reviews.rename(
        columns={"movie_name": "film", "category": "verdict", "text": "review"}
    )[["film", "verdict", "review"]]
    for column in ("film", "review"):
        reviews[column] = reviews[column].str.split().str.join(" ")
    return reviews[reviews["review"] != ""].drop_duplicates("review", ignore_index=True)


def is_held_out(film: str) -> bool:
    """Tell on which side a film is, by a hash of its name that no library version changes."""
    digest = hashlib.sha256(film.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64
