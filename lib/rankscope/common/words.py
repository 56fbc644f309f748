"""Words for sentences and messages: numbers, lists, and texts of foreign files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 400  # of an error message, which may quote a foreign file


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


def count_of(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless the number is one.

    >>> count_of(1, "rank"), count_of(2, "rank"), count_of(3, "batch")
    ('1 rank', '2 ranks', '3 batches')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('tch') else 's'}"


def is_are(number: int) -> str:
    """Return the verb that follows a count: "is" after one, else "are"."""
    return "is" if number == 1 else "are"


def error_words(error: BaseException) -> str:
    """Return the class of an error and its text, if its `__str__` returns one.

    >>> error_words(KeyError("lost"))
    "KeyError: 'lost'"
    """
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return f"{name}, whose __str__ raises an error"


def printable(text: str, keep: str = "") -> str:
    """Return a text in which characters that are not printable are spaces or escapes, except for those in `keep`.

    Such characters, in a foreign file for example, could control the terminal.

    >>> print(printable("a\\x1b[31m\\ud800\\tb"))
    a\\x1b[31m\\ud800 b
    """
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def one_line(text: str) -> str:
    """Return a text for an error message: printable, and without its middle if it is longer than 400 characters.

    >>> len(one_line("got " + "9" * 5000))
    403
    """
    line = printable(text)
    if len(line) <= _MOST_CHARACTERS:
        return line
    half = _MOST_CHARACTERS // 2
    return f"{line[:half]} … {line[-half:]}"


def _escape(char: str) -> str:
    if char.isspace():
        return " "
    return char.encode("unicode_escape").decode()
