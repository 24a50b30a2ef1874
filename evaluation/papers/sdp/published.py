"""What Shi, Cui, Li, Jia and Yu 2022 report, to the letter.

"Selective Differential Privacy for Language Modeling", NAACL. Knows nothing of what is measured
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.papers.report import Paper

WIKITEXT, DIALOGUES = "WikiText-2", "CustomerSim"
NO_DP, DPSGD, SDPSGD = "LSTM, no DP", "LSTM, DPSGD", "LSTM, S-DPSGD"
ANONYMISED = "LSTM, anonymised"
MISSED = "canary missed"
ENTITIES, CONTEXTUAL = "entities", "contextual"  # detectors, and policy functions of section 6
TRANSFORMER, REDACTED, SDP = "transformer", "redacted", "S-DP"
DELTA = 8e-5


@dataclass(frozen=True)
class Private:
    """A private row of Table 2: σ, C and ε."""

    noise_multiplier: float
    max_grad_norm: float
    epsilon: float


# Table 2: perplexity and top-1 accuracy on the test part, each with its spread over five runs.
TABLE_2 = {
    (WIKITEXT, NO_DP): (60.98, 0.48, 0.36, 0.00),
    (WIKITEXT, DPSGD): (305.86, 3.00, 0.27, 0.00),
    (WIKITEXT, SDPSGD): (160.04, 4.86, 0.31, 0.00),
    (DIALOGUES, NO_DP): (3.06, 0.01, 0.75, 0.00),
    (DIALOGUES, DPSGD): (11.82, 0.76, 0.70, 0.01),
    (DIALOGUES, SDPSGD): (10.42, 0.91, 0.69, 0.01),
}
NOISE = {
    (WIKITEXT, DPSGD): Private(0.50, 0.10, 4.89),
    (WIKITEXT, SDPSGD): Private(0.50, 1e-3, 4.91),
    (DIALOGUES, DPSGD): Private(0.60, 0.01, 2.51),
    (DIALOGUES, SDPSGD): Private(0.70, 5e-3, 2.74),
}
FLAGGED = {WIKITEXT: 0.028, DIALOGUES: 0.183}  # section 5.3: share of sensitive tokens

# Table 3: (model, policy function) → perplexity, ε. The text gives the flagged shares 16.4 % and
# 34.8 %; one row of the table says 10.40 % instead of the former.
TABLE_3: dict[tuple[str, str], tuple[float, float | None]] = {
    ("no DP", ""): (20.47, None),
    ("DPSGD", ""): (27.05, 2.58),
    (REDACTED, ENTITIES): (24.30, None),
    (SDP, ENTITIES): (22.56, 2.58),
    (REDACTED, CONTEXTUAL): (38.66, None),
    (SDP, CONTEXTUAL): (25.61, 2.48),
}
TABLE_3_FLAGGED = {ENTITIES: 0.164, CONTEXTUAL: 0.348}
TRANSFORMER_EPSILON, TRANSFORMER_NORM = 2.58, 1.0  # C of Table 3 is not told

CANARY, COPIES, SECRETS = "My ID is ", 10, 500  # section 5.1.1
SECRET = "341752"
# Section 5.2: without DP exposure "can go up to 20"; membership inference "up to 90%". Section 5.3:
# "only a little better than random guess probability (60+%)".
EXPOSURE_NO_DP, MEMBERSHIP_NO_DP = 20.0, {WIKITEXT: 0.90, DIALOGUES: 0.60}

# For a plan without files: WikiText-2's lines with words and its words; CustomerSim's dialogues and
# their words, about.
TRAIN_LINES = {WIKITEXT: 23_767, DIALOGUES: 10_000}
WORDS = {WIKITEXT: 2_051_910, DIALOGUES: 733_000}
GPT2_TOKENS = 50_257

PAPER = Paper(
    "Shi, Cui, Li, Jia and Yu (2022)",
    "Selective differential privacy",
    "training with Selective-DPSGD improves the model utility while remaining safe to the attacks",
)
