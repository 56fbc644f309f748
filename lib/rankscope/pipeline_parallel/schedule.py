"""`PipelineSchedule`: in which order each rank of a pipeline runs forward and backward of which microbatch, as a table.

A model is cut into stages, rank r holding stages r, r + num_ranks, …: its chunks 0, 1, …. A microbatch goes through all
stages forward, then back. What a rank does next is written down beforehand, and is all that kinds of pipelines differ
in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

from ..values.checks import of_type, one_of, whole

MOST_RANKS, MOST_MICROBATCHES, MOST_CHUNKS = 256, 4096, 64
FORWARD, BACKWARD = "F", "B"
_ACTION = re.compile(r"([0-9]{1,6})([FB])([0-9]{1,6})")
_SIZES = {"ranks": "num_ranks", "microbatches": "num_microbatches", "chunks": "num_chunks"}


class PipelineError(ValueError):
    """A schedule that cannot be carried out, or leaves work undone; `rank` and `action` say where, or are None."""

    def __init__(self, message: str, rank: int | None = None, action: str | None = None) -> None:
        super().__init__(message)
        self.rank, self.action = rank, action


class Action(NamedTuple):
    """One forward or backward pass: `kind` is "F" or "B", of a microbatch, by one of the rank's chunks."""

    kind: str
    microbatch: int
    chunk: int = 0


@dataclass(frozen=True)
class PipelineSchedule:
    """What each rank does, one action after the other: `actions[rank]`.

    ValueError for sizes out of range and for as many rows as there are not ranks; whether the actions do the work is
    what `verify` says.
    """

    name: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name.split() != [self.name]:
            raise ValueError(f"name must be a name without spaces, got {self.name!r}")
        sizes = checked_sizes(self.num_ranks, self.num_microbatches, self.num_chunks)
        for field, size in zip(_SIZES.values(), sizes, strict=True):
            object.__setattr__(self, field, size)
        if not isinstance(self.actions, Sequence) or len(self.actions) != self.num_ranks:
            raise ValueError(f"actions must be {self.num_ranks} rows, one a rank, got {self.actions!r}")
        for row in self.actions:
            if isinstance(row, str) or not isinstance(row, Sequence):
                raise ValueError(f"a row of actions must be a sequence of them, got {row!r}")
        object.__setattr__(self, "actions", tuple(tuple(map(self._checked, row)) for row in self.actions))

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_chunks

    def stage(self, rank: int, action: Action) -> int:
        """Return the stage that an action of a rank runs."""
        return action.chunk * self.num_ranks + rank

    def word(self, rank: int, action: Action) -> str:
        """Return an action as text, as torch's pipelining writes it: stage, F or B, microbatch."""
        return f"{self.stage(rank, action)}{action.kind}{action.microbatch}"

    def activations_in_flight(self) -> tuple[int, ...]:
        """Return of each rank the most forward passes whose backward has not come yet: the activations that it keeps.

        One is of a microbatch and a chunk, so that with `num_chunks` chunks it takes that part of what it takes with
        one.

        >>> gpipe(4, 8).activations_in_flight(), one_f_one_b(4, 8).activations_in_flight()
        ((8, 8, 8, 8), (4, 3, 2, 1))
        """
        kept = ([1 if action.kind == FORWARD else -1 for action in row] for row in self.actions)
        return tuple(max(accumulate(row), default=0) for row in kept)

    def to_text(self) -> str:
        """Return a line for the sizes and one for each rank; `from_text` reads it back.

        >>> two = PipelineSchedule("mine", 2, 1, 1, [[("F", 0, 0), ("B", 0, 0)]] * 2)
        >>> print(two.to_text())
        mine ranks=2 microbatches=1 chunks=1
        0: 0F0 0B0
        1: 1F0 1B0
        <BLANKLINE>
        """
        head = [self.name, *(f"{word}={getattr(self, field)}" for word, field in _SIZES.items())]
        rows = [
            " ".join([f"{rank}:", *(self.word(rank, action) for action in row)])
            for rank, row in enumerate(self.actions)
        ]
        return "\n".join([" ".join(head), *rows]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> PipelineSchedule:
        """Read what `to_text` wrote, or a person; empty lines and those that start with # are skipped.

        Raises PipelineError naming the line, counted from 1, and what is wrong in it.
        """
        of_type("text", text, str)
        lines = [(place, line.split()) for place, line in enumerate(text.splitlines(), 1)]
        lines = [(place, words) for place, words in lines if words and not words[0].startswith("#")]
        if not lines:
            raise PipelineError("the text of a pipeline must start with a line of its sizes, and this one is empty")
        sizes = _read_sizes(*lines[0])
        if len(lines) - 1 != sizes["num_ranks"]:
            raise PipelineError(f"expected {sizes['num_ranks']} lines, one a rank, got {len(lines) - 1}")
        rows = [
            _read_row(place, words, rank, sizes["num_ranks"], sizes["num_chunks"])
            for rank, (place, words) in enumerate(lines[1:])
        ]
        return cls(lines[0][1][0], **sizes, actions=tuple(rows))

    def _checked(self, action: Any) -> Action:
        if not isinstance(action, tuple) or len(action) != 3 or action[0] not in (FORWARD, BACKWARD):
            raise ValueError(f"an action must be ('F' or 'B', microbatch, chunk), got {action!r}")
        microbatch = whole("microbatch", action[1], 0, self.num_microbatches - 1)
        return Action(action[0], microbatch, whole("chunk", action[2], 0, self.num_chunks - 1))


def checked_sizes(num_ranks: Any, num_microbatches: Any, num_chunks: Any) -> tuple[int, int, int]:
    """Return the sizes of a pipeline as ints; ValueError where one is out of range."""
    return (
        whole("num_ranks", num_ranks, 1, MOST_RANKS),
        whole("num_microbatches", num_microbatches, 1, MOST_MICROBATCHES),
        whole("num_chunks", num_chunks, 1, MOST_CHUNKS),
    )


def verify(schedule: PipelineSchedule) -> None:
    """Raise PipelineError unless each stage runs each microbatch forward and backward once, and no rank waits for ever.

    Messages are taken to be sent as soon as they are computed and kept until they are asked for.

    >>> wrong = "mine ranks=2 microbatches=1 chunks=1\\n0: 0F0 0B0\\n1: 1B0 1F0"
    >>> verify(PipelineSchedule.from_text(wrong))
    Traceback (most recent call last):
    rankscope.pipeline_parallel.schedule.PipelineError: rank 1, 1B0: comes before 1F0
    """
    of_type("schedule", schedule, PipelineSchedule)
    for rank, row in enumerate(schedule.actions):
        done = set[Action]()
        for action in row:
            word = schedule.word(rank, action)
            if action in done:
                raise PipelineError(f"rank {rank}, {word}: comes twice", rank, word)
            forward = action._replace(kind=FORWARD)
            if action.kind == BACKWARD and forward not in done:
                message = f"rank {rank}, {word}: comes before {schedule.word(rank, forward)}"
                raise PipelineError(message, rank, word)
            done.add(action)
        for chunk in range(schedule.num_chunks):
            for microbatch in range(schedule.num_microbatches):
                for kind in (FORWARD, BACKWARD):
                    if (missing := Action(kind, microbatch, chunk)) not in done:
                        word = schedule.word(rank, missing)
                        raise PipelineError(f"rank {rank}, {word}: is missing", rank, word)
    for _ in in_order(schedule):
        pass


def in_order(schedule: PipelineSchedule) -> Iterator[tuple[int, Action]]:
    """Yield rank and action of all, each after what it needs and after what its rank does before it.

    Raises PipelineError where every rank that is left waits: the first of them is named.
    """
    done = set[tuple[int, str, int]]()
    places = [0] * schedule.num_ranks
    left = sum(map(len, schedule.actions))
    while left:
        before = left
        for rank, row in enumerate(schedule.actions):
            while places[rank] < len(row) and needed(schedule, rank, row[places[rank]]) <= done:
                action = row[places[rank]]
                yield rank, action
                done.add((schedule.stage(rank, action), action.kind, action.microbatch))
                places[rank] += 1
                left -= 1
        if left == before:
            raise _stuck(schedule, places, done)


def needed(schedule: PipelineSchedule, rank: int, action: Action) -> set[tuple[int, str, int]]:
    """Return what an action waits for, as (stage, kind, microbatch): nothing for a forward pass of the first stage."""
    stage, last = schedule.stage(rank, action), schedule.num_stages - 1
    if action.kind == FORWARD:
        return {(stage - 1, FORWARD, action.microbatch)} if stage else set()
    after = {(stage + 1, BACKWARD, action.microbatch)} if stage < last else set()
    return {(stage, FORWARD, action.microbatch)} | after


def _stuck(schedule: PipelineSchedule, places: list[int], done: set[tuple[int, str, int]]) -> PipelineError:
    rank = next(rank for rank, row in enumerate(schedule.actions) if places[rank] < len(row))
    action = schedule.actions[rank][places[rank]]
    word = schedule.word(rank, action)
    stage, kind, microbatch = min(needed(schedule, rank, action) - done)
    return PipelineError(f"rank {rank}, {word}: waits for {stage}{kind}{microbatch}, which never comes", rank, word)


def _read_sizes(place: int, words: list[str]) -> dict[str, int]:
    found = [word.partition("=") for word in words[1:]]
    if [name for name, _, _ in found] != list(_SIZES) or not all(re.fullmatch("[0-9]{1,6}", n) for _, _, n in found):
        raise PipelineError(
            f"line {place}: expected 'name ranks=… microbatches=… chunks=…' with whole numbers, got {' '.join(words)!r}"
        )
    return {_SIZES[name]: int(number) for name, _, number in found}


def _read_row(place: int, words: list[str], rank: int, num_ranks: int, num_chunks: int) -> tuple[Action, ...]:
    if words[0] != f"{rank}:":
        raise PipelineError(f"line {place}: expected rank {rank}:, got {words[0]!r}", rank)
    row = []
    for word in words[1:]:
        match = _ACTION.fullmatch(word)
        if match is None:
            raise PipelineError(f"line {place}: expected an action like 0F0 or 3B1, got {word!r}", rank, word)
        chunk, owner = divmod(int(match[1]), num_ranks)
        if owner != rank or chunk >= num_chunks:
            raise PipelineError(f"line {place}: rank {rank} has no stage {match[1]}, in {word!r}", rank, word)
        row.append(Action(match[2], int(match[3]), chunk))
    return tuple(row)


def gpipe(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return the schedule of GPipe (Huang et al., 2019): all microbatches forward, then all backward.

    With one microbatch it is plain model parallelism: one rank works at a time. ValueError for sizes out of range, and
    for more than one chunk.

    >>> print(gpipe(2, 3).to_text())
    gpipe ranks=2 microbatches=3 chunks=1
    0: 0F0 0F1 0F2 0B0 0B1 0B2
    1: 1F0 1F1 1F2 1B0 1B1 1B2
    <BLANKLINE>
    """
    num_ranks, num_microbatches = _one_chunk("gpipe", num_ranks, num_microbatches, num_chunks)
    row = _warmed_up(*_orders(num_microbatches, 1, num_microbatches), num_microbatches)
    return PipelineSchedule("gpipe", num_ranks, num_microbatches, 1, (row,) * num_ranks)


def one_f_one_b(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return 1F1B (PipeDream-Flush: Narayanan et al., 2021): rank r goes p-1-r forwards ahead, then one F, one B.

    Fewer microbatches than ranks may be asked for; torch's Schedule1F1B refuses them. ValueError for sizes out of
    range, and for more than one chunk.

    >>> print(one_f_one_b(2, 3).to_text())
    one_f_one_b ranks=2 microbatches=3 chunks=1
    0: 0F0 0F1 0B0 0F2 0B1 0B2
    1: 1F0 1B0 1F1 1B1 1F2 1B2
    <BLANKLINE>
    """
    num_ranks, num_microbatches = _one_chunk("one_f_one_b", num_ranks, num_microbatches, num_chunks)
    orders = _orders(num_microbatches, 1, num_microbatches)
    rows = tuple(_warmed_up(*orders, num_ranks - 1 - rank) for rank in range(num_ranks))
    return PipelineSchedule("one_f_one_b", num_ranks, num_microbatches, 1, rows)


def interleaved_1f1b(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> PipelineSchedule:
    """Return interleaved 1F1B (Narayanan et al., 2021, section 2.2): 1F1B with `num_chunks` smaller stages a rank.

    Microbatches go in ⌊m/p⌋ rounds (one if there are fewer than ranks) of equal length, a round through all chunks
    before the next begins. As in torch's ScheduleInterleaved1F1B they need not be a multiple of the ranks, only of the
    rounds. ValueError for any other number of them, and for sizes out of range.

    >>> print(interleaved_1f1b(2, 2).to_text())
    interleaved_1f1b ranks=2 microbatches=2 chunks=2
    0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    <BLANKLINE>
    """
    num_ranks, num_microbatches, num_chunks = checked_sizes(num_ranks, num_microbatches, num_chunks)
    length = _round_length(num_ranks, num_microbatches)
    orders = _orders(num_microbatches, num_chunks, length)
    rows = (_warmed_up(*orders, (num_chunks - 1) * length + 2 * (num_ranks - 1 - rank)) for rank in range(num_ranks))
    return PipelineSchedule("interleaved_1f1b", num_ranks, num_microbatches, num_chunks, tuple(rows))


PIPELINES: dict[str, Callable[..., PipelineSchedule]] = {
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "interleaved_1f1b": interleaved_1f1b,
}


def bubble_share(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Fraction:
    """Return the share of a step that a rank stands idle, where all stages take equally long and messages nothing.

    For GPipe and 1F1B it is (p-1)/(m+p-1), whatever a backward takes beside a forward; for interleaved 1F1B
    (p-1)/(v·m+p-1), with at least as many microbatches as ranks. That is of the time that the step takes, as Huang et
    al., 2019, have it. Of the time that it would take without any bubble, as Narayanan et al., 2021, have it, it is
    (p-1)/m and (p-1)/(v·m). With m < p microbatches the one round of interleaved 1F1B has gaps of its own:
    (v·(p-m)+m-1)/(v·p+m-1).

    ValueError for what the schedule of this name refuses.

    >>> bubble_share("gpipe", 4, 8), bubble_share("one_f_one_b", 4, 8), bubble_share("interleaved_1f1b", 4, 8, 2)
    (Fraction(3, 11), Fraction(3, 11), Fraction(3, 19))
    """
    p, m, v = _sizes_of(name, num_ranks, num_microbatches, num_chunks)
    # gpipe and 1F1B have v = 1, where both forms below are the same
    return Fraction(p - 1, v * m + p - 1) if m >= p else Fraction(v * (p - m) + m - 1, v * p + m - 1)


def most_in_flight(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> tuple[int, ...]:
    """Return in closed form what `PipelineSchedule.activations_in_flight` counts: the most activations each rank keeps.

    GPipe keeps all m, 1F1B min(p-r, m) on rank r. Interleaved 1F1B keeps min(v·m, (v-1)·k + 2(p-1-r) + 1) activations
    of a v-th of a rank's layers each, k being the microbatches of a round: p where m is a multiple of p.

    >>> most_in_flight("one_f_one_b", 4, 8), most_in_flight("interleaved_1f1b", 4, 8, 2)
    ((4, 3, 2, 1), (11, 9, 7, 5))
    """
    p, m, v = _sizes_of(name, num_ranks, num_microbatches, num_chunks)
    if name == "gpipe":
        return (m,) * p
    if name == "one_f_one_b":
        return tuple(min(p - rank, m) for rank in range(p))
    ahead = (v - 1) * _round_length(p, m) + 1
    return tuple(min(v * m, ahead + 2 * (p - 1 - rank)) for rank in range(p))


def _sizes_of(name: str, *sizes: Any) -> tuple[int, int, int]:
    one_of("name", name, tuple(PIPELINES))
    p, m, v = checked_sizes(*sizes)
    if name == "interleaved_1f1b":
        _round_length(p, m)
        return p, m, v
    return (*_one_chunk(name, p, m, v), 1)


def _one_chunk(name: str, num_ranks: Any, num_microbatches: Any, num_chunks: Any) -> tuple[int, int]:
    num_ranks, num_microbatches, num_chunks = checked_sizes(num_ranks, num_microbatches, num_chunks)
    if num_chunks != 1:
        raise ValueError(f"num_chunks of {name} must be 1, got {num_chunks}: interleaved_1f1b takes several")
    return num_ranks, num_microbatches


def _round_length(num_ranks: int, num_microbatches: int) -> int:
    """How many microbatches a round of interleaved 1F1B has."""
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        raise ValueError(
            f"num_microbatches of interleaved_1f1b must be a multiple of {rounds}, the rounds of {num_ranks} ranks, "
            f"got {num_microbatches}"
        )
    return num_microbatches // rounds


def _orders(num_microbatches: int, num_chunks: int, length: int) -> tuple[list[Action], list[Action]]:
    """All forward and all backward passes of a rank in their order: by round, then chunk, then microbatch."""
    rounds = [range(first, first + length) for first in range(0, num_microbatches, length)]
    chunks = range(num_chunks)
    forward = [Action(FORWARD, one, chunk) for each in rounds for chunk in chunks for one in each]
    backward = [Action(BACKWARD, one, chunk) for each in rounds for chunk in reversed(chunks) for one in each]
    return forward, backward


def _warmed_up(forward: Sequence[Action], backward: Sequence[Action], ahead: int) -> tuple[Action, ...]:
    """`ahead` forward passes, then a forward and a backward in turn, then the backwards that are left."""
    pairs = zip(forward[ahead:], backward, strict=False)
    paired = [action for pair in pairs for action in pair]
    return (*forward[:ahead], *paired, *backward[max(0, len(forward) - ahead) :])
