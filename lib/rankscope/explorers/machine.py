"""The explorer of notebook 07: what recorded machines would take, with any algorithm and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as widgets

from ..collectives import ALGORITHMS
from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..figures.winner_map import draw_ranking
from ..machine import Point, Profile
from ..machine.groups import NATIVE, bounds
from ..machine.measure_plan import builder_options
from ..timeline import Timeline
from ..values.checks import of_type, one_of
from ..values.units import bytes_words, time_words
from .panel import choice, chosen, panel, slider

DEFAULTS: dict[str, Any] = {"profile": "", "algorithm": "ring", "num_ranks": 4, "log2_bytes": 18, "num_segments": 1}
RANGES = {"num_ranks": (2, 8), "log2_bytes": (10, 26), "num_segments": (1, 8)}
_LABELS = {"profile": "profile", "algorithm": "algorithm", "num_ranks": "ranks", "log2_bytes": "log₂ bytes",
           "num_segments": "segments"}  # fmt: skip


class Machines:
    """What the explorer shows of some profiles, by name, as text; `settings` are those of `DEFAULTS`.

    Raises ValueError for no profile, and for settings that do not exist or lie outside their ranges.
    """

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.profiles = by_name(profiles)
        if not self.profiles:
            raise ValueError("profiles must be at least one, by name, got none")
        self._predicted = lru_cache(maxsize=512)(self._predict)
        self._cluster = lru_cache(maxsize=32)(lambda name, num_ranks: self.profiles[name].cluster(num_ranks))

    def chosen(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return all settings, the first profile where none is named."""
        first = next(iter(self.profiles))
        now = chosen(settings, DEFAULTS | {"profile": first}, RANGES)
        one_of("profile", now["profile"], tuple(self.profiles))
        one_of("algorithm", now["algorithm"], tuple(ALGORITHMS["allreduce"]))
        return now

    def ranking(self, **settings: Any) -> str:
        """Return as SVG what each algorithm would take, and beside it what was measured where that was."""
        now = self.chosen(settings)
        seconds = {}
        for name in ALGORITHMS["allreduce"]:
            with suppress(ValueError):  # not for so many ranks
                seconds[name] = self._of(now, name).makespan_s
        if not seconds:
            return ""  # the timeline says why
        measured = {name: point.median_s for name, point in self._measured(now).items() if name in seconds}
        title = f"{bytes_words(_size(now))} over {now['num_ranks']} ranks of “{now['profile']}”"
        return to_svg(draw_ranking(seconds, self._bound_s(now), now["algorithm"], title, measured))

    def timeline(self, **settings: Any) -> str:
        """Return as SVG what each rank would wait for, or a sentence on why it cannot be."""
        now = self.chosen(settings)
        try:
            spans = self._of(now, now["algorithm"])
        except ValueError as error:
            return f"<p>{escape(str(error))}</p>"
        title = f"{now['algorithm']}: what each rank waits for, step by step"
        return to_svg(draw_timeline(spans, title))

    def report(self, **settings: Any) -> str:
        """Return as text what is predicted, what was measured, and where the numbers come from."""
        now = self.chosen(settings)
        profile, measured = self.profiles[now["profile"]], self._measured(now)
        try:
            predicted_s = self._of(now, now["algorithm"]).makespan_s
            bound_s = self._bound_s(now)
        except ValueError as error:
            return f"{now['algorithm']}: {error}"
        lines = [f"predicted: {time_words(predicted_s)}, {predicted_s / bound_s:.2f} times the lower bound"]
        if now["algorithm"] in measured:
            point = measured[now["algorithm"]]
            off = predicted_s / point.median_s - 1
            lines.append(f"measured:  {time_words(point.median_s)}; predicted {off:+.1%}")
        else:
            lines.append(f"not measured at this size, on {now['num_ranks']} ranks")
        if NATIVE in measured:
            lines.append(f"{profile.backend}'s own: {time_words(measured[NATIVE].median_s)}")
        place = "inter" if profile.num_nodes > 1 else "intra"
        return "\n".join([*lines, f"link: {profile.best_link(place)}"])

    def _of(self, now: dict[str, Any], algorithm: str) -> Timeline:
        cluster = self._cluster(now["profile"], now["num_ranks"])
        options = builder_options(algorithm, _size(now), [cluster.gpus_per_node] * cluster.num_nodes)
        if "num_segments" in options:
            options["num_segments"] = now["num_segments"]
        return self._predicted(now["profile"], algorithm, now["num_ranks"], _size(now), **options)

    def _predict(self, profile: str, algorithm: str, num_ranks: int, num_bytes: int, **options: Any) -> Timeline:
        return self.profiles[profile].predict("allreduce", algorithm, num_bytes, num_ranks=num_ranks, **options)

    def _measured(self, now: dict[str, Any]) -> dict[str, Point]:
        profile = self.profiles[now["profile"]]
        if now["num_ranks"] != profile.num_ranks:
            return {}
        points = profile.select("allreduce", _size(now), in_place=True)
        same = (p for p in points if p.options.get("num_segments", now["num_segments"]) == now["num_segments"])
        return {str(point.options["algorithm"]): point for point in same}

    def _bound_s(self, now: dict[str, Any]) -> float:
        return float(bounds(self.profiles[now["profile"]], "allreduce", _size(now), now["num_ranks"]).seconds)


def machine(profiles: Mapping[str, Profile], **settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the ranking, the timeline and the report.

    Raises ValueError as `Machines` does.
    """
    shown = Machines(profiles)
    initial = shown.chosen(settings)
    options = {"profile": list(shown.profiles), "algorithm": list(ALGORITHMS["allreduce"])}
    controls: dict[str, Any] = {name: choice(initial[name], names, _LABELS[name]) for name, names in options.items()}
    controls |= {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}

    def paint(now: dict[str, Any]) -> tuple[str, str]:
        return shown.ranking(**now) + shown.timeline(**now), shown.report(**now)

    return panel(controls, paint)


def by_name(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles, their names as text; ValueError for what is none."""
    if not isinstance(profiles, Mapping):
        raise ValueError(f"profiles must be Profiles by name, got {profiles!r}")
    return {str(name): of_type(f"profiles[{name!r}]", one, Profile) for name, one in profiles.items()}


def _size(now: dict[str, Any]) -> int:
    return 1 << int(now["log2_bytes"])
