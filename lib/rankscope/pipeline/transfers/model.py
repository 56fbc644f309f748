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
    prefetched: bool = True,
) -> Timeline:
    """Simulate a training loop and return its timeline.

    The spans are "load", "copy" and "compute". Each batch occupies the loader's worker for `load_s`, the link for
    `copy_s` and the device for `step_s`. If `prefetched` is true, the next batch is copied while the device computes;
    otherwise the loop copies a batch and computes on it before it requests the next one. As with one worker of a
    DataLoader, two batches are in flight. Raises ValueError if a time or the number of batches is negative.

    >>> for prefetched in (False, True):
    ...     loop = simulate_transfer(100, load_s=0.001, copy_s=0.004, step_s=0.006, prefetched=prefetched)
    ...     print(round(loop.select(kind="compute").makespan_s * 1e3))  # from the first step's start to the last's end
    996
    600
    """
    copy_s = number("copy_s", copy_s, 0)
    step_s = number("step_s", step_s, 0)
    # The worker holds one batch, and `capacity` adds one that is finished.
    load = Stage("load", number("load_s", load_s, 0), capacity=1)
    num_batches = whole("num_batches", num_batches, 0)
    if prefetched:
        stages = [load, Stage("copy", copy_s, capacity=_COPIED_AHEAD), Stage("compute", step_s)]
        return simulate(Pipeline(stages), num_batches)
    timeline = simulate(Pipeline([load, Stage(_TURN, copy_s + step_s)]), num_batches)
    spans = [span for span in timeline if span.kind != _TURN]
    for turn in timeline.select(kind=_TURN):
        copied_s = min(turn.start_s + copy_s, turn.stop_s)  # rounding must not put it after the end of the turn
        spans.append(turn._replace(lane="copy", kind="copy", stop_s=copied_s))
        spans.append(turn._replace(lane="compute", kind="compute", start_s=copied_s))
    return Timeline.of(spans)
