"""How long a run will take and how much memory: measured on made-up tokens, before any training.

Knows no record: it is given a length in tokens and times the real engine and the real sampler on
random ids of that length, with a copy of the model.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from twinset.config import RunConfig
from twinset.config.plan import MOST_READ, Plan
from twinset.models.base_model import BaseModel, context_length
from twinset.models.device import give_memory_back, is_cpu, peak_memory, wait_for
from twinset.models.hidden_states import Questions
from twinset.models.lora import trainable
from twinset.models.packed_layers import PackedLinears, packed_bytes
from twinset.models.perplexity import TOKENS_AT_ONCE, nats_per_token
from twinset.models.precision import copy_in, execution, fastest, frozen_dtype, fuse
from twinset.models.record_states import rows_at_once, states_of_records
from twinset.models.teacher import PHASE as TEACHER_PHASE
from twinset.models.threads import computing_with, on_free_cores
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.clipping.engine import is_out_of_memory
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run.row_processes import writers
from twinset.sampling.decoding import Request, prompt_states, seconds_of_tokens
from twinset.sampling.row_memory import RowMemory
from twinset.sampling.row_shards import number_of_groups
from twinset.sampling.sampler import read_together
from twinset.sampling.untilted_rows import (
    PROMPT_PHASE,
    PROMPT_ROWS,
    REFERENCE_PHASE,
    REFERENCE_ROWS,
    WEIGHT_PHASE,
    WEIGHT_ROWS,
)
from twinset.table.tokenization import padded, padded_lengths
from twinset.training.clipped_sum import BatchShapes, MismatchLoss, WrongPrompts
from twinset.training.distributed import world_size

PROBE_ROWS, PROBE_TOKENS = 256, 2  # of the sampler's probe
ROW_PROBE, ROW_PROBES = 0.7, 2  # seconds, and how often
# A record takes half as long in a physical batch as alone: as much of one as there is time for.
RECORD_PROBE, RECORD_PROBES = 2.0, 1
READ_PROBE, READ_PROBES = 0.5, 3  # of a private text; the first one warms up
DENIED_SHARE = 0.45  # about so many rows are drawn again for each of the twin's


@dataclass(frozen=True)
class Estimate:
    """About how much a run costs on this machine.

    Args:
        tokens: of a record with its prompt, as supposed.
        trained_parameters: p.
        training_seconds: of all steps.
        sampling_seconds: of all rows.
        reference_seconds: of the rows that the tilt of words is found by.
        teacher_seconds: of the texts that the teacher reads.
        weight_seconds: of the rows of the base that tokens are weighed by.
        prompt_seconds: of those behind prompts that one is chosen from.
        memory_gb: the process's peak, on the device: while a physical batch was in memory, or as
            many rows as are written at once.
    """

    tokens: int
    trained_parameters: int
    training_seconds: float
    sampling_seconds: float
    memory_gb: float
    reference_seconds: float = 0.0
    teacher_seconds: float = 0.0
    weight_seconds: float = 0.0
    prompt_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return sum(seconds for _, seconds in self.phases(1))

    def phases(self, trainings: int) -> list[tuple[str, float]]:
        """Return the run's phases as progress calls them, in order, with their seconds."""
        return [
            *[(WEIGHT_PHASE, self.weight_seconds)] * bool(self.weight_seconds),
            *[(PROMPT_PHASE, self.prompt_seconds)] * bool(self.prompt_seconds),
            *[("training", self.training_seconds / trainings)]
            * (trainings * bool(self.training_seconds)),
            *[(REFERENCE_PHASE, self.reference_seconds)] * bool(self.reference_seconds),
            *[(TEACHER_PHASE, self.teacher_seconds)] * bool(self.teacher_seconds),
            ("rows", self.sampling_seconds),
        ]


@dataclass(frozen=True)
class Speed:
    """What the parts of a run take on this machine, as measured.

    Args:
        config: the run's options.
        tokens: of a record with its prompt, as supposed.
        length: tokens that it is padded to.
        records_each: of a unit, as supposed; 1 where each record is protected by itself.
        trained_parameters: p.
        record_seconds: to clip one record's gradient, over its wrong prompts too.
        noise_seconds: of one release and what the policy learns from it.
        weigh_seconds: of one record's privacy weight.
        row_seconds: of one row of the twin.
        memory_gb: see `Estimate`.
        read_seconds: in which the teacher reads a private text; 0: there is no teacher.
        judge_seconds: in which it reads a row of the twin, with others.
        prompts: that one is chosen from; 0: none is.
        writers: processes that write many rows together.
        writer_row_seconds: of a row, by one of them.
        writer_judge_seconds: in which it reads a row.
    """

    config: RunConfig
    tokens: int
    length: int
    records_each: float
    trained_parameters: int
    record_seconds: float
    noise_seconds: float
    weigh_seconds: float
    row_seconds: float
    memory_gb: float
    read_seconds: float = 0.0
    judge_seconds: float = 0.0
    prompts: int = 0
    writers: int = 1
    writer_row_seconds: float = 0.0
    writer_judge_seconds: float = 0.0

    def estimate(self, plan: Plan, rows: int) -> Estimate:
        """Return what a plan costs, and so many rows of the twin."""
        processes = world_size(self.config.speed.processes)  # they share records, and rows
        computed = plan.batch_size * self.records_each + self._filler(plan)
        step = computed * self.record_seconds / processes + self.noise_seconds
        drawn = plan.records * (1 - (1 - plan.sample_rate) ** plan.steps)
        phases = len(self.config.policy.policy_class.phases())
        training = phases * plan.steps * step + drawn * self.weigh_seconds
        privacy, most = self.config.privacy, min(REFERENCE_ROWS, plan.records)
        reference = most if privacy.marginal_share or privacy.teacher_share else 0
        return Estimate(
            self.tokens,
            self.trained_parameters,
            training,
            self._sampling_seconds(rows) / processes,
            self.memory_gb,
            reference * self.row_seconds,
            min(MOST_READ, plan.records) * self.records_each * self.read_seconds,
            bool(privacy.marginal_share) * min(WEIGHT_ROWS, plan.records) * self.row_seconds,
            self.prompts * min(PROMPT_ROWS, plan.records) * self.row_seconds,
        )

    def _sampling_seconds(self, rows: int) -> float:
        """Seconds of so many rows of the twin, by as many writers as there are groups for."""
        groups = number_of_groups(rows)
        writers = min(self.writers, groups)
        if writers < 2:
            return rows * self._accepted(self.row_seconds, self.judge_seconds)
        longest = rows * -(-groups // writers) / groups  # of one writer, in whole groups
        return longest * self._accepted(self.writer_row_seconds, self.writer_judge_seconds)

    def _accepted(self, row_seconds: float, judge_seconds: float) -> float:
        """Return the seconds of a row, with those in its place that the teacher denied."""
        if not (judge_seconds and self.config.sampling.teacher_redraws):
            return row_seconds
        return (1 + DENIED_SHARE) * (row_seconds + judge_seconds)

    def at(self, tokens: int) -> Speed:
        """Return the same for records of another length, as if each token took the same."""
        share = tokens / self.tokens
        return replace(
            self,
            tokens=tokens,
            length=max(1, round(share * self.length)),
            record_seconds=share * self.record_seconds,
            weigh_seconds=share * self.weigh_seconds,
            row_seconds=share * self.row_seconds,
            read_seconds=share * self.read_seconds,
            judge_seconds=share * self.judge_seconds,
            writer_row_seconds=share * self.writer_row_seconds,
            writer_judge_seconds=share * self.writer_judge_seconds,
        )

    def _filler(self, plan: Plan) -> float:
        """Return how many records' worth of filler a step has: half a batch of each length."""
        units = _shapes(self.config, plan).units(1, self.length)
        lengths = min(len(padded_lengths(self.length, self.length)), plan.batch_size)
        return lengths * (units - 1) / 2


def measure(
    base: BaseModel,
    config: RunConfig,
    plan: Plan,
    tokens: int,
    records_each: float = 1.0,
    say: Callable[[str], object] = lambda line: None,
) -> Speed:
    """Time physical batches, a noise draw and a few written tokens, on a copy of the model.

    Args:
        base: the base model, which stays as it is.
        config: the run's options.
        plan: the run's plan.
        tokens: of a record with its prompt, as supposed.
        records_each: of a unit, as supposed.
        say: is told where other work has some of the cores.
    """
    tokens = max(4, min(tokens, context_length(base.model) - PROBE_TOKENS))
    with _threads_of_one(config.speed.processes, say):
        speed = _measured(base, config, plan, tokens, records_each)
    give_memory_back(base.model.device)
    return speed


@contextmanager
def _threads_of_one(processes: int, say: Callable[[str], object]) -> Iterator[None]:
    """Compute with as many threads as each process of a run has."""
    if processes == 1:
        with on_free_cores(say):
            yield
        return
    with computing_with(max(1, (os.cpu_count() or 1) // processes)):
        yield


def _measured(
    base: BaseModel, config: RunConfig, plan: Plan, tokens: int, records_each: float
) -> Speed:
    loaded = peak_memory(base.model.device)
    copied = fuse(copy_in(base.model, frozen_dtype(config)))
    writer = fastest(fuse(copy_in(copied, copied.dtype)))  # without adapters, as rows are written
    memory_gb = loaded + _row_bytes(writer, config, tokens) / 1e9
    writing = _writing(writer, base.tokenizer, config, tokens, memory_gb)
    weighs = config.policy.policy_class.weighs
    weigh_seconds = _weigh_seconds(copied, tokens) if weighs else 0.0
    model = trainable(copied, config.training)
    engine = ClippingEngine(model, config.privacy.max_grad_norm, execution(config))
    try:
        records = _record_seconds(engine, model, config, plan, tokens)
        record_seconds = _probed(records, RECORD_PROBES)
        noise_seconds = _noise_seconds(engine.sums, config)
    finally:
        engine.close()
    return Speed(
        config=config,
        tokens=tokens,
        length=padded(tokens, context_length(base.model)),
        records_each=records_each,
        trained_parameters=sum(p.numel() for p in engine.parameters),
        record_seconds=record_seconds,
        noise_seconds=noise_seconds,
        weigh_seconds=weigh_seconds,
        memory_gb=max(peak_memory(base.model.device), writing["writers"] * memory_gb),
        **writing,
    )


def _writing(
    model: Any, tokenizer: Any, config: RunConfig, tokens: int, gigabytes: float
) -> dict[str, Any]:
    """Return what `Speed` says of the writing and reading of texts."""
    packed, has_teacher = PackedLinears(model), bool(config.privacy.teacher_share)
    questions = Questions(model, tokenizer, ("label",), packed=packed)

    def row() -> float:
        return _probed(_row_seconds(model, config, tokens, packed), ROW_PROBES)

    def judge() -> float:
        if not has_teacher:
            return 0.0
        together = read_together(model.device)
        return _probed(_read_seconds(questions.of_rows, tokens, together), 1)

    found: dict[str, Any] = {"row_seconds": row(), "judge_seconds": judge()}
    if has_teacher:
        alone, records = 1, partial(_records_read, questions)
        if not is_cpu(model.device):
            alone = rows_at_once(padded(tokens, questions.longest))
        found["read_seconds"] = _probed(_read_seconds(records, tokens, alone), READ_PROBES)
    threads = torch.get_num_threads() if world_size(config.speed.processes) == 1 else 1
    most = writers(threads, config.sampling, model.device, gigabytes)
    if most > 1:  # one of them, while nobody else writes
        with computing_with(1):
            found |= {"writer_row_seconds": row(), "writer_judge_seconds": judge()}
    return found | {"writers": most}


def _probed(seconds: Generator[float], times: int) -> float:
    """Return the last of a few timings, and give back what they needed."""
    (*_, shortest) = islice(seconds, times)
    seconds.close()
    return shortest


def _shapes(config: RunConfig, plan: Plan) -> BatchShapes:
    each = 1 + WrongPrompts.from_plan(plan, config.training).count
    return BatchShapes(config.speed, plan.batch_size, each)


def _record_seconds(
    engine: ClippingEngine, model: Any, config: RunConfig, plan: Plan, tokens: int
) -> Generator[float]:
    """Time physical batches of the shape that a run has, filler included, and share them out."""
    shapes, length = _shapes(config, plan), padded(tokens, context_length(model))
    units, each = shapes.units(1, length), shapes.sequences
    generator = torch.Generator().manual_seed(0)  # what a run draws does not depend on a probe
    ids = torch.randint(model.config.vocab_size, (units * each, length), generator=generator)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, max(1, tokens // 4) : tokens] = True  # behind the prompt, about
    loss = MismatchLoss(plan.mismatch_weight, config.training.mismatch_form)

    def timed(units: int) -> float:
        began = time.monotonic()
        engine.add(Sequences(ids[: units * each], mask[: units * each], each), loss)
        wait_for(engine.parameters[0].device)
        return time.monotonic() - began

    try:
        yield from _seconds_of_one(timed, units, RECORD_PROBE)
    except RuntimeError as error:
        if not (is_out_of_memory(error) and engine.checkpoint_layers()):  # as the run would
            raise
    yield from _seconds_of_one(timed, 1, RECORD_PROBE)


def _seconds_of_one(timed: Callable[[int], float], most: int, seconds: float) -> Generator[float]:
    """Time parts of a run, as many as it takes at once where there is time for that.

    One warms up, or the first time does; a few say how many there is time for; those of a slow
    machine suffice.

    Args:
        timed: computes so many parts, and returns how long it took.
        most: that a run takes at once.
        seconds: that one time may take, about.

    Yields:
        The shortest time of one so far, whenever asked: is it the machine that is slow, or what
        else it does? Other work makes parts slower, never faster.
    """
    number, each = _first_time(timed, most, seconds)
    yield each
    while True:
        try:
            each = min(each, timed(number) / number)
        except RuntimeError as error:  # what else is in memory by now
            if not is_out_of_memory(error):
                raise
        yield each


def _first_time(timed: Callable[[int], float], most: int, seconds: float) -> tuple[int, float]:
    """Return how many parts there is time for at once, and what one of them takes."""
    few = max(1, most // 8)
    try:
        if few > 1:
            timed(1)
        each = timed(few) / few
        number = max(1, min(most, int(seconds / each))) if each else most
        return number, each if number <= few else min(each, timed(number) / number)
    except RuntimeError as error:
        if most == 1 or not is_out_of_memory(error):
            raise
    return _first_time(timed, most // 2, seconds)  # as the run would


def _weigh_seconds(model: Any, tokens: int) -> float:
    """Time how long one record's privacy weight takes, with others of its length."""
    texts = [[0] * tokens] * max(1, TOKENS_AT_ONCE // tokens)
    began = time.monotonic()
    nats_per_token(model, texts, 0)
    return (time.monotonic() - began) / len(texts)


def _records_read(questions: Questions, records: list[list[int]]) -> object:
    return list(states_of_records(questions, records))


def _read_seconds(
    read: Callable[[list[list[int]]], object], tokens: int, together: int
) -> Generator[float]:
    """Time how long the teacher reads a text, by itself or, where there is time, with others."""

    def timed(texts: int) -> float:
        began = time.monotonic()
        read([[0] * tokens] * texts)
        return time.monotonic() - began

    return _seconds_of_one(timed, together, READ_PROBE)


def _noise_seconds(sums: list[Tensor], config: RunConfig) -> float:
    """Time one release and what the policy learns from it."""
    weights = torch.ones(1)
    policy = make_policy(
        MechanismParams(1.0, 1.0, 1.0, Randomness.from_os(), config.policy, 1.0, weights)
    )
    began = time.monotonic()
    noisy, _ = policy.release(sums, [0])
    policy.update_statistics(noisy, noisy)
    return time.monotonic() - began


def _row_seconds(
    model: Any, config: RunConfig, tokens: int, packed: PackedLinears
) -> Generator[float]:
    """Time tokens in the middle of a row; a prompt is read once for many rows, and not counted."""
    prompt = (0,) * max(1, tokens // 2)
    writing: dict[int, Iterator[float]] = {}

    def timed(rows: int) -> float:
        if rows not in writing:  # one batch at a time; a second timing goes on with it
            writing.clear()
            waiting = deque(Request(i, (prompt, prompt)) for i in range(rows))
            writing[rows] = seconds_of_tokens(model, waiting, tokens, config.sampling, packed)
        return rows * PROBE_TOKENS * min(islice(writing[rows], PROBE_TOKENS))

    written = min(tokens, config.sampling.max_new_tokens or tokens)
    for each in _seconds_of_one(timed, PROBE_ROWS, ROW_PROBE):
        yield each / PROBE_TOKENS * written


def _row_bytes(model: Any, config: RunConfig, tokens: int) -> int:
    """Return what the rows need that are written at once, if they are many, beside the model."""
    prompts, rest = 2 if config.sampling.guidance else 1, config.training.max_tokens // 4
    like = prompt_states(model, (0,))
    memory = RowMemory.of(model, like, prompts, (tokens, rest), None)  # see `PublicFacts.tokens`
    rows = memory.rows_at_once(10**6, config.sampling.batch_size)
    return rows * memory.row + packed_bytes(model)


def usual_tokens(texts: Sequence[str], tokenizer: Any, prompt: int, longest: int) -> int:
    """Return the mean length of up to 256 records, evenly chosen, with a prompt so long."""
    chosen = texts[:: -(-len(texts) // 256)]
    encoded = tokenizer(list(chosen), add_special_tokens=False)["input_ids"]
    return prompt + round(sum(min(len(ids), longest) for ids in encoded) / len(encoded))
