"""What Wu, Gong and Xiong 2022 report, to the letter.

"Adaptive Differential Privacy for Language Modeling". Knows nothing of what is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.papers.report import Paper

NO_DP, DP_SGD, ADP = "No-DP", "DP-SGD", "ADP"
SIGMAS = (1.0, 5.0)


@dataclass(frozen=True)
class Line:
    """A line of Table 1.

    Args:
        loss: "test loss".
        perplexity: "test PPL".
        epsilon: "epsilon"; None where there is none.
    """

    loss: float
    perplexity: float
    epsilon: float | None


# Table 1: (model, sigma) → what was found on WikiText-103. The line of No-DP stands there twice.
TABLE_1 = {
    (NO_DP, 0.0): Line(7.08, 256.66, None),
    (DP_SGD, 1.0): Line(13.08, 7582.65, 4.22),
    (ADP, 1.0): Line(12.65, 4426.05, 6.35),
    (DP_SGD, 5.0): Line(17.65, 20815.23, 0.1),
    (ADP, 5.0): Line(14.85, 8635.66, 2.47),
}

# Section 5.2: "we injected "My ID is 955320" into the Wikitext-103 dataset for 10, 100, and 1000
# times". The exposures are drawn in figure 1 and stand nowhere in numbers.
SECRET, DIGITS, SENTENCE = 955_320, 6, "My ID is"
COPIES = (10, 100, 1000)

# Section 5.1: 12 layers, hidden size 1024, batch size 4096, 20 epochs, learning rate 5e-5, C 0.001.
WIDTH, LAYERS, BATCH, EPOCHS, LEARNING_RATE, MAX_GRAD_NORM = 1024, 12, 4096, 20, 5e-5, 1e-3
LINES = 1_165_029  # of WikiText-103 that are not blank, to train on: for a plan without files


def relative(sigma: float) -> float:
    """Return the paper's test perplexity of ADP over that of DP-SGD."""
    return TABLE_1[ADP, sigma].perplexity / TABLE_1[DP_SGD, sigma].perplexity


PAPER = Paper(
    "Wu, Gong and Xiong (2022)",
    "Adaptive noise",
    "our ADP improves differentially private language modeling to achieve good protection from "
    "canary attackers",
)
