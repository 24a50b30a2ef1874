"""The model card of a pre-trained model: what it read, how, and how well it reads."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from twinset.models.base_model import stages
from twinset.pretraining.corpus import Corpus, size_of
from twinset.pretraining.decontamination import RUN


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
    """Return a model card in Markdown."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = files("twinset.pretraining").joinpath("card.md.jinja").read_text("utf-8")
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return environment.from_string(template).render(
        facts=facts,
        adapter=facts.get("adapter"),
        stages=stages(facts["before"]),
        RUN=RUN,
        versions=versions,
    )
