"""The explorer of notebook 05: predictions for recorded machines, with any algorithm and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ...collectives import ALGORITHMS
from ...common.checks import of_type
from ...common.units import cell_words, parse_bytes, percent_words
from ...common.words import printable
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from .. import Profile
from ..profile import NATIVE, Point
from ..sentences import groups

OF_THE_BANK = ("h100_fleet_8", "h100_fleet_4")
PRESETS: dict[str, dict[str, Any]] = {
    "1 KiB: count the latencies": {"algorithm": "recursive_doubling", "message": "1 KiB"},
    "1 MiB: all to the root": {"algorithm": "flat", "message": "1 MiB"},
    "8 ranks": {"num_ranks": 8},
}


def by_name(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles, their names as printable text. Raises ValueError for anything but profiles by name."""
    if not isinstance(profiles, Mapping):
        raise ValueError(f"profiles must be Profiles by name, got {profiles!r}")
    return {printable(str(name)): of_type(f"profiles[{name!r}]", one, Profile) for name, one in profiles.items()}


def machine(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over the predicted time of each algorithm on a machine, the waits of its ranks, and measurements.

    `profiles` are the machines, by the names that they have in the list; without any, those of the bank whose links
    were measured. Raises ValueError if they are given but empty, or if one of them is not a profile.
    """
    presets: dict[str, dict[str, Any]] = {}  # PRESETS have smaller messages than those at which the bank knows links
    num_ranks, message = 8, "256 MiB"
    machines = {name: Profile.load(f"bank:{name}") for name in OF_THE_BANK}
    if profiles is not None:
        machines = by_name(profiles)
        presets = PRESETS | {name: {"profile": name} for name in list(machines)[1:]}  # the first is the default
        num_ranks, message = 4, "256 KiB"
    if not machines:
        raise ValueError("profiles must be at least one, by name, got none")

    def measured(now: Now) -> dict[str, Point]:
        """Return the points of this size by algorithm; none for another number of ranks."""
        profile = machines[now.profile]
        if now.num_ranks != profile.num_ranks:
            return {}
        return groups(profile).get("allreduce", {}).get(parse_bytes("message", now.message), {})

    @lru_cache(maxsize=512)
    def predicted(now: Now, algorithm: str) -> Timeline:
        """Return the prediction of an algorithm, with the options with which it was measured, if it was."""
        point = measured(now).get(algorithm)
        options = point.builder_options if point else {}
        num_bytes = parse_bytes("message", now.message)
        return machines[now.profile].predict("allreduce", algorithm, num_bytes, now.num_ranks, **options)

    def draw(now: Now) -> list[Drawing]:
        """The predicted time of each algorithm next to what was measured, and what each rank waits for."""
        chosen = predicted(now, now.algorithm)  # which raises an error if there is none for so many ranks
        seconds = {}
        for name in ALGORITHMS["allreduce"]:
            with suppress(ValueError):
                seconds[name] = predicted(now, name).makespan_s
        measured_s = {name: point.median_s for name, point in measured(now).items()}
        title = f"{now.message} over {now.num_ranks} ranks of “{now.profile}”"
        ranking = draw_ranking(seconds, chosen=now.algorithm, title=title, measured=measured_s)
        return [ranking, draw_timeline(chosen, f"{now.algorithm}: each rank's waits, step by step")]

    def report(now: Now) -> list[str]:
        """What is predicted, what was measured, and the link that the prediction uses."""
        profile = machines[now.profile]
        predicted_s = predicted(now, now.algorithm).makespan_s
        lines = [f"predicted: {cell_words(predicted_s)}"]
        point = measured(now).get(now.algorithm)
        if point:
            error = percent_words(predicted_s / point.median_s - 1, digits=1, signed=True)
            lines.append(f"measured: {cell_words(point.median_s)}, prediction error {error}")
        if NATIVE in measured(now):
            lines.append(f"{profile.backend}'s own allreduce: {cell_words(measured(now)[NATIVE].median_s)}")
        return [*lines, f"link: {profile.best_link('intra' if profile.num_nodes == 1 else 'inter')}"]

    settings = (
        Setting("profile", next(iter(machines)), tuple(machines), "profile"),
        Setting("algorithm", "ring", tuple(ALGORITHMS["allreduce"]), "algorithm"),
        Setting("num_ranks", num_ranks, range(2, 9), "ranks"),
        Setting("message", message, sizes(10, 30), "message"),
    )
    return Explorer(settings, draw, report, presets)
