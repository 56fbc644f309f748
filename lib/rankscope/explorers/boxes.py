"""The explorer of notebook 15: collectives measured on GPU boxes, from the bank and your own, in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..figures.boxes import UNITS, draw_boxes, natives
from ..figures.marks import Drawing
from ..machine import Profile, bank
from ..machine.profile import busbw_factor
from ..values.units import parse_bytes, rate_words, time_words
from .machine import by_name, interpolated
from .panel import Explorer, Now, Setting, shows, sizes

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "all_to_all")
NONE = "none"
SETTINGS = (
    Setting("collective", "allreduce", COLLECTIVES, "collective"),
    Setting("first", "b200_8", (), "machine 1"),  # those of the bank, and those that are given
    Setting("second", "h100_8", (), "machine 2"),
    Setting("third", "a100_80gb_8", (), "machine 3"),
    Setting("view", "busbw", tuple(UNITS), "view"),
    Setting("message", "64 MiB", sizes(10, 33), "message"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "64 KiB: latency counts": {"view": "time", "message": "64 KiB"},
    "8 GPUs with NVLink and without": {"first": "h100_8", "second": "rtx_pro_6000_8", "third": "l40s_8"},
    "all-to-all": {"collective": "all_to_all", "first": "h100_8", "second": "rtx_pro_6000_8", "third": "l40s_8"},
    "2 and 8 L40S": {"first": "l40s_2", "second": "l40s_8", "third": NONE},
    "a pair without peer-to-peer": {"first": "runpod_a100_2", "second": "runpod_a100_2_no_p2p", "third": NONE},
}


def _measured(profile: Profile) -> bool:
    return any(natives(profile, what) for what in COLLECTIVES)


@cache
def _of_the_bank() -> dict[str, Profile]:
    loaded = ((name, Profile.load(f"bank:{name}")) for name in bank())
    return {name: profile for name, profile in loaded if _measured(profile)}


class Boxes:
    """What the explorer shows of machines: the given ones, and those of the bank."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        yours = {name: one for name, one in by_name(profiles).items() if _measured(one)}
        self.yours = next(iter(profiles), "")
        self.profiles = yours | {name: one for name, one in _of_the_bank().items() if name not in profiles}

    def chosen(self, now: Now) -> dict[str, Profile]:
        return {name: self.profiles[name] for name in (now.first, now.second, now.third) if name in self.profiles}

    def picture(self, now: Now) -> Drawing | None:
        """The lines of those that were measured with this collective."""
        found = {name: one for name, one in self.chosen(now).items() if natives(one, now.collective)}
        num_bytes = parse_bytes("message", now.message)
        return draw_boxes(found, now.collective, now.view, self.yours, num_bytes) if found else None

    def without_effect(self, now: Now) -> dict[str, str]:
        """How a collective is shown, where none of the machines was measured with it."""
        if any(natives(one, now.collective) for one in self.chosen(now).values()):
            return {}
        return dict.fromkeys(("view", "message"), f"none of these machines was measured with {now.collective}")

    def report(self, now: Now) -> list[str]:
        """The time of each machine at this size, interpolated where it was not measured, and its source."""
        lines, num_bytes = [], parse_bytes("message", now.message)
        for name, profile in self.chosen(now).items():
            seconds, interval = natives(profile, now.collective).get(num_bytes), ""
            if seconds is None and (found := interpolated(profile, now.collective, num_bytes)):
                seconds, interval = found[0], f", interpolated ({found[1]})"
            said = f"{now.collective} was not measured"
            if seconds is not None:
                rate = rate_words(busbw_factor(now.collective, profile.num_ranks) * num_bytes / seconds)
                said = f"{now.message} in {time_words(seconds)}{interval}, busbw {rate}"
            source = profile.provenance.get("source", {})
            origin = [source[key] for key in ("repository", "licence", "notes") if key in source]
            lines += [f"{name}: {said}", f"    {'; '.join([profile.provenance['name'], *origin])}"]
        return lines


@shows(SETTINGS)
def boxes(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over the time of collectives on up to three machines, from the bank or your own.

    `profiles`, by name, come before those of the bank; the first is shown in black. Raises ValueError for
    what is no profile.
    """
    shown = Boxes(profiles or {})
    names = tuple(shown.profiles)
    own = [name for name in profiles or {} if name in names]
    collective, first, second, third, *others = SETTINGS
    first = first._replace(choices=names, default=own[0] if own else first.default)
    second, third = (one._replace(choices=(NONE, *names)) for one in (second, third))
    settings = (collective, first, second, third, *others)
    return Explorer(settings, {"picture": shown.picture}, shown.report, PRESETS, shown.without_effect)
