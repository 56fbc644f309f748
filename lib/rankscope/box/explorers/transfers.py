"""The explorer of notebook 03: the time of a copy to the GPU, and of a training loop with such copies."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, percent_words, rate_words, time_words, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...pipeline import overlap_share, simulate_transfer
from ...timeline import Timeline
from ..link_facts import stated
from ..measuring.plan import METHODS

LINKS = {facts.name: facts for facts in map(stated, (3, 4, 5, 6))}  # x16, by generation of PCIe
PRESETS: dict[str, dict[str, Any]] = {
    "16 KiB: all alike": {"size": "16 KiB"},
    "64 MiB, pinned": {"method": "pinned"},
    "pinned and prefetched": {"method": "pinned", "prefetched": True},
    "the same with 1 worker": {"method": "pinned", "prefetched": True, "num_workers": 1},
}
_SHOWN_BATCHES = 16  # in the picture
_COUNTED_BATCHES = 300  # in the report


def copy_s(now: Now, method: str) -> float:
    """Return the time of a copy of the chosen size over the chosen link, at best."""
    return LINKS[now.link].seconds(parse_bytes("size", now.size), "h2d", method)


def loop(now: Now, num_batches: int) -> Timeline:
    """Return a training loop that copies each batch to the GPU."""
    return simulate_transfer(
        num_batches,
        load_s=now.load_ms / 1e3,
        copy_s=copy_s(now, now.method),
        step_s=now.step_ms / 1e3,
        num_workers=now.num_workers,
        prefetched=now.prefetched,
    )


def draw(now: Now) -> list[Drawing]:
    """The time of each method, next to that of the link alone, and the first batches of the loop."""
    seconds = {method: copy_s(now, method) for method in METHODS}
    link_s = parse_bytes("size", now.size) / LINKS[now.link].h2d_bytes_per_s
    title = f"{now.size} to the GPU, from published figures"
    how = "prefetched" if now.prefetched else "copied in turn"
    return [
        draw_ranking(seconds, link_s, now.method, title),
        draw_timeline(loop(now, _SHOWN_BATCHES), f"The first {_SHOWN_BATCHES} batches of {now.size}, {how}"),
    ]


def report(now: Now) -> list[str]:
    """The copy's rate, the time per batch and what limits it."""
    to_gpu_s = copy_s(now, now.method)
    batches = loop(now, _COUNTED_BATCHES)
    starts_s = batches.select(kind="compute").start_s
    batch_s = float(starts_s.max() - starts_s.min()) / (_COUNTED_BATCHES - 1)
    step_s = now.step_ms / 1e3
    # What a batch would take if one resource alone limited the loop; the slowest is the bottleneck.
    bounds_s = {"loading": now.load_ms / 1e3 / now.num_workers}
    bounds_s |= {"copies": to_gpu_s, "steps": step_s} if now.prefetched else {"copy + step": to_gpu_s + step_s}
    worst = max(bounds_s, key=bounds_s.__getitem__)
    batch, bound = times_in_one_unit(batch_s, bounds_s[worst])
    rate = rate_words(parse_bytes("size", now.size) / to_gpu_s)
    overlap = percent_words(overlap_share(batches))
    return [
        f"copy: {now.size} by the method {now.method} in {time_words(to_gpu_s)}, {rate}",
        f"loop: {batch} per batch, {overlap} overlapped; {worst} alone would take {bound}",
    ]


def transfers() -> Explorer:
    """Return controls over the time of each way to copy, the first batches of a loop that uses it, and its bottleneck.

    The times are lower bounds, from published figures of PCIe.
    """
    settings = (
        Setting("link", "PCIe 5 x16", LINKS, "link"),
        Setting("method", "pageable", METHODS, "method"),
        Setting("size", "64 MiB", sizes(10, 30), "size of a copy"),
        Setting("load_ms", 12, range(61), "loading a batch [ms]"),
        Setting("num_workers", 2, range(1, 17), "loader workers"),
        Setting("step_ms", 8, range(61), "step [ms]"),
        Setting("prefetched", False, (), "prefetched"),
    )
    return Explorer(settings, draw, report, PRESETS)
