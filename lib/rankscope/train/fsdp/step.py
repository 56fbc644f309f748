"""`Step`: what one rank does in a step under `fully_shard`: its works, its memory, and its timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.checks import function
from ...timeline import Span, Timeline
from ...timeline.tape import Tape

COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
# What a rank's memory holds, in the order in which it is drawn, from the bottom up.
TERMS = (
    "parameters",
    "buffers",
    "optimizer_states",
    "inputs",
    "activations",
    "gradients",
    "gathered_parameters",
    "gather_buffers",
    "reduce_buffers",
)


class CollectiveCall(NamedTuple):
    """One collective: its kind, and the bytes of the whole gathered, padded buffer (of an allreduce: of its input)."""

    kind: str
    num_bytes: int


class Work(NamedTuple):
    """What a stream does without a pause. It begins when its stream is free and the works at `after` are over.

    `lane` is the stream: "compute", "copy_in" or that of a collective. `kind` is a collective, "copy_in", "copy_out",
    "forward", "backward" or "optimizer", and `group` the name of the wrapped module that it belongs to, "" for the
    root. `flops` are those of matrix products. `num_bytes` are read and written, or are a collective's whole buffer.
    """

    lane: str
    kind: str
    group: str
    after: frozenset[int]
    flops: int
    num_bytes: int


Cost = Callable[[Work], float]


class MemoryChange(NamedTuple):
    """The memory of a term grows by `num_bytes` after the first `num_works` works have been issued."""

    num_works: int
    term: str
    num_bytes: int


class Step(NamedTuple):
    """One step of a rank: its works in the order of issue, and the changes of its memory."""

    works: tuple[Work, ...]
    changes: tuple[MemoryChange, ...]

    def __repr__(self) -> str:
        return f"<Step: {len(self.collectives)} collectives, peak {self.peak_bytes:,} bytes>"

    @property
    def collectives(self) -> list[CollectiveCall]:
        """The collectives in the order of issue."""
        return [CollectiveCall(work.kind, work.num_bytes) for work in self.works if work.kind in COLLECTIVES]

    @property
    def groups(self) -> tuple[str, ...]:
        """The root, which is "", and the wrapped modules in the order in which they first work."""
        return tuple(dict.fromkeys(["", *(work.group for work in self.works)]))

    # ---- memory

    def memory(self) -> dict[str, NDArray[np.int64]]:
        """Return the bytes of each term after each change; terms that stay 0 are left out."""
        memory = {}
        for term in TERMS:
            added = np.array([change.num_bytes * (change.term == term) for change in self.changes], dtype=np.int64)
            if added.any():
                memory[term] = np.cumsum(added)
        return memory

    @property
    def peak_place(self) -> int:
        """The index of the change after which the sum of all terms is largest."""
        return int(np.sum([*self.memory().values()], axis=0).argmax())

    @property
    def peak(self) -> dict[str, int]:
        """The bytes of each term when their sum is largest."""
        place = self.peak_place
        return {term: int(num_bytes[place]) for term, num_bytes in self.memory().items()}

    @property
    def peak_bytes(self) -> int:
        """The largest sum of all live tensors, without the allocator's reserve, CUDA's context and NCCL's buffers."""
        return sum(self.peak.values())

    # ---- time

    def spans(self, cost: Cost, overlap: bool = True) -> list[Span]:
        """Return a span for each work, and one for each wait of the compute stream; the item is the group's index.

        ``cost(work)`` returns the seconds of a work. Without `overlap`, as on a CPU, one work runs at a time, and the
        compute stream does everything but the collectives.
        """
        function("cost", cost, "of a Work, such as fsdp.cost makes")
        place_of = {name: place for place, name in enumerate(self.groups)}
        tape = Tape()
        stops_s: list[float] = []
        for work in self.works:
            lane = work.lane
            ready_s = max([stops_s[index] for index in work.after], default=0.0)
            if not overlap:
                ready_s = max(stops_s[-1:], default=0.0)
                if work.kind not in COLLECTIVES:
                    lane = "compute"
            item = place_of[work.group]
            if lane == "compute" and ready_s > tape.free_s[0, lane]:
                tape.wait(0, lane, "wait", item, ready_s)
            stops_s.append(tape.add(0, lane, work.kind, item, cost(work), ready_s))
        return tape.spans

    def timeline(self, cost: Cost, overlap: bool = True) -> Timeline:
        """Return the `spans` that have a length, joined where a stream goes on with the same kind of work."""
        joined: dict[str, list[Span]] = {}  # by lane
        for span in self.spans(cost, overlap):
            before = joined.setdefault(span.lane, [])
            goes_on = bool(before) and before[-1][:4] == span[:4] and before[-1].stop_s == span.start_s
            if goes_on:
                before[-1] = before[-1]._replace(stop_s=span.stop_s)
            elif span.stop_s > span.start_s:
                before.append(span)
        return Timeline.of([span for spans in joined.values() for span in spans])

    def memory_times(self, cost: Cost) -> NDArray[np.float64]:
        """Return the second of each change of memory: when the compute stream has done all works issued before it."""
        done_s = [0.0]
        for span in self.spans(cost):
            if span.kind != "wait":
                is_computing = span.lane == "compute"
                done_s.append(max(done_s[-1], span.stop_s * is_computing))
        return np.array([done_s[change.num_works] for change in self.changes])
