"""The explorer of notebook 05: predicted and measured times of every allreduce algorithm on recorded machines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...collectives import ALGORITHMS
from ...common.checks import of_type
from ...common.units import parse_bytes, percent_words
from ...common.words import printable
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from .. import Profile
from ..profile import Point
from ..sentences import groups

OF_THE_BANK = ("h100_fleet_8", "h100_fleet_4")  # whose links are known for large messages
PRESETS: dict[str, dict[str, Any]] = {
    "1 KiB: count the latencies": {"message": "1 KiB"},
    "4 MiB": {"message": "4 MiB"},
    "8 ranks": {"num_ranks": 8},
}


def by_name(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles, their names as printable text. Raises ValueError for anything but profiles by name."""
    if not isinstance(profiles, Mapping):
        raise ValueError(f"profiles must be Profiles by name, got {profiles!r}")
    return {printable(str(name)): of_type(f"profiles[{name!r}]", one, Profile) for name, one in profiles.items()}


def machine(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over the predicted and the measured time of each algorithm on a machine.

    `profiles` are the machines, by the names that they have in the list; without any, those of the bank whose links
    were measured. Raises ValueError if they are given but empty, or if one of them is not a profile.
    """
    if profiles is None:
        profiles = {name: Profile.load(f"bank:{name}") for name in OF_THE_BANK}
    machines = by_name(profiles)
    if not machines:
        raise ValueError("profiles must be at least one, by name, got none")

    def measured(now: Now) -> dict[str, Point]:
        """Return the points of this size by algorithm; none for another number of ranks."""
        profile = machines[now.profile]
        by_size = groups(profile).get("allreduce", {}) if now.num_ranks == profile.num_ranks else {}
        return by_size.get(parse_bytes("message", now.message), {})

    @lru_cache(maxsize=64)
    def predicted_s(now: Now) -> dict[str, float]:
        """Return the predicted seconds of each algorithm, with the options with which it was measured, if it was."""
        profile = machines[now.profile]
        profile.cluster(now.num_ranks)  # raises an error if so many ranks do not fill its nodes
        seconds = {}
        for name in ALGORITHMS["allreduce"]:
            point = measured(now).get(name)
            options = point.builder_options if point else {}
            with suppress(ValueError):  # an algorithm may not exist for so many ranks
                num_bytes = parse_bytes("message", now.message)
                timeline = profile.predict("allreduce", name, num_bytes, now.num_ranks, "ranks", **options)
                seconds[name] = timeline.makespan_s
        return seconds

    def draw(now: Now) -> list[Drawing]:
        title = f"{now.message} over {now.num_ranks} ranks of “{now.profile}”"
        measured_s = {name: point.median_s for name, point in measured(now).items()}
        return [draw_ranking(predicted_s(now), title=title, measured=measured_s)]

    def report(now: Now) -> list[str]:
        """By how much each prediction is off, and the link that it uses."""
        profile = machines[now.profile]
        lines = [f"link: {profile.best_link('intra' if profile.num_nodes == 1 else 'inter')}"]
        for name, point in measured(now).items():
            if name in predicted_s(now):
                error = percent_words(predicted_s(now)[name] / point.median_s - 1, digits=1, signed=True)
                lines.append(f"{name}: the prediction is {error} off")
        return lines

    settings = (
        Setting("profile", next(iter(machines)), tuple(machines), "profile"),
        Setting("num_ranks", 4, range(2, 9), "ranks"),
        Setting("message", "256 KiB", sizes(10, 30), "message"),
    )
    return Explorer(settings, draw, report, PRESETS)
