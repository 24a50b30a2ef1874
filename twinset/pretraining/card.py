"""The model card of a pre-trained model: what it read, how, and how well it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from twinset.models.provenance import Stage, stages
from twinset.pretraining.corpus import Corpus, Source, size_of
from twinset.pretraining.decontamination import RUN

DECONTAMINATED = (
    "Documents that share a run of {} words with these files were left out. Whoever trains this "
    "model on one of them with differential privacy: that choice is not covered by ε."
)
COUNTED_BEFORE = (
    "All figures here are of the corpus before that, and do not say how many they were; weights "
    "and vocabulary do depend on which."
)


def corpus_facts(corpus: Corpus) -> dict[str, Any]:
    """Return what can be said of a corpus, for JSON: before guarded documents were left out."""
    return {
        "sources": [vars(source) for source in corpus.sources],
        "documents": len(corpus.documents),
        "bytes": size_of(corpus.documents),
        "dropped": corpus.dropped,
        "counted_before_decontamination": True,  # models made earlier state what was left
    }


def card(facts: Mapping[str, Any]) -> str:
    """Return a model card in Markdown.

    Args:
        facts: as in `pretraining.json`.
    """
    return "\n".join([*_front(facts), *_text(facts)]) + "\n"


def _front(facts: Mapping[str, Any]) -> Iterator[str]:
    yield from ("---", "library_name: transformers", "pipeline_tag: text-generation")
    yield from (f"license: {facts['licence']}", "---", "")


def _text(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {facts['name']}"
    yield ""
    yield (
        f"A causal language model of {facts['parameters']:,} parameters, {facts['origin']}, trained"
        f" on public text without differential privacy, in blocks of {facts['context']} tokens of "
        f"a vocabulary of {facts['vocabulary']:,}. Weights are {facts['weights']}."
    )
    yield from ("", *_trained(facts), "", "![curve](curve.png)", "", "## Corpus", "")
    yield from _corpus(facts)
    for stage in stages(facts["before"]):
        yield from ("", f"## Before that: {stage['name']}, {stage['origin']}", "")
        yield from (*_trained(stage), "", *_corpus(stage))
    yield from ("", "## Versions", "")
    yield ", ".join(f"{name} {version}" for name, version in facts["versions"].items())


def _trained(stage: Stage) -> Iterator[str]:
    curve = stage["validation"]
    yield (
        f"Held-out text of its corpus costs it **{curve['bits_per_byte']:.3f} bits per byte** after"
        f" {curve['tokens']:,} tokens ({curve['steps']:,} of {curve['of']:,} steps). "
        f"Optimiser: {stage.get('optimizer', 'AdamW')}."
    )
    yield from ("", "    " + stage["command"])


def _corpus(stage: Stage) -> Iterator[str]:
    corpus = stage["corpus"]
    yield f"{corpus['documents']:,} documents, {corpus['bytes']:,} bytes, one in 100 held out."
    for why, number in corpus["dropped"].items():
        yield f"Left out, {why}: {number:,}."
    yield from ("", "| file | documents | bytes | licence | sha256 |", "|---|---:|---:|---|---|")
    yield from (_row(Source(**source)) for source in corpus["sources"])
    if stage["decontaminated"]:
        yield from ("", DECONTAMINATED.format(RUN))
        if corpus.get("counted_before_decontamination"):
            yield COUNTED_BEFORE
        yield ""
        yield from (f"- {name}" for name in stage["decontaminated"])


def _row(source: Source) -> str:
    cells = (source.name, f"{source.documents:,}", f"{source.size:,}", source.licence)
    return f"| {' | '.join(cells)} | `{source.sha256}` |"
