"""What Mattern, Jin, Weggenmann, Schölkopf and Sachan 2022 say, and what their code does.

"Differentially Private Language Models for Secure Data Sharing". Abstract and section 1 are
followed to the letter, as are the scripts and file names of the authors' repository. Knows nothing
of what is measured here.
"""

from __future__ import annotations

from evaluation.papers.report import Paper
from twinset.privacy.accountant import epsilon
from twinset.privacy.calibration import calibrate_noise_multiplier
from twinset.privacy.events import SubsampledGaussian

IMDB, AMAZON = "IMDb", "Amazon"
FEW = (25, 50)  # records
EPSILONS = (3.0, 8.0)
GAP = 0.03  # section 1: "accuracies only ∼3% lower than those trained on the full original dataset"
RECORDS = {IMDB: 5000, AMAZON: 4000}  # "5k" in names of released files; 1,000 of each of four pairs
ROWS_PER_LABEL = {IMDB: 5000, AMAZON: 1500}  # of most released twins

# The scripts: gradients are summed over batches of so many, clipped to this norm, for so many
# passes where no number is given; all of the model is trained. No λ has a default.
BASE_MODEL, BATCH, MAX_GRAD_NORM, EPOCHS, LEARNING_RATE = "gpt2", 8, 0.1, 3, 8e-6
SAMPLE_SIZE = 1000  # what noise is set for, whatever the number of records
TOP_P, TYPICAL_P = 0.8, 0.1
MAX_TOKENS = 500
ENCODER = "bert-base-uncased"

PAPER = Paper(
    "Mattern, Jin, Weggenmann, Schölkopf and Sachan (2022)",
    "Twins of labelled reviews",
    "even after learning with strong privacy guarantees such as ε = 3 or ε = 8 from only a very "
    "limited amount of training samples such as 25 or 50, our generated data is of high quality "
    "and the classifiers trained on it achieve accuracies only ∼3% lower than those trained on the "
    "full original dataset",
)


def spent(nominal: float, records: int) -> float:
    """Return the ε of the scripts' noise for a number of records, were batches drawn by Poisson.

    The scripts ask for noise that gives `nominal` to `SAMPLE_SIZE` records, and take the steps that
    the records come to. δ is what their library takes for `SAMPLE_SIZE`.

    >>> spent(3.0, SAMPLE_SIZE) <= 3.0 < spent(3.0, 25)
    True
    """
    delta = delta_assumed()
    rate, steps = BATCH / SAMPLE_SIZE, EPOCHS * SAMPLE_SIZE // BATCH
    sigma = calibrate_noise_multiplier(nominal, delta, rate, steps)
    taken = EPOCHS * -(-records // BATCH)
    return epsilon([SubsampledGaussian(sigma, min(1.0, BATCH / records), taken)], delta)


def delta_assumed() -> float:
    """δ = 1 / N^1.1 of the N that the scripts name."""
    return float(SAMPLE_SIZE**-1.1)
