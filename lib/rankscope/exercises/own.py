"""Exercises of notebook 14: a sampler, a schedule and a prediction of one's own."""

from __future__ import annotations

from typing import Any

from ..cluster import Link
from ..collectives import Schedule, ScheduleError, closed_form, verify
from ..sampling import Assignment, audit
from ..sampling.audit import AuditError
from .answers import Check, is_near


def _two_lists(answer: Any) -> str | None:
    """What two ranks read of 7 samples, nothing twice and nothing left out."""
    try:
        first, second = answer
        audit(Assignment.collect([first, second], size=7)).check(allow=["unbalanced"])
    except (TypeError, ValueError, AuditError) as error:
        return f"two lists of samples are asked for, and of these: {error}"
    return None


def _broadcast(answer: Any) -> str | None:
    """A broadcast from rank 0 to three others in two steps, in which no rank sends twice in a step."""
    try:
        schedule = Schedule.from_text(answer)
        if (schedule.collective, schedule.num_ranks, schedule.root, schedule.ports) != ("broadcast", 4, 0, 1):
            return "it must begin with: broadcast mine ranks=4 chunks=1"
        verify(schedule)
    except (TypeError, AttributeError, ValueError, ScheduleError) as error:
        return f"it is no such schedule: {error}"
    return None if schedule.num_steps == 2 else f"it takes {schedule.num_steps} steps, not two"


def _ring_us(answer: Any) -> str | None:
    """How many µs a ring allreduce of 800 kB takes on 8 ranks, with 20 µs and 1 µs a kB for a message."""
    right = float(closed_form("allreduce", "ring", 8, 800e3, Link(alpha_s=20e-6, bytes_per_s=1e9))) * 1e6
    return None if is_near(answer, right) else f"it does not take {answer!r} µs: how many messages, how large?"


EXERCISES: dict[str, Check] = {
    "14.1": _two_lists,
    "14.2": _broadcast,
    "14.3": _ring_us,
}
