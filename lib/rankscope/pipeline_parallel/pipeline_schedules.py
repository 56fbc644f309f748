"""GPipe, 1F1B and interleaved 1F1B as tables, and what is known of them in closed form: bubble and activations kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ..values.checks import one_of
from .pipeline_parallel import BACKWARD, FORWARD, Action, PipelineSchedule, checked_sizes


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
    """Return of each rank the most activations kept, in closed form; `activations_in_flight` counts them.

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
