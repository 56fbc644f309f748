"""Exercises of notebook 13: parameter servers and pipelines."""

from __future__ import annotations

from typing import Any

from ..pipeline_parallel.schedule import PipelineSchedule, bubble_share, verify
from .answers import Check, is_near, is_whole


def _server_against_ring(answer: Any) -> str | None:
    """How many times what a rank of a ring receives comes in at a synchronous server of sixteen workers."""
    num_workers = 16
    right = num_workers / (2 * (num_workers - 1) / num_workers)
    return None if is_near(answer, right) else f"the server does not receive {answer!r} times as much"


def _fewest_microbatches(answer: Any) -> str | None:
    """The fewest microbatches with which 1F1B on eight ranks stands idle for a tenth of the step or less."""
    if not is_whole(answer, 1, 4096):
        return f"a number of microbatches from 1 to 4096 is asked for, got {answer!r}"
    share = bubble_share("one_f_one_b", 8, answer)
    if share > 0.1:
        return f"with {answer} it is {float(share):.1%}"
    return "with fewer it is no more, either" if bubble_share("one_f_one_b", 8, answer - 1) <= 0.1 else None


def _one_kept(answer: Any) -> str | None:
    """A schedule as text, of two ranks and three microbatches, in which no rank ever keeps two activations."""
    schedule = PipelineSchedule.from_text(answer)
    verify(schedule)
    if (schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks) != (2, 3, 1):
        return f"it must have 2 ranks, 3 microbatches and 1 chunk, not those of {schedule.to_text().splitlines()[0]!r}"
    kept = schedule.activations_in_flight()
    return None if max(kept) == 1 else f"rank {kept.index(max(kept))} keeps {max(kept)}"


EXERCISES: dict[str, Check] = {
    "13.1": _server_against_ring,
    "13.2": _fewest_microbatches,
    "13.3": _one_kept,
}
