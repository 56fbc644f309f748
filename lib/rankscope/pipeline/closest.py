"""`closest`: a real run made again while it is far from its prediction, since other work on a machine delays some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..common.checks import function, number, whole

Measured = TypeVar("Measured")


def closest(
    measure: Callable[[], Measured], off: Callable[[Measured], float], *, within: float, tries: int = 20
) -> Measured:
    """Call `measure` until what it returns is off by `within` at most, either way; return that, or the closest of all.

    What is off in each of `tries` runs is off by itself, and not by what else the machine did. Raises ValueError for a
    bound below 0 and for no tries.

    >>> times_s = iter([1.9, 1.4, 0.98, 1.0])
    >>> closest(lambda: next(times_s), lambda seconds: seconds / 1.0 - 1, within=0.25)
    0.98
    """
    within, tries = number("within", within, 0), whole("tries", tries, 1)
    function("off", off)
    best: Measured = function("measure", measure)()
    least = abs(off(best))
    for _ in range(tries - 1):
        if least <= within:
            break
        found = measure()
        distance = abs(off(found))
        if not least <= distance:  # nor where the first is not a number
            best, least = found, distance
    return best
