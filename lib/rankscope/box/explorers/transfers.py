"""The explorer of notebook 03: the time of a copy to or from the GPU, and of a training loop with such copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...common.checks import of_type
from ...common.units import parse_bytes, percent_words, rate_words, time_words, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...pipeline import overlap_share, simulate_transfer
from ...timeline import Timeline
from .. import Profile
from ..link_facts import METHODS, LinkFacts, facts_of, stated, transfers_of
from ..profile import Point

LINKS = {facts.name: facts for facts in map(stated, (3, 4, 5, 6))}  # x16, by generation of PCIe
PRESETS: dict[str, dict[str, Any]] = {
    "16 KiB: all alike": {"size": "16 KiB"},
    "64 MiB, pinned": {"method": "pinned_non_blocking"},
    "pinned and prefetched": {"method": "pinned_non_blocking", "prefetched": True},
    "the same with 1 worker": {"method": "pinned_non_blocking", "prefetched": True, "num_workers": 1},
}
_SHOWN_BATCHES = 16  # in the picture
_COUNTED_BATCHES = 300  # in the report


def size_of(now: Now) -> int:
    return parse_bytes("size", now.size)


class Copies:
    """What the explorer shows of links: those of `LINKS`, from published figures, and a profile's, as measured."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.profile = profile
        self.links: dict[str, LinkFacts | None] = dict(LINKS)  # None: the link of a profile is not known
        if profile is not None:
            of_type("profile", profile, Profile)
            if not profile.select("transfer"):
                raise ValueError("profile must have copies to or from a GPU (what 'transfer'), got none")
            self.links = {f"measured: {profile.provenance['name']}": facts_of(profile), **LINKS}
        self._simulated = lru_cache(maxsize=256)(simulate_transfer)

    def measured(self, now: Now) -> Profile | None:
        """Return the profile where the link is its own."""
        return None if now.link in LINKS else self.profile

    def seconds(self, now: Now, direction: str, method: str) -> float | None:
        """Return the time of a copy, from published figures or as measured; None where it was not measured."""
        measured = self.measured(now)
        if measured is not None:
            return between(transfers_of(measured, direction, method), size_of(now))
        return LINKS[now.link].seconds(size_of(now), direction, method)

    def pinning_s(self, now: Now) -> float:
        """Return the time of pinning a batch, which a thread of the loader does; 0 for a method that needs none."""
        if not now.method.startswith("pinned"):
            return 0.0
        measured = self.measured(now)
        if measured is not None:
            # The loader pins every batch anew, so PyTorch reuses memory that it has pinned before.
            pins = sorted(measured.select("pin", cached=True), key=lambda point: point.num_bytes)
            return between(pins, size_of(now)) or 0.0  # 0 without measurements
        return size_of(now) / LINKS[now.link].host_copy_bytes_per_s

    def loop(self, now: Now, num_batches: int) -> Timeline | None:
        """Return a training loop that copies each batch to the GPU; None where such a copy was not measured."""
        copy_s = self.seconds(now, "h2d", now.method)
        if copy_s is None:
            return None
        load_s = now.load_ms / 1e3
        step_s = now.step_ms / 1e3
        return self._simulated(
            num_batches,
            load_s=load_s,
            copy_s=copy_s,
            step_s=step_s,
            num_workers=now.num_workers,
            prefetched=now.prefetched,
            pin_s=self.pinning_s(now),
        )

    def draw(self, now: Now) -> list[Drawing]:
        """The time of each method, next to that of the link alone, and the first batches of the loop.

        What was not measured is left out. Raises ValueError if nothing was.
        """
        drawings = []
        seconds = {}
        for method in METHODS:
            copy_s = self.seconds(now, now.direction, method)
            if copy_s is not None:
                seconds[method] = copy_s
        if seconds:
            facts = self.links[now.link]
            bound_s = size_of(now) / facts.bytes_per_s(now.direction) if facts else None
            origin = "from published figures" if now.link in LINKS else "measured"
            way = "to the GPU" if now.direction == "h2d" else "to the host"
            drawings.append(draw_ranking(seconds, bound_s, now.method, f"{now.size} {way}, {origin}"))
        loop = self.loop(now, _SHOWN_BATCHES)
        if loop is not None:
            how = "prefetched" if now.prefetched else "copied in turn"
            drawings.append(draw_timeline(loop, f"The first {_SHOWN_BATCHES} batches of {now.size}, {how}"))
        if not drawings:
            raise ValueError("the profile has no such copies")
        return drawings

    def report(self, now: Now) -> list[str]:
        """Where times come from, the copy's share of the link, the time per batch and its bottleneck."""
        copy_s = self.seconds(now, now.direction, now.method)
        if copy_s is None:
            return [f"the profile has no {now.direction} copies by the method {now.method}"]
        bytes_per_s = size_of(now) / copy_s
        copied = f"copy: {now.size} by the method {now.method} in {time_words(copy_s)}, {rate_words(bytes_per_s)}"
        facts = self.links[now.link]
        if facts is None:
            link = f"link: {now.link}; the profile does not state how its GPU is connected"
        else:
            link_bytes_per_s = facts.bytes_per_s(now.direction)
            link = f"link: {now.link}, {rate_words(link_bytes_per_s)}"
            copied += f", {percent_words(bytes_per_s / link_bytes_per_s)} of the link"
        if now.link in LINKS:
            link += "; from published figures, without measurements"
        return [link, copied, *self._loop_words(now)]

    def _loop_words(self, now: Now) -> list[str]:
        """Return the time per batch of a long loop, its bottleneck, and how much copies and steps overlap."""
        copy_s = self.seconds(now, "h2d", now.method)
        loop = self.loop(now, _COUNTED_BATCHES)
        if loop is None or copy_s is None:  # both are None if the copy was not measured
            return ["loop: the profile has no copies to the GPU by this method"]
        step_s = now.step_ms / 1e3
        steps = loop.select(kind="compute")
        batch_s = float(steps.start_s.max() - steps.start_s.min()) / (_COUNTED_BATCHES - 1)  # from start to start
        # What a batch would take if one resource alone limited the loop; the slowest is the bottleneck.
        bounds_s = {"loading": now.load_ms / 1e3 / now.num_workers, "pinning": self.pinning_s(now)}
        if now.prefetched:
            bounds_s["copies"] = copy_s
            bounds_s["steps"] = step_s
        else:
            bounds_s["copy + step"] = copy_s + step_s
        worst = max(bounds_s, key=bounds_s.__getitem__)
        batch, bound, best = times_in_one_unit(batch_s, bounds_s[worst], max(copy_s, step_s))
        return [
            f"loop: {batch} per batch; {worst} alone would take {bound}",
            f"      max(copy, step) is {best}; {percent_words(overlap_share(loop))} of the overlap is achieved",
        ]


def between(points: Sequence[Point], num_bytes: int) -> float | None:
    """Return the median seconds at a size, on a straight line between two that were measured, in logarithms.

    The points are in ascending order of size. Beyond the largest size the rate is the largest one's, below the smallest
    the time is the smallest one's. None if there is no point.

    >>> known = [Point("pin", 1024, (1e-3,), (True,)), Point("pin", 4096, (4e-3,), (True,))]
    >>> [round(between(known, size) * 1e3, 3) for size in (512, 2048, 8192)]
    [1.0, 2.0, 8.0]
    """
    if not points:
        return None
    log_sizes = np.log([point.num_bytes for point in points])
    log_seconds = np.log([point.median_s for point in points])
    seconds = np.exp(np.interp(np.log(num_bytes), log_sizes, log_seconds))
    times_largest = max(1.0, num_bytes / points[-1].num_bytes)
    return float(seconds * times_largest)


def transfers(profile: Profile | None = None) -> Explorer:
    """Return controls over the time of each way to copy, the first batches of a loop that uses it, and its bottleneck.

    With a `profile`, its own link as measured is the first in the list, and the default. Raises ValueError for a
    profile without copies to or from a GPU.
    """
    shown = Copies(profile)
    default = "PCIe 5 x16"
    if profile is not None:
        default = next(iter(shown.links))
    settings = (
        Setting("link", default, shown.links, "link"),
        Setting("direction", "h2d", (("to the GPU", "h2d"), ("to the host", "d2h")), "direction"),
        Setting("method", "pageable", METHODS, "method"),
        Setting("size", "64 MiB", sizes(10, 30), "size of a copy"),
        Setting("load_ms", 12, range(61), "loading a batch [ms]"),
        Setting("num_workers", 2, range(1, 17), "loader workers"),
        Setting("step_ms", 8, range(61), "step [ms]"),
        Setting("prefetched", False, (), "prefetched"),
    )
    return Explorer(settings, shown.draw, shown.report, PRESETS)
