"""Several numbers or names as a sentence lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each run without a gap; the numbers rise.

    >>> runs([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def run_words(numbers: Iterable[int], to: str) -> list[str]:
    """Return rising whole numbers as text, those without a gap between them by their ends.

    >>> run_words([0, 1, 2, 5], " to ")
    ['0 to 2', '5']
    """
    return [f"{first}" if first == last else f"{first}{to}{last}" for first, last in runs(numbers)]


def listed(noun: str, numbers: Iterable[int]) -> str:
    """Name some of a kind by their numbers; three and more without a gap by their ends.

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
