"""`PipelineSchedule`: the passes of each rank of a pipeline, in order. `build` takes them from torch's own schedules.

A model is cut into stages, and each rank holds one stage or more, its chunks. A microbatch goes through all stages
forward, then back. The backward pass of a stage has two parts: one computes the gradients of the stage's inputs, for
which the stage before it waits, the other those of its weights, for which nobody waits. Zero-bubble schedules run them
separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

import msgspec

from ...common.checks import of_type, one_of, whole

# The parts of each kind of pass: forward, backward to the inputs, backward to the weights, or both backward parts.
PARTS = {"F": "F", "I": "I", "W": "W", "B": "IW"}
_WORD = re.compile(r"(\d+)([FIWB])(\d+)")
KINDS = {"F": "forward", "I": "backward", "W": "weights", "B": "backward"}  # of spans in a Timeline
_KEPT = {"F": 1, "I": 0, "W": -1, "B": -1}  # a stage's activations are freed when its weights have their gradients


class PipelineError(ValueError):
    """A schedule is incomplete, or its ranks would wait for one another forever."""


class Pass(NamedTuple):
    """A pass of a microbatch through a stage: "F" forward, "B" backward, or backward in parts, "I" and "W".

    >>> print(Pass("F", 0, 2))
    0F2
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def input_key(self) -> tuple[int, str, int]:
        return self.stage, PARTS[self.kind][0], self.microbatch


Rows = tuple[tuple[Pass, ...], ...]  # the passes of each rank, in order


class PipelineSchedule(msgspec.Struct, frozen=True, dict=True):
    """The passes of each rank, in order: `ranks[rank]`. `verify` checks them."""

    name: str
    ranks: Rows

    @cached_property
    def num_stages(self) -> int:
        return 1 + max(each.stage for each in chain(*self.ranks))

    @cached_property
    def num_microbatches(self) -> int:
        return 1 + max(each.microbatch for each in chain(*self.ranks))

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank: its chunks, from the first to the last."""
        return tuple(tuple(sorted({each.stage for each in row})) for row in self.ranks)

    def kind_of(self, rank: int, each: Pass) -> str:
        """Return the kind of a pass's span in a timeline."""
        chunk = self.stages[rank].index(each.stage)
        return f"{KINDS[each.kind]} {chunk or ''}".strip()

    def is_sent(self, rank: int, each: Pass) -> bool:
        """Whether the result of a pass goes to another rank."""
        if each.kind == "W":
            return False
        receiver = each.stage + 1 if each.kind == "F" else each.stage - 1
        return 0 <= receiver < self.num_stages and receiver not in self.stages[rank]

    def activations_in_flight(self) -> tuple[int, ...]:
        """Return the most activations that each rank keeps at a time, each of one microbatch in one stage.

        >>> build("GPipe", 4, 8).activations_in_flight(), build("1F1B", 4, 8).activations_in_flight()
        ((8, 8, 8, 8), (4, 3, 2, 1))
        """
        return tuple(max(accumulate(_KEPT[each.kind] for each in row)) for row in self.ranks)

    def to_text(self) -> str:
        """Return the schedule as text, in torch's notation: its name, and a line for each rank.

        >>> print(build("1F1B", 2, 3).to_text())
        1F1B
        0: 0F0 0F1 0B0 0F2 0B1 0B2
        1: 1F0 1B0 1F1 1B1 1F2 1B2
        <BLANKLINE>
        """
        lines = [" ".join([f"{rank}:", *map(str, row)]) for rank, row in enumerate(self.ranks)]
        return "\n".join([self.name, *lines, ""])

    @classmethod
    def from_text(cls, text: str) -> PipelineSchedule:
        """Read a schedule from text as `to_text` writes it; the first line is any name.

        Raises PipelineError, with the line's number, for anything else.

        >>> split = PipelineSchedule.from_text("by hand\\n0: 0F0 0F1 0I0 0I1 0W0 0W1")
        >>> split.activations_in_flight()
        (2,)
        """
        name, *lines = of_type("text", text, str).strip().splitlines() or [""]
        ranks = []
        for rank, line in enumerate(lines):
            first, *words = line.split() or [""]
            passes = [_WORD.fullmatch(word) for word in words]
            if first != f"{rank}:" or not words or None in passes:
                raise PipelineError(f"line {rank + 2}: expected {rank}: and passes such as 0F0 or 3B1, got {line!r}")
            ranks.append(tuple(Pass(each[2], int(each[1]), int(each[3])) for each in passes if each))
        if not ranks:
            raise PipelineError(f"text must be a name and a line for each rank, got {text!r}")
        return cls(name, tuple(ranks))


class ScheduleKind(NamedTuple):
    """How `build` makes a schedule: by ``rows(num_ranks, num_microbatches, num_chunks)``, or None for torch's own.

    `has_chunks` says whether `num_chunks` has an effect.
    """

    has_chunks: bool = False
    rows: Callable[[int, int, int | None], Rows] | None = None


SCHEDULES = {
    "GPipe": ScheduleKind(),
    "1F1B": ScheduleKind(),
    "LoopedBFS": ScheduleKind(has_chunks=True),
    "Interleaved1F1B": ScheduleKind(has_chunks=True),
    "InterleavedZeroBubble": ScheduleKind(has_chunks=True),
    "ZBVZeroBubble": ScheduleKind(),
    "DualPipeV": ScheduleKind(),
}


def build(name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None) -> PipelineSchedule:
    """Return one of `SCHEDULES`, as torch would run it, with `num_chunks` stages per rank (1 or 2 by default).

    - "GPipe" (Huang et al., 2019) and "LoopedBFS" (Lamy-Poirier, 2023) run all microbatches forward, then backward.
    - "1F1B" (PipeDream-Flush: Narayanan et al., 2021): rank r of p runs p-1-r forwards, then one F, one B in turn.
    - "Interleaved1F1B" (Narayanan et al., 2021) does so with several smaller stages per rank.
    - "InterleavedZeroBubble" and "ZBVZeroBubble" (Qi et al., 2024) delay the weights' part of backward passes. In the
      latter and in "DualPipeV" (DeepSeek, 2025), rank r has the stages r and 2p-1-r. DualPipeV pairs a forward with a
      backward pass; here one of a pair runs after the other, as in torch, unless torch is given a function for both.

    Raises ValueError if the name is unknown, a size is below 1, or torch refuses the sizes.

    >>> print(build("ZBVZeroBubble", 1, 1).to_text())
    ZBVZeroBubble
    0: 0F0 1F0 1I0 1W0 0I0 0W0
    <BLANKLINE>
    """
    kind = SCHEDULES[one_of("name", name, tuple(SCHEDULES))]
    whole("num_ranks", num_ranks, 1)
    whole("num_microbatches", num_microbatches, 1)
    if kind.rows is not None:
        return PipelineSchedule(name, kind.rows(num_ranks, num_microbatches, num_chunks))
    return PipelineSchedule(name, _rows_of_torch(name, num_ranks, num_microbatches, num_chunks))


def _rows_of_torch(name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None) -> Rows:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # here, as text needs no torch

    try:
        actions: Any = get_schedule_ops(name, num_ranks, num_microbatches, num_chunks)
    except (AssertionError, ValueError) as error:
        sizes = f"num_ranks={num_ranks}, num_microbatches={num_microbatches}, num_chunks={num_chunks}"
        raise ValueError(f"torch has no {name} with {sizes}: {error}") from error
    rows = []
    for row in actions:
        parts = chain.from_iterable(action.sub_actions or [action] for action in row if action is not None)
        passes = [Pass(part.computation_type.value, part.stage_index, part.microbatch_index) for part in parts]
        rows.append(tuple(each for each in passes if each.kind in PARTS))
    if name == "1F1B":  # torch's table counts the last rank's forwards from 1
        rows[-1] = tuple(Pass(kind, num_ranks - 1, number) for number in range(num_microbatches) for kind in "FB")
    return tuple(rows)
