"""What all parts of one fine-tuning work with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from twinset.privacy.mechanism.counts import LengthBins
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import Units
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress
from twinset.run.prepare import Prepared
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Combination
from twinset.table.templates import Template
from twinset.table.tokenization import TokenisedRecords, prompt_tokens, text_budget
from twinset.training.resume import ResumeState, RunContext


@dataclass(frozen=True)
class FinetuningRun:
    """One fine-tuning.

    Args:
        prepared: records, template, base model, plan and options.
        tokens: what is trained on: of the records' texts, or of these masked.
        progress: is notified of what happens.
        context: where it runs, and with whom.
        resume_state: where it resumes; None: at its beginning.
        units: whose records are protected together.
        randomness: of batches and noise.
        ledger: of what is spent.
    """

    prepared: Prepared
    tokens: TokenisedRecords
    progress: Progress
    context: RunContext
    resume_state: ResumeState | None
    units: Units
    randomness: Randomness
    ledger: Ledger

    @property
    def longest_text(self) -> int:
        """The longest text that is trained on, in tokens."""
        most = self.prepared.config.training.max_tokens
        return text_budget(self.tokens.prompts, self.tokens.context, most)

    @property
    def length_bins(self) -> LengthBins:
        """What is counted of texts' lengths."""
        return LengthBins(self.longest_text, self.prepared.base.tokenizer.eos_token_id)

    def behind(self, template: Template) -> FinetuningRun:
        """Return the run with these prompts; tokens of texts are as they were."""
        if template == self.prepared.template:
            return self
        combinations = self.prepared.records.schema.combinations
        prompts = prompt_tokens(template, combinations, self.prepared.base.tokenizer)
        prepared = replace(self.prepared, template=template)
        return replace(self, prepared=prepared, tokens=self.tokens.behind(prompts))

    def twin_model(self, model: Any, label_counts: dict[Combination, int]) -> TwinModel:
        """Return what writes rows with a model, trained or not, in shares as counted."""
        base = self.prepared.base
        return TwinModel(
            model,
            base.tokenizer,
            self.prepared.records.schema,
            self.prepared.template,
            label_counts,
            self.longest_text,
            self.ledger,
            base.origin,
            base_name=base.public_name,
        )

    def release_noise(self, planned: float) -> float:
        """Return the noise multiplier of a release: above 0 wherever there is privacy.

        Raises:
            RuntimeError: the plan has none, and what is released would be exact.
        """
        if self.prepared.plan.target_epsilon is not None and not planned > 0:
            raise RuntimeError("a private run releases nothing without noise")
        return planned
