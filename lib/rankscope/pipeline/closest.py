"""`closest`: a real run repeated while it is far from its prediction, because other work on a machine delays some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..common.checks import function, number, whole

Measured = TypeVar("Measured")


def closest(
    measure: Callable[[], Measured], off: Callable[[Measured], float], *, within: float, tries: int = 20
) -> Measured:
    """Call `measure` until its result is off by at most `within` in either direction, and return the closest result.

    If all `tries` results are off by more, the cause is probably not other work on the machine. Raises ValueError if
    `within` is below 0 or `tries` is below 1.

    >>> times_s = iter([1.9, 1.4, 0.98, 1.0])
    >>> closest(lambda: next(times_s), lambda seconds: seconds / 1.0 - 1, within=0.25)
    0.98
    """
    within = number("within", within, 0)
    function("off", off)
    results: list[tuple[float, Measured]] = []
    for _ in range(whole("tries", tries, 1)):
        result = function("measure", measure)()
        results.append((abs(off(result)), result))
        if results[-1][0] <= within:
            break
    return min(results, key=lambda pair: pair[0])[1]
