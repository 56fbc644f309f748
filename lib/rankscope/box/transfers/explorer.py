"""The explorer of notebook 03: the time of a copy to the GPU, and of a training loop with such copies."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, percent_words, rate_words, time_words
from ...drawing.drawing import Drawing
from ...drawing.ranking import draw_ranking
from ...panel.explorer import Explorer, Now, Setting, sizes
from ...pipeline import simulate_transfer
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from ..measuring.plan import METHODS
from .link_facts import stated

LINKS = {facts.name: facts for facts in map(stated, (3, 4, 5, 6))}  # x16, by generation of PCIe
PRESETS: dict[str, dict[str, Any]] = {
    "16 KiB: all alike": {"size": "16 KiB"},
    "64 MiB, pinned": {"method": "pinned"},
    "pinned and prefetched": {"method": "pinned", "prefetched": True},
    "the same with a step of 1 ms": {"method": "pinned", "prefetched": True, "step_ms": 1},
}
_NUM_BATCHES = 16


def copy_s(now: Now, method: str) -> float:
    """Return the time of a copy of the chosen size over the chosen link, at best."""
    return LINKS[now.link].seconds(parse_bytes("size", now.size), "h2d", method)


def loop(now: Now) -> Timeline:
    """Return the copies and steps of a training loop; loading takes no time."""
    step_s = now.step_ms / 1e3
    spans = simulate_transfer(_NUM_BATCHES, 0.0, copy_s(now, now.method), step_s, prefetched=now.prefetched)
    return spans.select(kind=("copy", "compute"))


def batch_s(spans: Timeline) -> float:
    """Return the time from one step of a loop to the next."""
    starts_s = spans.select(kind="compute").start_s
    return float(starts_s.max() - starts_s.min()) / (_NUM_BATCHES - 1)


def draw(now: Now) -> list[Drawing]:
    """The time of each method, next to that of the link alone, and the first batches of the loop."""
    seconds = {method: copy_s(now, method) for method in METHODS}
    link_s = parse_bytes("size", now.size) / LINKS[now.link].h2d_bytes_per_s
    title = f"Pinned is {seconds['pageable'] / seconds['pinned']:.1f} times as fast as pageable"
    how = "prefetched" if now.prefetched else "copied in turn"
    spans = loop(now)
    waits = percent_words(1 - now.step_ms / 1e3 / batch_s(spans))
    return [
        draw_ranking(seconds, link_s, now.method, title, f"{now.size} to the GPU over {now.link}, modelled"),
        draw_timeline(spans, f"The GPU waits {waits} of the time", f"{_NUM_BATCHES} batches of {now.size}, {how}"),
    ]


def report(now: Now) -> list[str]:
    """The copy's time and rate, and the time per batch."""
    seconds = copy_s(now, now.method)
    rate = rate_words(parse_bytes("size", now.size) / seconds)
    return [
        f"copy: {now.size} by the method {now.method} in {time_words(seconds)}, {rate}",
        f"loop: {time_words(batch_s(loop(now)))} per batch",
    ]


def transfers() -> Explorer:
    """Return controls over the time of each way to copy, the first batches of a loop that uses it, and how much of the
    time the GPU computes.

    The times are lower bounds, from published figures of PCIe.
    """
    settings = (
        Setting("link", "PCIe 5 x16", LINKS, "link"),
        Setting("method", "pageable", METHODS, "method"),
        Setting("size", "64 MiB", sizes(10, 30), "size of a copy"),
        Setting("step_ms", 8, range(61), "step [ms]"),
        Setting("prefetched", False, (), "prefetched"),
    )
    return Explorer(settings, draw, report, PRESETS)
