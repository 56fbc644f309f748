"""`FSDPRun`: recorded steps of a real `fully_shard`."""

from __future__ import annotations

import msgspec
import numpy as np

from ...common.words import count_of
from ...timeline import Timeline
from .memory import LiveBytes
from .replay import CollectiveCall, ShardSettings
from .where import used_iterations


class FSDPIteration(msgspec.Struct, frozen=True, eq=False):
    """One step on all ranks: its seconds on the slowest, its collectives in the order of issue, and all spans.

    `clean` says whether the host left the ranks undisturbed. The timeline has the lanes and kinds of `fsdp.predict`
    for every rank; the item of a span is the index of its group, 0 for the root's.
    """

    step_s: float
    clean: bool
    collectives: tuple[CollectiveCall, ...]
    timeline: Timeline


class FSDPRun(msgspec.Struct, frozen=True, eq=False):
    """Steps of `fully_shard` on real ranks. `groups` are the wrapped modules, the root, "", first.

    `live` has the live bytes of each rank over one more forward and backward, in which they were counted.
    """

    settings: ShardSettings
    groups: tuple[str, ...]
    iterations: tuple[FSDPIteration, ...]
    live: tuple[LiveBytes, ...]

    def __repr__(self) -> str:
        ranks = count_of(self.settings.num_ranks, "rank")
        calls = count_of(len(self.collectives), "collective")
        return f"<FSDPRun: {ranks}, {calls} per step, {self.median_s:.3g} s>"

    @property
    def collectives(self) -> list[CollectiveCall]:
        """The collectives of the last step, in the order of issue, with the bytes of the whole buffers."""
        return list(self.iterations[-1].collectives)

    @property
    def used(self) -> tuple[int, ...]:
        """The indices of the iterations that are used; see `used_iterations`."""
        return used_iterations([iteration.clean for iteration in self.iterations])

    @property
    def median_s(self) -> float:
        return float(np.median([self.iterations[index].step_s for index in self.used]))

    @property
    def timeline(self) -> Timeline:
        """The timeline of all ranks in the iteration of median length."""
        typical = min(self.used, key=lambda index: abs(self.iterations[index].step_s - self.median_s))
        return self.iterations[typical].timeline

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes that were live on any rank at any time."""
        return max(live.peak_bytes for live in self.live)
