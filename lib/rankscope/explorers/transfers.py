"""The explorer of notebook 08: what a copy to or from the GPU takes, and what that makes of a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ipywidgets as widgets
import numpy as np

from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..figures.winner_map import draw_ranking
from ..machine import Point, Profile
from ..machine.link_facts import METHODS, LinkFacts, facts_of, stated, transfers_of
from ..timeline import Timeline
from ..transfer import overlap_share, simulate
from ..values.checks import of_type, one_of
from ..values.units import bytes_words, rate_words, time_words
from .panel import choice, chosen, panel, slider, switch

LINKS = {facts.name: facts for facts in (stated(generation) for generation in (3, 4, 5, 6))}
DEFAULTS: dict[str, Any] = {
    "link": "PCIe 5 x16",
    "direction": "h2d",
    "method": "pageable",
    "log2_bytes": 26,
    "load_ms": 12,
    "num_workers": 2,
    "step_ms": 8,
    "prefetched": False,
}
RANGES = {"log2_bytes": (10, 30), "load_ms": (0, 60), "num_workers": (1, 16), "step_ms": (0, 60)}
_LABELS = {"link": "link", "direction": "direction", "method": "method", "log2_bytes": "log₂ bytes",
           "load_ms": "load [ms]", "num_workers": "workers", "step_ms": "step [ms]",
           "prefetched": "prefetched"}  # fmt: skip
_WAYS = ("h2d", "d2h")
_SHOWN, _LONG = 16, 300  # batches in the picture; batches that the report counts


class Copies:
    """What the explorer shows of facts and of a profile; `settings` are those of `DEFAULTS`.

    Links are those of `LINKS` and, first where there is one, the profile's own, whose measured times are taken.
    Raises ValueError for a profile without copies, and for settings that do not exist or lie outside their ranges.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        self.profile = None if profile is None else of_type("profile", profile, Profile)
        self.links: dict[str, LinkFacts | None] = dict(LINKS)
        if self.profile:
            if not self.profile.select("transfer"):
                raise ValueError("profile must have copies to or from a GPU (what 'transfer'), got none")
            self.links = {f"measured: {self.profile.provenance['name']}": facts_of(self.profile), **LINKS}
        self._looped = lru_cache(maxsize=256)(simulate)

    def chosen(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return all settings; with a profile its link is the default."""
        first = next(iter(self.links)) if self.profile else DEFAULTS["link"]
        now = chosen(settings, DEFAULTS | {"link": first}, RANGES)
        for name, known in (("link", tuple(self.links)), ("direction", _WAYS), ("method", METHODS)):
            one_of(name, now[name], known)
        return now

    def seconds(self, now: dict[str, Any], method: str) -> float | None:
        """Return what a copy takes: measured where the link is the profile's, else at best; None where it was not."""
        facts = self.links[now["link"]]
        if not self._is_measured(now):
            return facts.seconds(_size(now), now["direction"], method) if facts else None
        assert self.profile
        return between(transfers_of(self.profile, now["direction"], method), _size(now))

    def ranking(self, **settings: Any) -> str:
        """Return as SVG what each method takes, the chosen one framed, and the link's own time."""
        now = self.chosen(settings)
        found = {method: self.seconds(now, method) for method in METHODS}
        known = {method: seconds for method, seconds in found.items() if seconds is not None}
        if not known:
            return ""  # the report says so
        facts = self.links[now["link"]]
        bound_s = _size(now) / facts.bytes_per_s(now["direction"]) if facts else None
        how = "measured" if self._is_measured(now) else "at best, by facts"
        way = "to the GPU" if now["direction"] == "h2d" else "to the host"
        return to_svg(draw_ranking(known, bound_s, now["method"], f"{bytes_words(_size(now))} {way}, {how}"))

    def timeline(self, **settings: Any) -> str:
        """Return as SVG the first batches of a loop whose batches are copied so."""
        now = self.chosen(settings)
        loop = self._loop(now, _SHOWN)
        if loop is None or not loop.makespan_s:
            return ""
        how = "prefetched" if now["prefetched"] else "copied in turn"
        return to_svg(draw_timeline(loop, f"The first {_SHOWN} batches of {bytes_words(_size(now))}, {how}"))

    def report(self, **settings: Any) -> str:
        """Return as text where times come from, the copy's share of the link, a batch's time and what bounds it."""
        now = self.chosen(settings)
        facts, copy_s = self.links[now["link"]], self.seconds(now, now["method"])
        if copy_s is None:
            return f"the profile has no copies of {now['direction']} by {now['method']}"
        carried = f", which carries {rate_words(facts.bytes_per_s(now['direction']))}" if facts else ""
        name = f"{now['link']}{carried}" if facts else f"{now['link']}; how its GPU is joined is not known"
        origin = "" if self._is_measured(now) else "; from facts, nothing here is measured"
        share = f", {_size(now) / copy_s / facts.bytes_per_s(now['direction']):.0%} of the link" if facts else ""
        rate = rate_words(_size(now) / copy_s)
        return "\n".join(
            [
                f"link: {name}{origin}",
                f"copy: {bytes_words(_size(now))} by {now['method']} in {time_words(copy_s)}, {rate}{share}",
                *self._loop_words(now),
            ]
        )

    def _loop_words(self, now: dict[str, Any]) -> list[str]:
        loop = self._loop(now, _LONG)
        if loop is None:
            return ["loop: batches go to the GPU, and the profile has no such copies by this method"]
        times_s = self._times_s(now)
        steps = loop.select(kind="compute")
        batch_s = float(steps.start_s.max() - steps.start_s.min()) / (_LONG - 1)
        bounds = {"loading": times_s["load"] / now["num_workers"], "pinning": times_s["pin"]}
        if now["prefetched"]:
            bounds |= {"copies": times_s["copy"], "steps": times_s["compute"]}
        else:
            bounds["copy + step"] = times_s["copy"] + times_s["compute"]
        worst = max(bounds, key=bounds.__getitem__)
        words = f"loop: {time_words(batch_s)} a batch; {worst} alone would take {time_words(bounds[worst])}"
        best_s = max(times_s["copy"], times_s["compute"])
        if not steps.makespan_s:
            return [words]
        return [words, f"      max(copy, step) is {time_words(best_s)}, achieved to {overlap_share(loop):.0%}"]

    def _times_s(self, now: dict[str, Any]) -> dict[str, float]:
        """What a batch takes of each; memory is pinned by a thread of the loader's where it comes pinned."""
        copy_s = self.seconds(now | {"direction": "h2d"}, now["method"]) or 0.0
        pin_s = self._pin_s(now) if now["method"].startswith("pinned") else 0.0
        return {"load": now["load_ms"] / 1e3, "pin": pin_s, "copy": copy_s, "compute": now["step_ms"] / 1e3}

    def _pin_s(self, now: dict[str, Any]) -> float:
        if self.profile and self._is_measured(now):
            pins = sorted(self.profile.select("pin", cached=True), key=lambda point: point.num_bytes)
            return between(pins, _size(now)) or 0.0
        facts = self.links[now["link"]]
        return _size(now) / facts.host_copy_bytes_per_s if facts else 0.0

    def _loop(self, now: dict[str, Any], num_batches: int) -> Timeline | None:
        if self.seconds(now | {"direction": "h2d"}, now["method"]) is None:
            return None
        times_s = self._times_s(now)
        return self._looped(
            num_batches, times_s["load"], times_s["copy"], times_s["compute"], now["num_workers"], now["prefetched"],
            pin_s=times_s["pin"],
        )  # fmt: skip

    def _is_measured(self, now: dict[str, Any]) -> bool:
        return now["link"] not in LINKS


def between(points: Sequence[Point], num_bytes: int) -> float | None:
    """Return the median seconds at a size, on a straight line between two that were measured, in logarithms.

    Beyond the largest size the rate is the largest one's, below the smallest the time is the smallest one's; None
    where there is no point.

    >>> known = [Point("pin", 1024, (1e-3,), (True,)), Point("pin", 4096, (4e-3,), (True,))]
    >>> [round(between(known, size) * 1e3, 3) for size in (512, 2048, 8192)]
    [1.0, 2.0, 8.0]
    """
    if not points:
        return None
    sizes, seconds = (np.log([getattr(point, name) for point in points]) for name in ("num_bytes", "median_s"))
    beyond = max(1.0, num_bytes / points[-1].num_bytes)
    return float(np.exp(np.interp(np.log(num_bytes), sizes, seconds)) * beyond)


def transfers(profile: Profile | None = None, **settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the methods, the loop and the report.

    Raises ValueError as `Copies` does.
    """
    shown = Copies(profile)
    initial = shown.chosen(settings)
    options = {"link": tuple(shown.links), "direction": _WAYS, "method": METHODS}
    controls: dict[str, Any] = {name: choice(initial[name], names, _LABELS[name]) for name, names in options.items()}
    controls |= {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls["prefetched"] = switch(initial["prefetched"], _LABELS["prefetched"])

    def paint(now: dict[str, Any]) -> tuple[str, str]:
        return shown.ranking(**now) + shown.timeline(**now), shown.report(**now)

    return panel(controls, paint)


def _size(now: dict[str, Any]) -> int:
    return 1 << int(now["log2_bytes"])
