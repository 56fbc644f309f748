"""`PipelineSchedule`: in which order each rank of a pipeline runs forward and backward of which microbatch, as a table.

A model is cut into stages, rank r holding stages r, r + num_ranks, …: its chunks 0, 1, …. A microbatch goes through all
stages forward, then back. What a rank does next is written down beforehand, and is all in which kinds of pipelines
differ: GPipe, 1F1B and interleaved 1F1B are made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, chain, product
from typing import Any, NamedTuple

from ...common.checks import of_type, one_line, one_of, several, whole
from ...common.frozen import checked, frozen

PIPELINES = ("gpipe", "one_f_one_b", "interleaved_1f1b")
MOST_RANKS, MOST_MICROBATCHES, MOST_CHUNKS = 256, 4096, 64
MOST_PASSES = 1 << 20  # forward, of all ranks; each takes some 100 bytes, and seconds to verify
FORWARD, BACKWARD = "F", "B"
_ACTION = re.compile(r"([0-9]{1,6})([FB])([0-9]{1,6})")
_HEAD = re.compile(r"(\S+) ranks=([0-9]{1,6}) microbatches=([0-9]{1,6}) chunks=([0-9]{1,6})")


class PipelineError(ValueError):
    """A schedule that cannot be carried out, or leaves work undone; `rank` and `action` say where, or are None."""

    def __init__(self, message: str, rank: int | None = None, action: str | None = None) -> None:
        super().__init__(one_line(message))
        self.rank, self.action = rank, action


class Action(NamedTuple):
    """One forward or backward pass: `kind` is "F" or "B", of a microbatch, by one of the rank's chunks."""

    kind: str
    microbatch: int
    chunk: int = 0


def _one_word(name: str, value: Any) -> str:
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(f"{name} must be a name without spaces, got {value!r}")
    return value


def _rows(name: str, value: Any) -> tuple[tuple[Action, ...], ...]:
    def action(value: Any) -> Action:
        if not isinstance(value, tuple) or len(value) != 3 or value[0] not in (FORWARD, BACKWARD):
            raise ValueError(f"an action must be ('F' or 'B', microbatch, chunk), got {value!r}")
        return Action(value[0], whole("microbatch", value[1], 0), whole("chunk", value[2], 0))

    return tuple(tuple(map(action, several("a row of actions", row))) for row in several(name, value, "rows"))


@frozen
class PipelineSchedule:
    """What each rank does, one action after the other: `actions[rank]`.

    ValueError for sizes out of range and for another number of rows than ranks; `verify` says whether the actions do
    the work.
    """

    name: str = checked(_one_word)
    num_ranks: int = checked(whole, 1, MOST_RANKS)
    num_microbatches: int = checked(whole, 1, MOST_MICROBATCHES)
    num_chunks: int = checked(whole, 1, MOST_CHUNKS)
    actions: tuple[tuple[Action, ...], ...] = checked(_rows)

    def __attrs_post_init__(self) -> None:
        if len(self.actions) != self.num_ranks:
            raise ValueError(f"actions must be {self.num_ranks} rows, one for each rank, got {len(self.actions)}")
        for _, microbatch, chunk in {action for row in self.actions for action in row}:
            whole("microbatch", microbatch, 0, self.num_microbatches - 1)
            whole("chunk", chunk, 0, self.num_chunks - 1)

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

        >>> build("gpipe", 4, 8).activations_in_flight(), build("one_f_one_b", 4, 8).activations_in_flight()
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
        sizes = f"ranks={self.num_ranks} microbatches={self.num_microbatches} chunks={self.num_chunks}"
        rows = (
            " ".join([f"{rank}:", *(self.word(rank, action) for action in row)])
            for rank, row in enumerate(self.actions)
        )
        return "\n".join([f"{self.name} {sizes}", *rows]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> PipelineSchedule:
        """Read what `to_text` wrote, or a person; empty lines and those that start with # are skipped.

        Raises PipelineError naming the line, counted from 1, and what is wrong in it.
        """
        lines = [(place, line.split()) for place, line in enumerate(of_type("text", text, str).splitlines(), 1)]
        lines = [(place, words) for place, words in lines if words and not words[0].startswith("#")]
        if not lines:
            raise PipelineError("the text of a pipeline must start with a line of its sizes, and this one is empty")
        place, words = lines[0]
        head = _HEAD.fullmatch(" ".join(words))
        if head is None:
            expected = "'name ranks=… microbatches=… chunks=…' with whole numbers"
            raise PipelineError(f"line {place}: expected {expected}, got {' '.join(words)!r}")
        num_ranks, num_microbatches, num_chunks = map(int, head.groups()[1:])
        if len(lines) - 1 != num_ranks:
            raise PipelineError(f"expected {num_ranks} lines, one for each rank, got {len(lines) - 1}")
        rows = [_read_row(*line, rank, num_ranks, num_chunks) for rank, line in enumerate(lines[1:])]
        return cls(head[1], num_ranks, num_microbatches, num_chunks, tuple(rows))


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


# ---- whether a schedule does the work


def verify(schedule: PipelineSchedule) -> None:
    """Raise PipelineError unless each stage runs each microbatch forward and backward once, and no rank waits for ever.

    Messages are taken to be sent as soon as they are computed and kept until they are asked for.

    >>> wrong = "mine ranks=2 microbatches=1 chunks=1\\n0: 0F0 0B0\\n1: 1B0 1F0"
    >>> verify(PipelineSchedule.from_text(wrong))
    Traceback (most recent call last):
    rankscope.train.pipeline_parallel.schedule.PipelineError: rank 1, 1B0: comes before 1F0
    """
    of_type("schedule", schedule, PipelineSchedule)

    def error(rank: int, action: Action, what: str) -> PipelineError:
        word = schedule.word(rank, action)
        return PipelineError(f"rank {rank}, {word}: {what}", rank, word)

    for rank, row in enumerate(schedule.actions):
        done = set[Action]()
        for action in row:
            if action in done:
                raise error(rank, action, "comes twice")
            forward = action._replace(kind=FORWARD)
            if action.kind == BACKWARD and forward not in done:
                raise error(rank, action, f"comes before {schedule.word(rank, forward)}")
            done.add(action)
        for chunk, microbatch in product(range(schedule.num_chunks), range(schedule.num_microbatches)):
            for kind in (FORWARD, BACKWARD):
                if (missing := Action(kind, microbatch, chunk)) not in done:
                    raise error(rank, missing, "is missing")
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
            while places[rank] < len(row) and _needed(schedule, rank, row[places[rank]]) <= done:
                action = row[places[rank]]
                yield rank, action
                done.add((schedule.stage(rank, action), action.kind, action.microbatch))
                places[rank] += 1
                left -= 1
        if left == before:
            rank = next(rank for rank, row in enumerate(schedule.actions) if places[rank] < len(row))
            action = schedule.actions[rank][places[rank]]
            word = schedule.word(rank, action)
            stage, kind, microbatch = min(_needed(schedule, rank, action) - done)
            message = f"rank {rank}, {word}: waits for {stage}{kind}{microbatch}, which never comes"
            raise PipelineError(message, rank, word)


def _needed(schedule: PipelineSchedule, rank: int, action: Action) -> set[tuple[int, str, int]]:
    """What an action waits for, as (stage, kind, microbatch): nothing for a forward pass of the first stage."""
    stage, last = schedule.stage(rank, action), schedule.num_stages - 1
    if action.kind == FORWARD:
        return {(stage - 1, FORWARD, action.microbatch)} if stage else set()
    after = {(stage + 1, BACKWARD, action.microbatch)} if stage < last else set()
    return {(stage, FORWARD, action.microbatch)} | after


# ---- the three kinds


def build(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return one of the schedules of `PIPELINES`.

    - "gpipe" (Huang et al., 2019): all microbatches forward, then all backward. With one microbatch it is plain model
      parallelism: one rank works at a time.
    - "one_f_one_b" (PipeDream-Flush: Narayanan et al., 2021): rank r goes p-1-r forwards ahead, then one F, one B. It
      may have fewer microbatches than ranks; torch's Schedule1F1B refuses that.
    - "interleaved_1f1b" (Narayanan et al., 2021, section 2.2): 1F1B with `num_chunks` smaller stages a rank.
      Microbatches go in ⌊m/p⌋ rounds (one if there are fewer than ranks) of equal length, a round through all chunks
      before the next begins. As in torch's ScheduleInterleaved1F1B they need not be a multiple of the ranks, only of
      the rounds.

    Raises ValueError for other names, sizes out of range, and more than one chunk of what is not interleaved.

    >>> print(build("gpipe", 2, 3).to_text())
    gpipe ranks=2 microbatches=3 chunks=1
    0: 0F0 0F1 0F2 0B0 0B1 0B2
    1: 1F0 1F1 1F2 1B0 1B1 1B2
    <BLANKLINE>
    >>> print(build("one_f_one_b", 2, 3).to_text())
    one_f_one_b ranks=2 microbatches=3 chunks=1
    0: 0F0 0F1 0B0 0F2 0B1 0B2
    1: 1F0 1B0 1F1 1B1 1F2 1B2
    <BLANKLINE>
    >>> print(build("interleaved_1f1b", 2, 2, 2).to_text())
    interleaved_1f1b ranks=2 microbatches=2 chunks=2
    0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    <BLANKLINE>
    """
    p, m, v = _sizes(name, num_ranks, num_microbatches, num_chunks)
    length = m if v == 1 else m // max(1, m // p)  # of a round
    rounds = [range(first, first + length) for first in range(0, m, length)]
    forward = [Action(FORWARD, one, chunk) for each in rounds for chunk in range(v) for one in each]
    backward = [Action(BACKWARD, one, chunk) for each in rounds for chunk in reversed(range(v)) for one in each]
    rows = []
    for rank in range(p):
        later = p - 1 - rank  # ranks
        ahead = {"gpipe": m, "one_f_one_b": later, "interleaved_1f1b": (v - 1) * length + 2 * later}[name]
        pairs = chain.from_iterable(zip(forward[ahead:], backward, strict=False))
        rows.append((*forward[:ahead], *pairs, *backward[max(0, len(forward) - ahead) :]))
    return PipelineSchedule(name, p, m, v, tuple(rows))


def bubble_share(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Fraction:
    """Return the share of a step that a rank stands idle, where all stages take equally long and messages nothing.

    For GPipe and 1F1B it is (p-1)/(m+p-1), however long a backward takes; for interleaved 1F1B (p-1)/(v·m+p-1), with at
    least as many microbatches as ranks. That is of the time that the step takes, as Huang et al., 2019, have it. Of the
    time that it would take without any bubble, as Narayanan et al., 2021, have it, it is (p-1)/m and (p-1)/(v·m). With
    m < p microbatches the one round of interleaved 1F1B has gaps of its own: (v·(p-m)+m-1)/(v·p+m-1).

    Raises ValueError for what `build` refuses.

    >>> bubble_share("gpipe", 4, 8), bubble_share("one_f_one_b", 4, 8), bubble_share("interleaved_1f1b", 4, 8, 2)
    (Fraction(3, 11), Fraction(3, 11), Fraction(3, 19))
    """
    p, m, v = _sizes(name, num_ranks, num_microbatches, num_chunks)
    # gpipe and 1F1B have v = 1, where both forms below are the same
    return Fraction(p - 1, v * m + p - 1) if m >= p else Fraction(v * (p - m) + m - 1, v * p + m - 1)


def _sizes(name: str, num_ranks: Any, num_microbatches: Any, num_chunks: Any) -> tuple[int, int, int]:
    """The sizes as ints; ValueError for those that the schedule of this name cannot have."""
    one_of("name", name, PIPELINES)
    p = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    m = whole("num_microbatches", num_microbatches, 1, MOST_MICROBATCHES)
    v = whole("num_chunks", num_chunks, 1, MOST_CHUNKS)
    whole("num_ranks times num_microbatches times num_chunks", p * m * v, 1, MOST_PASSES)
    if name == "interleaved_1f1b":
        if m % (rounds := max(1, m // p)):
            of_rounds = f"a multiple of {rounds}, the rounds of {p} ranks"
            raise ValueError(f"num_microbatches of interleaved_1f1b must be {of_rounds}, got {m}")
    elif v != 1:
        raise ValueError(f"num_chunks of {name} must be 1, got {v}: interleaved_1f1b takes several")
    return p, m, v
