"""The same as `twinset generate`, from Python: a run folder with twin, card, ledger and model.

A fifth of the rows is kept out of the run, in its `internal/`, so that the twin can be judged.
"""

# %% A table that comes along: made-up dialogues of a help desk.
from pathlib import Path

import pandas as pd

from evaluation.demo import make_dialogues
from twinset import Twinset, generate

table = make_dialogues(400)[["text", "topic", "satisfied"]]

# %% One call. Labels are found where they are not named; here they are.
made = generate(
    table,
    text="text",
    attributes=["topic", "satisfied"],
    base_model="gpt2-mini",
    prompt="support-dialogue",
    epsilon=8,
    max_tokens=48,
    rows=60,
    hold_out=0.2,
    run="runs/help-desk",
)
print(made.run, made.rows, made.guarantee.sentence, sep="\n")

# %% More rows cost nothing more.
more = Twinset.load("runs/help-desk").sample(20)
print(more.head())

# %% The rows held out, and the page that shows all that is known of the run.
print(len(pd.read_parquet(Path("runs/help-desk/internal/held-out.parquet"))), "rows held out")
print(Twinset.report("runs/help-desk"))
