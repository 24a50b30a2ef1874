"""The trained model with everything that sampling needs and that may be shared.

It holds no private record and no figure computed from one without noise: weights, tokenizer,
schema, template, noisy label counts, results of noisy token counts, private teacher and ledger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from twinset.config import SamplingConfig
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import (
    CHECKSUMS,
    fault,
    open_as_folder,
    sha256_file,
    write_checksums,
    write_json,
    write_text,
)
from twinset.files.limits import read_text
from twinset.files.turns import in_turn
from twinset.models.assets import quiet
from twinset.models.base_model import PRIVATE, context_length, load_base
from twinset.models.device import AUTO, give_memory_back, has_bfloat16
from twinset.models.hidden_states import Questions, Teacher
from twinset.models.layers import PackedLinears, copy_in, fuse
from twinset.privacy.accounting.events import RELEASES
from twinset.privacy.mechanism.counts import LengthBins
from twinset.privacy.statement.guarantee import Guarantee, guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress, Silent
from twinset.release.card import CARD, TwinDescription, render_model_card
from twinset.release.share import LEDGER, check_file_format, write_share
from twinset.sampling.column_model import ColumnModel
from twinset.sampling.label_tables import NaiveBayes, TextLengths, TokenTilt
from twinset.sampling.row_pool import Draw, start_workers
from twinset.sampling.rows import RowGroups, devices_for_rows, draw_groups, groups_of
from twinset.sampling.sampler import Sampler
from twinset.table.columns import asked_values, by_name, plain_cell
from twinset.table.schema import ORDERED, Combination, Schema, plain
from twinset.table.templates import Template
from twinset.table.tokenization import cue_tokens, prompt_tokens, text_budget

DESCRIPTION = PRIVATE
WEIGHT = 0.3  # of tokens next to the teacher, because they repeat one another: see tuning.md
RAREST_VALUE = 0.01  # share of texts: of rarer values the teacher knows too little to be sure
NOTHING_LEARNT = (
    "these rows are the base model's own. No step was trained, and they follow no released words "
    "or lengths (`tilt=0`, or none were released). Only the shares of labels, and rows redrawn by "
    "a teacher, come from the table."
)


@dataclass
class TwinModel:
    """A model that writes twins."""

    model: Any  # causal LM in evaluation mode
    tokenizer: Any
    schema: Schema  # the private table's shape
    template: Template  # renders the prompts
    label_counts: dict[Combination, int]  # noisy numbers of private records
    text_tokens: int  # of the longest text that the model was trained on
    ledger: Ledger  # what training spent
    base_origin: str  # without any path of this machine, as `base_name`
    tilt: TokenTilt | None = None  # brings words nearer to those of the private texts
    lengths: TextLengths | None = None  # of the private texts. Rows with the tilt are as long.
    teacher: Teacher | None = None  # tells a text's labels
    words: NaiveBayes | None = None  # the labels that tokens suggest, in addition to the teacher
    base_name: str = ""  # may be unknown
    columns: ColumnModel | None = None  # the other columns (None: there are none)
    # SHA-256 of the checksums of the folder that it was saved to or loaded from
    saved_as: str | None = field(default=None, repr=False, compare=False)
    # Rows that it wrote without the tilt, in token ids. They are not saved.
    reference: dict[Combination, list[list[int]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def guarantee(self) -> Guarantee:
        """What you may claim about everything sampled from this model, taken together.

        Its `epsilon` is a number, and its `sentence` says what that means:
        `print(TwinModel.load("runs/reviews-1").guarantee.sentence)`.
        """
        return guarantee(self.ledger)

    # -- rows --------------------------------------------------------------------------------------

    @in_turn
    def sample(
        self,
        counts: Mapping[Combination, int],
        sampling: SamplingConfig,
        progress: Progress | None = None,
        groups: RowGroups | None = None,
        *,
        saved: Path | None = None,
        deadline: float | None = None,
        processes: int = 1,
        lines: Sequence[tuple[Combination, int, ColumnModel]] = (),
    ) -> pd.DataFrame:
        """Return a twin with exactly `counts[c]` rows of each combination c, shuffled.

        Columns, order, dtypes and label values are the private table's. With a deadline it may be a
        smaller twin, with labels in the same proportions.

        Args:
            counts: number of rows of each combination.
            sampling: decoding settings and seed.
            progress: called with the number of finished rows.
            groups: finished groups of rows, which are not drawn again. None: there are none.
            saved: folder that holds this model, from which worker processes load it. None: it is
                saved for them.
            deadline: by `time.monotonic`. No group begins that would end much later, except the
                first of all.
            processes: requested number, see `devices_for_rows`.
            lines: of a plan, each with a combination, its number of rows, and the model of their
                other columns. By default that of the twin model for all.

        Raises:
            InputError: rows of a label stayed unusable.

        Example:
            model = TwinModel.load("runs/reviews-1")
            twin = model.sample(proportional(model.label_counts, 1000), SamplingConfig(seed=1))
        """
        progress, groups = progress or Silent(), RowGroups() if groups is None else groups
        follows_counts = bool(sampling.tilt) and (self.tilt or self.lengths) is not None
        if not (self.is_trained or follows_counts):
            progress.warn(NOTHING_LEARNT)
        draw, device = partial(self.sampler, sampling), self.model.device
        wanted = groups_of(counts, device)
        with ExitStack() as stack:
            workers, missing = [], len(wanted) - len(groups.numbers)
            if others := devices_for_rows(self.fastest, missing, processes)[1:]:
                progress.say(f"{1 + len(others)} processes write the rows")
                if saved is None:
                    saved = Path(stack.enter_context(TemporaryDirectory(prefix="twinset-rows-")))
                    self.save(saved)
                load = partial(_load_draw, saved, sampling, wanted)
                workers = stack.enter_context(start_workers(load, others))
            draw_groups(draw, counts, device, progress, groups, deadline=deadline, workers=workers)
        rows = groups.rows()
        labels = [row.combination for row in rows]
        columns = None
        if self.columns is not None:
            number = {c: i for i, c in enumerate(self.schema.combinations)}
            own = np.array([number[c] for c in labels], int)
            left = {c: iter(np.flatnonzero(own == i)) for c, i in number.items()}
            parts = [(np.array([*islice(left[c], n)], int), each) for c, n, each in lines]
            texts = [row.others for row in rows]
            columns = self.columns.draw(own, sampling.seed, texts, parts)
        frame = twin_frame(self.schema, [row.text for row in rows], labels, columns)
        return frame.sample(frac=1, random_state=sampling.seed).reset_index(drop=True)

    def given(self, where: Mapping[str, Any]) -> tuple[TwinModel, dict[Combination, float]]:
        """Return the model of rows that meet conditions, and shares of rows for its labels.

        Conditions are on labels (a value or a list) and on other columns, as `Column.select` takes
        them. This is post-processing of what was released.

        Raises:
            InputError: no row can meet them.
        """
        names = [attribute.name for attribute in self.schema.attributes]
        weights: dict[Combination, float] = dict(self.label_counts)
        columns = self.columns
        where = by_name(where, "where")
        if not where:
            return self, weights
        for place, attribute in enumerate(self.schema.attributes):
            if attribute.name in where:
                known = set(map(plain, attribute.values))
                values = asked_values(where[attribute.name], known.__contains__)
                asked = {plain(plain_cell(value)) for value in values}
                if odd := sorted(asked - known):
                    about = f"{attribute.name!r}: {odd[0][:60]!r}"
                    raise InputError(f"`where`: no row can have this {about}. Choose other labels.")
                weights = {c: n if plain(c[place]) in asked else 0.0 for c, n in weights.items()}
        others = {name: value for name, value in where.items() if name not in names}
        if others:
            if columns is None:
                raise InputError(f"`where`: has no column {next(iter(others))!r}. It has {names}.")
            columns, likely = columns.given(others)
            shares = zip(self.schema.combinations, likely.tolist(), strict=True)
            weights = {c: weights[c] * share for c, share in shares}
        if not sum(weights.values()) > 0:
            asked_for = ", ".join(f"{name}={value!r}" for name, value in where.items())
            raise InputError(f"`where`: no row has {asked_for}, by the noisy counts.")
        return replace(self, columns=columns), weights

    def share(
        self,
        twin: pd.DataFrame,
        folder: Path,
        sampling: SamplingConfig,
        format: str = "parquet",
        guard_formulas: bool = True,
        redrawn: Mapping[str, int] | None = None,
    ) -> Path:
        """Write rows of `sample` with card and ledger, and return their file.

        For the card, `sampling` has the settings of the draws, and `redrawn` how many texts were
        drawn again and why. For the rest see `write_share`.
        """
        description = TwinDescription(
            self.base_name or self.base_origin,
            self.template,
            self.schema,
            sampling.settled(self.teacher is not None),
            base_origin=self.base_origin,
            redrawn=redrawn or {},
            columns=self.columns.columns if self.columns else (),
        )
        write = partial(write_share, folder, twin, self.ledger, description)
        return write(format, guard_formulas, self.saved_as).twin

    def sampler(
        self, sampling: SamplingConfig, stream: int, has_lengths: bool | None = None
    ) -> Sampler:
        """Return a sampler of rows, with its own random numbers for each stream.

        `has_lengths` says whether rows follow the counted lengths, if any. None: only with the
        tilt. Before a later stream, memory that the rows of another needed is given back.
        """
        if stream:
            give_memory_back(self.model.device)
        sampling, biases = sampling.settled(self.teacher is not None), {}
        if self.tilt is not None and sampling.tilt:
            for c in self.schema.combinations:
                strengths = np.sum(self.tilt.rows_of(self.schema, c), 0, dtype=np.float32)  # (V,)
                bias = sampling.tilt * torch.from_numpy(strengths)
                biases[c] = bias.to(self.model.device)
        lengths = self.lengths if has_lengths or (has_lengths is None and sampling.tilt) else None
        bins = LengthBins(self.text_tokens, self.tokenizer.eos_token_id)
        trained = self.is_trained  # then it ends a line by itself
        further = [
            (cue_tokens(each.name, self.tokenizer, trained), () if trained else each.lengths)
            for each in (self.columns.texts if self.columns else [])
        ]
        return Sampler(
            self.fastest,
            self.tokenizer,
            self.prompts,
            sampling,
            self.text_tokens,
            stream,
            biases,
            self._denies if sampling.is_judged(self.teacher is not None) else None,
            None if lengths is None else partial(lengths.draw, self.schema, bins),
            self._packed,
            further,
        )

    @property
    def is_trained(self) -> bool:
        """Whether steps were trained. Without privacy no ledger tells, and they are taken to be."""
        return any(not isinstance(event, RELEASES) for event in self.ledger.events)

    def shares(self, combinations: Collection[Combination]) -> dict[Combination, float]:
        """Return the share of each label combination among these, by noisy counts."""
        total = sum(self.label_counts[c] for c in combinations) or 1
        return {c: self.label_counts[c] / total for c in combinations}

    @property
    def prompts(self) -> dict[Combination, list[int]]:
        """Token ids of every label combination's prompt."""
        return prompt_tokens(self.template, self.schema.combinations, self.tokenizer)

    @cached_property
    def fastest(self) -> Any:
        """The model in the format that its device multiplies fastest.

        Sampling is post-processing, so its rounding changes no guarantee.
        """
        if self.model.dtype is torch.float32 and has_bfloat16(self.model.device):
            return fuse(copy_in(self.model, torch.bfloat16))
        return self.model

    @cached_property
    def _packed(self) -> PackedLinears:
        return PackedLinears(self.fastest)

    # -- labels of texts ---------------------------------------------------------------------------

    @cached_property
    def questions(self) -> Questions:
        """The questions that ask the model about a text's labels."""
        names = [attribute.name for attribute in self.schema.attributes]
        layer = self.teacher.layer if self.teacher else None
        return Questions(self.fastest, self.tokenizer, names, layer, self._packed)

    def classify(self, texts: Sequence[str]) -> pd.DataFrame:
        """Return the labels that private teacher and token counts give to texts, one column each.

        Both were released with the model. It costs no further ε, for any number of texts. Texts
        are cut at the same length as the private ones.

        Raises:
            InputError: the model has no teacher.
        """
        if self.teacher is None:
            raise InputError("this model has no teacher. Train one with `teacher_share` above 0.")
        attributes, found = self.schema.attributes, []
        for text in texts:
            (numbers,) = self.label_numbers([self.questions.tokens(text, self.text_tokens)])
            pairs = zip(attributes, numbers, strict=True)
            found.append({each.name: each.values[number] for each, number in pairs})
        return pd.DataFrame(found, columns=[each.name for each in attributes])

    def label_numbers(
        self, texts: Sequence[Sequence[int]], shares: Sequence[np.ndarray] | None = None
    ) -> list[tuple[int, ...]]:
        """Return the number of each attribute's likeliest value, for texts as token ids.

        Args:
            texts: of any origin.
            shares: (K,) for each attribute, the share of the teacher's texts with each value. With
                them all values are equally likely at first. None: texts have the teacher's shares.
        """
        assert self.teacher is not None
        end = self.tokenizer.eos_token_id  # it says nothing
        read = [[token for token in ids if token != end] for ids in texts]
        priors = [np.zeros(len(weights)) for weights in self.teacher.weights]
        if shares is not None:
            priors = [np.log(np.maximum(each, RAREST_VALUE)) for each in shares]
        found = []
        for ids, states in zip(read, self.questions.states_of_texts(read), strict=True):
            scores = self.teacher.log_probabilities(states)
            if self.words is not None:
                said = self.words.scores(ids)
                scores = [s + WEIGHT * other for s, other in zip(scores, said, strict=True)]
            pairs = zip(scores, priors, strict=True)
            found.append(tuple(int((score - prior).argmax()) for score, prior in pairs))
        return found

    def _denies(
        self, combinations: Sequence[Combination], rows: Sequence[Sequence[int]]
    ) -> list[bool]:
        """Return which rows, as token ids, are likelier under other labels than under their own.

        Label frequencies do not count. Otherwise most rows of a rare label would be refused.
        """
        theirs = [tuple(self.schema.value_numbers(combination)) for combination in combinations]
        shares = [np.zeros(len(each.values)) for each in self.schema.attributes]  # (K,) of each
        for combination, share in self.shares(self.schema.combinations).items():
            for each, number in zip(shares, self.schema.value_numbers(combination), strict=True):
                each[number] += share
        found = self.label_numbers(rows, shares)
        return [likeliest != own for likeliest, own in zip(found, theirs, strict=True)]

    # -- files -------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), tokenizer, description and ledger, and their checksums."""
        with quiet():
            self.model.save_pretrained(folder, safe_serialization=True)
            self.tokenizer.save_pretrained(folder)
        for part in (self.tilt, self.lengths, self.teacher, self.words, self.columns):
            if part is not None:
                part.save(folder)
        description = {
            "schema": asdict(self.schema),
            "template": asdict(self.template),
            "label_counts": [[list(c), n] for c, n in self.label_counts.items()],
            "text_tokens": self.text_tokens,
            "base_origin": self.base_origin,
            "base_name": self.base_name,
        }
        write_json(folder / DESCRIPTION, description)
        write_json(folder / LEDGER, self.ledger.to_dict())
        write_text(folder / CARD, render_model_card(self.base_name, self.base_origin, self.ledger))
        open_as_folder(folder)
        write_checksums(folder)
        self.saved_as = sha256_file(folder / CHECKSUMS)

    @classmethod
    @in_turn
    def load(cls, folder: str | Path, device: str = AUTO) -> TwinModel:
        """Read a model written by `save`. For a run folder this is its `model/`.

        Args:
            folder: of the model, or of its run.
            device: the device for writing rows, as in `device_of`.

        Raises:
            InputError: the folder holds no such model, or one of another format, or the device is
                missing.
        """
        folder = Path(folder)
        folder = folder / "model" if (folder / "model" / DESCRIPTION).exists() else folder
        if not (folder / DESCRIPTION).exists():
            raise InputError(f"{folder}: is neither a run nor a model folder. Check the path.")
        check_file_format(folder / LEDGER)
        if damage := fault(folder):
            raise InputError(f"the model folder is damaged ({damage}). Copy it again.")
        try:
            data = json.loads(read_text(folder / DESCRIPTION))
            stored = json.loads((folder / "config.json").read_text("utf-8")).get("dtype")
            dtype = torch.bfloat16 if stored == "bfloat16" else torch.float32
            base = load_base(str(folder), dtype=dtype, device=device, is_twin=True)
            model = cls(
                base.model,
                base.tokenizer,
                Schema.from_dict(data["schema"]),
                Template.from_dict(data["template"]),
                {tuple(c): n for c, n in data["label_counts"]},
                data["text_tokens"],
                Ledger.load(folder / LEDGER),
                data["base_origin"],
                base_name=data.get("base_name", ""),
                saved_as=sha256_file(folder / CHECKSUMS),
            )
            classes = [len(attribute.values) for attribute in model.schema.attributes]
            vocabulary = base.model.config.vocab_size
            bins = LengthBins(model.text_tokens, model.tokenizer.eos_token_id)
            model.tilt = TokenTilt.load(folder, classes, vocabulary)
            model.lengths = TextLengths.load(folder, classes, len(bins))
            model.words = NaiveBayes.load(folder, classes, vocabulary)
            model.teacher = Teacher.load(folder, classes, base.model.config)
            model.columns = ColumnModel.load(folder, len(model.schema.combinations))
            # Refuse a description that no run writes, before it is met half-way through a twin.
            schema, combinations = model.schema, model.schema.combinations
            names = [attribute.name for attribute in schema.attributes]
            others = [c.name for c in model.columns.columns] if model.columns else []
            dtypes = [schema.text_dtype, *(attribute.dtype for attribute in schema.attributes)]
            texts = (schema.text, *schema.columns, *names, *dtypes, model.template.pattern)
            "".join((*texts, model.base_name)).encode()
            own = model.columns
            drawn = None if own is None else own.draw(np.arange(len(combinations)), 0)
            twin_frame(schema, ["“é”"] * len(combinations), combinations, drawn)  # takes any text
            prompts = model.prompts
            longest = text_budget(prompts, context_length(model.model), model.text_tokens)
            if not (
                sorted(schema.columns) == sorted([schema.text, *names, *others])
                and list(model.template.attributes) == names
                and model.label_counts.keys() == set(combinations)
                and all(map(math.isfinite, model.label_counts.values()))
                and all(prompts.values())
                and type(model.text_tokens) is int
                and 1 <= model.text_tokens <= longest
            ):
                raise ValueError("no run writes such a description")
            return model
        except InputError:
            raise
        except DAMAGED as error:
            raise InputError(
                f"{folder}: the model folder is damaged ({type(error).__name__}). Copy it again."
            ) from error


def _load_draw(
    folder: Path, sampling: SamplingConfig, wanted: Sequence[Mapping[Combination, int]], device: str
) -> Draw:
    """Return a function that draws a group of rows in a worker process."""
    torch.set_num_threads(1)
    model = TwinModel.load(folder, device)
    return lambda number: model.sampler(sampling, number).sample(wanted[number])


def twin_frame(
    schema: Schema,
    texts: Sequence[str],
    labels: Sequence[Combination],
    others: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Build a table with the private table's columns, order, dtypes and categories.

    `others` holds the cells of the other columns. Without it the table has only texts and labels.

    >>> from twinset.table.schema import Attribute
    >>> stars = Attribute("stars", "int64", (1, 5))
    >>> schema = Schema("review", "str", (stars,), columns=("stars", "review"))
    >>> twin_frame(schema, ["Bad.", "Good."], [(1,), (5,)]).to_dict("list")
    {'stars': [1, 5], 'review': ['Bad.', 'Good.']}
    """
    columns = {schema.text: pd.Series(list(texts), dtype=schema.text_dtype)}
    for position, attribute in enumerate(schema.attributes):
        dtype: Any = attribute.dtype
        if dtype in ("category", ORDERED):
            dtype = pd.CategoricalDtype(list(attribute.values), ordered=dtype == ORDERED)
        cells = [combination[position] for combination in labels]
        columns[attribute.name] = pd.Series(cells, dtype=dtype)
    if others is not None:
        columns |= {str(name): others[name].reset_index(drop=True) for name in others}
    return pd.DataFrame({name: columns[name] for name in schema.columns if name in columns})
