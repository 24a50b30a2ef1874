"""What each measure means, in one sentence. Names are those that the measuring modules give."""

from __future__ import annotations

from evaluation.scores import Score

_SENTENCES = {
    "accuracy": "Share of real held-out rows whose label a classifier finds that was trained on "
    "the rows named; the twin should come close to real rows and beat no private data.",
    "macro-F1": "Mean over labels of how well each is found, so that rare labels count as much as "
    "common ones.",
    "label fidelity": "How often a classifier trained on real rows agrees with the label that a "
    "row was written for; low values mean that labels and texts do not belong together.",
    "exposure": "How many bits of a planted secret can be guessed, by how often it was repeated; "
    "of secrets that a model does not know it is 1.44 on average.",
    "AUROC": "How well an attacker tells rows that were trained on from rows that were not; 0.5 is "
    "guessing, 1 is certainty.",
    "TPR at 1 % FPR": "Share of members that an attacker names who accuses one outsider in a "
    "hundred; guessing finds 1 %.",
    "TPR at 0.1 % FPR": "Share of members that an attacker names who accuses one outsider in a "
    "thousand; guessing finds 0.1 %.",
    "lower bound of ε": "The least ε that agrees with what an attack found, at 95 % confidence; "
    "above the ε that is claimed, the claim would be false.",
    "nearer to train than to held-out": "Share of the twin’s rows that lie nearer to a training "
    "row than to any of as many held-out rows; without a leak it is a half.",
    "distance ratio, 5th percentile": "How much nearer the nearest twin rows lie to one table than "
    "to the other; lower with train than with held-out rows, the twin copies.",
    "longest verbatim run": "The longest run of words that a twin row shares with a table; with "
    "training rows it should be no longer than with rows the twin never saw.",
    "near-duplicates": "Share of the twin’s rows that nearly repeat a row of a table; held-out "
    "rows show how often that happens by chance.",
    "replayed": "Share of the personal data of a table that stand in the twin; those of held-out "
    "rows show how many do by chance.",
    "found where it was planted": "Share of the planted personal data that the same count finds in "
    "the rows that hold them; below 1, none of the counts in the twin could be believed.",
    "mean length": "Words of a text on average; the twin should be as real rows.",
    "median length": "Words of the middle text; the twin should be as real rows.",
    "precision of embeddings": "Share of rows that lie where real rows lie; low values mean texts "
    "that no real row is like.",
    "recall of embeddings": "Share of real rows near which rows lie; low values mean kinds of "
    "texts that are missing.",
    "Fréchet distance of embeddings": "How far apart texts lie from real ones on the whole; 0 is "
    "the same.",
    "Jensen–Shannon divergence of words": "How differently words are used, from 0 (alike) to 1 "
    "(no word in common).",
    "words known to train": "Share of words that occur in the private table too; the twin should "
    "be as a second real sample.",
    "words of train covered": "Share of the private table’s words, as often as they occur, that "
    "occur here too; higher is better.",
    "total variation distance of labels": "Share of rows that would need another label for the "
    "labels to occur as often as in the private table.",
    "MAUVE": "How alike texts are distributed, from 0 (not at all) to 1.",
    "perplexity under a public model": "How surprised a public model is by the texts; near to real "
    "texts is right.",
    "self-BLEU": "How much rows repeat each other; above real rows, the twin has little variety.",
    "duplicate rate": "Share of rows that stand in the table more than once.",
}
_BY_START = {
    "ROC": "Members found (up) against outsiders accused (right), both axes logarithmic so that "
    "the first few accusations can be seen; the dashed line is guessing.",
    "accuracy by rows": "How accuracy grows with the number of rows trained on; where it is flat, "
    "more rows will not help.",
    "accuracy by epsilon": "What privacy costs: accuracy of twins made with more (left) and less "
    "(right) protection.",
    "rows with a run": "Share of the twin’s rows that share so many words in a row with a table; "
    "held-out rows show how often that happens by chance.",
    "distinct": "Share of words, or runs of words, that are different ones; below real rows, the "
    "twin repeats itself.",
    "length": "How long the texts are; the twin should follow the real rows.",
    "label": "How often each label occurs; the twin should follow the real rows.",
}
_BY_GOAL = {
    "maximise": "Higher is better.",
    "minimise": "Lower is better.",
    "match": "Best where it is as with real rows, neither above nor below.",
}


def meaning(name: str, score: Score | None = None) -> str:
    """Return the sentence for a measure; for one that is not known here, which way it should go."""
    if name in _SENTENCES:
        return _SENTENCES[name]
    for start, sentence in _BY_START.items():
        if name.lower().startswith(start.lower()):
            return sentence
    return _BY_GOAL[score.goal] if score else "Read each line from left to right."
