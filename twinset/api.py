"""The Python interface: fit a twin model to a table, then sample twins from it.

Heavy libraries are imported when a method needs them. Importing `Twinset` does not load PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from twinset.config import RunConfig, TrainingConfig
from twinset.config.options import run_config
from twinset.errors import InputError, first_line
from twinset.files.import_path import import_evaluation
from twinset.progress import Progress, Silent

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from twinset.privacy.statement.guarantee import Guarantee
    from twinset.run.plan import PlanReport
    from twinset.run.request import Result, Source
    from twinset.sampling.twin_model import TwinModel
    from twinset.table.schema import LabelValue
    from twinset.table.templates import Template

    LabelValues = Mapping[str, Sequence[LabelValue]]
    LabelRows = Mapping[LabelValue | tuple[LabelValue, ...], int]
    Edges = Mapping[str, Sequence[float]]

BASE_MODEL = TrainingConfig.base_model


class Reading(TypedDict, total=False):
    """How to read a table. `Twinset.fit`, `Twinset.plan` and `generate` take these options.

    Args:
        labels: for each label column, all values that are public, whether or not a row has them.
            If omitted, noisy counts select the values, and rows with other values are left out.
        bins: for each column of numbers, the rising edges that cut it into labels. They are public.
        merge_labels: merge values that differ from a public one by case, blanks or one letter.
        drop_undeclared: leave out rows with an undeclared value instead of refusing the table.
        columns: names of the other columns to keep, "all" (the default) or "none".
        kinds: for other columns, "category", "number", "date", "yes/no", "identifier" or "text".
        ranges: for other columns of numbers, their public lowest and highest values.
        values: for other columns, all values that are public. Cells with others become gaps.
        split: split of a folder or hub data set, or sheet of an Excel file.
        drop_empty: leave out every row without text or label. By default only a few are.
        delimiter: delimiter of a CSV file. Detected by default.
        encoding: encoding of a CSV or JSON file. Detected by default.
        multiline: take lines within quotes of a CSV as text, even if they look like rows.
        strict: refuse rows without text or label, and odd characters, instead of cleaning them.
        each_row_is_someone: no person has several rows, whatever a column looks like.
        budget: limit on the ε of all runs on this table together. It opens the table's account.
        budget_file: the file of this account. By default the table's name with `.budget.json`.
    """

    labels: LabelValues | None
    bins: Edges | None
    merge_labels: bool
    drop_undeclared: bool
    columns: str | Sequence[str] | None
    kinds: Mapping[str, str] | None
    ranges: Mapping[str, tuple[float, float]] | None
    values: LabelValues | None
    split: str | None
    drop_empty: bool
    delimiter: str | None
    encoding: str | None
    multiline: bool
    strict: bool
    each_row_is_someone: bool
    budget: float | None
    budget_file: str | Path | None


class Twinset:
    """Fit once, then sample as often as you like: sampling spends no privacy. Threads take turns.

    Example:
        Fit a model to a table, write a twin of 1000 rows, and print the guarantee:

            model = Twinset(epsilon=8).fit(frame, text="review", attributes=["sentiment"])
            twin = model.sample(1000)
            print(model.guarantee.sentence)

    Args:
        base_model: a packaged asset, a local folder or a hub name.
        prompt: name of a built-in template, a `.toml` file, the prompt itself, or a `Template`.
        progress: what to report to. True prints notes and a progress bar to stderr, False nothing.
            Notes say which columns were guessed and which label values become public.
        private: whether to train with privacy. With False there is no noise and no guarantee,
            which is useful as a comparison.
        options: command-line options with underscores. A `seed` sets training and sampling,
            never the noise.

    Raises:
        InputError: an option is unknown or out of range, or `epsilon` is None.
    """

    def __init__(
        self,
        *,
        base_model: str | Path = BASE_MODEL,
        prompt: Template | str | Path | None = None,
        progress: Progress | bool = True,
        private: bool = True,
        **options: Any,
    ) -> None:
        self.config = _make_config(base_model, private, options)
        self._prompt, self._progress = prompt, progress
        self._model: TwinModel | None = None
        self._made_from: Source | Path | None = None  # the fitted table, or the model's folder
        self._written: Counter[int] = Counter()  # hashes of the rows that were sampled

    def __repr__(self) -> str:
        """Show the guarantee of the fitted model, or the requested one."""
        base = self.config.training.base_model
        if self._model is None:
            asked = self.config.privacy.target_epsilon
            goal = "no privacy" if asked is None else f"ε = {asked:g}"
            return f"<Twinset on {base}, not fitted, asked for {goal}>"
        return f"<Twinset, fitted, {self.guarantee.sentence.partition(': ')[0]}>"

    def plan(
        self,
        data: pd.DataFrame | Dataset | Sequence[str] | str | Path | None = None,
        text: str | Sequence[Any] | None = None,
        attributes: str | Sequence[str] = (),
        owner: str | None = None,
        *,
        records: int | None = None,
        rows: int | None = None,
        hold_out: float | None = 0.0,
        **reading: Unpack[Reading],
    ) -> PlanReport:
        """Say what a run would spend, need and cost, without training.

        Example:
            Plan for a table that you do not have yet:

                plan = Twinset(epsilon=8).plan(records=10_000)
                print(plan)
                print(plan.plan.noise_multiplier, plan.seconds)

        Args:
            data: the private table, see `fit`.
            text: see `fit`.
            attributes: see `fit`.
            owner: see `fit`.
            records: number of records N, instead of a table.
            rows: of the twin. Default: twice the table's, from 3,000 to a million, if time allows.
            hold_out: share of the rows to keep from training. By default as `generate` does.
            reading: how to read the table, see `Reading`.

        Raises:
            InputError: an input cannot be used, or there is neither a table nor N.
        """
        source = None
        if data is not None:
            from twinset.run.request import Source

            source = Source.of(data, text, attributes, owner, self._prompt, hold_out, reading)
        elif reading:
            raise InputError(f"`{next(iter(reading))}` needs a table. Give one, or leave it out.")
        with _listening(self._progress) as progress:
            from twinset.run.generate import plan_run  # after the error was reported

            return plan_run(source, records, self.config, rows, progress, hold_out)

    def fit(
        self,
        data: pd.DataFrame | Dataset | Sequence[str] | str | Path,
        text: str | Sequence[Any] | None = None,
        attributes: str | Sequence[str] = (),
        owner: str | None = None,
        **reading: Unpack[Reading],
    ) -> Self:
        """Learn the table's rows with privacy. Each fit spends its ε again.

        Example:
            Customers may have written several reviews, and each customer should be protected:

                Twinset(epsilon=8, max_records_per_owner=2).fit(
                    "reviews.csv", text="review", attributes=["sentiment"], owner="customer"
                )

        Args:
            data: the private table. A `datasets.Dataset`, a data frame, lists by column, a list of
                rows, a file, a folder of `datasets` or a hub name. Or only the texts, one per row.
            text: the text column, or a template that joins several columns, "{title}: {body}".
                Guessed by default. If `data` has only texts: their labels, one per row.
            attributes: the label columns. If there are none, one is guessed.
            owner: the column that says whom a row belongs to. All rows of an owner are then
                protected together. By default each row is protected on its own.
            reading: how to read the table, see `Reading`.

        Raises:
            InputError: the table cannot be used. The message says where and what to do.
        """
        from twinset.run.request import Source  # it waits for pandas

        source = Source.of(data, text, attributes, owner, self._prompt, 0.0, reading)
        with _listening(self._progress) as progress:
            from twinset.run.generate import fit

            self._model = fit(source, self.config, progress)
        self._written = Counter()
        self._made_from = replace(source, data="")  # how to read, and no record
        return self

    def sample(
        self, rows: int, *, seed: int | None = None, where: Mapping[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return a twin. Its labels follow the proportions of the noisy label counts.

        Example:
            Twice the rows, or rows of one kind, cost no more privacy:

                model = Twinset.load("model")
                more = model.sample(2000)
                happy = model.sample(500, where={"sentiment": "good"})

        Args:
            rows: number of rows.
            seed: another seed gives other rows. By default that of `options`.
            where: by column a value that all rows have, or a list of values. For other columns also
                a range with both ends, as in `{"age": (18, 30)}`, and None for a gap.

        Returns:
            A table of `rows` rows with the columns of the fitted table, in their order.

        Raises:
            InputError: nothing is fitted, no row can meet `where`, or hardly a drawn row is usable.
        """
        from twinset.sampling.allocation import proportional

        sampling = self.config.sampling
        if seed is not None:
            sampling = replace(sampling, seed=seed)
        model, weights = self.model.given({} if where is None else where)
        counts = proportional(weights, rows)
        with _listening(self._progress) as progress:
            twin = model.sample(counts, sampling, progress)
        self._written.update(_hashes(twin))
        return twin

    def evaluate(
        self,
        twin: Any,
        train: Any,
        test: Any,
        *,
        classifiers: Sequence[str] | None = None,
        seeds: int = 1,
        exclude_overlap: bool = False,
        embedded: bool = True,
    ) -> pd.DataFrame:
        """Measure whether a twin is useful and faithful, like `twinset evaluate`.

        The scores are computed on private rows and stay with their owner. Only scores whose `where`
        is "release alone" may be passed on.

        Example:
            Compare classifiers that learn from the twin with those that learn from real rows:

                model = Twinset.load("model")
                scores = model.evaluate(model.sample(1000), "reviews.csv", "heldout.csv")
                print(scores[scores.name == "accuracy"][["rows", "label", "classifier", "value"]])

        Args:
            twin: rows that `sample` returned, or their file.
            train: the private table, in any form that `fit` takes.
            test: real rows that were not used for training, in any such form.
            classifiers: some of "tfidf", "svm", "minilm" and "encoder". Default: the first three.
            seeds: how many times to train each classifier.
            exclude_overlap: leave out rows of `test` whose text is also in `train`.
            embedded: also compare texts by embeddings. This downloads an encoder once.

        Returns:
            One row per score: `question`, `name`, `value`, `low` and `high` (95 %), `goal`,
            `where`, and what it scores, such as `rows`, `label` and `classifier`.

        Raises:
            InputError: a table cannot be used.
        """
        measure = import_evaluation("evaluate").evaluate_frames
        with _listening(self._progress) as progress:
            return measure(
                *(self.model, self._made_from, twin, train, test, progress),
                classifiers=classifiers,
                exclude_overlap=exclude_overlap,
                embedded=embedded,
                seeds=seeds,
            )

    def audit(self, twin: Any, members: Any, non_members: Any, *, rows: int = 1000) -> pd.DataFrame:
        """Attack a twin and its model, like `twinset audit`.

        The scores are computed on private rows and stay with their owner.

        Example:
            Measure how well training rows can be told from other rows:

                attacked = Twinset.load("model")
                scores = attacked.audit(attacked.sample(1000), "reviews.csv", "heldout.csv")
                print(scores[scores.name == "AUROC"][["attack", "sees", "value", "low", "high"]])

        Args:
            twin: rows that `sample` returned, or their file.
            members: the private table, in any form that `fit` takes.
            non_members: real rows that were not used for training, in any such form.
            rows: how many members, and how many non-members, the attacks look at.

        Returns:
            See `evaluate`.

        Raises:
            InputError: a table cannot be used.
        """
        measure = import_evaluation("evaluate").audit_frames
        shown = self.model, self._made_from, twin, members, non_members
        with _listening(self._progress) as progress:
            return measure(*shown, progress, rows=rows)

    @staticmethod
    def report(run: str | Path) -> Path:
        """Draw everything known about a run folder on one page, like `twinset report`.

        Args:
            run: a run folder made by `generate`.

        Returns:
            The page's file, with `dossier.html` next to it. Figures of private rows: keep both.

        Raises:
            InputError: there is no such run.
        """
        return import_evaluation("report.page").write_report(Path(run))

    def share(self, twin: pd.DataFrame, folder: str | Path, format: str = "parquet") -> Path:
        """Write a twin, its card and `privacy.json` into a folder. Return the twin's file.

        Example:
            Write the folder that you hand over. `twinset verify shared` checks it:

                model = Twinset.load("model")
                model.share(model.sample(1000), "shared")

            `save` a model first that you hand over with it. Then `privacy.json` states its hash.

        Args:
            twin: rows that `sample` returned, from one call or several. You may keep some of them
                only, if you choose them without looking at private rows.
            folder: created if it is missing. It must be empty.
            format: "parquet", "csv", "tsv" or "jsonl".

        Raises:
            InputError: some rows did not come from `sample` of this object, so nothing is
                guaranteed for them, or the folder cannot be used.
        """
        from twinset.run.request import OutputPaths
        from twinset.sampling.twin_model import twin_frame
        from twinset.table.columns import as_texts

        place, model = Path(folder), self.model
        if not hasattr(twin, "columns") or tuple(twin.columns) != model.schema.columns:
            raise InputError("`twin`: has other columns than the model's rows. Share only those.")
        # The guarantee is of rows that were sampled, none more often than it was sampled.
        if others := (Counter(_hashes(twin)) - self._written).total():
            raise InputError(
                f"`twin`: {others:,} of {len(twin):,} rows were not returned by `sample` here, so "
                "they have no guarantee. Sample again and share those rows unchanged."
            )
        # The table that is written is built from the cells alone. A caller's table has more:
        # categories that no row has, attributes and an order, which may tell of other tables.
        schema, known = model.schema, model.schema.spelled
        cells = as_texts(twin[[a.name for a in schema.attributes]]).itertuples(index=False)
        labels = [known[tuple(row)] for row in cells]
        columns = None if model.columns is None else model.columns.rebuild(twin)
        twin = twin_frame(schema, twin[schema.text].astype(str).tolist(), labels, columns)
        twin = twin.sample(frac=1, random_state=0).reset_index(drop=True)
        OutputPaths(format=format)  # an unknown one is refused before there is a folder
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise InputError(f"{place}: is not empty. Name another folder.")
        place.mkdir(parents=True, exist_ok=True)
        return model.share(twin, place, self.config.sampling, format)

    def push_to_hub(
        self, name: str, twin: pd.DataFrame, *, private: bool = True, token: str | None = None
    ) -> str:
        """Upload a twin, its card and `privacy.json` as a data set. Return its address.

        Example:
            Only you can see it until you make it public on the hub:

                model = Twinset.load("model")
                model.push_to_hub("me/reviews-twin", model.sample(1000))

        Args:
            name: name of the data set, `owner/name`.
            twin: see `share`.
            private: whether only its owner can see it.
            token: hub token. By default the one that the hub's library has stored.

        Raises:
            InputError: the model guarantees nothing or protects only flagged spans, the rows are
                not the model's, or the hub refuses.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        if not self.guarantee.is_of_whole_records:
            what = "nothing" if self.guarantee.epsilon is None else "only flagged spans"
            raise InputError(f"this model protects {what}, so its rows are not uploaded")
        hub = HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.share(twin, folder)
            try:
                address = hub.create_repo(name, repo_type="dataset", private=private)
                hub.upload_folder(repo_id=name, repo_type="dataset", folder_path=folder)
            except (HfHubHTTPError, OSError, ValueError) as error:
                raise InputError(f"{name}: the hub refuses ({first_line(error)})") from None
        return str(address)

    @property
    def model(self) -> TwinModel:
        """The fitted model with its schema, its noisy label counts and its ledger."""
        if self._model is None:
            raise InputError("nothing has been fitted yet. Call fit(table) or Twinset.load(path).")
        return self._model

    @property
    def guarantee(self) -> Guarantee:
        """What you may claim about the model and all its samples together.

        Its `sentence` states it in words. `epsilon` and `delta` are None if nothing is guaranteed.

        Raises:
            InputError: the model is not fitted.
        """
        return self.model.guarantee

    def save(self, path: str | Path) -> None:
        """Write the model folder. It is as safe to share as a twin.

        Args:
            path: the folder, created if it is missing. A model that was saved there is replaced.

        Raises:
            InputError: something else is there.
        """
        from twinset.files.atomic import listed, replacing, writing

        folder, model = Path(path).resolve(), self.model
        there = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
        if folder.is_file() or there - listed(folder).keys():
            raise InputError(f"{folder}: holds files that are not a model. Name another folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with writing(folder), replacing(folder) as new:
            model.save(new)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Read a model folder written by `save`, or the model of a run folder.

        Args:
            path: the folder.
            options: `progress` and the options for sampling and device, as for `Twinset`.

        Raises:
            InputError: there is no model, its run was stopped early, it is damaged, or an option is
                unknown.
        """
        from twinset.run.run_folder import check_ended
        from twinset.sampling.twin_model import TwinModel

        check_ended(Path(path))
        twinset = cls(**options)
        twinset._model = TwinModel.load(path, twinset.config.speed.device)
        twinset._made_from = Path(path)
        return twinset


def generate(
    data: pd.DataFrame | Dataset | Sequence[str] | str | Path,
    text: str | Sequence[Any] | None = None,
    attributes: str | Sequence[str] = (),
    owner: str | None = None,
    *,
    rows: int | None = None,
    rows_per_label: int | LabelRows | None = None,
    plan_file: str | Path | None = None,
    run: str | Path | None = None,
    output: str | Path | None = None,
    format: str | None = None,
    guard_formulas: bool = True,
    hold_out: float | None = None,
    overwrite: bool = False,
    resume: bool = False,
    accept_spend: bool = False,
    prompt: Template | str | Path | None = None,
    base_model: str | Path = BASE_MODEL,
    progress: Progress | bool = True,
    private: bool = True,
    **options: Any,
) -> Result:
    """Make a run folder with twin, card and ledger, like the command `twinset generate`.

    Example:
        Write the twin, its card and its ledger next to your other files:

            made = generate(frame, "review", "sentiment", rows=500, output="twin.csv", epsilon=8)
            print(made.twin, made.guarantee.sentence)

    Args:
        data: the private table, see `Twinset.fit`.
        text: see `Twinset.fit`.
        attributes: the label columns. If there are none, one is guessed.
        owner: see `Twinset.fit`.
        rows: of the twin. Default: twice the table's, from 3,000 to a million, if time allows.
        rows_per_label: instead, rows for each label, or `{"positive": 500}` for some labels.
            With several label columns `{("positive", "dvd"): 500}`.
        plan_file: instead, a table of the label columns and a column `rows`.
        run: the run folder. By default the first free `runs/<table>-<n>`.
        output: the twin's file. Card and ledger are written next to it. By default the twin stays
            in the run folder.
        format: the twin's format. By default that of `output`, else that of the table.
        guard_formulas: put a quote before texts of a CSV that a spreadsheet would run.
        hold_out: share of the rows to keep from training, stored in the run's `internal/`, for
            judging the twin. By default 0.2 from 5,000 rows (or owners) on, else none.
        overwrite: replace an existing run or file.
        resume: continue a run that was killed or stopped.
        accept_spend: resume from a state that was already resumed once, and count both runs.
        prompt: see `Twinset`.
        base_model: a packaged asset, a local folder or a hub name.
        progress: see `Twinset`.
        private: see `Twinset`.
        options: options of `Twinset` and of `Reading`.

    Returns:
        The guarantee, the run folder, the twin's file and its number of rows.

    Raises:
        InputError: an input cannot be used. Nothing was written.
    """
    from twinset.run.request import OutputPaths, Source
    from twinset.sampling.allocation import RowsRequest
    from twinset.table.schema import written_line

    reading = {name: options.pop(name) for name in Reading.__annotations__ if name in options}
    config = _make_config(base_model, private, options)
    source = Source.of(data, text, attributes, owner, prompt, hold_out, reading)
    folder, file = (None if place is None else Path(place) for place in (run, output))
    paths = OutputPaths(folder, file, format, overwrite, guard_formulas, resume, accept_spend)

    # rows of labels as the command line writes them: "500", "positive=500", "negative,dvd=5"
    lines: tuple[str, ...] = () if rows_per_label is None else (str(rows_per_label),)
    if isinstance(rows_per_label, Mapping):
        counts = rows_per_label.items()
        names = [written_line(c) if isinstance(c, tuple) else c for c, _ in counts]
        lines = tuple(f"{name}={n}" for name, (_, n) in zip(names, counts, strict=True))
    asked = RowsRequest(rows, lines, None if plan_file is None else str(plan_file))
    with _listening(progress) as listener:
        from twinset.run.generate import generate as run_generate  # after the error was reported

        return run_generate(source, config, asked, paths, listener)


def _listening(progress: Progress | bool) -> AbstractContextManager[Progress]:
    """Return the progress display of one call, which restores the screen afterwards."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    if not progress:
        return nullcontext(Silent())
    from twinset.commandline.console import Console

    return Console(is_shell=False)


def _make_config(base_model: str | Path, private: bool, options: dict[str, Any]) -> RunConfig:
    """Return a run's options. Only an explicit `private=False` turns privacy off."""
    if "epsilon" in options and private is (options["epsilon"] is None):
        raise InputError("`epsilon` must be a number. Leave it out with `private=False`.")
    if not private:
        options = options | {"epsilon": None}
    return run_config({"base_model": str(base_model)} | options)


def _hashes(twin: pd.DataFrame) -> list[int]:
    """Return a 64-bit hash of each row, whatever types its columns have."""
    import pandas as pd

    return [*pd.util.hash_pandas_object(twin.astype(str), index=False).tolist()]
