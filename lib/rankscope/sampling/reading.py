"""`ReadingOrder`: an iterator over what one rank reads, made of pieces, which counts and can be pickled.

`unmoved` puts samplers back after an audit has read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import chain
from operator import length_hint
from typing import Any, Self


class ReadingOrder(chain[Any]):
    """The items in one piece after the other, at the speed of `chain`; unlike a `chain`, it can be pickled."""

    pieces: _Pieces

    @classmethod
    def of(cls, pieces: Iterable[Iterable[Any]]) -> Self:
        """Return an iterator over the items of all pieces. A piece is asked for when the one before it has ended."""
        source = _Pieces(pieces)
        order: Any = cls.from_iterable(source)
        order.pieces = source
        return order  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the rest of the epoch, shuffled and in lists: as much memory as torch needs for all of it."""
        remaining = list(self.pieces.remaining)
        self.pieces.remaining = iter(remaining)  # the list has used it up, and this iterator may go on, too
        return ReadingOrder.of, ([copy(self.pieces.piece), *remaining],)


class _Pieces(Iterator[Iterator[Any]]):
    """An iterator over each of the pieces; `piece` is the last one that was returned."""

    def __init__(self, pieces: Iterable[Iterable[Any]]) -> None:
        self.remaining = iter(pieces)
        self.piece: Iterator[Any] = iter(())
        self.is_finished = False  # whether an item after the last one was asked for
        self._num_begun = 0  # items of all pieces up to `piece`

    def __next__(self) -> Iterator[Any]:
        try:
            piece = iter(next(self.remaining))
        except StopIteration:
            self.is_finished = True
            raise
        self._num_begun += length_hint(piece)  # of an iterator: the number of items that it has left
        self.piece = piece
        return piece

    @property
    def num_read(self) -> int:
        """The number of items that were taken. The pieces must have a length."""
        return self._num_begun - length_hint(self.piece)


class Movable:
    """The base of our own samplers: reading moves them on in their epoch, and they can be put back."""

    def _position(self) -> Any:
        """Return where the sampler is: its epoch, and what it reads next."""
        raise NotImplementedError

    def _return_to(self, position: Any) -> None:
        raise NotImplementedError


@contextmanager
def unmoved(samplers: Iterable[Any]) -> Iterator[None]:
    """Put our own samplers back to where they are now, at the end of the block, in which an audit reads them."""
    before = [(sampler, sampler._position()) for sampler in samplers if isinstance(sampler, Movable)]
    try:
        yield
    finally:
        for sampler, position in before:
            sampler._return_to(position)
