"""The explorer of notebook 05: collectives measured on GPU boxes, from the bank and your own, in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...common.units import parse_bytes, rates_in_one_unit, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, sizes
from ...figures.marks import Drawing
from .. import Profile, bank
from ..figures.boxes import UNITS, draw_boxes
from ..machines import origin_of
from ..profile import busbw_factor
from .machine import by_name, interpolated

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "all_to_all")
NONE = "none"
PRESETS: dict[str, dict[str, Any]] = {
    "64 KiB: latency counts": {"view": "time", "message": "64 KiB"},
    "8 GPUs with NVLink and without": {"first": "h100_8", "second": "rtx_pro_6000_8", "third": "l40s_8"},
    "all-to-all": {"collective": "all_to_all", "first": "h100_8", "second": "rtx_pro_6000_8", "third": "l40s_8"},
    "2 and 8 L40S": {"first": "l40s_2", "second": "l40s_8", "third": NONE},
    "a pair without peer-to-peer": {"first": "runpod_a100_2", "second": "runpod_a100_2_no_p2p", "third": NONE},
}


def _has_collective(profile: Profile) -> bool:
    """Return whether the backend's own version of one of COLLECTIVES was measured."""
    return any(profile.native_s(what) for what in COLLECTIVES)


@cache
def _of_the_bank() -> dict[str, Profile]:
    profiles = {name: Profile.load(f"bank:{name}") for name in bank()}
    return {name: profile for name, profile in profiles.items() if _has_collective(profile)}


class Boxes:
    """What the explorer shows of machines: the given ones, and those of the bank."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        own = {name: profile for name, profile in by_name(profiles).items() if _has_collective(profile)}
        self.yours = next(iter(own), "")  # drawn in black; "" if only machines of the bank are shown
        self.profiles = dict(own)
        for name, profile in _of_the_bank().items():
            self.profiles.setdefault(name, profile)  # of two machines with the same name, the given one is shown

    def chosen(self, now: Now) -> dict[str, Profile]:
        """Return the machines that the controls select, each once."""
        names = [name for name in (now.first, now.second, now.third) if name != NONE]
        return {name: self.profiles[name] for name in names}

    def draw(self, now: Now) -> list[Drawing]:
        """Draw the machines that were measured with this collective; the title is of the size that is set."""
        measured = {name: profile for name, profile in self.chosen(now).items() if profile.native_s(now.collective)}
        if not measured:
            raise ValueError(f"none of these machines was measured with {now.collective}")
        num_bytes = parse_bytes("message", now.message)
        return [draw_boxes(measured, now.collective, now.view, self.yours, num_bytes, self._title(now))]

    def _title(self, now: Now) -> str:
        """Return the fastest and the slowest machine at this size.

        Of machines whose measured sizes end below it or begin above it only a guess is known, so they do not count.
        """
        what = f"{now.collective} of {now.message}"
        num_bytes = parse_bytes("message", now.message)
        seconds: dict[str, float] = {}
        for name, profile in self.chosen(now).items():
            sizes = profile.native_s(now.collective)
            time_s = self._seconds(now, profile)
            if time_s is not None and min(sizes) <= num_bytes <= max(sizes):
                seconds[name] = time_s
        if not seconds:
            return f"{what}: measured on none of these machines"
        # Machines with different numbers of ranks may rank differently by time and by busbw.
        rates = {name: self._busbw(now, name, time_s) for name, time_s in seconds.items()}
        if now.view == "time":
            fastest_first = sorted(seconds, key=lambda name: seconds[name])
        else:
            fastest_first = sorted(rates, key=lambda name: rates[name], reverse=True)
        names = [fastest_first[0]]
        if len(fastest_first) > 1:
            names.append(fastest_first[-1])  # the slowest
        if now.view == "time":
            words = times_in_one_unit(*[seconds[name] for name in names])
        else:
            words = rates_in_one_unit(*[rates[name] for name in names])
        machines = [f"{name} {value}" for name, value in zip(names, words, strict=True)]
        return f"{what}: {', '.join(machines)}"

    def _seconds(self, now: Now, profile: Profile) -> float | None:
        """The time at this size as measured, otherwise interpolated; None if neither is known."""
        num_bytes = parse_bytes("message", now.message)
        measured = profile.native_s(now.collective).get(num_bytes)
        if measured is not None:
            return measured
        estimate = interpolated(profile, now.collective, num_bytes)
        return None if estimate is None else estimate.seconds

    def _busbw(self, now: Now, name: str, seconds: float) -> float:
        """Return the bus bandwidth in bytes/s of a machine that takes so many seconds."""
        factor = busbw_factor(now.collective, self.profiles[name].num_ranks)
        return factor * parse_bytes("message", now.message) / seconds

    def report(self, now: Now) -> list[str]:
        """The time of each machine at this size, interpolated where it was not measured, and its source."""
        lines = []
        num_bytes = parse_bytes("message", now.message)
        known: dict[str, float] = {}  # seconds by machine
        for name, profile in self.chosen(now).items():
            time_s = self._seconds(now, profile)
            if time_s is not None:
                known[name] = time_s
        times = dict(zip(known, times_in_one_unit(*known.values()), strict=True))
        bytes_per_s = [self._busbw(now, name, time_s) for name, time_s in known.items()]
        rates = dict(zip(known, rates_in_one_unit(*bytes_per_s), strict=True))
        for name, profile in self.chosen(now).items():
            measured_s = profile.native_s(now.collective)
            if name in known:
                interval = ""
                if num_bytes not in measured_s:
                    interval = f", interpolated ({_interval(profile, now.collective, num_bytes)})"
                words = f"{now.message} in {times[name]}{interval}, busbw {rates[name]}"
            elif measured_s:  # at other sizes, but there is no curve through them
                words = f"{now.collective} was not measured at {now.message}"
            else:
                words = f"{now.collective} was not measured"
            origin = origin_of(profile.provenance.get("source", {}))
            lines += [f"{name}: {words}", f"    {'; '.join([profile.provenance['name'], *origin])}"]
        return lines


def _interval(profile: Profile, collective: str, num_bytes: int) -> str:
    """The 90 % interval of an interpolated time, in words."""
    estimate = interpolated(profile, collective, num_bytes)
    if estimate is None:
        return ""
    return " to ".join(times_in_one_unit(estimate.low_s, estimate.high_s))


def boxes(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over the time of collectives on up to three machines, from the bank or your own.

    `profiles`, by name, come before those of the bank. Those without a collective are left out, and the first of the
    others is drawn in black. Raises ValueError if one of them is not a profile.
    """
    shown = Boxes(profiles or {})
    names = tuple(shown.profiles)
    settings = (
        Setting("collective", "allreduce", COLLECTIVES, "collective"),
        Setting("first", shown.yours or "b200_8", names, "machine 1"),
        Setting("second", "h100_8", (NONE, *names), "machine 2"),
        Setting("third", "a100_80gb_8", (NONE, *names), "machine 3"),
        Setting("view", "log", tuple(UNITS), "view"),
        Setting("message", "64 MiB", sizes(10, 33), "message"),
    )
    return Explorer(settings, shown.draw, shown.report, PRESETS)
