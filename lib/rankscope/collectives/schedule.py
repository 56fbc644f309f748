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

from ..common.checks import count_of, function, number, of_type, one_line, one_of, whole
from ..common.frozen import checked, each, fields_of, frozen, optional

Ints = NDArray[np.int64]

SUMS = ("allreduce", "reduce", "reduce_scatter")  # each rank has a share in every chunk
MOVES = ("broadcast", "scatter", "gather", "allgather", "all_to_all")  # each chunk comes from one rank
COLLECTIVES = (*SUMS, *MOVES, "barrier")
ROOTED = ("reduce", "broadcast", "scatter", "gather")
RUNS_IN = ("gather", "allgather")  # a rank passes only its own run of chunks
RUNS_OUT = ("scatter", "reduce_scatter")  # a rank gets only its own run of chunks

# Larger numbers, which a file may declare, are refused before they cost time or memory.
MOST_RANKS = 1 << 16
MOST_CHUNKS = 1 << 26  # a column of all chunks takes 512 MiB
MOST_SEGMENTS = 1 << 16  # far more than make any schedule faster
MOST_LAG = 1 << 10  # likewise
MOST_WEIGHT = 1 << 53  # the bytes of chunks are floats, which are exact up to this number of elements

MOST_KEPT = 1 << 13  # rows of a result that is kept in the cache of a schedule


def number_among_equal(keys: Ints) -> Ints:
    """Return for each key how many keys before it are equal to it.

    >>> number_among_equal(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(keys, kind="stable")  # equal keys stay in their order
    ordered = keys[order]
    place_of_first_equal = np.searchsorted(ordered, ordered)
    num_before = np.empty_like(keys)
    num_before[order] = np.arange(keys.size) - place_of_first_equal
    return num_before


class ScheduleError(ValueError):
    """The schedule does not compute the result of its collective.

    `step`, `rank` and `chunk` state where it is wrong, or are None."""

    def __init__(
        self, message: str, step: int | None = None, rank: int | None = None, chunk: int | None = None
    ) -> None:
        super().__init__(one_line(message))
        self.step = step
        self.rank = rank
        self.chunk = chunk


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
    reduce: NDArray[np.bool_]

    @classmethod
    def of(
        cls, src: ArrayLike, dst: ArrayLike, chunk: ArrayLike, num_chunks: ArrayLike = 1, reduce: Any = False
    ) -> Step:
        """Make a step from columns, or from single values shared by all transfers. Its columns are read-only."""
        numbers = []
        for values in (src, dst, chunk, num_chunks):
            column = np.asarray(values)
            is_empty = column.size == 0  # numpy makes an empty list a column of floats
            if not is_empty and not np.issubdtype(column.dtype, np.integer):
                raise ValueError(f"ranks and chunks of a step must be whole numbers, got {values!r}")
            numbers.append(column.astype(np.int64))
        marks = np.asarray(reduce)
        if marks.size > 0 and marks.dtype != bool:
            raise ValueError(f"reduce must be True or False, one or a column, got {reduce!r}")
        columns = [np.atleast_1d(column) for column in np.broadcast_arrays(*numbers, marks.astype(bool))]
        for column in columns:
            column.flags.writeable = False
        return cls(*columns)

    def by_chunk(self) -> Step:
        """Return the same transfers with one row per chunk."""
        if (self.num_chunks == 1).all():
            return self
        transfer = np.repeat(np.arange(self.src.size), self.num_chunks)  # of each row
        first_row = np.cumsum(self.num_chunks) - self.num_chunks  # of each transfer
        offset = np.arange(transfer.size) - first_row[transfer]  # from the first chunk of the transfer
        return Step.of(self.src[transfer], self.dst[transfer], self.chunk[transfer] + offset, 1, self.reduce[transfer])


class Phase:
    """`num_steps` steps in which the same ranks send to the same ranks; only the chunks change.

    `chunk` is a column, or a function from the step within the phase to one. It is called only for a step whose chunks
    are needed; the cost of a schedule often depends only on which ranks send to which.
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
        chunks_to_check: ArrayLike = 0  # those of a function are not known yet
        if not callable(chunk):
            chunks_to_check = chunk
        self.src, self.dst, _, self.num_chunks, self.reduce = Step.of(src, dst, chunks_to_check, num_chunks, reduce)

    def step(self, number: int) -> Step:
        """Return the step of this number, from 0 within the phase."""
        chunk = self._chunk
        if callable(chunk):
            chunk = chunk(number)
        return Step.of(self.src, self.dst, chunk, self.num_chunks, self.reduce)


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(f"{field} must be a name without spaces, got {value!r}")
    return value


@attrs.frozen(eq=False)
class Traffic:
    """The traffic of one collective: `link_bytes[src, dst]`, and the number of messages."""

    link_bytes: NDArray[np.float64]
    num_messages: int

    @property
    def sent_bytes(self) -> NDArray[np.float64]:
        """The bytes that each rank sends."""
        return np.asarray(self.link_bytes.sum(axis=1))


@frozen(eq=False)
class Schedule:
    """The steps of `num_ranks` ranks in one collective, on a buffer cut into `num_chunks` chunks.

    Chunks have equal sizes, or sizes in proportion to `weights`. In reduce_scatter, scatter, gather and allgather,
    rank r owns the r-th of `num_ranks` equal runs of chunks. In all_to_all, chunks are numbered through the buffers of
    all ranks: first those that rank 0 sends, then those of rank 1 and so on, in each buffer ordered by receiver.

    `ports` is the maximum number of messages that a rank sends, or receives, in one step. `lag` is the number of steps
    after which a received sum may be used: step s requires only sums received up to step s - lag. With a lag above 1,
    adding overlaps with the next transfers and requires `lag` scratch buffers.

    Raises ValueError if the collective is unknown or a number is out of range.
    """

    collective: str = checked(one_of, COLLECTIVES)
    algorithm: str = checked(_name)
    num_ranks: int = checked(whole, 1, MOST_RANKS)
    num_chunks: int = checked(whole, 1, MOST_CHUNKS)
    phases: Callable[[], Iterable[Phase]] = checked(function, "that returns them")
    root: int = checked(whole, default=0)
    ports: int = checked(whole, 1, MOST_RANKS, default=1)
    lag: int = checked(whole, 1, MOST_LAG, default=1)
    weights: tuple[int, ...] | None = checked(optional, each, whole, 0, MOST_WEIGHT, default=None)

    def __attrs_post_init__(self) -> None:
        whole("root", self.root, 0, self.num_ranks - 1)
        num_runs = 1  # of equally many chunks
        if self.collective in (*RUNS_IN, *RUNS_OUT):
            num_runs = self.num_ranks
        elif self.collective == "all_to_all":
            num_runs = self.num_ranks**2  # one for each sender and receiver
        if self.num_chunks % num_runs:
            raise ValueError(f"num_chunks of {self.collective} must be a multiple of {num_runs}, got {self.num_chunks}")
        if self.weights is not None and len(self.weights) != self.num_chunks:
            raise ValueError(f"weights must be {self.num_chunks}, one per chunk, got {len(self.weights)}")

    @classmethod
    def of_steps(cls, steps: Iterable[Step], **header: Any) -> Schedule:
        """Make a schedule from steps. `header` contains the other fields."""
        phases = tuple(Phase(*step) for step in steps)
        return cls(phases=partial(iter, phases), **header)  # a function, as that of a builder that makes them each time

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """Results that were computed from this schedule, kept for as long as it lives."""
        return {}

    @cached_property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases())

    def steps(self) -> Iterator[Step]:
        """Yield the steps. Each is built only when it is reached."""
        for phase in self.phases():
            yield from map(phase.step, range(phase.num_steps))

    def header(self) -> dict[str, Any]:
        """Return all fields except the phases, from which a similar schedule can be made."""
        header = fields_of(self)
        del header["phases"]
        return header

    def chunk_bytes(self, num_bytes: float) -> NDArray[np.float64]:
        """Return the bytes of each chunk if each rank's whole buffer has `num_bytes`. Chunks of a barrier have 0.

        In all_to_all with weights, the ranks' buffers differ in size, and `num_bytes` is their mean.
        """
        if self.collective == "barrier":
            return np.zeros(self.num_chunks)
        total = num_bytes
        if self.collective == "all_to_all":
            total = num_bytes * self.num_ranks
        if self.weights is None:
            return np.full(self.num_chunks, total / self.num_chunks)
        weights = np.asarray(self.weights, dtype=float)
        return weights * (total / max(1, sum(self.weights)))  # 1: if all weights are 0, so are the bytes

    def chunk_ends(self, num_elements: int) -> list[int]:
        """Return the offsets at which chunks begin and end, as num_chunks + 1 numbers, if each rank has `num_elements`.

        Offsets refer to the whole buffer, in all_to_all to the buffers of all ranks in a row. Chunks are as even as
        possible. Raises ValueError if one of them would have no element, or if the tensors of all_to_all cannot be cut
        into equal runs, one for each receiver.

        With weights, each chunk has as many elements as its weight, and each chunk of a barrier has one element: then
        `num_elements` is not used.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).chunk_ends(10)
        [0, 2, 5, 7, 10]
        """
        if self.collective == "barrier":
            return list(range(self.num_chunks + 1))
        if self.weights is not None:
            return [0, *itertools.accumulate(self.weights)]
        n = self.num_ranks
        num_tensors = 1  # that make up the whole buffer
        if self.collective in (*RUNS_IN, "all_to_all"):
            num_tensors = n  # each rank passes a part of it
        if num_elements * num_tensors < self.num_chunks:
            least = count_of(self.num_chunks // num_tensors, "element")  # `num_chunks` is a multiple of `num_tensors`
            raise ValueError(f"tensors must have at least {least}, one for each chunk, got {num_elements}")
        if self.collective == "all_to_all" and num_elements % n:
            raise ValueError(f"tensors of all_to_all must have a multiple of {n} elements, got {num_elements}")
        return [chunk * num_elements * num_tensors // self.num_chunks for chunk in range(self.num_chunks + 1)]

    def origins(self) -> Ints:
        """Return the rank where each chunk originates, for the collectives in `MOVES`."""
        if self.collective in ("broadcast", "scatter"):
            return np.full(self.num_chunks, self.root)
        return self._owners()

    def _owners(self) -> Ints:
        """The rank that owns each chunk, if each rank owns as many, one after the other."""
        return np.arange(self.num_chunks) * self.num_ranks // self.num_chunks

    def initial_chunks(self) -> NDArray[np.bool_]:
        """Return a mask of the chunks that each rank has at the start, of shape (num_ranks, num_chunks)."""
        if self.collective in MOVES:
            return self._is_at(self.origins())
        return self._is_everywhere()

    def wanted(self) -> NDArray[np.bool_]:
        """Return a mask of the chunks that each rank must have at the end, of shape (num_ranks, num_chunks)."""
        if self.collective in ("reduce", "gather"):
            return self._is_at(np.full(self.num_chunks, self.root))
        if self.collective in RUNS_OUT:
            return self._is_at(self._owners())
        if self.collective == "all_to_all":
            chunks_per_sender = self.num_chunks // self.num_ranks  # in the order of their receivers
            number_in_sender = np.arange(self.num_chunks) % chunks_per_sender
            return self._is_at(number_in_sender * self.num_ranks // chunks_per_sender)
        return self._is_everywhere()

    def _is_at(self, rank_of_chunk: Ints) -> NDArray[np.bool_]:
        """A mask of shape (num_ranks, num_chunks): each chunk is at one rank."""
        return np.equal(np.arange(self.num_ranks)[:, None], rank_of_chunk)

    def _is_everywhere(self) -> NDArray[np.bool_]:
        """A mask of shape (num_ranks, num_chunks): each chunk is at every rank."""
        return np.broadcast_to(np.True_, (self.num_ranks, self.num_chunks))

    def traffic(self, num_bytes: float) -> Traffic:
        """Return the bytes over each link, and the messages, if whole buffers have `num_bytes`.

        Raises ValueError if `num_bytes` is not a finite number of at least 0.

        >>> from . import ALGORITHMS
        >>> ALGORITHMS["allreduce"]["ring"](4).traffic(1024).link_bytes[0].tolist()
        [0.0, 1536.0, 0.0, 0.0]
        """
        sizes = self.chunk_bytes(number("num_bytes", num_bytes, 0))
        num_ranks = self.num_ranks
        link_bytes = np.zeros(num_ranks * num_ranks)  # by pair of ranks: src · num_ranks + dst
        num_messages = 0
        for step in self.steps():
            rows = step.by_chunk()
            pair_of_row = rows.src * num_ranks + rows.dst
            np.add.at(link_bytes, pair_of_row, sizes[rows.chunk])
            num_messages += np.unique(pair_of_row).size  # a message for each pair
        return Traffic(link_bytes.reshape(num_ranks, num_ranks), num_messages)

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
        head = [self.collective, self.algorithm]
        head += [f"{word}={getattr(self, name)}" for word, name in _HEADER.items() if word != "weights"]
        if self.weights is not None:
            head.append(f"weights={','.join(map(str, self.weights))}")
        lines = [" ".join(head)]
        for number_of_step, step in enumerate(self.steps()):
            words = [f"{number_of_step}:"]
            for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True):
                chunks = str(chunk)
                if count > 1:
                    chunks = f"{chunk}-{chunk + count - 1}"
                sign = "+" if reduce else "="
                words.append(f"{src}>{dst}:{chunks}{sign}")
            lines.append(" ".join(words))
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Parse a schedule in the format of `to_text`. Empty lines and lines that start with # are skipped.

        Raises ScheduleError if the text is not such a schedule. The message names the line, counted from 1.
        """
        lines = []  # those to read: the number of each, from 1, and its words
        for line_number, line in enumerate(of_type("text", text, str).splitlines(), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                lines.append((line_number, words))
        if not lines:
            raise ScheduleError("the text of a schedule must start with a header line, and this one is empty")
        header = _read_header(*lines[0])
        steps = []
        for number_of_step, (line_number, words) in enumerate(lines[1:]):
            if words[0] != f"{number_of_step}:":
                problem = f"line {line_number}: expected step {number_of_step}:, got {words[0]!r}"
                raise ScheduleError(problem, step=number_of_step)
            steps.append(_read_step(line_number, number_of_step, words[1:], header))
        return cls.of_steps(steps, **header)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self.header() != other.header() or self.num_steps != other.num_steps:
            return False
        for step, other_step in zip(self.steps(), other.steps(), strict=True):
            if not all(map(np.array_equal, step, other_step)):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]  # equal by contents, which may be too many to hash

    def __repr__(self) -> str:
        return (
            f"<Schedule: {self.collective} {self.algorithm}, {self.num_ranks} ranks, {self.num_chunks} chunks, "
            f"{self.num_steps} steps>"
        )


_HEADER = {  # the fields of a schedule, by their names in a header line
    "ranks": "num_ranks",
    "chunks": "num_chunks",
    "root": "root",
    "ports": "ports",
    "lag": "lag",
    "weights": "weights",
}
# Of a header. `MOST_WEIGHT`, the largest limit of a number, has 16 digits; `int` refuses thousands of them with a
# message of its own.
_NUMBER = re.compile("[0-9]{1,24}")
# src>dst:first-last, and + or =. Nine digits, at most, are more than any rank or chunk has.
_TRANSFER = re.compile(r"([0-9]{1,9})>([0-9]{1,9}):([0-9]{1,9})(?:-([0-9]{1,9}))?([+=])")


def _read_header(line_number: int, words: list[str]) -> dict[str, Any]:
    """Return the fields of a schedule, apart from its phases, from the words of its header line."""
    if len(words) < 4:
        raise ScheduleError(
            f"line {line_number}: a header is 'collective algorithm ranks=… chunks=…', got {' '.join(words)!r}"
        )
    header: dict[str, Any] = {"collective": words[0], "algorithm": words[1]}
    for word in words[2:]:
        name, _, value = word.partition("=")
        numbers = [value]
        if name == "weights":
            numbers = value.split(",")
        if name not in _HEADER or not all(_NUMBER.fullmatch(number) for number in numbers):
            raise ScheduleError(f"line {line_number}: expected {', '.join(_HEADER)} with whole numbers, got {word!r}")
        if _HEADER[name] in header:
            raise ScheduleError(f"line {line_number}: {name}= occurs twice")
        if name == "weights":
            header["weights"] = tuple(map(int, numbers))
        else:
            header[_HEADER[name]] = int(value)
    for name in ("ranks", "chunks"):
        if _HEADER[name] not in header:
            raise ScheduleError(f"line {line_number}: {name}= is missing")
    try:  # a schedule checks its fields, and adds those that have defaults
        return Schedule.of_steps([], **header).header()
    except ValueError as error:
        raise ScheduleError(f"line {line_number}: {error}") from None


def _read_step(line_number: int, number_of_step: int, words: list[str], header: dict[str, Any]) -> Step:
    """Return the step of a line, from its words after the number of the step."""
    rows = []
    for word in words:
        match = _TRANSFER.fullmatch(word)
        if match is None:
            wanted = "src>dst:first-last with + or = after it"
            raise ScheduleError(f"line {line_number}: expected {wanted}, got {word!r}", number_of_step)
        src = int(match[1])
        dst = int(match[2])
        first = int(match[3])
        last = first
        if match[4] is not None:
            last = int(match[4])
        for rank in (src, dst):
            if rank >= header["num_ranks"]:
                limit = header["num_ranks"] - 1
                raise ScheduleError(
                    f"line {line_number}: rank must be from 0 to {limit}, got {word!r}", number_of_step, rank
                )
        if first > last:
            raise ScheduleError(
                f"line {line_number}: the first chunk must be at most the last, got {word!r}",
                number_of_step,
                src,
                first,
            )
        if last >= header["num_chunks"]:
            limit = header["num_chunks"] - 1
            raise ScheduleError(
                f"line {line_number}: chunks must be from 0 to {limit}, got {word!r}", number_of_step, src, last
            )
        rows.append((src, dst, first, last - first + 1, match[5] == "+"))
    if not rows:  # then `zip` would make no columns
        return Step.of([], [], [], [], [])
    return Step.of(*zip(*rows, strict=True))
