"""A training loop as a model: workers load, batches are copied to the device, steps compute, in turn or overlapped."""

from __future__ import annotations

from ..timeline import Span, Timeline
from ..values.checks import number, truth, whole
from .simulate import simulate
from .stages import Pipeline, Stage

_TURN = "turn"


def simulate_loop(
    num_batches: int, load_s: float, copy_s: float, step_s: float, num_workers: int = 1, prefetched: bool = True,
    prefetch_factor: int = 2, pin_s: float = 0.0,
) -> Timeline:  # fmt: skip
    """Return when batches are loaded, copied and computed on: spans "load", "pin" if it takes time, "copy", "compute".

    Each batch takes a worker `load_s`, the loader's pin thread `pin_s`, the link `copy_s` and the device `step_s`. A
    loop that is not `prefetched` copies a batch and computes on it before it asks for the next; one that is has the
    next on its way meanwhile. As in a DataLoader, num_workers × prefetch_factor batches are in hand. Raises ValueError
    for negative times, fewer than 0 batches and other counts below 1.

    >>> for prefetched in (False, True):
    ...     loop = simulate_loop(100, load_s=0.001, copy_s=0.004, step_s=0.006, prefetched=prefetched)
    ...     print(round(loop.select(kind="compute").makespan_s * 1e3))  # from the first step's start to the last's end
    996
    600
    """
    copy_s, step_s, pin_s = (number(*pair, 0) for pair in (("copy_s", copy_s), ("step_s", step_s), ("pin_s", pin_s)))
    num_batches, num_workers = whole("num_batches", num_batches, 0), whole("num_workers", num_workers, 1)
    waiting = max(1, (whole("prefetch_factor", prefetch_factor, 1) - 1) * num_workers)
    stages = [Stage("load", number("load_s", load_s, 0), num_workers=num_workers, capacity=waiting)]
    stages += [Stage("pin", pin_s)] if pin_s else []
    if truth("prefetched", prefetched):
        return simulate(Pipeline([*stages, Stage("copy", copy_s, capacity=1), Stage("compute", step_s)]), num_batches)
    taken = simulate(Pipeline([*stages, Stage(_TURN, copy_s + step_s)]), num_batches)
    spans = []
    for span in taken:
        if span.kind != _TURN:
            spans.append(span)
            continue
        there_s = min(span.start_s + copy_s, span.stop_s)
        spans.append(Span(span.rank, "copy", "copy", span.item, span.start_s, there_s))
        spans.append(Span(span.rank, "compute", "compute", span.item, there_s, span.stop_s))
    return Timeline.of(spans)
