"""What Li et al. 2024 report, to the letter, as far as their text says it in numbers.

"Fine-Tuning Language Models with Differential Privacy through Adaptive Noise Allocation". Its Table
1 (accuracies) and figures 1 and 2 (leakage, noise by layer) were not part of the text that was at
hand: of their numbers none is given here, only what the text says of them.
"""

from __future__ import annotations

from evaluation.papers.report import Paper

# Appendix A, "Training Details".
EPSILON, RANK, MAX_GRAD_NORM, EPOCHS = 8.0, 16, 10.0, 50
DELTA = 1e-5  # for SST-2 and QNLI, the smaller ones; 1e-6 for MNLI and QQP
ENCODER = "roberta-base"  # and roberta-large

OUTCOME = (  # "Accuracy Results", of Table 1
    "“ANADP consistently outperforms” DP-SGD: RoBERTa base and large, three methods, four sets of "
    "GLUE (the numbers of Table 1 were not at hand)"
)
LEAKAGE = (  # "Exposure Risks Results", of figure 1
    "“ANADP maintains the same level of privacy protection as the conventional DP methods”, "
    "“without statistically significant difference”, and a “substantial reduction” against none"
)
LAYERS = "“the lower and final layers of the model often receive reduced noise”"  # of figure 2

PAPER = Paper(
    "Li, Zmigrod, Ma, Liu and Zhu (2024)",
    "Less noise where it matters",
    "ANADP narrows the performance gap between regular fine-tuning and traditional DP-SGD based "
    "fine-tuning on a series of datasets while maintaining the required privacy constraints",
)
