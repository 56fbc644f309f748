"""What a prediction of FSDP needs, measured on real ranks: the step of a module alone, and the costs of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn

from ...collectives.timing import Ranks, TimedTask
from ...common.checks import function, of_type, optional, several, whole
from ...networks import CostTable
from ...ranks.host import num_cores
from ...timeline import Timeline
from .calls import CallObserver, Mark, events_of_marks, observed_step, sharded_parameters
from .costs import FSDPCosts
from .observed import FSDPRun
from .replay import ShardSettings, matching
from .running import MOST_ITERATIONS, FSDPJob, run_jobs
from .step import ModuleStep
from .where import HERE, Loss, Optimizer, Where

_WARM_UP = 3  # iterations that are not recorded, in which memory is allocated that later ones use again
# Widths of the square layers with which costs are measured: their gathered buffers have 1 KiB to 9 MiB.
_WIDTHS = (16, 64, 256, 512, 1024, 1536)
_MOST_WIDTH = 1 << 14  # a layer of 1 GiB
_DEPTH = 3  # layers of each width, each a group


def measure_step(
    module: nn.Module,
    loss: Loss,
    *,
    num_ranks: int = 2,
    wrap: Iterable[str] = (),
    param_dtype: Any = None,
    iterations: int = 10,
    optimizer: Optimizer | None = None,
    where: Where = HERE,
) -> ModuleStep:
    """Return the step of a module on ranks that all compute and do not communicate, with measured times.

    Each rank runs a copy of the whole module, with hooks where `fully_shard` has its own. The loss is called as by
    `run`: ``loss(module, rank, number)``. The time of each piece is that of the slowest rank, and the mean over
    iterations: a step is the sum of many pieces, each late now and then, and medians do not add up. If ranks
    share cores, measure as many as you want to predict. Each rank updates all parameters, and the optimizer's time is
    divided by the number of shards: here by `num_ranks`, in a prediction by its own. `wrap` and `param_dtype` are those
    of `observed_step`.

    Raises ValueError if an argument is invalid; RankError if a rank fails, dies, or has not ended after
    ``where.timeout_s``.

    >>> step = measure_step(nn.Linear(8, 1), lambda module, rank, number: module(torch.ones(4, 8)).mean())
    >>> step.forward_s > 0, step.backward_s > 0
    (True, True)
    """
    sharded_parameters(module)  # for its errors, also that of anything but a module
    function("loss", loss, "of the module, a rank and a number")
    num_ranks = whole("num_ranks", num_ranks, 1)
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS)
    optional("optimizer", optimizer, function)
    of_type("where", where, Where)
    observed = observed_step(module, loss, wrap, param_dtype=param_dtype)
    wrapped = matching(observed, wrap)
    job = _ComputingJob(module, loss, wrapped, observed.param_dtype, iterations, optimizer)
    records = where.launch(_be_computing_rank, (job,), num_ranks)
    seconds = _seconds_of_events(records)
    if len(seconds) != len(observed.events):
        numbers = f"{len(seconds)} and {len(observed.events)} events"
        raise ValueError(f"loss must call the same modules on each rank, got {numbers}")
    events = []
    for event, event_s in zip(observed.events, seconds, strict=True):
        events.append(event._replace(seconds=event_s))  # the bytes of activations stay those that were observed
    slowest_update_s = np.array([record.optimizer_s for record in records]).max(axis=0)  # per iteration
    optimizer_s = float(slowest_update_s.mean()) / num_ranks
    return replace(observed, events=tuple(events), optimizer_s=optimizer_s, optimizer_shards=num_ranks)


def _seconds_of_events(records: Sequence[_ComputingRecord]) -> list[float]:
    """Return the seconds of each event of a step: those of the slowest rank, as the mean over iterations.

    Raises ValueError unless all iterations of all ranks have the same events in the same order.
    """
    by_rank = []  # for each rank, for each iteration, the seconds of each event
    expected: list[tuple[str, str]] | None = None
    for record in records:
        by_iteration = []
        for marks in record.marks:
            events = events_of_marks(marks)
            names = [(event.kind, event.name) for event in events]
            if expected is None:
                expected = names
            if names != expected:
                raise ValueError("loss must call the same modules in each step, got steps that differ")
            by_iteration.append([event.seconds for event in events])
        by_rank.append(by_iteration)
    seconds = np.array(by_rank)  # (ranks, iterations, events)
    of_slowest_rank_s = seconds.max(axis=0)
    means_s: list[float] = of_slowest_rank_s.mean(axis=0).tolist()
    return means_s


class _ComputingRecord(NamedTuple):
    """Of each iteration on one rank, the marks of its module's step and the seconds of its optimizer's step."""

    marks: list[list[Mark]]
    optimizer_s: list[float]


class _ComputingJob(NamedTuple):
    """The arguments of `measure_step`, checked, that its ranks need."""

    module: nn.Module
    loss: Loss
    wrapped: tuple[str, ...]
    param_dtype: str | None
    iterations: int
    optimizer: Optimizer | None


def _be_computing_rank(job: _ComputingJob) -> _ComputingRecord:
    """Run the module's step and the optimizer's on this rank, and record every iteration after the warm-up.

    `Ranks.once` starts each of the two at an instant that all ranks agree on. Of the module's step, the observer stamps
    every event as a mark, so the duration that `once` returns is only used for the optimizer.
    """
    ranks = Ranks()
    observer = CallObserver(job.module, job.wrapped, job.param_dtype)
    optimizer = None
    if job.optimizer is not None:
        optimizer = job.optimizer(observer.module.parameters())
    marks = []
    optimizer_s = []
    for number in range(_WARM_UP + job.iterations):
        run_step = partial(observer.run, job.loss, ranks.rank, number)
        ranks.once(TimedTask(run_step))
        update_s = 0.0
        if optimizer is not None:
            update_s, _is_clean = ranks.once(TimedTask(optimizer.step))
        if number >= _WARM_UP:
            marks.append(observer.marks)
            optimizer_s.append(update_s)
    return _ComputingRecord(marks, optimizer_s)


# ---- costs


def measure_costs(
    num_ranks: int = 2,
    *,
    num_replicas: int = 1,
    iterations: int = 10,
    widths: Sequence[int] = _WIDTHS,
    where: Where = HERE,
) -> FSDPCosts:
    """Measure the costs of FSDP's collectives and copies on these ranks.

    They are measured in steps of `fully_shard` on stacks of linear layers, each a group, as means by the bytes of the
    buffers, with straight lines between them. What FSDP itself does around a copy is in the time of the copy. What its
    hooks take is the time that the smallest stack computes under FSDP beyond that of the same stack alone. So the costs
    are of this machine, number of ranks and network, whatever is trained.

    Raises ValueError if an argument is invalid; RankError if a rank fails, dies, or has not ended in time.
    """
    settings = ShardSettings(num_ranks, num_replicas)
    distinct_widths = sorted({whole("widths", width, 1, _MOST_WIDTH) for width in several("widths", widths, "widths")})
    if len(distinct_widths) < 2:
        raise ValueError(f"widths must have at least two different ones, got {distinct_widths}")
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS)
    wrapped = tuple([str(index) for index in range(_DEPTH)])  # the names of the layers in a Sequential
    jobs = [FSDPJob(_stack(width), _sum_of(width), wrapped, settings, iterations) for width in distinct_widths]
    runs = run_jobs(jobs, where)  # in the order of the widths, so that the first has the smallest stack
    costs: dict[str, Any] = {**_tables(distinct_widths, runs)}
    smallest = distinct_widths[0]
    alone = measure_step(_stack(smallest), _sum_of(smallest), num_ranks=num_ranks, iterations=iterations, where=where)
    num_groups = _DEPTH + 1  # the root has hooks, too
    for kind, alone_s in (("forward", alone.forward_s), ("backward", alone.backward_s)):
        sharded_s = _computing_s(runs[0], kind)
        hooks_s = max(0.0, sharded_s - alone_s)  # two measurements: noise may make their difference negative
        costs[f"{kind}_hooks_s"] = hooks_s / num_groups
    return FSDPCosts(**costs, cores_per_rank=min(1.0, num_cores() / num_ranks))


def _tables(widths: Sequence[int], runs: Sequence[FSDPRun]) -> dict[str, CostTable]:
    """Return the mean seconds of each cost by the bytes of the buffer, of runs with layers of these widths."""
    samples: dict[str, dict[int, list[float]]] = {}  # for each cost, the seconds by bytes
    for width, run in zip(widths, runs, strict=True):
        num_shards = run.settings.num_shards
        num_rows = -(-width // num_shards) * num_shards  # padded to a multiple of the shards
        num_elements = num_rows * width + num_rows  # of the layer's weight and its bias
        gathered_bytes = 4 * num_elements  # float32
        for iteration in run.iterations:
            for name, seconds in _seconds_of_costs(iteration.timeline, run.settings.num_ranks).items():
                num_bytes = gathered_bytes
                if name.startswith("allreduce"):  # and its spread: an all-reduce has the rank's shard only
                    num_bytes //= num_shards
                samples.setdefault(name, {}).setdefault(num_bytes, []).extend(seconds)
    tables = {}
    for name, by_size in samples.items():
        sizes = sorted(by_size)
        means_s = [float(np.mean(by_size[size])) for size in sizes]
        tables[name] = CostTable(tuple(sizes), tuple(means_s))
    return tables


def _stack(width: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(_DEPTH)])


def _computing_s(observed: FSDPRun, kind: str) -> float:
    """The seconds of forward or backward between the collectives and copies: of the slowest rank, the mean step."""
    num_ranks = observed.settings.num_ranks
    seconds = []
    for iteration in observed.iterations:
        by_rank = [iteration.timeline.select(rank=rank, lane="compute", kind=kind) for rank in range(num_ranks)]
        seconds.append(max(spans.busy_s for spans in by_rank))
    return float(np.mean(seconds))


def _sum_of(width: int) -> Callable[..., Any]:
    def loss(module: nn.Module, rank: int, number: int) -> Any:
        return module(torch.ones(1, width)).sum()

    return loss


_COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
# the lanes and the kind of the spans that the cost of each copy is measured by
_COPIES = {
    "copy_in": (["copy_in"], "copy_in"),
    "copy_out": (["compute"], "copy_out"),
    "reduce_copy_in": (["compute"], "copy_in"),
    "copy_out_reduced": (["reduce_scatter", "allreduce"], "copy_out"),  # the second one with HSDP
}


def _seconds_of_costs(timeline: Timeline, num_ranks: int) -> dict[str, list[float]]:
    """Return the seconds of each span of a step, by cost.

    A copy takes as long as on the slowest rank. A collective takes as long as on the rank whose span is shortest, which
    is the one that came last: a rank that came earlier waits in it for the others. The collective's spread is how much
    longer than that it takes from the arrival of the last rank until all have left. Times of different ranks can be
    compared, because each rank counts from the instant at which all start the step.
    """
    seconds: dict[str, list[float]] = {}
    for name, (lanes, kind) in _COPIES.items():
        copies = _spans_by_rank(timeline, lanes, kind, num_ranks)
        if copies.start_s.size:  # without copies of this kind there is no slowest rank
            slowest_s = (copies.stop_s - copies.start_s).max(axis=0)  # of all ranks, for each span
            seconds[name] = slowest_s.tolist()
    for name in _COLLECTIVES:  # the lane and the kind have the same name
        calls = _spans_by_rank(timeline, [name], name, num_ranks)
        if calls.start_s.size:  # there are all-reduces only with HSDP
            of_last_rank_s = (calls.stop_s - calls.start_s).min(axis=0)
            until_all_left_s = calls.stop_s.max(axis=0) - calls.start_s.max(axis=0)
            seconds[name] = of_last_rank_s.tolist()
            seconds[f"{name}_spread"] = (until_all_left_s - of_last_rank_s).tolist()
    return seconds


class _SpansByRank(NamedTuple):
    """When the ranks' spans of one kind start and stop: arrays of shape (ranks, spans), in order of their starts."""

    start_s: NDArray[np.float64]
    stop_s: NDArray[np.float64]


def _spans_by_rank(timeline: Timeline, lanes: Sequence[str], kind: str, num_ranks: int) -> _SpansByRank:
    """Return the spans of these lanes and this kind; all ranks have equally many: they issue the same collectives."""
    start_s = []
    stop_s = []
    for rank in range(num_ranks):
        spans = timeline.select(rank=rank, lane=lanes, kind=kind)
        order = np.argsort(spans.start_s)
        start_s.append(spans.start_s[order])
        stop_s.append(spans.stop_s[order])
    return _SpansByRank(np.array(start_s), np.array(stop_s))
