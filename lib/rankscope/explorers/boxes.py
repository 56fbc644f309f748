"""The explorer of notebook 15: collectives measured on GPU boxes, the bank's and yours, over each other."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ..figures.boxes import UNITS, draw_boxes, natives
from ..figures.marks import Drawing
from ..machine import Profile, bank
from ..machine.profile import busbw_factor
from ..values.units import bytes_words, rate_words, time_words
from .machine import by_name
from .panel import Explorer, Now, Setting, shows

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "all_to_all")
NONE = "none"
SETTINGS = (
    Setting("collective", "allreduce", COLLECTIVES, "collective"),
    Setting("first", "b200_8", (), "machine 1"),  # those of the bank, and those that are given
    Setting("second", "h100_8", (), "machine 2"),
    Setting("third", "a100_80gb_8", (), "machine 3"),
    Setting("view", "busbw", tuple(UNITS), "view"),
    Setting("log2_bytes", 26, (10, 33), "log₂ bytes"),
)


class Boxes:
    """What the explorer shows of machines: the given ones, and those of the bank."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        every = by_name(profiles) | {name: Profile.load(f"bank:{name}") for name in bank() if name not in profiles}
        self.yours = next(iter(profiles), "")
        self.profiles = {name: one for name, one in every.items() if any(natives(one, what) for what in COLLECTIVES)}

    def chosen(self, now: Now) -> dict[str, Profile]:
        return {name: self.profiles[name] for name in (now.first, now.second, now.third) if name in self.profiles}

    def picture(self, now: Now) -> Drawing | None:
        """The lines of those that were measured with this collective."""
        found = {name: one for name, one in self.chosen(now).items() if natives(one, now.collective)}
        return draw_boxes(found, now.collective, now.view, self.yours, 1 << now.log2_bytes) if found else None

    def report(self, now: Now) -> list[str]:
        """What each takes at this size, by its curve where that was not measured, and where that comes from."""
        lines, num_bytes = [], 1 << now.log2_bytes
        for name, profile in self.chosen(now).items():
            seconds, interval = natives(profile, now.collective).get(num_bytes), ""
            if seconds is None:
                with suppress(ValueError, ImportError):  # not measured, at too few sizes, or there is no scipy
                    curve = profile.curve(now.collective)
                    low, high = map(time_words, curve.interval_s(num_bytes))
                    seconds, interval = curve.seconds(num_bytes), f" by its curve ({low} to {high})"
            said = f"{now.collective} was not measured"
            if seconds is not None:
                rate = rate_words(busbw_factor(now.collective, profile.num_ranks) * num_bytes / seconds)
                said = f"{bytes_words(num_bytes)} in {time_words(seconds)}{interval}, busbw {rate}"
            source = profile.provenance.get("source", {})
            origin = [source[key] for key in ("repository", "licence", "notes") if key in source]
            lines += [f"{name}: {said}", f"    {'; '.join([profile.provenance['name'], *origin])}"]
        return lines


@shows(SETTINGS)
def boxes(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over what collectives take on up to three machines of the bank, or on your own.

    `profiles`, by name, are put before those of the bank; the first is shown at first, in black. Raises ValueError for
    what is no profile.
    """
    shown = Boxes(profiles or {})
    names = tuple(shown.profiles)
    own = [name for name in profiles or {} if name in names]
    listed = {
        one.name: one._replace(choices=names if one.name == "first" else (NONE, *names))
        for one in SETTINGS
        if not one.choices
    }
    if own:
        listed["first"] = listed["first"]._replace(default=own[0])
    settings = [listed.get(one.name, one) for one in SETTINGS]
    return Explorer(settings, {"picture": shown.picture}, shown.report)
