"""Traces of jobs that are made up: of every phase of every rank it is known how long it takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.diagnose.traces.trace import Call, Trace
from rankscope.timeline import Span, Timeline

USUAL_S = {"loader": 0.004, "host": 0.002, "forward": 0.012, "backward": 0.018, "optimizer": 0.004}
STEPS, RANKS, WIRE_S = 10, 4, 0.001


def phases(num_ranks: int = RANKS, steps: int = STEPS, **late: Any) -> dict[str, Any]:
    """Seconds by step and rank of each phase; `late` adds to a phase."""
    random = np.random.default_rng(0)
    usual = {name: mean * random.uniform(0.95, 1.05, (steps, num_ranks)) for name, mean in USUAL_S.items()}
    return {name: seconds + late.get(name, 0.0) for name, seconds in usual.items()}


def on_rank(rank: int, delay_s: float = 0.06, every: int = 1, num_ranks: int = RANKS) -> Any:
    """A delay on one rank, in every so manieth step."""
    delays_s = np.zeros((STEPS, num_ranks))
    delays_s[::every, rank] = delay_s
    return delays_s


class RankRecord:
    """A rank of a job that is made up: its spans, its calls, and the time up to which it has come."""

    def __init__(self, rank: int, clock_s: float) -> None:
        self.rank, self.now_s, self.spans, self.calls = rank, clock_s, list[Span](), list[Call]()

    def span(self, kind: str, seconds: float, lane: str = "main", item: int = -1) -> None:
        self.spans.append(Span(self.rank, lane, kind, item, self.now_s, self.now_s + seconds))
        self.now_s += seconds

    def trace(self) -> Trace:
        return Trace(self.rank, Timeline.of(self.spans), tuple(self.calls), source=f"rank{self.rank}.json")


def job(
    phase_s: dict[str, Any],
    *,
    gpu: bool = False,
    buffers: bool = False,
    metric: bool = False,
    by_hand: bool = False,
    wire_s: float = WIRE_S,
) -> list[Trace]:
    """Traces of DDP's ranks, each by a clock of its own: on Gloo, or on GPUs whose hosts wait for them in each step.

    With `buffers` all wait inside forward before it begins, and with `metric` after the optimizer. Without DDP,
    `by_hand`, one allreduce after the other follows backward.
    """
    num_ranks = phase_s["loader"].shape[1]
    clocks_s = [100.0 * rank for rank in range(num_ranks)]
    ranks = [RankRecord(rank, clock_s) for rank, clock_s in enumerate(clocks_s)]

    def together(kind: str, launched_s: list[float], after_s: float = 0.0) -> float:
        """A call that ends on all ranks at once; return when, by the first clock."""
        end_s = max(after_s, *(own - clock for own, clock in zip(launched_s, clocks_s, strict=True))) + wire_s
        for record, launch_s, clock_s in zip(ranks, launched_s, clocks_s, strict=True):
            start_s = max(launch_s, after_s + clock_s)
            record.calls.append(Call(kind, launch_s, start_s, end_s + clock_s))
            if gpu:
                record.spans.append(
                    Span(record.rank, "stream 20", kind, len(record.calls) - 1, start_s, end_s + clock_s)
                )
        return end_s

    def wait(end_s: float) -> None:
        for record, clock_s in zip(ranks, clocks_s, strict=True):
            record.now_s = end_s + clock_s

    def work(step: int, kind: str, lane: str) -> None:
        """The host's span and, on a GPU, a kernel of that length that the host launched."""
        for record in ranks:
            begin_s, seconds = record.now_s, phase_s[kind][step, record.rank]
            record.span(kind, seconds, lane)
            if gpu:
                record.spans += [
                    Span(record.rank, place, name, step, begin_s, record.now_s)
                    for place, name in (("stream 7", "kernel"), ("gpu", kind))
                ]

    for step in range(len(phase_s["loader"])):
        begun_s = [record.now_s for record in ranks]
        for record in ranks:
            record.span("loader", phase_s["loader"][step, record.rank])
            record.now_s += phase_s["host"][step, record.rank]
        if buffers:
            for record in ranks:
                record.span("forward", 2e-6)
            wait(together("broadcast", [record.now_s - 1e-6 for record in ranks]))
        work(step, "forward", "main")
        backward_s = [record.now_s for record in ranks]
        work(step, "backward", "backward")
        if by_hand:
            for _ in range(2):
                for record in ranks:
                    record.now_s += 1e-6
                wait(together("allreduce", [record.now_s for record in ranks]))
        else:
            middle_s = [(record.now_s + first) / 2 for record, first in zip(ranks, backward_s, strict=True)]
            first_s = together("allreduce", middle_s)
            wait(together("allreduce", [record.now_s for record in ranks], first_s))
        work(step, "optimizer", "main")
        if metric:
            wait(together("allreduce", [record.now_s for record in ranks]))
        for record, begin_s in zip(ranks, begun_s, strict=True):
            record.spans.append(Span(record.rank, "main", "step", step, begin_s, record.now_s))
    return [record.trace() for record in ranks]
