"""The explorer of notebook 05: predicted and measured times of every allreduce algorithm on recorded machines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...collectives import ALGORITHMS
from ...common.checks import of_type
from ...common.units import parse_bytes
from ...common.words import printable
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from .. import Profile
from ..sentences import groups

OF_THE_BANK = ("h100_fleet_8", "h100_fleet_4")  # whose links are known for large messages
PRESETS: dict[str, dict[str, Any]] = {
    "1 KiB: count the latencies": {"message": "1 KiB"},
    "4 MiB": {"message": "4 MiB"},
    "8 ranks": {"num_ranks": 8},
}


def by_name(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles, their names as printable text. Raises ValueError for anything but profiles by name."""
    named = of_type("profiles", profiles, dict)
    return {printable(str(name)): of_type(f"profiles[{name!r}]", profile, Profile) for name, profile in named.items()}


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

    def draw(now: Now) -> list[Drawing]:
        profile = machines[now.profile]
        num_bytes = parse_bytes("message", now.message)
        profile.cluster(now.num_ranks)  # raises an error if so many ranks do not fill its nodes
        measured = {}
        if now.num_ranks == profile.num_ranks:
            measured = groups(profile).get("allreduce", {}).get(num_bytes, {})
        seconds = {}
        for name in ALGORITHMS["allreduce"]:
            options = measured[name].builder_options if name in measured else {}
            with suppress(ValueError):  # an algorithm may not exist for so many ranks
                timeline = profile.predict("allreduce", name, num_bytes, now.num_ranks, "ranks", **options)
                seconds[name] = timeline.makespan_s
        title = f"{now.message} over {now.num_ranks} ranks of “{now.profile}”"
        measured_s = {name: point.median_s for name, point in measured.items()}
        return [draw_ranking(seconds, title=title, measured=measured_s)]

    def report(now: Now) -> list[str]:
        profile = machines[now.profile]
        where = "intra" if profile.num_nodes == 1 else "inter"
        return [f"predicted from the link: {profile.best_link(where)}"]

    settings = (
        Setting("profile", next(iter(machines)), tuple(machines), "profile"),
        Setting("num_ranks", 4, range(2, 9), "ranks"),
        Setting("message", "256 KiB", sizes(10, 30), "message"),
    )
    return Explorer(settings, draw, report, PRESETS)
