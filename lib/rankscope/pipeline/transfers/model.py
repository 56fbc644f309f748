"""A model of the path to the GPU: where batches are prepared, copied and computed on, and what overlaps."""

from __future__ import annotations

from ...common.checks import number, whole
from ...timeline import Timeline
from ..stages.model import simulate
from ..stages.stages import Pipeline, Stage

# Copied batches that wait for their step while the next one is copied: as in `prefetched`.
_COPIED_AHEAD = 1
_TURN = "turn"  # the stage of a loop that copies a batch and computes on it before it asks for the next


def simulate_transfer(
    num_batches: int,
    load_s: float,
    copy_s: float,
    step_s: float,
    num_workers: int = 1,
    prefetched: bool = True,
    pin_s: float = 0.0,
) -> Timeline:
    """Simulate a training loop and return its timeline.

    The spans are "load", "pin" (if `pin_s` is above 0), "copy" and "compute".
    Each batch occupies a worker for `load_s`, the loader's pin thread for `pin_s`, the link for `copy_s` and the device
    for `step_s`. If `prefetched` is true, the next batch is copied while the device computes; otherwise the loop copies
    a batch and computes on it before it requests the next one. As in a DataLoader, two batches per worker are in
    flight; the pin thread adds the one that it pins and two that wait, which a DataLoader counts among these. Raises
    ValueError if a time or the number of batches is negative or `num_workers` is below 1.

    >>> for prefetched in (False, True):
    ...     loop = simulate_transfer(100, load_s=0.001, copy_s=0.004, step_s=0.006, prefetched=prefetched)
    ...     print(round(loop.select(kind="compute").makespan_s * 1e3))  # from the first step's start to the last's end
    996
    600
    """
    copy_s = number("copy_s", copy_s, 0)
    step_s = number("step_s", step_s, 0)
    # A worker holds one batch, and `capacity` adds one finished batch for each worker.
    stages = [Stage("load", number("load_s", load_s, 0), num_workers=num_workers, capacity=num_workers)]
    if number("pin_s", pin_s, 0):
        stages.append(Stage("pin", pin_s))
    num_batches = whole("num_batches", num_batches, 0)
    if prefetched:
        stages += [Stage("copy", copy_s, capacity=_COPIED_AHEAD), Stage("compute", step_s)]
        return simulate(Pipeline(stages), num_batches)
    timeline = simulate(Pipeline([*stages, Stage(_TURN, copy_s + step_s)]), num_batches)
    spans = [span for span in timeline if span.kind != _TURN]
    for turn in timeline.select(kind=_TURN):
        copied_s = min(turn.start_s + copy_s, turn.stop_s)  # rounding must not put it after the end of the turn
        spans.append(turn._replace(lane="copy", kind="copy", stop_s=copied_s))
        spans.append(turn._replace(lane="compute", kind="compute", start_s=copied_s))
    return Timeline.of(spans)


def overlap_share(timeline: Timeline) -> float:
    """Return the overlap of copies and steps, as max(copy, compute) divided by the elapsed time.

    1 is perfect overlap; alternating copies and steps of equal length reach 0.5. The elapsed time is from the start of
    the first "compute" span to the end of the last, because no step can hide the first copy. The timeline has one rank.
    Raises ValueError if it lacks one of the two kinds, or steps take no time.

    >>> from rankscope.timeline import Span
    >>> spans = [Span(0, "copy", "copy", 1, 0.0, 2.0), Span(0, "compute", "compute", 0, 0.0, 3.0),
    ...          Span(0, "compute", "compute", 1, 3.0, 6.0)]
    >>> overlap_share(Timeline.of(spans))
    1.0
    """
    steps = timeline.select(kind="compute")
    copies = timeline.select(kind="copy", between_s=(steps.begin_s, steps.end_s))
    if not len(copies) or not steps.makespan_s:
        raise ValueError(f"timeline must have spans of kinds 'copy' and 'compute', got {timeline!r}")
    return max(copies.busy_s, steps.busy_s) / steps.makespan_s
