"""The explorer of notebook 03: the time of a copy to or from the GPU, and of a training loop with such copies."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...common.checks import of_type
from ...common.units import parse_bytes, percent_words, rate_words, time_words, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...pipeline import overlap_share, simulate_transfer
from ...timeline import Timeline
from .. import Profile
from ..link_facts import METHODS, LinkFacts, facts_of, stated

LINKS = {facts.name: facts for facts in map(stated, (3, 4, 5, 6))}  # x16, by generation of PCIe
PRESETS: dict[str, dict[str, Any]] = {
    "16 KiB: all alike": {"size": "16 KiB"},
    "64 MiB, pinned": {"method": "pinned_non_blocking"},
    "pinned and prefetched": {"method": "pinned_non_blocking", "prefetched": True},
    "the same with 1 worker": {"method": "pinned_non_blocking", "prefetched": True, "num_workers": 1},
}
WAYS = {"h2d": "to the GPU", "d2h": "to the host"}
_SHOWN_BATCHES = 16  # in the picture
_COUNTED_BATCHES = 300  # in the report


class Copies:
    """What the explorer shows of links: those of `LINKS`, from published figures, and a profile's, as measured.

    What was not measured raises ValueError.
    """

    def __init__(self, profile: Profile | None) -> None:
        self.profile = profile
        self.links: dict[str, LinkFacts | None] = dict(LINKS)  # None: the link of a profile is not known
        if profile is not None:
            if not of_type("profile", profile, Profile).select("transfer"):
                raise ValueError("profile must have copies to or from a GPU (what 'transfer'), got none")
            self.links = {f"measured: {profile.provenance['name']}": facts_of(profile), **LINKS}

    def seconds(self, now: Now, direction: str, method: str) -> float:
        """Return the time of a copy."""
        num_bytes = parse_bytes("size", now.size)
        if self.profile is None or now.link in LINKS:
            return LINKS[now.link].seconds(num_bytes, direction, method)
        return self.profile.predicted_s("transfer", num_bytes, direction=direction, method=method)

    def pinning_s(self, now: Now) -> float:
        """Return the time of pinning a batch, which a thread of the loader does; 0 for a method that needs none."""
        num_bytes = parse_bytes("size", now.size)
        if not now.method.startswith("pinned"):
            return 0.0
        if self.profile is None or now.link in LINKS:
            return num_bytes / LINKS[now.link].host_copy_bytes_per_s
        return self.profile.predicted_s("pin", num_bytes, cached=True)  # PyTorch reuses the memory of earlier batches

    def loop(self, now: Now, num_batches: int) -> Timeline:
        """Return a training loop that copies each batch to the GPU."""
        return simulate_transfer(
            num_batches,
            load_s=now.load_ms / 1e3,
            copy_s=self.seconds(now, "h2d", now.method),
            step_s=now.step_ms / 1e3,
            num_workers=now.num_workers,
            prefetched=now.prefetched,
            pin_s=self.pinning_s(now),
        )

    def draw(self, now: Now) -> list[Drawing]:
        """The time of each method, next to that of the link alone, and the first batches of the loop."""
        seconds = {}
        for method in METHODS:
            with suppress(ValueError):  # not measured
                seconds[method] = self.seconds(now, now.direction, method)
        facts = self.links[now.link]
        bound_s = parse_bytes("size", now.size) / facts.bytes_per_s(now.direction) if facts else None
        origin = "from published figures" if now.link in LINKS else "measured"
        drawings = [draw_ranking(seconds, bound_s, now.method, f"{now.size} {WAYS[now.direction]}, {origin}")]
        how = "prefetched" if now.prefetched else "copied in turn"
        title = f"The first {_SHOWN_BATCHES} batches of {now.size}, {how}"
        with suppress(ValueError):  # not measured
            drawings.append(draw_timeline(self.loop(now, _SHOWN_BATCHES), title))
        return drawings

    def report(self, now: Now) -> list[str]:
        """The copy's rate, the time per batch and its bottleneck, or what was not measured."""
        try:
            return self._lines(now)
        except ValueError as error:
            return [str(error)]

    def _lines(self, now: Now) -> list[str]:
        copy_s = self.seconds(now, now.direction, now.method)
        bytes_per_s = parse_bytes("size", now.size) / copy_s
        copied = f"copy: {now.size} by the method {now.method} in {time_words(copy_s)}, {rate_words(bytes_per_s)}"
        facts = self.links[now.link]
        if facts is not None:
            copied += f", {percent_words(bytes_per_s / facts.bytes_per_s(now.direction))} of the link"
        loop = self.loop(now, _COUNTED_BATCHES)
        starts_s = loop.select(kind="compute").start_s
        batch_s = float(starts_s.max() - starts_s.min()) / (_COUNTED_BATCHES - 1)
        to_gpu_s = self.seconds(now, "h2d", now.method)
        step_s = now.step_ms / 1e3
        # What a batch would take if one resource alone limited the loop; the slowest is the bottleneck.
        bounds_s = {"loading": now.load_ms / 1e3 / now.num_workers, "pinning": self.pinning_s(now)}
        bounds_s |= {"copies": to_gpu_s, "steps": step_s} if now.prefetched else {"copy + step": to_gpu_s + step_s}
        worst = max(bounds_s, key=bounds_s.__getitem__)
        batch, bound = times_in_one_unit(batch_s, bounds_s[worst])
        overlap = percent_words(overlap_share(loop))
        return [copied, f"loop: {batch} per batch, {overlap} overlapped; {worst} alone would take {bound}"]


def transfers(profile: Profile | None = None) -> Explorer:
    """Return controls over the time of each way to copy, the first batches of a loop that uses it, and its bottleneck.

    With a `profile`, its own link as measured is the first in the list, and the default. Raises ValueError for a
    profile without copies to or from a GPU.
    """
    shown = Copies(profile)
    default = "PCIe 5 x16" if profile is None else next(iter(shown.links))
    settings = (
        Setting("link", default, shown.links, "link"),
        Setting("direction", "h2d", [(words, way) for way, words in WAYS.items()], "direction"),
        Setting("method", "pageable", METHODS, "method"),
        Setting("size", "64 MiB", sizes(10, 30), "size of a copy"),
        Setting("load_ms", 12, range(61), "loading a batch [ms]"),
        Setting("num_workers", 2, range(1, 17), "loader workers"),
        Setting("step_ms", 8, range(61), "step [ms]"),
        Setting("prefetched", False, (), "prefetched"),
    )
    return Explorer(settings, shown.draw, shown.report, PRESETS)
