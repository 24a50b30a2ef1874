"""A table in memory, its twin, what the twin is worth, and the folder that may be handed over.

Cells are marked as in a notebook. `gpt2-mini` is part of twinset: quick, and less fluent than the
default base. The table is made up here and plays the private one.
"""

# %% The private table: 600 short reviews, and 200 that stay out of it to measure with.
import random

import pandas as pd

from twinset import Twinset
from twinset.release.verify import verify

OPINIONS = {"positive": ["great", "lovely", "moving"], "negative": ["dull", "poor", "far too long"]}


def made_up(rows: int, seed: int) -> pd.DataFrame:
    """Return so many reviews."""
    draw = random.Random(seed)
    table = []
    for _ in range(rows):
        mood = draw.choice(list(OPINIONS))
        opinion, friend = draw.choice(OPINIONS[mood]), draw.choice(["sister", "father", "friend"])
        table.append((f"I saw it with my {friend}. It was {opinion}, from start to end.", mood))
    return pd.DataFrame(table, columns=["review", "sentiment"])


private, held_out = made_up(600, seed=1), made_up(200, seed=2)

# %% What would it cost, and what would be promised?
model = Twinset(base_model="gpt2-mini", epsilon=8, max_tokens=32, prompt="film-review")
print(model)
print(model.plan(private, "review", "sentiment").plan)

# %% Train, and draw as many rows as wanted: they cost no further privacy.
model.fit(private, text="review", attributes="sentiment")
twin = model.sample(100)
print(model)
print(twin.head())

# %% Is it useful, does it leak? These numbers are computed on private rows: keep them.
scores = model.evaluate(twin, private, held_out, classifiers=["tfidf"], embedded=False)
print(scores.loc[scores.name == "accuracy", ["rows", "value", "low", "high"]])

# %% What may be handed over, and what its receiver checks.
shared = model.share(twin, "shared", format="csv")
print(shared, verify("shared").guarantee.sentence, sep="\n")
