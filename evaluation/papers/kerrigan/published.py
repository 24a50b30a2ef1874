"""What Kerrigan, Slack and Tuyls 2020 report, to the letter.

"Differentially Private Language Models Benefit from Public Pre-training". Knows nothing of what is
measured here.
"""

from __future__ import annotations

import math

from evaluation.papers.report import Paper

PUBLIC, PRIVATE, BOTH = "public only", "private only", "public, then private"
SIGMAS = (0.0, 0.1, 1.1)
DELTA = 1e-5

# Table 1: (network, trained on, σ) → perplexity (development, test) on Reddit_10k.
TABLE_1 = {
    ("small", PUBLIC, 0.0): (1561.20, 1584.54),
    ("small", PRIVATE, 0.0): (3805.83, 3787.68),
    ("small", BOTH, 0.0): (1035.45, 1037.81),
    ("small", BOTH, 0.1): (1457.94, 1480.84),
    ("small", BOTH, 1.1): (1450.01, 1473.48),
    ("large", PUBLIC, 0.0): (1652.65, 1677.42),
    ("large", PRIVATE, 0.0): (1254.48, 1259.23),
    ("large", BOTH, 0.0): (1016.65, 1019.31),
    ("large", BOTH, 0.1): (1604.42, 1627.56),
    ("large", BOTH, 1.1): (math.inf, math.inf),
}
# Section 5: "We were unsuccessful in training a differentially private model on the Reddit data
# alone, as all models tested gave unreasonably high perplexities (i.e. useless models)."
USELESS = {("small", PRIVATE, 0.1), ("small", PRIVATE, 1.1)} | {
    ("large", PRIVATE, 0.1),
    ("large", PRIVATE, 1.1),
}
EPSILON = {0.1: 107.30, 1.1: 9.75}  # figure 4 (the table in appendix D), at DELTA
GPT2_BROWN, GPT2_REDDIT = 40.0, 45.14  # section 4.3: test perplexity without privacy, three epochs

# The script that came with the paper: examples, examples a batch, batches.
WINDOWS, BATCH, STEPS = 689_763, 64, 12_000
# Brown's sentences and words as `texts` and `words` count them, and the lines of the 10,000
# comments: for a plan without files.
VOCABULARY, PUBLIC_LINES, PRIVATE_LINES = 42_397, 57_340, 30_069

# Sections 3.1 and 3.2 on people with γ > 1 sentences: "the only necessary change is a
# post-processing scaling of ε ↦ ε/γ". Every figure there is for γ = 1.
GROUP_RULE = "ε ÷ γ"


def relative(key: tuple[str, str, float]) -> float:
    """Return the test perplexity of a row of Table 1 over that of the public model."""
    return TABLE_1[key][1] / TABLE_1[key[0], PUBLIC, 0.0][1]


PAPER = Paper(
    "Kerrigan, Slack and Tuyls (2020)",
    "Public text first",
    "DP fine-tuning not only boosts the performance of DP language modeling, but makes it possible",
)
