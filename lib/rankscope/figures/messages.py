"""What a figure says of the messages of a step."""

from __future__ import annotations

from typing import NamedTuple

from ..collectives import Step


class Message(NamedTuple):
    """All that one rank sends to one other in a step; `reduce` says that it is added, or some of it is."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: bool

    def words(self, most: int = 7) -> str:
        """Return the chunks as text, or only how many they are where that takes more than `most` characters.

        >>> Message(0, 1, (0, 1, 2, 5), False).words(), Message(0, 1, (1, 3, 5, 7), False).words()
        ('0–2,5', '1,3,5,7')
        >>> Message(0, 1, (1, 3, 5, 7, 9), False).words()
        '5 chunks'
        """
        runs: list[list[int]] = []
        for chunk in sorted(self.chunks):
            if runs and chunk == runs[-1][-1] + 1:
                runs[-1][1:] = [chunk]
            else:
                runs.append([chunk])
        text = ",".join("–".join(map(str, run)) for run in runs)
        return text if len(text) <= most else f"{len(self.chunks)} chunks"


def messages(step: Step) -> list[Message]:
    """Return the messages of a step in the order of their first transfers."""
    found: dict[tuple[int, int], tuple[list[int], bool]] = {}
    for src, dst, first, count, reduce in zip(*(column.tolist() for column in step), strict=True):
        chunks, added = found.get((src, dst), ([], False))
        found[src, dst] = [*chunks, *range(first, first + count)], added or reduce
    return [Message(src, dst, tuple(chunks), reduce) for (src, dst), (chunks, reduce) in found.items()]
