"""How paper 002 was read: where text and code are silent or differ, and what was done here."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.papers.mattern import published
from evaluation.papers.mattern.claims import SMALL_LEAK
from evaluation.papers.mattern.published import AMAZON, EPSILONS, FEW, IMDB, delta_assumed, spent
from evaluation.papers.mattern.sizes import Size
from twinset.privacy.rounding import up_decimals


def readings(size: Size) -> Iterator[str]:
    """Yield one reading a sentence or two."""
    yield (
        "Text. What was at hand is abstract, sections 1, 2 and the beginning of 3; its tables were "
        "not. So claims and the number 3 % are those of abstract and section 1, and settings are "
        "those of the scripts and of the released files in the authors' repository."
    )
    yield (
        "25, 50 and all records. They are the records of all labels together that the writing "
        "model learns from: released training files have 25 film reviews (9 negative, 16 "
        "positive) or 50, and 24 or 49 product reviews, a quarter of each pair of labels; “all” "
        f"is called 5k ({published.RECORDS[IMDB]:,} film reviews; the file of product reviews has "
        f"{published.RECORDS[AMAZON]:,}). Here: the few are drawn anew by each seed, of each "
        f"combination of labels as many as can be; all are {size.records[IMDB]:,} and "
        f"{size.records[AMAZON]:,} rows at most, of film reviews of 8 to 150 words, and of DVDs "
        "and kitchen things where the paper's products are books and electronics."
    )
    yield (
        "ε. Here: of one record, added or removed, at δ = min(1e-5, 1/N^1.1), with batches drawn "
        f"by Poisson; the accountant's, of the steps taken. The scripts set the noise for "
        f"{published.SAMPLE_SIZE:,} records and δ = {delta_assumed():.2g} whatever N is, and "
        f"take batches of {published.BATCH} in the order of the file. With {published.EPOCHS} "
        "passes (their default), and were batches drawn by Poisson, the accountant used here "
        f"gives {'; '.join(_spent_by_scripts())}."
    )
    yield (
        f"Few records. All of them take part in each of {size.few_steps} steps: with more steps, "
        "or smaller batches, noise for ε = 3 would drown 25 records, and the project refuses that. "
        "Without privacy the steps are the same."
    )
    yield (
        "Mismatch loss. The scripts subtract λ times the mean loss of a whole batch behind wrong "
        "prompts, prompt and padding counted. Here each record has a loss of its own, over its "
        "text and the end of text, so that it can be clipped; its gradient, over all prompts, is "
        f"one. No λ is named; {size.mismatch.weight:g} was taken for the main table, and others "
        f"beside it. Wrong prompts a record: {size.wrong_prompts} at most, drawn in each step; in "
        "the scripts all."
    )
    yield (
        f"Training. Scripts: {published.BASE_MODEL}, all weights, Adam at "
        f"{published.LEARNING_RATE:g}, C = {published.MAX_GRAD_NORM:g}. Here: {size.base_model}, "
        f"{size.method}, {size.learning_rate:g}, C = {size.max_grad_norm:g}, texts cut at "
        f"{size.max_tokens} tokens; warm-up and a linear fall; the same for all rows. What the "
        "size cpu takes (adapters, few steps, large batches) was seen to do best in a few trials "
        "on training rows of another table, which is not in ε. A base of 4 million parameters "
        "and texts cut so early can say little of what a GPT-2 of 124 million would do. All "
        "written rows have this handicap; real rows and private classifiers have longer texts, and "
        "up to all of them, so that a row of as many and as short real ones stands beside."
    )
    if size.base_model == "gpt2-mini":
        yield (
            "What the base knows. gpt2-mini has read public reviews of businesses behind “Write a "
            "{sentiment} review:”, and was kept from documents that share 13 words in a row with "
            "either table, which no ε covers. So rows of no private data teach a sentiment too; "
            "where they beat a private classifier as the twin does, that is the base's merit."
        )
    yield (
        "Prompts. Scripts: “Write a positive review about a good movie:”. Here: the built-in "
        "templates film-review and product-review."
    )
    yield (
        f"Decoding. Scripts: top-p {published.TOP_P:g}, or typical decoding at "
        f"{published.TYPICAL_P:g}, and no run of three tokens twice; by the names of files the "
        "former for film reviews, the latter for product reviews. They hand the mass of typical "
        "decoding to a function of their library that has no such option in the version that was "
        "looked at and passes it on to the model, so that rows would come from all tokens; that "
        "is a row of its own here. Here: all twins by top-p, without guidance; rows that loop are "
        "drawn again."
    )
    yield (
        "Rows of a twin. Released: "
        f"{published.ROWS_PER_LABEL[IMDB]:,} and {published.ROWS_PER_LABEL[AMAZON]:,} of each "
        f"label. Here: {size.rows[IMDB]:,} and {size.rows[AMAZON]:,} in all, of each combination "
        "as many, not by the noisy label counts (5 % of ε is still spent on these). Texts are as "
        "long as those that were learnt from, with or without privacy."
    )
    yield (
        "Classifiers. Paper: BERT, and TF-IDF. Here: tfidf, TF-IDF and a logistic regression; "
        "minilm, embeddings of a small transformer and a logistic regression, private by noisy "
        "gradients on the real rows; encoder, where it stands, a fine-tuned transformer. The "
        "private ones are the project's own, not the paper's BERT; their recipe was chosen on "
        "training rows of the product reviews, never on test rows."
    )
    yield (
        "Leaks. Here: of the released texts alone, rows learnt from against others of the same "
        "file where there are some to spare. “Not shown” would be no proof of absence; a claim of "
        "no leak holds where AUROC is, with all its interval, less than "
        f"{SMALL_LEAK:g} above chance, and is judged only where an attack sees something of a twin "
        "without privacy. Which 25 records were drawn moves an AUROC by 0.05 or more whatever was "
        "written; so that of rows of no private data against the same records is taken off, seed "
        "by seed."
    )
    yield (
        "Intervals are 95 %, Student's t over seeds, which change the few records, weights, "
        "batches, noise and rows; test rows are the same for all, so that intervals do not cover "
        "other ones; one seed decides nothing. Each comparison is judged by itself, so that of "
        "forty one may seem shown by chance. Noise and batches are fresh from the operating "
        "system whatever the seed."
    )


def _spent_by_scripts() -> Iterator[str]:
    counts = (*FEW, published.RECORDS[IMDB])
    for nominal in EPSILONS:
        found = ", ".join(f"{up_decimals(spent(nominal, n))} for {n:,}" for n in counts)
        yield f"where they say {nominal:g}, {found} records"
