"""How outputs are stored: as plain numbers and texts, and long columns as one number or hash per block.

A block hides no difference: a changed entry changes the number or the hash of its block, whose place the comparison
names. `make` prints the entries themselves, if asked for one case.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rankscope.timeline import Timeline

Cases = dict[str, Callable[[], Any]]  # by name, in a fixed order; each is computed when it is asked for
RELATIVE_TOLERANCE = 1e-12
LEAST = 1e-18  # seconds, bytes and shares below it are what rounding leaves of 0
_SHORT = 24  # entries of a column that is stored whole
_INTS_PER_BLOCK = 64
_FLOATS_PER_BLOCK = 16


def plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays as lists, fractions as texts, named tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, str | bool | int | float | None):
        return value
    return [plain(entry) for entry in value]


def ints(column: ArrayLike) -> Any:
    """Return whole numbers, or of many: how many, the first ones, and a hash of each block of 64."""
    numbers = np.asarray(column, dtype=np.int64)
    if numbers.size <= _SHORT:
        return numbers.tolist()
    hashes = [hashlib.sha256(block.tobytes()).hexdigest()[:6] for block in _blocks(numbers, _INTS_PER_BLOCK)]
    return {"count": numbers.size, "first": numbers[:8].tolist(), f"hash of each {_INTS_PER_BLOCK}": hashes}


def floats(column: ArrayLike) -> Any:
    """Return numbers, or of many: how many, the first ones, and a weighted sum of each block of 16."""
    numbers = np.asarray(column, dtype=np.float64)
    if numbers.size <= _SHORT:
        return numbers.tolist()
    sums = []
    for block in _blocks(numbers, _FLOATS_PER_BLOCK):
        weights = 1 + np.arange(block.size) / _FLOATS_PER_BLOCK  # so that a changed order changes the sum
        sums.append(float(weights @ block))
    return {"count": numbers.size, "first": numbers[:4].tolist(), f"sum of each {_FLOATS_PER_BLOCK}": sums}


def _blocks(numbers: np.ndarray[Any, Any], size: int) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(0, numbers.size, size):
        yield numbers[start : start + size]


def timeline(spans: Timeline) -> dict[str, Any]:
    """Return the spans of a timeline in an order of their own, whatever order the timeline has them in."""
    rows = sorted((span.rank, span.lane, span.kind, span.item, span.start_s, span.stop_s) for span in spans)
    names = sorted({(lane, kind) for _, lane, kind, _, _, _ in rows})
    place = {name: index for index, name in enumerate(names)}
    return {
        "lanes and kinds": plain(names),
        "rank, lane and kind, item": ints([(row[0], place[row[1], row[2]], row[3]) for row in rows]),
        "start_s": floats([row[4] for row in rows]),
        "stop_s": floats([row[5] for row in rows]),
    }


def end_and_busy(spans: Timeline) -> list[float]:
    """Return when a timeline ends and for how long all its lanes are busy."""
    return [float(spans.end_s), float(spans.busy_s)]


def attempt(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function returns, or "refused" where it refuses the arguments, whatever words it uses."""
    try:
        return function(*arguments, **options)
    except ValueError:
        return "refused"


def fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes of a value, by name."""
    return {name: plain(getattr(value, name)) for name in names}


def differences(stored: Any, computed: Any, where: str = "") -> Iterator[str]:
    """Yield each place at which a computed value differs from the stored one: numbers by more than 1e-12 of them."""
    if isinstance(stored, dict) and isinstance(computed, dict):
        for key in {**stored, **computed}:
            if key not in computed or key not in stored:
                yield f"{where}/{key} is only in the {'stored' if key in stored else 'computed'} value"
            else:
                yield from differences(stored[key], computed[key], f"{where}/{key}")
    elif isinstance(stored, list) and isinstance(computed, list):
        if len(stored) != len(computed):
            yield f"{where} has {len(computed)} entries, stored are {len(stored)}"
        for index, (one, other) in enumerate(zip(stored, computed, strict=False)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not _are_equal(stored, computed):
        yield f"{where} is {computed!r}, stored is {stored!r}"


def _are_equal(stored: Any, computed: Any) -> bool:
    if isinstance(stored, float) and isinstance(computed, float | int) and not isinstance(computed, bool):
        both_undefined = math.isnan(stored) and math.isnan(computed)
        return both_undefined or math.isclose(stored, computed, rel_tol=RELATIVE_TOLERANCE, abs_tol=LEAST)
    return type(stored) is type(computed) and bool(stored == computed)
