"""The explorer of notebook 03: the time of a copy to or from the GPU, and of a training loop with such copies."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ...common.checks import of_type
from ...common.units import parse_bytes, percent_words, rate_words, time_words, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...pipeline import overlap_share, simulate_transfer
from ...timeline import Timeline
from .. import Profile
from ..link_facts import LinkFacts, stated
from ..measuring.plan import DIRECTIONS, METHODS

LINKS = {facts.name: facts for facts in map(stated, (3, 4, 5, 6))}  # x16, by generation of PCIe
PRESETS: dict[str, dict[str, Any]] = {
    "16 KiB: all alike": {"size": "16 KiB"},
    "64 MiB, pinned": {"method": "pinned_non_blocking"},
    "pinned and prefetched": {"method": "pinned_non_blocking", "prefetched": True},
    "the same with 1 worker": {"method": "pinned_non_blocking", "prefetched": True, "num_workers": 1},
}
_SHOWN_BATCHES = 16  # in the picture
_COUNTED_BATCHES = 300  # in the report


class Measured(NamedTuple):
    """A profile's copies, next to `LinkFacts`; what was not measured raises ValueError."""

    profile: Profile

    def seconds(self, num_bytes: float, direction: str, method: str) -> float:
        """Return the time of a copy."""
        return self.profile.predicted_s("transfer", num_bytes, direction=direction, method=method)


class Copies(NamedTuple):
    """What the explorer shows of links, by name."""

    links: Mapping[str, LinkFacts | Measured]

    def seconds(self, now: Now, direction: str, method: str) -> float:
        return self.links[now.link].seconds(parse_bytes("size", now.size), direction, method)

    def loop(self, now: Now, num_batches: int) -> Timeline:
        """Return a training loop that copies each batch to the GPU."""
        return simulate_transfer(
            num_batches,
            load_s=now.load_ms / 1e3,
            copy_s=self.seconds(now, "h2d", now.method),
            step_s=now.step_ms / 1e3,
            num_workers=now.num_workers,
            prefetched=now.prefetched,
        )

    def draw(self, now: Now) -> list[Drawing]:
        """The time of each method, next to that of the link alone, and the first batches of the loop."""
        seconds = {}
        for method in METHODS:
            with suppress(ValueError):  # not measured
                seconds[method] = self.seconds(now, now.direction, method)
        facts = self.links[now.link]
        bound_s = None
        origin = "measured"
        if isinstance(facts, LinkFacts):
            bound_s = parse_bytes("size", now.size) / facts.bytes_per_s(now.direction)
            origin = "from published figures"
        drawings = [draw_ranking(seconds, bound_s, now.method, f"{now.size} {DIRECTIONS[now.direction]}, {origin}")]
        how = "prefetched" if now.prefetched else "copied in turn"
        title = f"The first {_SHOWN_BATCHES} batches of {now.size}, {how}"
        with suppress(ValueError):  # not measured
            drawings.append(draw_timeline(self.loop(now, _SHOWN_BATCHES), title))
        return drawings

    def report(self, now: Now) -> list[str]:
        """The copy's rate, the time per batch and what limits it, or what was not measured."""
        try:
            copy_s = self.seconds(now, now.direction, now.method)
            to_gpu_s = self.seconds(now, "h2d", now.method)
        except ValueError as error:
            return [str(error)]
        rate = rate_words(parse_bytes("size", now.size) / copy_s)
        loop = self.loop(now, _COUNTED_BATCHES)
        starts_s = loop.select(kind="compute").start_s
        batch_s = float(starts_s.max() - starts_s.min()) / (_COUNTED_BATCHES - 1)
        step_s = now.step_ms / 1e3
        # What a batch would take if one resource alone limited the loop; the slowest is the bottleneck.
        bounds_s = {"loading": now.load_ms / 1e3 / now.num_workers}
        bounds_s |= {"copies": to_gpu_s, "steps": step_s} if now.prefetched else {"copy + step": to_gpu_s + step_s}
        worst = max(bounds_s, key=bounds_s.__getitem__)
        batch, bound = times_in_one_unit(batch_s, bounds_s[worst])
        overlap = percent_words(overlap_share(loop))
        return [
            f"copy: {now.size} by the method {now.method} in {time_words(copy_s)}, {rate}",
            f"loop: {batch} per batch, {overlap} overlapped; {worst} alone would take {bound}",
        ]


def transfers(profile: Profile | None = None) -> Explorer:
    """Return controls over the time of each way to copy, the first batches of a loop that uses it, and its bottleneck.

    With a `profile`, its own link as measured is the first in the list, and the default. Raises ValueError for a
    profile without copies to or from a GPU.
    """
    shown = Copies(LINKS)
    default = "PCIe 5 x16"
    if profile is not None:
        if not of_type("profile", profile, Profile).select("transfer"):
            raise ValueError("profile must have copies to or from a GPU (what 'transfer'), got none")
        default = f"measured: {profile.provenance['name']}"
        shown = Copies({default: Measured(profile), **LINKS})
    settings = (
        Setting("link", default, shown.links, "link"),
        Setting("direction", "h2d", [(words, way) for way, words in DIRECTIONS.items()], "direction"),
        Setting("method", "pageable", METHODS, "method"),
        Setting("size", "64 MiB", sizes(10, 30), "size of a copy"),
        Setting("load_ms", 12, range(61), "loading a batch [ms]"),
        Setting("num_workers", 2, range(1, 17), "loader workers"),
        Setting("step_ms", 8, range(61), "step [ms]"),
        Setting("prefetched", False, (), "prefetched"),
    )
    return Explorer(settings, shown.draw, shown.report, PRESETS)
