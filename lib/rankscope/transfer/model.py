"""The road onto the GPU as a model: where batches are prepared, copied and computed on, and what overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..pipeline.service import check_times
from ..pipeline.simulate import simulate as simulate_pipeline
from ..pipeline.stages import Pipeline, Stage
from ..timeline import Timeline
from ..values.checks import number, of_type, truth, whole

Times: TypeAlias = float | Sequence[float] | NDArray[np.float64]  # seconds: one number, or those of each batch
_TURN = "turn"


def simulate(
    num_batches: int,
    load_s: float,
    copy_s: float,
    step_s: float,
    num_workers: int = 1,
    prefetched: bool = True,
    prefetch_factor: int = 2,
    pin_s: float = 0.0,
) -> Timeline:
    """Return when batches are loaded, copied and computed on: spans "load", "pin" if it takes time, "copy", "compute".

    Each batch takes a worker `load_s`, the loader's pin thread `pin_s`, the link `copy_s` and the device `step_s`. A
    loop that is not `prefetched` copies a batch and computes on it before it asks for the next; one that is has the
    next on its way meanwhile. As in a DataLoader, num_workers × prefetch_factor batches are in hand. Raises ValueError
    for negative times, fewer than 0 batches and other counts below 1.

    >>> for prefetched in (False, True):
    ...     loop = simulate(100, load_s=0.001, copy_s=0.004, step_s=0.006, prefetched=prefetched)
    ...     print(round(loop.select(kind="compute").makespan_s * 1e3))  # from the first step's start to the last's end
    996
    600
    """
    given = {"load_s": load_s, "copy_s": copy_s, "step_s": step_s, "pin_s": pin_s}
    load_s, copy_s, step_s, pin_s = (number(name, seconds, 0) for name, seconds in given.items())
    num_batches = whole("num_batches", num_batches, 0)
    stages = [_loading("load", load_s, num_workers, prefetch_factor), *([Stage("pin", pin_s)] if pin_s else [])]
    if truth("prefetched", prefetched):
        stages += [Stage("copy", copy_s, capacity=1), Stage("compute", step_s)]
        return simulate_pipeline(Pipeline(stages), num_batches)
    in_turn = simulate_pipeline(Pipeline([*stages, Stage(_TURN, copy_s + step_s)]), num_batches)
    spans = [span for span in in_turn if span.kind != _TURN]
    for turn in in_turn.select(kind=_TURN):
        there_s = min(turn.start_s + copy_s, turn.stop_s)
        spans.append(turn._replace(lane="copy", kind="copy", stop_s=there_s))
        spans.append(turn._replace(lane="compute", kind="compute", start_s=there_s))
    return Timeline.of(spans)


def preprocess_on_workers(
    load_s: Times,
    preprocess_s: Times,
    copy_s: Times,
    step_s: Times,
    num_workers: int,
    prefetch_factor: int = 2,
    num_ahead: int = 1,
) -> Pipeline:
    """Return the pipeline in which `num_workers` load batches and prepare them, which are then copied to the GPU.

    Times are those of a batch: `load_s` and `preprocess_s` on one worker while all of them work, since they share
    cores; `copy_s` of what has been prepared, four times the bytes where that is float32 of the same shape. As in a
    DataLoader, num_workers × prefetch_factor batches are in hand. Raises ValueError for times that are negative and
    counts below 1.

    >>> road = preprocess_on_workers(0.002, 0.040, 0.004, 0.010, num_workers=2)
    >>> road.bottleneck, round(road.bound_per_s, 1)
    ('load and preprocess', 47.6)
    """
    prepared_s = _added(load_s=load_s, preprocess_s=preprocess_s)
    return Pipeline(
        [
            _loading("load and preprocess", prepared_s, num_workers, prefetch_factor),
            Stage("copy", _added(copy_s=copy_s), capacity=whole("num_ahead", num_ahead, 1)),
            Stage("step", _added(step_s=step_s)),
        ]
    )


def preprocess_on_gpu(
    load_s: Times,
    preprocess_s: Times,
    copy_s: Times,
    step_s: Times,
    num_workers: int,
    prefetch_factor: int = 2,
    num_ahead: int = 1,
) -> Pipeline:
    """Return the pipeline in which workers only load, and the GPU prepares each batch before its step.

    As `preprocess_on_workers`, but `preprocess_s` is the GPU's, which does nothing else meanwhile, and `copy_s` that of
    the bytes as they were loaded.

    >>> road = preprocess_on_gpu(0.002, 0.001, 0.001, 0.010, num_workers=2)
    >>> road.bottleneck, round(road.bound_per_s, 1)
    ('preprocess and step', 90.9)
    """
    return Pipeline(
        [
            _loading("load", _added(load_s=load_s), num_workers, prefetch_factor),
            Stage("copy", _added(copy_s=copy_s), capacity=whole("num_ahead", num_ahead, 1)),
            Stage("preprocess and step", _added(preprocess_s=preprocess_s, step_s=step_s)),
        ]
    )


def overlap_share(timeline: Timeline) -> float:
    """Return the share of the bound that copies and steps achieve: max(copy, compute) over the time they really took.

    1 is perfect overlap; copies and steps of equal length that take turns achieve a half. What counts is the time from
    the start of the first "compute" span to the end of the last: the first copy has nothing to hide behind. Raises
    ValueError for a timeline without both kinds, with several ranks, or without any time.

    >>> from rankscope.timeline import Span
    >>> spans = [Span(0, "copy", "copy", 1, 0.0, 2.0), Span(0, "compute", "compute", 0, 0.0, 3.0),
    ...          Span(0, "compute", "compute", 1, 3.0, 6.0)]
    >>> overlap_share(Timeline.of(spans))
    1.0
    """
    of_type("timeline", timeline, Timeline)
    if np.unique(timeline.rank).size > 1:
        raise ValueError("timeline must be that of one rank: select(rank=…) gives it")
    steps, copies = timeline.select(kind="compute"), timeline.select(kind="copy")
    if not len(copies) or not steps.makespan_s:
        raise ValueError(f"timeline must have spans of kinds 'copy' and 'compute', got {timeline!r}")
    meanwhile = copies.select(between_s=(steps.begin_s, steps.end_s))
    return max(meanwhile.busy_s, steps.busy_s) / steps.makespan_s


def _loading(name: str, seconds: Times, num_workers: int, prefetch_factor: int) -> Stage:
    """A DataLoader's workers, with num_workers × prefetch_factor batches in hand or waiting."""
    num_workers = whole("num_workers", num_workers, 1)
    waiting = (whole("prefetch_factor", prefetch_factor, 1) - 1) * num_workers
    return Stage(name, seconds, num_workers=num_workers, capacity=max(1, waiting))


def _added(**times_s: Times) -> Times:
    """The times of works that one worker does one after the other."""
    columns = {name: check_times(name, np.atleast_1d(np.asarray(given))) for name, given in times_s.items()}
    lengths = {column.size for column in columns.values()} - {1}
    if len(lengths) > 1:
        found = ", ".join(f"{column.size} of {name}" for name, column in columns.items())
        raise ValueError(f"times must be one number, or as many for each kind of work, got {found}")
    total: NDArray[np.float64] = np.sum(np.broadcast_arrays(*columns.values()), axis=0)
    return float(total[0]) if total.size == 1 else total
