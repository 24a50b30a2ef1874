"""The Python interface: fit a twin model to a table, sample twins from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from twinset.allocation import proportional
from twinset.basemodel import load_base, special_token_strings
from twinset.errors import InputError
from twinset.finetune import finetune
from twinset.options import run_config
from twinset.privacy.guarantee import Guarantee
from twinset.processes import team_of
from twinset.progress import Progress, Silent
from twinset.records import records_from_frame
from twinset.templates import load_template
from twinset.twinmodel import TwinModel
from twinset.vllmengine import check_engine
from twinset.workplace import Workplace


class Twinset:
    """Fit once, sample as often as wanted: sampling spends no privacy.

    Example:
        `Twinset(epsilon=8).fit(df, text="review", attributes=["sentiment"]).sample(1000)`

    Args:
        base_model: asset, local folder or hub name.
        prompt: a built-in template's name, a `.toml` file, or the prompt itself.
        progress: is told what happens; silent by default.
        options: as on the command line, with underscores, and `epsilon=None` for a run without
            privacy. A `seed` goes to training and sampling and never to the noise.
    """

    def __init__(
        self,
        base_model: str = "smollm2-135m",
        *,
        prompt: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        self.config = run_config({"base_model": base_model, **options})
        self._prompt, self._progress = prompt, progress or Silent()
        self._model: TwinModel | None = None

    def fit(
        self, frame: pd.DataFrame, text: str | None = None, attributes: Sequence[str] = ()
    ) -> Twinset:
        """Fine-tune on the table's rows; columns that are not named are guessed, and told.

        Raises:
            InputError: the table cannot be used; the message says where and what to do.
        """
        check_engine(self.config.sampling)
        base = load_base(self.config.training.base_model, say=self._progress.say)
        reserved = special_token_strings(base.tokenizer)
        records, notes = records_from_frame(frame, text, attributes, reserved=reserved)
        for note in notes:
            self._progress.say(note)
        template = load_template(self._prompt, records.schema)
        with team_of(self.config.speed.processes) as team, TemporaryDirectory() as private:
            place = Workplace(Path(private), team=team) if team else None
            self._model = finetune(records, template, self.config, base, self._progress, place)
        return self

    def sample(self, rows: int) -> pd.DataFrame:
        """Return a twin of `rows` rows in the proportions of the noisy label counts."""
        counts = proportional(self.model.label_counts, rows)
        return self.model.sample(counts, self.config.sampling, self._progress)

    @property
    def model(self) -> TwinModel:
        """The fitted model."""
        if self._model is None:
            raise InputError("nothing has been fitted yet; call fit(table) or Twinset.load(path)")
        return self._model

    @property
    def guarantee(self) -> Guarantee:
        """What may truthfully be claimed of the model and all its samples together."""
        return self.model.guarantee

    def save(self, path: str | Path) -> None:
        """Write the model folder; it is as safe to share as a twin."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Twinset:
        """Read a model folder, or a run folder's model."""
        twinset = cls(**options)
        twinset._model = TwinModel.load(path)
        return twinset
