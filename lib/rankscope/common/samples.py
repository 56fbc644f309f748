"""Which iterations of a measurement count."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_CLEAN = 4  # with fewer clean iterations, all are used


def used_places(clean: Sequence[bool]) -> tuple[int, ...]:
    """Return the indices of the clean iterations, or of all if fewer than `LEAST_CLEAN` are clean.

    >>> used_places([True, False, True, True, True]), used_places([True, False, True])
    ((0, 2, 3, 4), (0, 1, 2))
    """
    clean_iterations = tuple(index for index, is_clean in enumerate(clean) if is_clean)
    if len(clean_iterations) < LEAST_CLEAN:
        return tuple(range(len(clean)))
    return clean_iterations
