"""Lists of numbers or names in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each run without a gap; the numbers are in ascending order.

    >>> runs([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    runs_so_far: list[tuple[int, int]] = []
    for number in numbers:
        if runs_so_far and number == runs_so_far[-1][1] + 1:
            first, _ = runs_so_far[-1]
            runs_so_far[-1] = (first, number)
        else:
            runs_so_far.append((number, number))
    return runs_so_far


def run_words(numbers: Iterable[int], to: str) -> list[str]:
    """Return ascending whole numbers as text; a run without a gap is given by its ends.

    >>> run_words([0, 1, 2, 5], " to ")
    ['0 to 2', '5']
    """
    return [str(first) if first == last else f"{first}{to}{last}" for first, last in runs(numbers)]


def listed(noun: str, numbers: Iterable[int]) -> str:
    """Return a noun with numbers; a run of three and more without a gap is given by its ends.

    >>> listed("rank", [3]), listed("rank", [0, 1, 2, 3, 6]), listed("step", [1, 4])
    ('rank 3', 'ranks 0 to 3 and 6', 'steps 1 and 4')
    """
    different = sorted(set(numbers))
    parts = []
    for first, last in runs(different):
        if last - first >= 2:
            parts.append(f"{first} to {last}")
        else:
            parts += [str(number) for number in range(first, last + 1)]
    plural = "s" if len(different) > 1 else ""
    return f"{noun}{plural} {and_joined(parts)}"


def and_joined(parts: Sequence[str]) -> str:
    """Return parts with commas between them, and "and" before the last.

    >>> and_joined(["forward"]), and_joined(["forward", "loader", "optimizer"])
    ('forward', 'forward, loader and optimizer')
    """
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
