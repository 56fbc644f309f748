"""The explorer of notebook 05: predictions for recorded machines, with any algorithm and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from ...collectives import ALGORITHMS
from ...common.checks import of_type
from ...common.units import cell_words, parse_bytes, percent_words, times_in_one_unit
from ...common.words import printable
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from .. import Profile
from ..measuring.plan import builder_options
from ..profile import NATIVE, Point
from ..sentences import bound_s

OF_THE_BANK = ("h100_fleet_8", "h100_fleet_4")
PRESETS: dict[str, dict[str, Any]] = {
    "1 KiB: count the latencies": {"algorithm": "recursive_doubling", "message": "1 KiB"},
    "1 MiB: all to the root": {"algorithm": "flat", "message": "1 MiB"},
    "8 ranks": {"num_ranks": 8},
}


class Machines:
    """What the explorer shows of some profiles, by name."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.profiles = by_name(profiles)
        if not self.profiles:
            raise ValueError("profiles must be at least one, by name, got none")
        # Caches of `Profile.cluster` and `Profile.predict`, whose first argument is the name of a profile. Each
        # explorer has its own, because in another explorer a name may stand for another profile.
        self._cluster = lru_cache(maxsize=32)(lambda name, num_ranks: self.profiles[name].cluster(num_ranks))
        self._timeline = lru_cache(maxsize=512)(
            lambda name, *arguments, **options: self.profiles[name].predict("allreduce", *arguments, **options)
        )

    def num_bytes(self, now: Now) -> int:
        return parse_bytes("message", now.message)

    def draw(self, now: Now) -> list[Drawing]:
        """The predicted time of each algorithm next to what was measured, and what each rank waits for.

        Raises ValueError if no algorithm exists for so many ranks.
        """
        seconds = {}
        for name in ALGORITHMS["allreduce"]:
            with suppress(ValueError):  # an algorithm may not exist for so many ranks
                seconds[name] = self.predicted(now, name).makespan_s
        if now.algorithm not in seconds:
            self.predicted(now, now.algorithm)  # which raises the error that says why
        measured = {name: point.median_s for name, point in self.measured(now).items() if name in seconds}
        title = f"{now.message} over {now.num_ranks} ranks of “{now.profile}”"
        ranking = draw_ranking(seconds, self.bound_s(now), now.algorithm, title, measured)
        waits = draw_timeline(self.predicted(now, now.algorithm), f"{now.algorithm}: each rank's waits, step by step")
        return [ranking, waits]

    def report(self, now: Now) -> list[str]:
        """What is predicted, what was measured, and where the numbers come from."""
        profile = self.profiles[now.profile]
        try:
            predicted_s = self.predicted(now, now.algorithm).makespan_s
            bound = self.bound_s(now)
        except ValueError as error:
            return [f"{now.algorithm}: {error}", *self.native(now)]
        times = "no lower bound is known"
        if bound:  # 0 if it is not known
            times = f"{predicted_s / bound:.2f} times the lower bound"
        point = self.measured(now).get(now.algorithm)
        if point is None:
            lines = [
                f"predicted: {cell_words(predicted_s)}, {times}",
                f"not measured at this size, on {now.num_ranks} ranks",
            ]
        else:
            prediction, measurement = times_in_one_unit(predicted_s, point.median_s)
            off = predicted_s / point.median_s - 1
            difference = percent_words(off, digits=1, signed=True)
            lines = [f"predicted: {prediction}, {times}", f"measured:  {measurement}; prediction error {difference}"]
        link = "intra" if profile.num_nodes == 1 else "inter"
        return [*lines, *self.native(now), f"link: {profile.best_link(link)}"]

    def native(self, now: Now) -> list[str]:
        """The time of the backend's own allreduce, interpolated at a size that was not measured.

        Nothing for another number of ranks.
        """
        profile = self.profiles[now.profile]
        point = self.measured(now).get(NATIVE)
        if point is not None:
            return [f"{profile.backend}'s own allreduce: {cell_words(point.median_s)}"]
        if now.num_ranks != profile.num_ranks:
            return []
        estimate = interpolated(profile, "allreduce", self.num_bytes(now))
        if estimate is None:
            return []
        time, low, high = times_in_one_unit(*estimate)
        return [f"{profile.backend}'s own allreduce, interpolated: {time} ({low} to {high})"]

    def predicted(self, now: Now, algorithm: str) -> Timeline:
        """Return the prediction of an algorithm, as it was measured or, without such a point, as it would be.

        The options of its builder are then those of the measured point, or else those that a measurement of the cluster
        would choose; the number of segments is the one that is set.
        """
        num_bytes = self.num_bytes(now)
        point = self.measured(now).get(algorithm)
        if point is not None:
            options = point.builder_options
        else:
            cluster = self._cluster(now.profile, now.num_ranks)
            ranks_per_node = [cluster.gpus_per_node] * cluster.num_nodes
            options = builder_options("allreduce", algorithm, num_bytes, ranks_per_node)
            if "num_segments" in options:
                options["num_segments"] = now.num_segments
        return self._timeline(now.profile, algorithm, num_bytes, num_ranks=now.num_ranks, **options)

    def measured(self, now: Now) -> dict[str, Point]:
        """The points of this size and number of segments, by algorithm; none for another number of ranks.

        They are those in place, because that is what `predicted` predicts.
        """
        profile = self.profiles[now.profile]
        if now.num_ranks != profile.num_ranks:
            return {}
        points = profile.select("allreduce", self.num_bytes(now), in_place=True)
        by_algorithm = {}
        for point in points:
            # The number of segments that is set does not concern an algorithm without segments.
            has_other_segments = point.options.get("num_segments", now.num_segments) != now.num_segments
            if "algorithm" in point.options and not has_other_segments:
                by_algorithm[str(point.options["algorithm"])] = point
        return by_algorithm

    def bound_s(self, now: Now) -> float:
        """Return the lower bound in seconds; 0 if none is known."""
        return bound_s(self.profiles[now.profile], "allreduce", self.num_bytes(now), now.num_ranks)


def by_name(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles, their names as printable text. Raises ValueError for anything but profiles by name."""
    if not isinstance(profiles, Mapping):
        raise ValueError(f"profiles must be Profiles by name, got {profiles!r}")
    printable_names = {}
    for name, profile in profiles.items():
        printable_names[printable(str(name))] = of_type(f"profiles[{name!r}]", profile, Profile)
    return printable_names


class Interpolated(NamedTuple):
    """The seconds of an operation by its curve, and the ends of their 90 % interval."""

    seconds: float
    low_s: float
    high_s: float


def interpolated(profile: Profile, collective: str, num_bytes: int) -> Interpolated | None:
    """Return the time of the backend's own collective by its curve.

    None if it was never measured or at too few sizes, or if scipy, which curves need, is not installed.
    """
    with suppress(ValueError, ImportError):
        curve = profile.curve(collective)
        low_s, high_s = curve.interval_s(num_bytes)
        return Interpolated(curve.seconds(num_bytes), low_s, high_s)
    return None


def machine(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over the predicted time of each algorithm on a machine, the waits of its ranks, and measurements.

    `profiles` are the machines, by the names that they have in the list; without any, those of the bank whose links
    were measured. Raises ValueError if they are given but empty, or if one of them is not a profile.
    """
    if profiles is None:
        shown = Machines({name: Profile.load(f"bank:{name}") for name in OF_THE_BANK})
        presets: dict[str, dict[str, Any]] = {}  # PRESETS have smaller messages than those at which links are known
        num_ranks, message = 8, "256 MiB"
    else:
        shown = Machines(profiles)
        presets = PRESETS | {name: {"profile": name} for name in list(shown.profiles)[1:]}  # the first is the default
        num_ranks, message = 4, "256 KiB"
    names = tuple(shown.profiles)
    settings = (
        Setting("profile", names[0], names, "profile"),
        Setting("algorithm", "ring", tuple(ALGORITHMS["allreduce"]), "algorithm"),
        Setting("num_ranks", num_ranks, range(2, 9), "ranks"),
        Setting("message", message, sizes(10, 30), "message"),
        Setting("num_segments", 1, range(1, 9), "segments"),
    )
    return Explorer(settings, shown.draw, shown.report, presets)
