"""`Schedule`: which rank sends which chunks to which rank at which step, generated a step at a time, and as text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import count_of, function, number, one_line, one_of, whole
from ..common.frozen import checked, each, frozen, optional

Ints = NDArray[np.int64]

SUMS = ("allreduce", "reduce", "reduce_scatter")  # each rank has a share in every chunk
MOVES = ("broadcast", "scatter", "gather", "allgather", "all_to_all")  # each chunk comes from one rank
COLLECTIVES = (*SUMS, *MOVES, "barrier")
ROOTED = ("reduce", "broadcast", "scatter", "gather")
RUNS_IN, RUNS_OUT = ("gather", "allgather"), ("scatter", "reduce_scatter")  # a rank passes, or gets, only its own run
MOST_RANKS, MOST_CHUNKS = 1 << 16, 1 << 26  # a column of all chunks takes 512 MiB
MOST_SEGMENTS, MOST_LAG = 1 << 16, 1 << 10  # more than any schedule gains by
MOST_KEPT = 1 << 13  # rows of a result that is kept in the cache of a schedule


def turns(keys: Ints) -> Ints:
    """Return how many equal keys stand before each.

    >>> turns(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(keys, kind="stable")
    ordered, found = keys[order], np.empty_like(keys)
    found[order] = np.arange(keys.size) - np.searchsorted(ordered, ordered)
    return found


class ScheduleError(ValueError):
    """A schedule that does not do what its collective promises; `step`, `rank`, `chunk` say where, or are None."""

    def __init__(
        self, message: str, step: int | None = None, rank: int | None = None, chunk: int | None = None
    ) -> None:
        super().__init__(one_line(message))
        self.step, self.rank, self.chunk = step, rank, chunk


class Step(NamedTuple):
    """The transfers of one step as columns, an entry a transfer.

    Chunks `chunk` … `chunk + num_chunks - 1` go from `src` to `dst`, which adds them to its own where `reduce` is set
    and replaces its own elsewhere.

    All transfers of a step read what was there before it. Those between the same two ranks are one message.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    num_chunks: Ints
    reduce: NDArray[np.bool_]

    @classmethod
    def of(
        cls, src: ArrayLike, dst: ArrayLike, chunk: ArrayLike, num_chunks: ArrayLike = 1, reduce: Any = False
    ) -> Step:
        """Make a step of columns, or of single values that all its transfers share; its columns are read-only."""
        numbers = []
        for values in (src, dst, chunk, num_chunks):
            column = np.asarray(values)
            if column.size and not np.issubdtype(column.dtype, np.integer):
                raise ValueError(f"ranks and chunks of a step must be whole numbers, got {values!r}")
            numbers.append(column.astype(np.int64))
        marks = np.asarray(reduce)
        if marks.size and marks.dtype != bool:
            raise ValueError(f"reduce must be True or False, one or a column, got {reduce!r}")
        columns = [np.atleast_1d(column).copy() for column in np.broadcast_arrays(*numbers, marks.astype(bool))]
        for column in columns:
            column.flags.writeable = False
        return cls(*columns)

    def by_chunk(self) -> Step:
        """Return the same transfers with a row for each single chunk."""
        if (self.num_chunks == 1).all():
            return self
        rows = np.repeat(np.arange(self.src.size), self.num_chunks)
        within = np.arange(rows.size) - np.repeat(np.cumsum(self.num_chunks) - self.num_chunks, self.num_chunks)
        return Step.of(self.src[rows], self.dst[rows], self.chunk[rows] + within, 1, self.reduce[rows])


class Phase:
    """`num_steps` steps in which the same ranks send to the same ranks; only the chunks change.

    `chunk` is a column, or a function from the step within the phase to one, called only when somebody asks: costing a
    schedule needs the routes and not the chunks.
    """

    def __init__(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        chunk: ArrayLike | Callable[[int], ArrayLike],
        num_chunks: ArrayLike = 1,
        reduce: Any = False,
        num_steps: int = 1,
    ) -> None:
        self._chunk = chunk
        self.num_steps = whole("num_steps", num_steps, 0)
        first = 0 if callable(chunk) else chunk
        self.src, self.dst, _, self.num_chunks, self.reduce = Step.of(src, dst, first, num_chunks, reduce)

    def step(self, number: int) -> Step:
        """Return the step of this number, from 0 within the phase."""
        chunk = self._chunk(number) if callable(self._chunk) else self._chunk
        return Step.of(self.src, self.dst, chunk, self.num_chunks, self.reduce)


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(f"{field} must be a name without spaces, got {value!r}")
    return value


@attrs.frozen(eq=False)
class Traffic:
    """Of one collective: `link_bytes[src, dst]`, how many messages there are, and each rank's `peak_buffer_bytes`.

    The peak counts the chunks that a rank holds and one message for each step of lag that comes in to be added. A chunk
    that has been passed on and is not part of the rank's result is freed.
    """

    link_bytes: NDArray[np.float64]
    num_messages: int
    peak_buffer_bytes: NDArray[np.float64]

    @property
    def sent_bytes(self) -> NDArray[np.float64]:
        """What each rank sends."""
        return np.asarray(self.link_bytes.sum(axis=1))


@frozen(eq=False)
class Schedule:
    """What `num_ranks` ranks do in one collective, on a buffer cut into `num_chunks` chunks.

    Chunks are of equal size, or of `weights[chunk]` shares. In reduce_scatter, scatter, gather and allgather rank r
    owns the r-th of `num_ranks` equal runs of chunks; in all_to_all the chunks count through the buffers of all ranks,
    those that rank 0 sends before those of rank 1, and within each those for rank 0 first.

    `ports` is the most messages that a rank sends, or receives, in one step. `lag` says how soon a received sum is
    used: in step s a rank needs only what it received up to step s - lag to be added, so that with a lag above 1 adding
    overlaps with the next transfers (and takes `lag` scratch buffers).

    Raises ValueError for an unknown collective and for numbers out of range.
    """

    collective: str = checked(one_of, COLLECTIVES)
    algorithm: str = checked(_name)
    num_ranks: int = checked(whole, 1, MOST_RANKS)
    num_chunks: int = checked(whole, 1, MOST_CHUNKS)
    phases: Callable[[], Iterable[Phase]] = checked(function, "that returns them")
    root: int = checked(whole, default=0)
    ports: int = checked(whole, 1, default=1)
    lag: int = checked(whole, 1, MOST_LAG, default=1)
    weights: tuple[int, ...] | None = checked(optional, each, whole, 0, default=None)

    def __attrs_post_init__(self) -> None:
        whole("root", self.root, 0, self.num_ranks - 1)
        each = self.num_ranks if self.collective in (*RUNS_IN, *RUNS_OUT) else 1
        each = self.num_ranks**2 if self.collective == "all_to_all" else each
        if self.num_chunks % each:
            raise ValueError(f"num_chunks of {self.collective} must be a multiple of {each}, got {self.num_chunks}")
        if self.weights is not None and len(self.weights) != self.num_chunks:
            raise ValueError(f"weights must be {self.num_chunks}, one a chunk, got {len(self.weights)}")

    @classmethod
    def of_steps(cls, steps: Iterable[Step], **header: Any) -> Schedule:
        """Make a schedule of steps; `header` holds the other fields."""
        return cls(phases=partial(iter, tuple(Phase(*step) for step in steps)), **header)

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """What has been computed from this schedule, and is kept for as long as it lives."""
        return {}

    @property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases())

    def steps(self) -> Iterator[Step]:
        """Yield the steps, each made when its turn comes."""
        for phase in self.phases():
            yield from map(phase.step, range(phase.num_steps))

    def header(self) -> dict[str, Any]:
        """Return all fields but the phases, for another schedule of the same kind."""
        names = (field.name for field in attrs.fields(Schedule) if field.name != "phases")  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def chunk_bytes(self, num_bytes: float) -> NDArray[np.float64]:
        """Return the bytes of each chunk where each rank's whole buffer has `num_bytes`; a barrier carries none.

        In all_to_all with weights the buffers of ranks differ: `num_bytes` is then their mean.
        """
        if self.collective == "barrier":
            return np.zeros(self.num_chunks)
        total = num_bytes * (self.num_ranks if self.collective == "all_to_all" else 1)
        if self.weights is None:
            return np.full(self.num_chunks, total / self.num_chunks)
        return np.asarray(self.weights, dtype=float) * (total / max(1, sum(self.weights)))

    def chunk_ends(self, num_elements: int) -> list[int]:
        """Return where the chunks begin and end, as num_chunks + 1 numbers, where each rank passes `num_elements`.

        They count through the whole buffer, and in all_to_all through those of all ranks. Chunks are as even as can
        be, or as the weights say; those of a barrier have one element of their own. Raises ValueError where a chunk
        would be left without an element.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).chunk_ends(10)
        [0, 2, 5, 7, 10]
        """
        if self.collective == "barrier":
            return list(range(self.num_chunks + 1))
        if self.weights is not None:
            return [0, *itertools.accumulate(self.weights)]
        n = self.num_ranks
        parts = n if self.collective in (*RUNS_IN, "all_to_all") else 1  # where a rank passes a part of the whole
        if num_elements * parts < self.num_chunks:
            least = count_of(self.num_chunks // parts, "element")
            raise ValueError(f"tensors must have at least {least}, one for each chunk, got {num_elements}")
        if self.collective == "all_to_all" and num_elements % n:
            raise ValueError(f"tensors of all_to_all must have a multiple of {n} elements, got {num_elements}")
        return [chunk * num_elements * parts // self.num_chunks for chunk in range(self.num_chunks + 1)]

    def origins(self) -> Ints:
        """Return the rank that each chunk comes from, for the collectives of `MOVES`."""
        return np.full(self.num_chunks, self.root) if self.collective in ("broadcast", "scatter") else self._owners()

    def _owners(self) -> Ints:
        """The rank that owns each chunk, where the chunks are dealt out in equal runs."""
        return np.arange(self.num_chunks) * self.num_ranks // self.num_chunks

    def given(self) -> NDArray[np.bool_]:
        """Return which rank has which chunk at the start, of shape (num_ranks, num_chunks)."""
        ranks = np.arange(self.num_ranks)[:, None]
        who = self.origins() if self.collective in MOVES else ranks
        return np.broadcast_to(ranks == who, (self.num_ranks, self.num_chunks))

    def wanted(self) -> NDArray[np.bool_]:
        """Return which rank must have which chunk in the end, of shape (num_ranks, num_chunks)."""
        ranks = np.arange(self.num_ranks)[:, None]
        who: Ints = ranks
        if self.collective in ("reduce", "gather"):
            who = np.full((1, 1), self.root)
        elif self.collective in RUNS_OUT:
            who = self._owners()
        elif self.collective == "all_to_all":
            block = self.num_chunks // self.num_ranks
            who = np.arange(self.num_chunks) % block * self.num_ranks // block
        return np.broadcast_to(ranks == who, (self.num_ranks, self.num_chunks))

    def traffic(self, num_bytes: float) -> Traffic:
        """Return what this puts on each link and into each rank's memory, each whole buffer having `num_bytes`.

        Raises ValueError for bytes that are not a finite number from 0 on.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).traffic(1024).link_bytes[0].tolist()
        [0.0, 1536.0, 0.0, 0.0]
        """
        sizes, ranks = self.chunk_bytes(number("num_bytes", num_bytes, 0)), self.num_ranks
        moves, wants, holds = self.collective in MOVES, self.wanted(), self.given().copy()
        link, scratch = np.zeros(ranks * ranks), np.zeros((self.lag, ranks))
        peak = held_bytes = holds @ sizes
        num_messages = 0
        for nth, step in enumerate(self.steps()):
            rows = step.by_chunk()
            pairs = rows.src * ranks + rows.dst
            np.add.at(link, pairs, sizes[rows.chunk])
            message, place = np.unique(pairs, return_inverse=True)
            num_messages += message.size
            added = scratch[nth % self.lag]  # the largest message that each rank receives in the step to add it
            added[:] = 0
            np.maximum.at(added, message % ranks, np.bincount(place, sizes[rows.chunk] * rows.reduce, message.size))
            if moves:
                holds[rows.dst, rows.chunk] = True
                held_bytes = holds @ sizes
            peak = np.maximum(peak, held_bytes + scratch.sum(axis=0))
            if moves:
                holds[rows.src, rows.chunk] &= wants[rows.src, rows.chunk]
        return Traffic(link.reshape(ranks, ranks), num_messages, peak)

    def to_text(self) -> str:
        """Return a line for the header and one for each step: ``step: src>dst:first-last`` with + to add, = to replace.

        >>> from . import ALGORITHMS
        >>> print(ALGORITHMS["allreduce"]["ring"](2).to_text())
        allreduce ring ranks=2 chunks=2 root=0 ports=1 lag=1
        0: 0>1:0+ 1>0:1+
        1: 0>1:1= 1>0:0=
        <BLANKLINE>
        """
        head = [self.collective, self.algorithm]
        head += [f"{word}={getattr(self, name)}" for word, name in _HEADER.items() if word != "weights"]
        if self.weights is not None:
            head.append(f"weights={','.join(map(str, self.weights))}")
        lines = [" ".join(head)]
        for nth, step in enumerate(self.steps()):
            words = [f"{nth}:"]
            for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True):
                chunks = f"{chunk}-{chunk + count - 1}" if count > 1 else chunk
                words.append(f"{src}>{dst}:{chunks}{'+' if reduce else '='}")
            lines.append(" ".join(words))
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Return the schedule that `to_text`, or a person, wrote; empty lines and those that start with # are skipped.

        Raises ScheduleError naming the line, counted from 1, and what is wrong in it.
        """
        lines = [(place, line.split()) for place, line in enumerate(text.splitlines(), 1)]
        lines = [(place, words) for place, words in lines if words and not words[0].startswith("#")]
        if not lines:
            raise ScheduleError("the text of a schedule must start with a header line, and this one is empty")
        header = _read_header(*lines[0])
        steps = []
        for nth, (place, words) in enumerate(lines[1:]):
            if words[0] != f"{nth}:":
                raise ScheduleError(f"line {place}: expected step {nth}:, got {words[0]!r}", step=nth)
            steps.append(_read_step(place, nth, words[1:], header))
        return cls.of_steps(steps, **header)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self.header() != other.header() or self.num_steps != other.num_steps:
            return False
        pairs = zip(self.steps(), other.steps(), strict=True)
        return all(np.array_equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal by contents, which may be too many to hash

    def __repr__(self) -> str:
        return (
            f"<Schedule: {self.collective} {self.algorithm}, {self.num_ranks} ranks, {self.num_chunks} chunks, "
            f"{self.num_steps} steps>"
        )


_HEADER = {"ranks": "num_ranks", "chunks": "num_chunks"} | {word: word for word in ("root", "ports", "lag", "weights")}
_TRANSFER = re.compile(r"([0-9]{1,9})>([0-9]{1,9}):([0-9]{1,9})(?:-([0-9]{1,9}))?([+=])")


def _read_header(place: int, words: list[str]) -> dict[str, Any]:
    if len(words) < 4:
        raise ScheduleError(
            f"line {place}: a header is 'collective algorithm ranks=… chunks=…', got {' '.join(words)!r}"
        )
    header: dict[str, Any] = {"collective": words[0], "algorithm": words[1]}
    for word in words[2:]:
        name, _, value = word.partition("=")
        numbers = value.split(",") if name == "weights" else [value]
        if name not in _HEADER or not all(re.fullmatch("[0-9]{1,24}", number) for number in numbers):
            raise ScheduleError(f"line {place}: expected {', '.join(_HEADER)} with whole numbers, got {word!r}")
        if _HEADER[name] in header:
            raise ScheduleError(f"line {place}: {name}= is there twice")
        header[_HEADER[name]] = tuple(map(int, numbers)) if name == "weights" else int(value)
    for name in ("ranks", "chunks"):
        if _HEADER[name] not in header:
            raise ScheduleError(f"line {place}: {name}= is missing")
    try:
        return Schedule.of_steps([], **header).header()
    except ValueError as error:
        raise ScheduleError(f"line {place}: {error}") from None


def _read_step(place: int, nth: int, words: list[str], header: dict[str, Any]) -> Step:
    rows = []
    for word in words:
        found = _TRANSFER.fullmatch(word)
        if found is None:
            wanted = "src>dst:first-last with + or = after it"
            raise ScheduleError(f"line {place}: expected {wanted}, got {word!r}", nth)
        src, dst, first, last = (int(part or found[3]) for part in found.groups()[:4])
        for rank in (src, dst):
            if rank >= header["num_ranks"]:
                limit = header["num_ranks"] - 1
                raise ScheduleError(f"line {place}: rank must be from 0 to {limit}, got {word!r}", nth, rank)
        if not first <= last < header["num_chunks"]:
            limit = header["num_chunks"] - 1
            raise ScheduleError(f"line {place}: chunks must be from 0 to {limit}, got {word!r}", nth, src, last)
        rows.append((src, dst, first, last - first + 1, found[5] == "+"))
    return Step.of(*zip(*rows, strict=True)) if rows else Step.of([], [], [], [], [])
