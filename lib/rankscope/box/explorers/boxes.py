"""The explorer of notebook 05: how long a collective takes on the GPU boxes of the bank."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, rate_words, time_words
from ...explorers.explorer import Explorer, Now, Setting, Steps, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from .. import Profile, bank
from ..machines import origin_of
from ..points import busbw_factor

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "all_to_all")
PRESETS: dict[str, dict[str, Any]] = {
    "64 KiB: latency counts": {"message": "64 KiB"},
    "two GPUs, with and without peer-to-peer access": {"num_ranks": 2},
    "all-to-all": {"collective": "all_to_all"},
}


def boxes() -> Explorer:
    """Return controls over the time of collectives on the bank's machines with as many GPUs."""
    machines = {name: Profile.load(f"bank:{name}") for name in bank()}

    def times_s(now: Now) -> dict[str, float]:
        """Return the seconds of each machine that was measured at this size. Raises ValueError if none was."""
        seconds = {}
        for name, profile in machines.items():
            time_s = profile.native_s(now.collective).get(parse_bytes("message", now.message))
            if time_s and profile.num_ranks == now.num_ranks:
                seconds[name] = time_s
        if not seconds:
            raise ValueError(
                f"no machine with {now.num_ranks} GPUs was measured with {now.collective} of {now.message}"
            )
        return seconds

    def draw(now: Now) -> list[Drawing]:
        return [draw_ranking(times_s(now), title=f"{now.collective} of {now.message} on {now.num_ranks} GPUs")]

    def report(now: Now) -> list[str]:
        """The time of each machine, its bus bandwidth, and where it is from."""
        num_bytes = busbw_factor(now.collective, now.num_ranks) * parse_bytes("message", now.message)
        lines = []
        for name, time_s in times_s(now).items():
            about = machines[name].provenance
            origin = "; ".join([about["name"], *origin_of(about.get("source", {}))])
            lines.append(f"{name}: {time_words(time_s)}, busbw {rate_words(num_bytes / time_s)}; {origin}")
        return lines

    settings = (
        Setting("collective", "allreduce", COLLECTIVES, "collective"),
        Setting("num_ranks", 8, Steps((2, 4, 8, 16)), "GPUs"),
        Setting("message", "64 MiB", sizes(10, 33), "message"),
    )
    return Explorer(settings, draw, report, PRESETS)
