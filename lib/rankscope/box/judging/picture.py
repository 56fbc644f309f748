"""Measured machines next to each other: the bus bandwidth of the backends' own collectives, by size."""

from __future__ import annotations

from collections.abc import Mapping

from ...common.checks import each, of_type
from ...common.units import bytes_words, parse_bytes, rate_range_words, three_digits
from ...drawing.drawing import Drawing
from ...drawing.grid import draw_grid
from ...drawing.palette import WorkLook, ramp
from ..machines import PREFIX, bank
from ..profile import Profile
from .peers import peers_of, reached_by

_DARKEST = 0.3  # of the ramp, which is seen on dark paper
SIZES = tuple(bytes_words(4**power) for power in range(5, 18))


def draw_machines(
    profiles: Mapping[str, Profile], collective: str = "allreduce", size: str = "64 MiB", title: str | None = None
) -> Drawing:
    """Draw the bus bandwidth of machines by size, each in the hue of its share of the highest.

    `profiles` are the machines by name. The title has the rate of the first one at `size`, one of `SIZES`, and
    the deck those of the others. A rate between measured sizes has a "≈", and sizes beyond them are left out. Raises
    ValueError if there are no profiles.
    """
    each("profiles", of_type("profiles", profiles, dict).values(), of_type, Profile)
    if not profiles:
        raise ValueError("profiles must be at least one machine, got none")
    named = {bank().get(name.removeprefix(PREFIX), name): profile for name, profile in profiles.items()}
    rows: dict[str, list[tuple[str, str]]] = {name: [] for name in named}
    first, *_ = rows
    columns = []
    words = f"Not measured at {size}"
    deck = f"busbw of {collective} [GB/s]"
    for one_size in SIZES:
        num_bytes = parse_bytes("size", one_size)
        rates = reached_by(named, collective, num_bytes)
        if not rates and one_size != size:
            continue
        columns.append(one_size)
        highest = max(rates.values(), default=0.0)
        for name, cells in rows.items():
            cell = "paper", ""
            if name in rates:
                about = "" if num_bytes in named[name].native[collective] else "≈"
                hue = ramp(max(rates[name] / highest, _DARKEST))
                cell = hue, f"{about}{three_digits(rates[name] / 1e9)}"
            cells.append(cell)
        if one_size == size and first in rates:
            *_, kind = first.split(", ")
            words = f"{kind}: {three_digits(rates.pop(first) / 1e9)}"
            if rates:
                words += f" vs {three_digits(max(rates.values()) / 1e9)}"
                deck = f"Others reach {rate_range_words(rates.values())} at {size}; busbw of {collective}"
            words += " GB/s"
    looks = {"highest of its size": WorkLook(ramp(1), False)}
    return draw_grid([*rows.items()], columns, size, looks, title or words, deck)


def draw_with_peers(mine: Profile) -> Drawing:
    """Draw a profile's own collective next to those of similar machines of the bank; see `peers_of`.

    The collective is the one with the highest bus bandwidth. Raises ValueError if none has a bus bandwidth, as on one
    rank.
    """
    native = of_type("profile", mine, Profile).native
    highest = {collective: max(mine.busbw(collective).values(), default=0.0) for collective in native}
    if not any(highest.values()):
        raise ValueError("there is nothing to draw: the profile has no bus bandwidth, as on one rank")
    collective = max(highest, key=highest.__getitem__)
    return draw_machines({"yours": mine, **peers_of(mine)}, collective, largest_size(mine, collective))


def largest_size(profile: Profile, collective: str) -> str:
    """Return the largest of `SIZES` at which a collective was measured, else the largest below those that were."""
    measured = profile.busbw(collective)
    exact = [size for size in SIZES if parse_bytes("size", size) in measured]
    below = [size for size in SIZES if parse_bytes("size", size) <= max(measured) or size == SIZES[0]]
    return (exact or below)[-1]
