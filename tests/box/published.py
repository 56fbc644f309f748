"""Curves that others measured and published, from the bank of machines; every second size left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rankscope.box import Profile, bank
from rankscope.box.curve import Curve
from rankscope.box.points import NATIVE

LEAST = 12  # sizes of a curve


class Published(NamedTuple):
    """A curve: the machine by its name in the bank, what it is of, and seconds by size."""

    machine: str
    name: str
    measured_s: dict[int, float]


class Left(NamedTuple):
    """A size that was left out of a curve, the seconds that were measured there, and what is known without it."""

    known: Curve
    num_bytes: int
    seconds: float

    @property
    def error(self) -> float:
        """How far the curve is off, as a share of what was measured."""
        return self.known.seconds(self.num_bytes) / self.seconds - 1


def published() -> Iterator[Published]:
    """Yield every curve of at least LEAST sizes above 0: collectives by the backend itself, messages and copies."""
    for machine in bank():
        by_key: dict[tuple[object, ...], dict[int, float]] = {}
        for point in Profile.load(f"bank:{machine}").points:
            if point.options.get("algorithm", NATIVE) == NATIVE and point.num_bytes:
                key = point.what, *sorted(point.options.items())
                by_key.setdefault(key, {})[point.num_bytes] = point.median_s
        for key, measured_s in by_key.items():
            if len(measured_s) >= LEAST:
                yield Published(machine, f"{machine} {key}", dict(sorted(measured_s.items())))


def left_out(curves: list[Published], first: int = 0) -> Iterator[Left]:
    """Yield each size that is not kept, of which every second is, from the `first` on."""
    for one in curves:
        sizes = list(one.measured_s)
        known = Curve({size: one.measured_s[size] for size in sizes[first::2]})
        for size in sizes[1 - first :: 2]:
            yield Left(known, size, one.measured_s[size])
