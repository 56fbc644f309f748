"""`Schedule`: which rank sends which chunks to which rank at which step, as arrays and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import number, of_type, one_of, whole
from ..common.words import count_of
from .steps import Bools, Ints, ScheduleError, Step

SUMS = ("allreduce", "reduce", "reduce_scatter")  # each rank has a share in every chunk
MOVES = ("broadcast", "scatter", "gather", "allgather", "all_to_all")  # each chunk comes from one rank
COLLECTIVES = (*SUMS, *MOVES, "barrier")
RUNS_IN = ("gather", "allgather")  # a rank passes only its own run of chunks
RUNS_OUT = ("scatter", "reduce_scatter")  # a rank gets only its own run of chunks


class Schedule(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The steps of `num_ranks` ranks in one collective, on a buffer cut into `num_chunks` chunks.

    `source` is a list of steps, or a function that returns an iterator over them, as a generator does: then a long
    schedule takes no memory. Steps that differ only in their chunks may share the other columns, which makes
    `simulate` faster.

    Chunks have equal sizes. In reduce_scatter, scatter, gather and allgather, rank r owns the r-th of `num_ranks` equal
    runs of chunks. In all_to_all, chunks are numbered through the buffers of all ranks: first those that rank 0 sends,
    then those of rank 1 and so on, in each buffer ordered by receiver.

    `ports` is the maximum number of messages that a rank sends, or receives, in one step. `lag` is the number of steps
    after which a received sum may be used: step s requires only sums received up to step s - lag. With a lag above 1,
    adding overlaps with the next transfers.

    `algorithm` is a name without spaces. Raises ValueError if the collective is unknown, a number is out of range, or
    `source` is an iterator, whose steps would be there only once.
    """

    collective: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    source: Sequence[Step] | Callable[[], Iterable[Step]]
    root: int = 0
    ports: int = 1
    lag: int = 1

    def __post_init__(self) -> None:
        one_of("collective", self.collective, COLLECTIVES)
        for name in ("num_ranks", "num_chunks", "ports", "lag"):
            whole(name, getattr(self, name), 1)
        whole("root", self.root, 0, self.num_ranks - 1)
        num_runs = {"all_to_all": self.num_ranks**2, **dict.fromkeys((*RUNS_IN, *RUNS_OUT), self.num_ranks)}
        multiple = num_runs.get(self.collective, 1)
        if self.num_chunks % multiple:
            raise ValueError(f"num_chunks of {self.collective} must be a multiple of {multiple}, got {self.num_chunks}")
        if not callable(self.source) and not isinstance(self.source, Sequence):
            raise ValueError(f"source must be a list of steps, or a function that returns them, got {self.source!r}")

    @cached_property
    def num_steps(self) -> int:
        return sum(1 for _ in self.steps())

    def steps(self) -> Iterator[Step]:
        """Yield the steps."""
        return iter(self.source() if callable(self.source) else self.source)

    def chunk_bytes(self, num_bytes: float) -> NDArray[np.float64]:
        """Return the bytes of each chunk if each rank's whole buffer has `num_bytes`. Chunks of a barrier have 0."""
        total = {"barrier": 0.0, "all_to_all": num_bytes * self.num_ranks}.get(self.collective, num_bytes)
        return np.full(self.num_chunks, total / self.num_chunks)

    def chunk_ends(self, num_elements: int) -> list[int]:
        """Return the offsets at which chunks begin and end, as num_chunks + 1 numbers, if each rank has `num_elements`.

        Offsets refer to the whole buffer, in all_to_all to the buffers of all ranks in a row. Chunks are as even as
        possible. Raises ValueError if one of them would have no element, or if the tensors of all_to_all cannot be cut
        into equal runs, one for each receiver.

        Each chunk of a barrier has one element, whatever `num_elements` is.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).chunk_ends(10)
        [0, 2, 5, 7, 10]
        """
        if self.collective == "barrier":
            return list(range(self.num_chunks + 1))
        if self.collective == "all_to_all" and num_elements % self.num_ranks:
            raise ValueError(
                f"tensors of all_to_all must have a multiple of {self.num_ranks} elements, got {num_elements}"
            )
        if self.collective in (*RUNS_IN, "all_to_all"):  # each rank passes a part of the whole
            num_elements *= self.num_ranks
        if num_elements < self.num_chunks:
            least = count_of(self.num_chunks, "element")
            raise ValueError(f"the whole buffer must have at least {least}, one for each chunk, got {num_elements}")
        return [chunk * num_elements // self.num_chunks for chunk in range(self.num_chunks + 1)]

    def origins(self) -> Ints:
        """Return the rank where each chunk originates, for the collectives in `MOVES`."""
        if self.collective in ("broadcast", "scatter"):
            return np.full(self.num_chunks, self.root)
        return self._owners()

    def initial_chunks(self) -> Bools:
        """Return a mask of the chunks that each rank has at the start, of shape (num_ranks, num_chunks)."""
        return self._is_at(self.origins() if self.collective in MOVES else None)

    def wanted(self) -> Bools:
        """Return a mask of the chunks that each rank must have at the end, of shape (num_ranks, num_chunks)."""
        if self.collective in ("reduce", "gather"):
            return self._is_at(np.full(self.num_chunks, self.root))
        if self.collective in RUNS_OUT:
            return self._is_at(self._owners())
        if self.collective == "all_to_all":  # of each sender, the chunks are in the order of their receivers
            return self._is_at(self._owners(self.num_chunks // self.num_ranks))
        return self._is_at(None)

    def _owners(self, period: int | None = None) -> Ints:
        """The rank that owns each chunk: of so many chunks, or of all, each rank owns as many, one after the other."""
        period = period or self.num_chunks
        return np.arange(self.num_chunks) % period * self.num_ranks // period

    def _is_at(self, rank_of_chunk: Ints | None) -> Bools:
        """A mask of the chunks at these ranks, or at all."""
        if rank_of_chunk is None:
            return np.broadcast_to(np.True_, (self.num_ranks, self.num_chunks))
        return np.equal(np.arange(self.num_ranks)[:, None], rank_of_chunk)

    def traffic(self, num_bytes: float) -> NDArray[np.float64]:
        """Return the bytes that each rank sends to each other, as [src, dst], if whole buffers have `num_bytes`.

        Raises ValueError if `num_bytes` is not a finite number of at least 0.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).traffic(1024)[0].tolist()
        [0.0, 1536.0, 0.0, 0.0]
        """
        sizes = self.chunk_bytes(number("num_bytes", num_bytes, 0))
        link_bytes = np.zeros((self.num_ranks, self.num_ranks))
        for step in self.steps():
            rows = step.by_chunk()
            np.add.at(link_bytes, (rows.src, rows.dst), sizes[rows.chunk])
        return link_bytes

    def to_text(self) -> str:
        """Return the schedule as text: a header line, and one line ``step: src>dst:first-last …`` per step.

        A "+" after a transfer means that the receiver adds, a "=" that it replaces.

        >>> from . import ALGORITHMS
        >>> print(ALGORITHMS["allreduce"]["ring"](2).to_text())
        allreduce ring ranks=2 chunks=2 root=0 ports=1 lag=1
        0: 0>1:0+ 1>0:1+
        1: 0>1:1= 1>0:0=
        <BLANKLINE>
        """
        header = [f"{word}={getattr(self, name)}" for word, name in _HEADER.items()]
        lines = [" ".join([self.collective, self.algorithm, *header])]
        lines += [" ".join([f"{number}:", *step.to_words()]) for number, step in enumerate(self.steps())]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Parse a schedule in the format of `to_text`. Empty lines and lines that start with # are skipped.

        Raises ScheduleError if the text is not such a schedule. The message names the line, counted from 1. Whether
        the ranks and chunks exist is for `verify` to say.
        """
        schedule: Schedule | None = None
        steps: list[Step] = []
        for line_number, line in enumerate(of_type("text", text, str).splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if schedule is None:
                    schedule = _of_header(words, steps)
                elif words[0] != f"{len(steps)}:":
                    raise ValueError(f"expected step {len(steps)}:, got {words[0]!r}")
                else:
                    steps.append(Step.from_words(words[1:]))
            except ValueError as error:
                raise ScheduleError(f"line {line_number}: {error}") from None
        if schedule is None:
            raise ScheduleError("the text of a schedule must start with a header line, and this one is empty")
        return schedule

    def __repr__(self) -> str:
        return (
            f"<Schedule: {self.collective} {self.algorithm}, {self.num_ranks} ranks, {self.num_chunks} chunks, "
            f"{self.num_steps} steps>"
        )


_HEADER = {"ranks": "num_ranks", "chunks": "num_chunks", "root": "root", "ports": "ports", "lag": "lag"}


def _of_header(words: list[str], steps: list[Step]) -> Schedule:
    """Return the schedule of the words of a header line. Raises ValueError for anything else."""
    if len(words) < 2 or "=" in words[1]:
        raise ValueError(f"expected a collective and the name of an algorithm, got {words[:2]}")
    collective, algorithm, *fields = words
    # A schedule refuses what is missing.
    header: dict[str, Any] = {"collective": collective, "algorithm": algorithm, "num_ranks": None, "num_chunks": None}
    for field in fields:
        word, _, value = field.partition("=")
        name = _HEADER.get(word, word)
        if header.get(name) is not None:
            raise ValueError(f"expected {word} once, got {field!r} as well")
        if word not in _HEADER:
            raise ValueError(f"expected {', '.join(_HEADER)}, got {field!r}")
        header[name] = int(value)
    return Schedule(source=steps, **header)
