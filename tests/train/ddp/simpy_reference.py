"""The same step as SimPy processes, gradient by gradient: the reference, and the peer to be quicker than."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from rankscope.train.ddp import Contention, LocalStep

Times = dict[tuple[str, int], tuple[float, float]]  # (kind, item): start, stop


def reference(
    local: LocalStep,
    buckets: Sequence[Sequence[int]],
    cost: Callable[[float], float],
    contention: Contention,
    overlap: bool = True,
) -> Times:
    """Run the backward, the allreduces and the unpacking of one rank, from the backward's start."""
    return _Step(local, buckets, cost, contention, overlap).run()


class _Step:
    """A process computes, another communicates, and each tells the other when it starts and stops."""

    def __init__(self, local: LocalStep, buckets: Any, cost: Any, contention: Contention, overlap: bool) -> None:
        self.env = simpy.Environment()
        self.local, self.buckets, self.cost, self.overlap = local, buckets, cost, overlap
        self.slow = {"compute": contention.compute, "allreduce": contention.communication}
        self.busy = {"compute": False, "allreduce": False}
        self.changed = self.env.event()
        self.sizes = [sum(local.gradients[place].num_bytes for place in bucket) for bucket in buckets]
        self.missing = [set(bucket) for bucket in buckets]
        self.reduced = [self.env.event() for _ in buckets]
        self.queue = simpy.Store(self.env)
        self.seen: Times = {}

    def run(self) -> Times:
        self.env.process(self._compute())
        self.env.process(self._communicate())
        self.env.run()
        return self.seen

    def _compute(self) -> Generator[Any, Any, None]:
        ready = np.nan_to_num(self.local.ready_s, nan=0.0).tolist()
        done, launched, start = 0.0, 0, self.env.now
        self._set("compute", True)
        for place in sorted(range(len(ready)), key=ready.__getitem__):
            yield from self._work("compute", ready[place] - done)
            done = ready[place]
            for missing in self.missing:
                missing.discard(place)
            while self.overlap and launched < len(self.buckets) and not self.missing[launched]:
                self.queue.put(launched)
                launched += 1
        yield from self._work("compute", self.local.backward_s - done)
        self._set("compute", False)
        self.seen["backward", 0] = start, self.env.now
        for bucket in range(launched, len(self.buckets)):
            self.queue.put(bucket)
        for bucket, size in enumerate(self.sizes):
            yield self.reduced[bucket]
            start = self.env.now
            self._set("compute", True)
            yield from self._work("compute", self.local.unpack_s * size / max(sum(self.sizes), 1))
            self._set("compute", False)
            self.seen["unpack", bucket] = start, self.env.now

    def _communicate(self) -> Generator[Any, Any, None]:
        for _ in self.buckets:
            bucket: int = yield self.queue.get()
            start = self.env.now
            self._set("allreduce", True)
            yield from self._work("allreduce", self.cost(self.sizes[bucket]))
            self._set("allreduce", False)
            self.seen["allreduce", bucket] = start, self.env.now
            self.reduced[bucket].succeed()

    def _work(self, own: str, left_s: float) -> Generator[Any, Any, None]:
        """So many seconds of work, at the speed that the other leaves."""
        other = "allreduce" if own == "compute" else "compute"
        least = left_s * 1e-15
        while left_s > least:
            rate = 1 / self.slow[own] if self.busy[other] else 1.0
            start = self.env.now
            yield self.env.timeout(left_s / rate) | self.changed
            left_s -= (self.env.now - start) * rate
            if start + left_s / rate == start:  # less than the clock can tell
                return

    def _set(self, name: str, busy: bool) -> None:
        self.busy[name] = busy
        self.changed.succeed()
        self.changed = self.env.event()
