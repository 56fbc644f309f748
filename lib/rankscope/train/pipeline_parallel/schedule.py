"""`PipelineSchedule`: the order in which each rank of a pipeline runs forward and backward passes, as a table.

A model is cut into stages, and rank r holds stages r, r + num_ranks, …, its chunks 0, 1, …. A microbatch goes through
all stages forward, then back. Kinds of pipelines differ only in the order of each rank's passes, which is fixed
beforehand. GPipe, 1F1B and interleaved 1F1B are built here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, chain, product
from typing import Any, NamedTuple

import msgspec

from ...common.checks import check_field, of_type, one_of, several, whole
from ...common.words import one_line

PIPELINES = ("gpipe", "one_f_one_b", "interleaved_1f1b")
MOST_RANKS = 256
MOST_MICROBATCHES = 4096
MOST_CHUNKS = 64
MOST_PASSES = 1 << 20  # forward, of all ranks: so many take 100 MB, and seconds to verify
FORWARD = "F"
BACKWARD = "B"
_ACTION = re.compile(r"([0-9]{1,6})([FB])([0-9]{1,6})")
_HEAD = re.compile(r"(\S+) ranks=([0-9]{1,6}) microbatches=([0-9]{1,6}) chunks=([0-9]{1,6})")


class PipelineError(ValueError):
    """The schedule cannot be executed or is incomplete. `rank` and `action` state where, or are None."""

    def __init__(self, message: str, rank: int | None = None, action: str | None = None) -> None:
        super().__init__(one_line(message))
        self.rank = rank
        self.action = action


class Action(NamedTuple):
    """One forward or backward pass: `kind` is "F" or "B", of a microbatch, by one of the rank's chunks."""

    kind: str
    microbatch: int
    chunk: int = 0


class StagePass(NamedTuple):
    """A forward or backward pass of a microbatch, named by its stage instead of its rank and chunk."""

    stage: int
    kind: str
    microbatch: int


def _one_word(name: str, value: Any) -> str:
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(f"{name} must be a name without spaces, got {value!r}")
    return value


def _rows(name: str, value: Any) -> tuple[tuple[Action, ...], ...]:
    rows = []
    for row in several(name, value, "rows"):
        rows.append(tuple([_action(action) for action in several("a row of actions", row)]))
    return tuple(rows)


def _action(value: Any) -> Action:
    if not isinstance(value, tuple) or len(value) != 3 or value[0] not in (FORWARD, BACKWARD):
        raise ValueError(f"an action must be ('F' or 'B', microbatch, chunk), got {value!r}")
    kind, microbatch, chunk = value
    return Action(kind, whole("microbatch", microbatch, 0), whole("chunk", chunk, 0))


class PipelineSchedule(msgspec.Struct, frozen=True):
    """The actions of each rank, in order: `actions[rank]`.

    Raises ValueError if a size is out of range or the number of rows is not the number of ranks. `verify` checks
    whether the actions are complete and can be executed.
    """

    name: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        check_field(self, "name", _one_word)
        check_field(self, "num_ranks", whole, 1, MOST_RANKS)
        check_field(self, "num_microbatches", whole, 1, MOST_MICROBATCHES)
        check_field(self, "num_chunks", whole, 1, MOST_CHUNKS)
        check_field(self, "actions", _rows)
        if len(self.actions) != self.num_ranks:
            raise ValueError(f"actions must be {self.num_ranks} rows, one for each rank, got {len(self.actions)}")
        # A set, because the ranks' rows repeat the same actions.
        for _, microbatch, chunk in set(chain.from_iterable(self.actions)):
            whole("microbatch", microbatch, 0, self.num_microbatches - 1)
            whole("chunk", chunk, 0, self.num_chunks - 1)

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_chunks

    def stage(self, rank: int, action: Action) -> int:
        """Return the stage that an action of a rank runs."""
        return action.chunk * self.num_ranks + rank

    def word(self, rank: int, action: Action) -> str:
        """Return an action as text in the notation of torch's pipelining: stage, F or B, microbatch."""
        return f"{self.stage(rank, action)}{action.kind}{action.microbatch}"

    def activations_in_flight(self) -> tuple[int, ...]:
        """Return the maximum number of activations that each rank keeps, from forward passes without their backward.

        Each is of one microbatch and chunk. With `num_chunks` chunks, it has 1/`num_chunks` of its size with one chunk.

        >>> build("gpipe", 4, 8).activations_in_flight(), build("one_f_one_b", 4, 8).activations_in_flight()
        ((8, 8, 8, 8), (4, 3, 2, 1))
        """
        most_kept = []
        for row in self.actions:
            changes = [1 if action.kind == FORWARD else -1 for action in row]  # a backward frees what its forward kept
            most_kept.append(max(accumulate(changes), default=0))  # a row may be empty: only `verify` refuses that
        return tuple(most_kept)

    def to_text(self) -> str:
        """Return the schedule as text that `from_text` can read: a line of sizes, and one line per rank.

        >>> two = PipelineSchedule("mine", 2, 1, 1, [[("F", 0, 0), ("B", 0, 0)]] * 2)
        >>> print(two.to_text())
        mine ranks=2 microbatches=1 chunks=1
        0: 0F0 0B0
        1: 1F0 1B0
        <BLANKLINE>
        """
        sizes = f"ranks={self.num_ranks} microbatches={self.num_microbatches} chunks={self.num_chunks}"
        lines = [f"{self.name} {sizes}"]
        for rank, row in enumerate(self.actions):
            lines.append(" ".join([f"{rank}:", *(self.word(rank, action) for action in row)]))
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> PipelineSchedule:
        """Read a schedule in the format of `to_text`; empty lines and those that start with # are skipped.

        Raises PipelineError, which names the line, counted from 1, and the word that is wrong in it.
        """
        lines = []  # the number and the words of each line that counts
        for number, line in enumerate(of_type("text", text, str).splitlines(), 1):
            words = line.split()
            if words and not words[0].startswith("#"):
                lines.append((number, words))
        if not lines:
            raise PipelineError("the text of a pipeline must start with a line of its sizes, and this one is empty")
        number, words = lines[0]
        head = _HEAD.fullmatch(" ".join(words))
        if head is None:
            expected = "'name ranks=… microbatches=… chunks=…' with whole numbers"
            raise PipelineError(f"line {number}: expected {expected}, got {' '.join(words)!r}")
        name, *sizes = head.groups()
        num_ranks, num_microbatches, num_chunks = map(int, sizes)
        if len(lines) - 1 != num_ranks:
            raise PipelineError(f"expected {num_ranks} lines, one for each rank, got {len(lines) - 1}")
        rows = []
        for rank, (number, words) in enumerate(lines[1:]):
            rows.append(_read_row(number, words, rank, num_ranks, num_chunks))
        return cls(name, num_ranks, num_microbatches, num_chunks, tuple(rows))


def _read_row(number: int, words: list[str], rank: int, num_ranks: int, num_chunks: int) -> tuple[Action, ...]:
    """Return the actions of a rank from the words of its line; `number` is that of the line, for errors."""
    if words[0] != f"{rank}:":
        raise PipelineError(f"line {number}: expected rank {rank}:, got {words[0]!r}", rank)
    row = []
    for word in words[1:]:
        match = _ACTION.fullmatch(word)
        if match is None:
            raise PipelineError(f"line {number}: expected an action like 0F0 or 3B1, got {word!r}", rank, word)
        stage, kind, microbatch = match.groups()
        chunk, rank_of_stage = divmod(int(stage), num_ranks)
        if rank_of_stage != rank or chunk >= num_chunks:
            raise PipelineError(f"line {number}: rank {rank} has no stage {stage}, in {word!r}", rank, word)
        row.append(Action(kind, int(microbatch), chunk))
    return tuple(row)


# ---- whether a schedule is complete and can be executed


def verify(schedule: PipelineSchedule) -> None:
    """Raise PipelineError unless each stage runs each microbatch forward and backward once, without a deadlock.

    Messages are assumed to be sent as soon as they are computed and buffered until they are received.

    >>> wrong = "mine ranks=2 microbatches=1 chunks=1\\n0: 0F0 0B0\\n1: 1B0 1F0"
    >>> verify(PipelineSchedule.from_text(wrong))
    Traceback (most recent call last):
    rankscope.train.pipeline_parallel.schedule.PipelineError: rank 1, 1B0: comes before 1F0
    """
    of_type("schedule", schedule, PipelineSchedule)

    def error(rank: int, action: Action, fault: str) -> PipelineError:
        """Return the error that says what is wrong with an action."""
        word = schedule.word(rank, action)
        return PipelineError(f"rank {rank}, {word}: {fault}", rank, word)

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
                action = Action(kind, microbatch, chunk)
                if action not in done:
                    raise error(rank, action, "is missing")
    for _ in in_order(schedule):  # raises an error if ranks wait for each other
        pass


def in_order(schedule: PipelineSchedule) -> Iterator[tuple[int, Action]]:
    """Yield all ranks' actions, each after its inputs and after the rank's earlier actions.

    Raises PipelineError if every rank that has actions left waits, and names the first of these ranks.
    """
    done = set[StagePass]()
    positions = [0] * schedule.num_ranks  # of the next action of each rank in its row
    num_remaining = sum(map(len, schedule.actions))
    while num_remaining:
        num_before = num_remaining
        for rank, row in enumerate(schedule.actions):  # each rank goes on as far as it can
            while positions[rank] < len(row) and _needed(schedule, rank, row[positions[rank]]) <= done:
                action = row[positions[rank]]
                yield rank, action
                done.add(StagePass(schedule.stage(rank, action), action.kind, action.microbatch))
                positions[rank] += 1
                num_remaining -= 1
        if num_remaining == num_before:
            raise _deadlock(schedule, positions, done)


def _deadlock(schedule: PipelineSchedule, positions: list[int], done: set[StagePass]) -> PipelineError:
    """Return the error that says for which pass the first rank waits that has not run all its actions."""
    rank = next(rank for rank, row in enumerate(schedule.actions) if positions[rank] < len(row))
    action = schedule.actions[rank][positions[rank]]
    word = schedule.word(rank, action)
    stage, kind, microbatch = min(_needed(schedule, rank, action) - done)  # of two, that of the earlier stage
    return PipelineError(f"rank {rank}, {word}: waits for {stage}{kind}{microbatch}, which never runs", rank, word)


def _needed(schedule: PipelineSchedule, rank: int, action: Action) -> set[StagePass]:
    """The passes whose results an action needs; none for a forward pass of the first stage."""
    stage = schedule.stage(rank, action)
    if action.kind == FORWARD:
        if stage == 0:
            return set()
        return {StagePass(stage - 1, FORWARD, action.microbatch)}
    own_forward = StagePass(stage, FORWARD, action.microbatch)
    if stage == schedule.num_stages - 1:
        return {own_forward}
    return {own_forward, StagePass(stage + 1, BACKWARD, action.microbatch)}


# ---- the three kinds


def build(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> PipelineSchedule:
    """Return one of the schedules of `PIPELINES`.

    - "gpipe" (Huang et al., 2019): all microbatches forward, then all backward. With one microbatch it is plain model
      parallelism: one rank works at a time.
    - "one_f_one_b" (PipeDream-Flush: Narayanan et al., 2021): rank r runs p-1-r forwards first, then one F, one B. It
      may have fewer microbatches than ranks; torch's Schedule1F1B refuses that.
    - "interleaved_1f1b" (Narayanan et al., 2021, section 2.2): 1F1B with `num_chunks` smaller stages per rank.
      Microbatches go in ⌊m/p⌋ rounds of equal length (one round if there are fewer microbatches than ranks). A round
      goes through all chunks before the next round begins. As in torch's ScheduleInterleaved1F1B, the number of
      microbatches must be a multiple of the rounds, but not of the ranks.

    Raises ValueError if the name is unknown, a size is out of range, or a schedule that is not interleaved has more
    than one chunk.

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
    round_length = m  # with one chunk, rounds do not change the order
    if v > 1:
        round_length = m // _num_rounds(p, m)
    # All passes of a rank in order, which are the same on every rank.
    forward = []
    backward = []
    for start in range(0, m, round_length):
        microbatches = range(start, start + round_length)
        for chunk in range(v):
            forward += [Action(FORWARD, microbatch, chunk) for microbatch in microbatches]
        for chunk in reversed(range(v)):
            backward += [Action(BACKWARD, microbatch, chunk) for microbatch in microbatches]
    rows = []
    for rank in range(p):
        num_ahead = _num_forwards_ahead(name, p - 1 - rank, m, v, round_length)
        num_ahead = min(num_ahead, len(forward))  # there may be fewer microbatches than ranks
        rows.append(_row(forward, backward, num_ahead))
    return PipelineSchedule(name, p, m, v, tuple(rows))


def _row(forward: list[Action], backward: list[Action], num_ahead: int) -> tuple[Action, ...]:
    """Return a rank's actions: so many forward passes first, then one forward and one backward in turn, then the rest.

    `forward` and `backward` have all passes of the rank, and are equally long.
    """
    num_pairs = len(forward) - num_ahead
    row = forward[:num_ahead]
    for index in range(num_pairs):
        row += [forward[num_ahead + index], backward[index]]
    row += backward[num_pairs:]
    return tuple(row)


def _num_forwards_ahead(name: str, ranks_after: int, num_microbatches: int, num_chunks: int, round_length: int) -> int:
    """How many forward passes a rank runs before its first pair of a forward and a backward.

    `ranks_after` is the number of ranks after it in the pipeline. In interleaved 1F1B, the first backward is of the
    last chunk, so the first round of all other chunks comes before it. For each rank after this one, it comes two
    passes later, one on the way there and one on the way back (``_get_warmup_ops`` in torch's schedules.py).
    """
    if name == "gpipe":
        return num_microbatches
    if name == "one_f_one_b":
        return ranks_after
    return (num_chunks - 1) * round_length + 2 * ranks_after


def bubble_share(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Fraction:
    """Return the share of a step in which a rank is idle if all stages take equally long and messages take no time.

    For GPipe and 1F1B it is (p-1)/(m+p-1), however long a backward pass takes. For interleaved 1F1B with at least as
    many microbatches as ranks it is (p-1)/(v·m+p-1). This is a share of the time of the step, as in Huang et al., 2019.
    As a share of the time without any bubble, as in Narayanan et al., 2021, it is (p-1)/m and (p-1)/(v·m). With m < p
    microbatches, the only round of interleaved 1F1B has further gaps: (v·(p-m)+m-1)/(v·p+m-1).

    Raises ValueError if `build` rejects an argument.

    >>> bubble_share("gpipe", 4, 8), bubble_share("one_f_one_b", 4, 8), bubble_share("interleaved_1f1b", 4, 8, 2)
    (Fraction(3, 11), Fraction(3, 11), Fraction(3, 19))
    """
    p, m, v = _sizes(name, num_ranks, num_microbatches, num_chunks)
    if m >= p:
        return Fraction(p - 1, v * m + p - 1)
    return Fraction(v * (p - m) + m - 1, v * p + m - 1)  # with v = 1, as in GPipe and 1F1B, the same as above


def _num_rounds(p: int, m: int) -> int:
    """Return the number of rounds of interleaved 1F1B: each has at least as many microbatches as ranks, if possible."""
    return max(1, m // p)


class _PipelineSizes(NamedTuple):
    """The numbers of ranks, microbatches and chunks, with the letters of the papers."""

    p: int
    m: int
    v: int


def _sizes(name: str, num_ranks: Any, num_microbatches: Any, num_chunks: Any) -> _PipelineSizes:
    """The sizes as ints; ValueError if the schedule of this name cannot have them."""
    one_of("name", name, PIPELINES)
    p = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    m = whole("num_microbatches", num_microbatches, 1, MOST_MICROBATCHES)
    v = whole("num_chunks", num_chunks, 1, MOST_CHUNKS)
    whole("num_ranks times num_microbatches times num_chunks", p * m * v, 1, MOST_PASSES)
    if name == "interleaved_1f1b":
        num_rounds = _num_rounds(p, m)
        if m % num_rounds:
            multiple = f"a multiple of {num_rounds}, the rounds of {p} ranks"
            raise ValueError(f"num_microbatches of interleaved_1f1b must be {multiple}, got {m}")
    elif v != 1:
        raise ValueError(f"num_chunks of {name} must be 1, got {v}: interleaved_1f1b takes several")
    return _PipelineSizes(p, m, v)
