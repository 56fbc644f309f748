"""`Step`: the transfers of one step of a schedule, as arrays and as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TRANSFER = re.compile(r"([0-9]{1,9})>([0-9]{1,9}):([0-9]{1,9})(?:-([0-9]{1,9}))?([+=])")  # src>dst:first-last


class ScheduleError(ValueError):
    """The schedule does not compute the result of its collective.

    `step`, `rank` and `chunk` state where it is wrong, or are None; the message begins with those that are stated."""

    def __init__(
        self, problem: str, step: int | None = None, rank: int | None = None, chunk: int | None = None
    ) -> None:
        self.step = step
        self.rank = rank
        self.chunk = chunk
        where = [f"{noun} {number}" for noun, number in vars(self).items() if number is not None]
        super().__init__(": ".join([", ".join(where), problem] if where else [problem]))


class Step(NamedTuple):
    """The transfers of one step as columns, with one entry per transfer.

    `src` sends the chunks `chunk` … `chunk + num_chunks - 1` to `dst`, which adds them to its own if `reduce` is true,
    and otherwise replaces its own.

    All transfers of a step read the chunks as they were before the step. Transfers between the same two ranks form one
    message.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    num_chunks: Ints
    reduce: Bools

    @classmethod
    def of(
        cls, src: ArrayLike, dst: ArrayLike, chunk: ArrayLike, num_chunks: ArrayLike = 1, reduce: ArrayLike = False
    ) -> Step:
        """Make a step from columns, or from single values shared by all transfers.

        Raises ValueError for ranks and chunks that are not whole numbers, as numpy's empty lists are not.
        """
        *numbers, adds = np.broadcast_arrays(*map(np.atleast_1d, (src, dst, chunk, num_chunks, reduce)))
        if any(column.dtype.kind not in "iu" for column in numbers):
            raise ValueError(f"ranks and chunks of a step must be whole numbers, got {numbers}")
        return cls._make([*(column.astype(np.int64) for column in numbers), adds.astype(bool)])

    @classmethod
    def joined(cls, *steps: Step) -> Step:
        """Return one step with the transfers of several, in their order."""
        return cls._make(map(np.concatenate, zip(*steps, strict=True)))

    def by_chunk(self) -> Step:
        """Return the same transfers with one row per chunk."""
        if (self.num_chunks == 1).all():
            return self
        counts = np.intp(self.num_chunks)  # in a browser, which has 32 bits, numpy repeats by no wider numbers
        rows = Step._make(np.repeat(column, counts) for column in self)
        transfer = np.repeat(np.arange(self.src.size), counts)
        return rows._replace(chunk=rows.chunk + number_among_equal(transfer), num_chunks=np.ones_like(transfer))

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield each transfer as a tuple of Python's numbers."""
        return zip(*(column.tolist() for column in self), strict=True)

    def to_words(self) -> list[str]:
        """Return each transfer as text.

        >>> Step.of([0, 3], [1, 2], [4, 0], [3, 1], [True, False]).to_words()
        ['0>1:4-6+', '3>2:0=']
        """
        words = []
        for src, dst, chunk, count, reduce in self.rows():
            last = f"-{chunk + count - 1}" if count > 1 else ""
            words.append(f"{src}>{dst}:{chunk}{last}{'+' if reduce else '='}")
        return words

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Step:
        """Parse what `to_words` returns. Raises ValueError for a word that is no such transfer."""
        rows = []
        for word in words:
            match = _TRANSFER.fullmatch(word)
            if match is None:
                raise ValueError(f"expected src>dst:first-last with + or = after it, got {word!r}")
            src, dst, first, last = (int(digits or match[3]) for digits in match.groups()[:4])
            rows.append((src, dst, first, last - first + 1, match[5] == "+"))
        return cls.of(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


def number_among_equal(keys: Ints) -> Ints:
    """Return for each key how many keys before it are equal to it.

    >>> number_among_equal(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(keys, kind="stable")  # equal keys stay in their order
    ordered = keys[order]
    num_before = np.empty_like(keys)
    num_before[order] = np.arange(keys.size) - np.searchsorted(ordered, ordered)
    return num_before
