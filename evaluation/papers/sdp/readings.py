"""How paper 004 was read: what its theorems cover, and where text and code differ or are silent."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.papers.sdp.published import COPIES, DELTA, TRANSFORMER_EPSILON


def readings() -> Iterator[str]:
    """Yield one reading in a few sentences."""
    yield from _privacy()
    yield from _training()
    yield from _attacks()


def _privacy() -> Iterator[str]:
    yield (
        "What is a theorem. DPSGD: ε of adding or removing one record. S-DP of the transformer: "
        "its second phase is DPSGD on records as they are, so that the same ε holds of using or "
        "leaving out one record's text as it is, to who knows all redacted texts; what was not "
        "flagged is not protected. S-DPSGD of the LSTM (Algorithm 1): none that gives the "
        "paper's ε, so it is called nominal."
    )
    yield (
        "What is missing in Appendix A.3. Theorem 1 takes C as the sensitivity, but neighbours "
        "of Definition 3 replace a record's values, which moves a gradient or a state of norm "
        "at most C by up to 2C. Theorem 2 has regular updates tell nothing; but Definition 3 "
        "lets public tokens differ too, and then they, and the number and places of private "
        "ones, are told without any noise: a theorem needs neighbours that differ in the values "
        "of flagged tokens alone. Even so regular updates carry no noise and show which records "
        "are in a batch, so that the amplification by subsampling, which the accountant counts "
        "on, is not there."
    )
    yield (
        "Noisy states. Paper: “the composition of all privacy queries”, states among them. Its "
        "code adds them to ε in what it prints while it learns, those of one batch alone (the "
        "count begins anew with each), and in what it reports (evaluation, test, names of "
        "models) not at all. Here the nominal ε is that of the code's reports; the bound that "
        "can be proved counts hidden and cell state of each private stretch."
    )
    yield (
        "ε. Here σ is chosen so that DPSGD, and nominally S-DPSGD, spend the paper's ε of Table "
        f"2 at δ = {DELTA:g}; the number of private updates, which σ of S-DPSGD follows from, is "
        "counted in private rows, one more thing that its nominal ε leaves out. C is the "
        f"paper's. Table 3: ε = {TRANSFORMER_EPSILON:g} for all; its δ and C are not told: "
        f"{DELTA:g} and 1."
    )
    yield (
        "States at the end of a private stretch are clipped to the same C as gradients (text "
        "and code). With C = 0.001 or 0.005 little is left of a state whose norm is near 1: "
        "what follows a private token hardly knows what came before it, in training; scores and "
        "attacks read with states as they are."
    )
    yield (
        "Group size. Algorithm 1 divides by the realised number of rows of a private update, "
        "which is no public number; so it was done here, for the form as published. DPSGD "
        "divides by the expected one."
    )


def _training() -> Iterator[str]:
    yield (
        "Private places. Section 4.1: with a private token, the loss that predicts it is "
        "private too; text, code and this experiment agree. The code finds digits by looking at "
        "tokens, “12” in “1234” by itself; here digits are found in the text, and a token is "
        "private if it holds one. A place where a stretch is missing in all rows of a batch is "
        "passed over."
    )
    yield (
        "Records. Paper and code: pieces of one long text, in shuffled batches of fixed size "
        "that are accounted for as Poisson ones. Here: lines and dialogues, in pieces where "
        "they are longer, in Poisson batches; each begins from an empty state. Other pieces of "
        "the same row are other records to ε."
    )
    yield (
        "Optimiser. Paper: descent at rates of 20 (annealed), 0.05 and 0.1, dropout 0.2, "
        "gradients of regular updates clipped to 0.25 (code). Here: the project's loop, which "
        "is Adam, without dropout, for all that Algorithm 1 does not say; its regular updates "
        "are Adam's and its private ones descent with a step of η·C, for the two gradients "
        "differ by orders of magnitude. Few rates were tried, on the validation part of "
        "WikiText-2; that choice is not in ε."
    )
    yield (
        "Effort. S-DPSGD makes an update at every stretch of a batch, most of them without noise, "
        "where DPSGD makes one a batch: several times as many from as many visits. A transformer "
        "with S-DP has read the redacted texts as long as the redacted one, and then the texts as "
        "they are; DPSGD begins from random weights. So what S-DP gains is in part that it learns "
        "longer; DPSGD at its best rate and length was not searched for."
    )
    yield (
        "Tokens. Paper: BPE, in the code GPT-2's 50,257 tokens, so that no token is a secret. "
        "Here, but for the full size: a byte-level BPE of the training rows as the policy "
        "function leaves them, without canaries. Perplexities of other tokens do not compare; "
        "ratios do, roughly."
    )
    yield (
        "Policy function of dialogues. Paper: patterns of the code that made them. Here: the "
        "values that the table itself says were put in, found letter by letter; where table and "
        "text disagree, as in some dialogues of CustomerSim, a number is missed."
    )
    yield (
        "Anonymisation. Paper: “<num>” for each flagged token. Here: one “___” for a run of "
        "flagged words, as `twinset` masks, so that their number does not show. Models are "
        "scored on texts as they are; private tokens are those that the digit pattern flags "
        "there."
    )
    yield (
        "Transformer. Paper: GPT-2 small. Here: one that begins from random weights, unless a "
        "folder was named: a second phase under noise has little to go on from then. Entities "
        "are those of Presidio, spaCy's small English pipeline and number patterns together, "
        "which flag more than spaCy alone."
    )


def _attacks() -> Iterator[str]:
    yield (
        f"Canary. “My ID is 341752” as {COPIES} records of its own, in the small sizes with "
        "fewer digits, as the tables say. "
        "Candidates share their beginning, whose loss is left out."
    )
    yield (
        "Equal perplexity. Figures 3, 4 and 6 compare curves; here the model without DP is "
        "looked at after all, half, a quarter and so on of its steps, and its exposure taken "
        "where its perplexity is that of S-DPSGD at its end; where it never was, nothing is said."
    )
    yield (
        "Membership inference. Paper: secrets against random ones of the same form; the code "
        "takes training texts against the same texts with each digit changed. Here: training "
        "rows against the same with each digit changed, or with names and addresses of held-out "
        "rows, by the mean loss of their private tokens, half of them called members. That "
        "tells a year from four random digits, too, though no member was memorised; so beside "
        "it stand held-out rows with their own secrets, for which only memory helps, and the "
        "claim must hold of both. The "
        "paper's second round, on the names that the first did best and worst on, was left out: "
        "it selects what it then tests."
    )
    yield (
        "Intervals are 95 %: Student's t over seeds, which change weights and, without noise, "
        "batches; ratios of one seed alone are bootstrapped over 100 groups of records. Under "
        "noise batches and noise are fresh from the operating system whatever the seed."
    )
