"""One run from a private table to a twin that may be shared, readable from top to bottom.

Nine functions run in this order. One `Run` is passed along, and each function fills in what later
ones need. The plan comes before the counts, because they need its noise.

    read    check the table, load the base model, hold rows out
    select  the label values that were not declared, by noisy counts
    plan    steps, noise and time, from public facts alone
    count   labels, tokens and lengths, with noise
    train   private steps
    teach   the tilt of words, and a private classifier of labels
    sample  rows
    share   twin, card and ledger
    judge   check them as their receiver would

`read` reads the records. `select`, `count`, `train` and `teach` learn from them, and each records
its release in the ledger first. The command line, Python and `evaluation/` enter through
`twinset.run.generate`. Bad input is refused before anything slow begins.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twinset.config import PrivacyConfig
from twinset.config.plan import Plan, make_plan, plan_selection, settled, sized
from twinset.errors import InputError
from twinset.files.atomic import append_json, write_json
from twinset.models.adapters import merge_trained, names_of_factored
from twinset.models.base_model import (
    LOCAL,
    check_base,
    context_length,
    load_base,
    special_token_strings,
)
from twinset.models.device import check_device, give_memory_back
from twinset.models.hidden_states import Teacher
from twinset.models.layers import BatchShape
from twinset.policies import MechanismParams
from twinset.policies.detection import detector_named, mask_texts
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.progress import Progress, StepReport
from twinset.release.publish import publish
from twinset.release.verify import verify
from twinset.run import releases
from twinset.run.columns import column_notes
from twinset.run.plan import Workload, plan_time, say_duration, size_notes
from twinset.run.request import Result, Run, Source
from twinset.run.run_folder import METRICS, SETTINGS, draw_held_out, held_out_line, kept_rows
from twinset.sampling.allocation import RowsRequest, explicit, share_out_rows, usual_rows
from twinset.sampling.decoding import attention_span
from twinset.sampling.label_tables import NaiveBayes, TextLengths
from twinset.sampling.rows import open_row_groups
from twinset.sampling.tilt_fitting import (
    FIT_PHASE,
    READ_PHASE,
    expected_tokens,
    fit_tilt,
    reference_rows,
)
from twinset.sampling.twin_model import TwinModel, twin_frame
from twinset.table.cells import Cells
from twinset.table.choose import ask_whose
from twinset.table.columns import Picked, facts_of
from twinset.table.read import read_frame
from twinset.table.records import Records, records_from_frame, without_reserved
from twinset.table.schema import Combination
from twinset.table.templates import Template, fit_pattern, load_template, written_template
from twinset.table.tokenization import TokenisedRecords, prompt_tokens, text_budget, tokenise
from twinset.training.clipped_sum import MismatchLoss, Trainer, units_at_once
from twinset.training.loop import StepContext, run_training
from twinset.training.record_weights import text_nats

UNFINISHED = "unfinished"  # part of `internal/` while a run is being made
HARDLY_READ = 3.2  # times the tokens a character of English (clinical notes and Polish take 2.5)
ENGLISH = "The film was very good, and I would recommend it to everyone who likes a slow story."
LOOKED_AT, LETTERS = 200, 1000  # texts by which a language is judged, and of each
SOON_READ = 20_000_000  # bytes of a table's file


@contextmanager
def timed(run: Run, name: str) -> Iterator[None]:
    """Report how long a part of the story took, and its share of the time."""
    began = time.monotonic()
    yield
    give_memory_back(run.base.model.device)  # the next part does not begin with this one's memory
    run.seconds[name] = seconds = time.monotonic() - began
    limit = run.config.training.max_minutes
    of = sum(run.seconds.values()) if limit is None else 60 * limit
    whose = "the time so far" if limit is None else f"`max_minutes={limit:g}`"
    run.progress.say(f"{name:<7}{say_duration(seconds)}, {seconds / max(of, 1e-9):.0%} of {whose}")


# -- the story -----------------------------------------------------------------------------------


def read(run: Run) -> None:
    """Read and check the table, load the base model and hold rows out, quickest checks first."""
    with timed(run, "read"):
        source, config, progress = run.source, run.config, run.progress
        if run.account is not None:
            run.account.check(config.privacy.target_epsilon is not None)
        if source.owner is not None and config.privacy.group_size is not None:
            raise InputError(
                "`group_size` is for records that are protected one by one, but `owner` protects "
                "all records of an owner together. Leave one of them out."
            )
        usual = PrivacyConfig().max_records_per_owner
        if source.owner is None and config.privacy.max_records_per_owner != usual:
            raise InputError(
                "`max_records_per_owner` does nothing without `owner`. Name the column."
            )
        training = config.training
        if training.method == "qlora" and find_spec("bitsandbytes") is None:
            raise InputError("`method=qlora` needs pip install 'twinset[qlora]'")
        policy = config.policy.policy_class
        policy.check(config.policy, by_owner=source.owner is not None)
        if policy.masks(config.policy):
            detector_named(config.policy.detector)
        asked = run.rows or RowsRequest()
        asked.check_plan(source.attributes)  # if none is guessed
        check_device(config.speed.device, config.speed.processes)
        private = run.folder.internal if run.folder else run.tokens_folder
        frame, records, run.notes = read_source(source, progress, private)
        names = [attribute.name for attribute in records.schema.attributes]
        asked.check_plan(names)
        fit_pattern(written_template(source.prompt), names)
        is_asked = config.privacy.target_epsilon is not None and not source.each_row_is_someone
        if is_asked and source.owner is None:
            run.question = ask_whose(frame, [records.schema.text, *names], source.name)
        check_base(training.base_model)
        run.base = load_base(training.base_model, device=config.speed.device, say=progress.say)
        if training.method == "ia3":
            names_of_factored(run.base.model)  # refuses a kind that it does not know
        reserved = special_token_strings(run.base.tokenizer)
        records, more = without_reserved(records, frame, reserved, source.name, source.strict)
        run.tell(*more)
        if lost := ", ".join(run.base.loses):
            run.tell(f"the base model loses {lost} of a text, so the twin will lack them")
        if run.folder and run.folder.is_resumed:
            run.held_rows = kept_rows(run.folder.internal)
        else:
            units = len(records.units(config))
            run.held_rows = records.rows_of(draw_held_out(units, source.hold_out))
        run.records, run.held_out = records.split(run.held_rows)
        if run.held_out is not None:
            progress.say(held_out_line(len(run.held_out)))


def select(run: Run, spends: bool = True) -> None:
    """Select undeclared label values by noisy counts, and settle the prompt for them.

    For its guarantee see `twinset.privacy.statement.theorems`, LABEL_VALUES. The counts are
    recorded when the ledger is opened, before any result of them is released.
    """
    with timed(run, "select"):
        config, source, records = run.config, run.source, run.records
        if run.question:
            if spends:
                raise InputError(run.question)
            run.tell(run.question)
        seed = config.privacy.insecure_noise_seed
        run.randomness = Randomness.from_os() if seed is None else Randomness.for_tests(seed)
        run.gate = releases.open_gate(run)
        run.selection = releases.find_selection(run)
        if not (run.folder and run.folder.is_resumed):  # a resumed run has entered before
            releases.enter_account(run)
        found, whose = releases.find_label_values(run, spends)
        counts = len(records.units(config)), config.privacy, run.undeclared_columns, run.most
        run.column_selection = plan_selection(*counts, of_labels=False)
        notes: list[str] = []
        run.records = records.with_values(found, whose, notes if spends else [])
        if not len(run.records):
            raise InputError(
                f"{source.name}: no record has public values of all its labels. Declare `labels`."
            )
        if run.held_out is not None:
            held = run.held_out.with_values(found, whose, [])
            run.held_out = held if len(held) else None
        reserved = special_token_strings(run.base.tokenizer)
        for attribute in run.records.schema.attributes:
            if any(token in str(value) for value in attribute.values for token in reserved):
                raise InputError(
                    f"{source.name}: a value of {attribute.name!r} contains a special token of the "
                    "base model. Correct it."
                )
        run.tell(*notes)
        run.template = (
            source.prompt
            if isinstance(source.prompt, Template)
            else load_template(source.prompt, run.records.schema)
        )
        run.counts = explicit(run.records.schema, run.rows or RowsRequest())


def plan(run: Run) -> None:
    """Decide steps, noise and the time for rows, from public facts alone. Spend nothing.

    A resumed run keeps its original plan.
    """
    with timed(run, "plan"):
        records, progress = run.records, run.progress
        known = None
        if run.folder and run.folder.is_resumed:
            known = json.loads((run.folder.internal / SETTINGS).read_text("utf-8"))
        begun = (known["plan"]["steps"], known["plan"]["batch_size"]) if known else None
        units = len(records.units(run.config))
        began = begun[0] if begun else None
        selections = run.selection, run.column_selection, records.others is not None
        run.config = config = settled(run.config, units, began, *selections)
        # refuses prompts that do not fit
        text_budget(find_prompts(run), attention_span(run.base.model), config.training.max_tokens)
        asked = sized(config, *begun) if begun and config.training.is_timed else config
        run.plan = make_plan(units, asked, *selections)
        if config.privacy.target_epsilon is not None:
            run.scale = config.policy.policy_class.weight_scale(config.policy, run.base)
        if run.source.prompt is None:
            run.candidates, line = releases.find_candidates(run)
            if line and not begun:  # a resumed run has chosen already
                progress.say(line)
        about = list(size_notes(run.plan, config.training.batch_size))
        # Tokens of a character of the first texts, over those of English.
        each = []
        for some in ([text[:LETTERS] for text in islice(records.texts, LOOKED_AT)], [ENGLISH]):
            ids = run.base.tokenizer(some, add_special_tokens=False)["input_ids"]
            each.append(sum(map(len, ids)) / max(1, sum(map(len, some))))
        more = each[0] / each[1]
        if more > HARDLY_READ:  # computed from private texts, and told to their owner alone
            about.append(
                f"the base model needs {more:.0f} times more tokens per character for these texts "
                "than for English. It hardly knows their language, so the twin will read badly. "
                "Choose another `base_model`."
            )
        run.tell(*about)
        if known is not None:
            run.rows_seconds = known["rows"]["seconds"]
            return
        work = find_workload(run)
        run.plan, run.phases, clock = plan_time(run.plan, config, run.base, work, progress)
        run.rows_seconds = clock if run.rows is not None else None


def count(run: Run) -> None:
    """Open the ledger, turn records into tokens, and count labels, tokens and lengths with noise.

    A resumed run has already counted. If no prompt was given, the counts choose one.
    """
    with timed(run, "count"):
        config, progress = run.config, run.progress
        for warning in run.plan.warnings:
            progress.warn(warning)
        run.resumed = run.checkpoints.restore() if run.checkpoints else None
        if not run.resumed:
            releases.enter_account(run)
            run.ledger = releases.open_ledger(run)
        run.gate.record = run.ledger.record
        run.units = run.records.units(config)
        run.tokens = tokenise_texts(run, "texts", masked=config.policy.redact_only)
        if run.resumed:
            return
        run.label_counts = releases.count_labels(run)
        run.keep_columns(releases.count_columns(run))
        if config.privacy.marginal_share:
            base = build_twin_model(run, run.base.model)
            run.marginals = releases.count_tokens(run, base)
            if run.candidates:
                run.template = releases.choose_template(run, base, run.marginals)
                run.tokens = run.tokens.behind(find_prompts(run))


def train(run: Run) -> None:
    """Train in private steps, phase by phase. Only the last phase's steps spend ε."""
    with timed(run, "train"):
        config, progress, full = run.config, run.progress, run.plan
        # The model is checked in every shape that a physical batch can have. Public facts decide
        # these: K sequences per record, and the most records that a unit may have.
        shapes = []
        if full.target_epsilon is not None and full.steps:
            wrong = MismatchLoss.from_plan(full, config.training).count
            sequences = 1 + min(wrong, len(run.tokens.prompts) - 1)
            shapes = [
                BatchShape(units_at_once(config.speed, full.batch_size, rows * n), rows, n)
                for n in run.tokens.padded_lengths(releases.longest_text(run))
                for rows in range(sequences, sequences * run.most + 1, sequences)
            ]
        run.trainer = trainer = Trainer(run.base, config, shapes, progress)
        kinds = full.policy_class.phases()
        start = run.resumed.phase if run.resumed else 0
        for phase, kind in list(enumerate(kinds))[start:]:
            is_last = phase == len(kinds) - 1
            if len(kinds) > 1:
                progress.say(f"phase {phase + 1} of {len(kinds)}: {kind.reads}")
            tokens, masked = run.tokens, kind.reads_masked or config.policy.redact_only
            if kind.reads_masked or run.records.others is not None:
                name = "masked" if kind.reads_masked else "whole"
                tokens = tokenise_texts(run, name, masked, is_whole=True)
            plan = full
            if not kind.adds_noise:
                plan = replace(full, target_epsilon=None, noise_multiplier=0.0)
            state = run.resumed.state if run.resumed and phase == start else None
            left = plan.steps - (int(state["done"]) if state else 0)
            batches = (
                list(poisson_batches(plan.records, plan.sample_rate, left, run.randomness))
                if left
                else []
            )
            weights = weigh_records(run, batches) if is_last else None
            policy = kind(
                MechanismParams(
                    plan.noise_multiplier,
                    config.privacy.max_grad_norm,
                    plan.sample_rate,
                    run.randomness,
                    config.policy,
                    plan.least_share,
                    weights,
                )
            )
            if is_last and run.checkpoints:
                teacher = releases.teacher_event(run)
                run.checkpoints.count_lost(policy.event, teacher)
                if run.resumed:
                    ahead = [policy.event] * left
                    if teacher is not None and not run.resumed.teacher:
                        ahead.append(teacher)
                    releases.enter_account(run, [*run.ledger.events, *ahead])
            context = StepContext(
                records=tokens,
                plan=plan,
                policy=policy,
                # without noise nothing is clipped
                max_grad_norm=config.privacy.max_grad_norm if plan.noise_multiplier else math.inf,
                gate=run.gate,
                training=config.training,
                speed=config.speed,
                observe=partial(record_step, run, plan),
                count=partial(progress.count, "units of the first step"),
                records_of=partial(run.units.draw, stream=run.randomness.sampling),
                resume_state=state,
                group=run.group,
            )
            if run.checkpoints:
                context = replace(context, checkpoints=run.checkpoints.callback(phase))
            run_training(trainer, batches, context)
        if policy.mean_noise and run.folder:  # where noise went, by parameter
            trained = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
            where = dict(zip(trained, policy.mean_noise, strict=True))
            write_json(run.folder.internal / "noise.json", where)
        if policy.nominal:
            nominal = epsilon([*full.releases, *policy.nominal], full.target_delta)
            progress.warn(f"nominal ε, as the paper counts it (no theorem): {nominal:.2f}")


def teach(run: Run) -> None:
    """Build the sampler with the tilt that the counts call for, and a private teacher."""
    with timed(run, "teach"):
        # releases are kept before they are shown
        run.tell(*column_notes(run.columns.columns if run.columns else (), run.left_out))
        if run.candidates:
            pattern = run.template.pattern
            run.progress.say(f'the prompt was "{pattern}", which fits the word counts best')
        trained = merge_trained(run.trainer.model)
        # As the weights of a loaded model do, they ask for gradients: PyTorch would copy a frozen
        # one for each row of one token (`at::matmul` folds such rows only with gradients).
        trained = trained.requires_grad_(True).to(run.trainer.dtype)
        run.model = model = build_twin_model(run, trained)
        if run.marginals is not None:
            model.lengths = TextLengths.from_counts(run.marginals)
            rows = reference_rows(model, run.progress)
            reread, fitted = (partial(run.progress.count, n) for n in (READ_PHASE, FIT_PHASE))
            expected = expected_tokens(model, rows, run.marginals.weights, reread)
            model.tilt = fit_tilt(run.marginals, model.schema, model.shares(rows), expected, fitted)
            give_memory_back(model.model.device)  # that rows needed, and that the teacher does not
        if run.config.privacy.teacher_share:
            if run.resumed and run.resumed.teacher:
                classes = [len(attribute.values) for attribute in model.schema.attributes]
                model.teacher = Teacher.load(run.resumed.teacher, classes, trained.config)
            else:
                model.teacher = releases.fit_teacher(run, model)
                if run.checkpoints:
                    run.checkpoints.keep_teacher(model.teacher.save)
            if run.marginals is not None:
                model.words = NaiveBayes.from_counts(run.marginals)


def sample(run: Run) -> None:
    """Write the requested number of rows, or stop when there are enough or time is up."""
    with timed(run, "sample"):
        assert run.folder is not None and run.rows is not None
        model, sampling = run.model, run.config.sampling
        counts = run.counts or share_out_rows(model, run.rows, run.progress)
        folder = run.folder.internal / UNFINISHED / "rows"
        groups = open_row_groups(folder, sampling, counts, model.model.device)
        limit = run.rows_seconds  # public, see `plan_time` (the clock starts here)
        run.frame = model.sample(
            counts,
            sampling,
            run.progress,
            groups,
            saved=run.folder.model,
            deadline=None if limit is None else time.monotonic() + limit,
            processes=run.config.speed.processes,
        )
        run.redrawn = groups.redrawn()


def share(run: Run) -> None:
    """Write the twin with its card and ledger into `share/`, and next to `output` if given."""
    with timed(run, "share"):
        assert run.folder is not None
        paths = run.paths
        run.twin = run.model.share(
            run.frame,
            run.folder.share,
            run.config.sampling,
            paths.twin_format(run.source.name),
            paths.guard_formulas,
            run.redrawn,
        )
        if paths.output is not None:
            publish(run.folder.share, paths.output, paths.overwrite)


def judge(run: Run) -> Result:
    """Report the result and its guarantee. Check a twin as its receiver would.

    `twinset evaluate` measures its quality with the rows held out in `internal/`.
    """
    assert run.folder is not None
    claim, root = run.model.guarantee, run.folder.root
    if run.twin is None:
        return Result(claim, root)
    with timed(run, "judge"):
        found = verify(root)
    return Result(claim, root, run.paths.output or root / "share" / run.twin.name, found.rows)


# -- what several parts of the story need --------------------------------------------------------


def read_source(
    source: Source, progress: Progress, folder: Path | None = None
) -> tuple[pd.DataFrame, Records, tuple[str, ...]]:
    """Return the private table, its records, and the notes that `progress` shows.

    The folder is private to its owner. A large table is kept there in an unnamed file. Without a
    folder the table is in memory.

    Raises:
        InputError: the table cannot be used.
    """
    frame = source.data
    if not isinstance(frame, pd.DataFrame):
        path = Path(source.name)
        if not path.is_file() or path.stat().st_size > SOON_READ:
            progress.say(f"reading {source.name}")
        frame = read_frame(frame, source.split, folder, source.layout)
    try:
        records, notes = records_from_frame(
            frame,
            source.text,
            source.attributes,
            source=source.name,
            drop_empty=source.drop_empty,
            owner=source.owner,
            rules=replace(source.labels, prompt=written_template(source.prompt)),
            strict=source.strict,
            folder=folder,
            keep=source.columns,
        )
    except InputError:
        for note in facts_of(frame).notes:  # how it was read may be the reason, as of a cover sheet
            progress.say(note)
        raise
    twin_frame(records.schema, [], [])  # a twin that cannot be built fails before any ε is spent
    for note in notes:
        progress.say(note)
    return frame, records, tuple(notes)


def find_prompts(run: Run) -> dict[Combination, list[int]]:
    """Return the token ids of every label combination's prompt."""
    return prompt_tokens(run.template, run.records.schema.combinations, run.base.tokenizer)


def find_workload(run: Run) -> Workload:
    """Return all facts that a plan's time may depend on, except options, N and base model."""
    combinations, tokenizer = run.records.schema.combinations, run.base.tokenizer
    templates = run.candidates or (run.template,)
    prompts = (prompt_tokens(each, combinations, tokenizer) for each in templates)
    longest = max(len(ids) for each in prompts for ids in each.values())
    rows, exact = 0, True
    if run.rows is not None:
        asked = sum(run.counts.values()) if run.counts else run.rows.rows
        # of an owner half of the records are supposed that there may be
        rows, exact = asked or usual_rows(round(run.plan.records * (1 + run.most) / 2)), bool(asked)
    return Workload(longest, rows, exact, run.most, len(run.candidates))


def tokenise_texts(run: Run, name: str, masked: bool, is_whole: bool = False) -> TokenisedRecords:
    """Return the records' texts as tokens, in the folder `name` if the run keeps tokens on disk.

    If `masked`, detected spans are masked. Otherwise texts are unchanged. If `is_whole`, the
    further texts of each record follow.
    """
    folder, texts = None, run.records.texts
    further = dict[str, list[str]]()
    if is_whole and (others := run.records.other_columns()) is not None:
        reserved = special_token_strings(run.base.tokenizer)
        further = {str(name): Cells.of(others[name]).lines(reserved) for name in others}
    if run.tokens_folder is not None:
        folder = run.tokens_folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if masked:
        detector = detector_named(run.config.policy.detector)
        count = partial(run.progress.count, "texts masked")
        texts = mask_texts(texts, detector, count)
        further = {name: mask_texts(own, detector, count) for name, own in further.items()}
    records, longest = replace(run.records, texts=texts), run.config.training.max_tokens
    span = context_length(run.base.model)
    count = partial(run.progress.count, "texts in tokens")
    given = records, run.template, run.base.tokenizer, span, longest, folder, count, further
    tokens = tokenise(*given)
    if tokens.truncated and not is_whole:
        why = "the longest length (`max_tokens`)"
        if (budget := text_budget(tokens.prompts, span, longest)) < longest:
            why = f"{budget} tokens: the base model reads {span}, the prompt included"
        run.progress.say(f"{tokens.truncated} texts are cut at {why}")
    return tokens


def record_step(run: Run, plan: Plan, report: StepReport) -> None:
    """Show one step to the owner, and keep its figures in `internal/`."""
    if run.folder:  # a figure that is not finite becomes null, as JSON has none
        figures = {k: v if math.isfinite(v) else None for k, v in asdict(report).items()}
        append_json(run.folder.internal / METRICS, figures)
    run.progress.step(report, plan)


def weigh_records(run: Run, batches: list[np.ndarray]) -> Tensor | None:
    """Return privacy weights if the policy has them. They stay in memory and are never shown.

    The model is still the base model, because new adapters change nothing.
    """
    policy, tokens = run.plan.policy_class, run.tokens
    if policy.weighs and run.plan.target_epsilon is None:
        return torch.ones(len(run.units), dtype=torch.float64)
    drawn = np.unique(np.concatenate(batches)).tolist() if batches else []

    def nats(units: Sequence[int]) -> Tensor:
        """Map unit numbers to (n,) nats per token of their texts. An empty unit gets the least.

        Policies with weights protect records, so a unit has one record, or none if it was left out.
        """
        report = partial(run.progress.count, "texts weighed")
        rows = run.units.draw(np.array(units, np.int64), run.randomness.sampling)
        has = torch.tensor([bool(unit) for unit in rows], dtype=torch.bool)
        texts: Picked[list[int]] = Picked(tokens.texts, [row for unit in rows for row in unit])
        known = text_nats(run.trainer.model, run.base.tokenizer, texts, report)
        found = torch.full((len(rows),), float(known.min()) if len(known) else 0.0)
        found[has] = known.to(found)
        return found

    # the ledger's scale, so that the stated scale is the used one
    return policy.privacy_weights(len(run.units), drawn, nats, run.ledger.weight_scale)


def build_twin_model(run: Run, model: Any) -> TwinModel:
    """Return a model that writes rows, trained or not, with labels in the counted proportions."""
    base = run.base
    return TwinModel(
        model,
        base.tokenizer,
        run.records.schema,
        run.template,
        run.label_counts,
        releases.longest_text(run),
        run.ledger,
        base.origin,
        # readers of a release must not see a folder's path
        base_name="a model from a local folder" if LOCAL in base.origin else base.name,
        columns=run.columns,
    )
