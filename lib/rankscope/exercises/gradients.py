"""Exercises of notebooks 05 to 07: how gradients meet."""

from __future__ import annotations

import math
from typing import Any

from ..cluster import Cluster, Link
from ..collectives import Schedule, build, closed_form, lower_bounds, simulate_executor, verify
from ..machine.profile import busbw_factor
from .answers import Check, is_near, is_whole


def _dealt_out(answer: Any) -> str | None:
    """What rank 3 has after an all-to-all among four ranks, of which rank r has 1 … 4 times 10^r."""
    return None if answer == [4 * 10**rank for rank in range(4)] else f"rank 3 does not end with {answer!r}"


def _tree_steps(answer: Any) -> str | None:
    """The steps of a binomial broadcast among 1,000 ranks."""
    right = build("broadcast", "binomial", 1000).num_steps
    return None if answer == right else f"it does not take {answer!r} steps"


def _one_step_allreduce(answer: Any) -> str | None:
    """A line that makes an allreduce of one chunk among two ranks."""
    verify(Schedule.from_text(f"allreduce yours ranks=2 chunks=1\n{answer}"))
    return (
        None if answer.strip().startswith("0:") and "\n" not in answer.strip() else "one line, for step 0, is asked for"
    )


def _messages_of_the_root(answer: Any) -> str | None:
    """How many messages pass the root's port in a flat allreduce among six ranks."""
    steps = build("allreduce", "flat", 6).steps()
    right = sum(int(((step.src == 0) | (step.dst == 0)).sum()) for step in steps)
    return None if answer == right else f"there are not {answer!r}"


def _latency_half(answer: Any) -> str | None:
    """From how many ranks on a ring of 20 µs and 25 GB/s spends more than half of its time for 10 MB on latency."""
    if not is_whole(answer, 2, 10**6):
        return f"a number of ranks from 2 to 1,000,000 is asked for, got {answer!r}"

    def latency(ranks: int) -> float:
        whole_s = closed_form("allreduce", "ring", ranks, 10e6, Link(20e-6, 25e9))
        return float(2 * (ranks - 1) * 20e-6 / whole_s)

    if latency(answer) <= 0.5 + 1e-12:
        return f"with {answer} it is {latency(answer):.0%}"
    return "fewer do, too" if latency(answer - 1) > 0.5 + 1e-12 else None


def _doubling_to_bound(answer: Any) -> str | None:
    """How many times the lower bound recursive doubling takes among eight ranks, where only bytes cost."""
    wire = Link(0.0, 1.0)
    right = (
        closed_form("allreduce", "recursive_doubling", 8, 1.0, wire) / lower_bounds("allreduce", 8, 1.0, wire).seconds
    )
    return None if is_near(answer, right) else f"it does not take {answer!r} times as long"


def _latencies_on_the_wire(answer: Any) -> str | None:
    """How many latencies the executor's recursive doubling takes among eight ranks for a few bytes."""
    cluster = Cluster.uniform(8, Link(1.0, math.inf))
    right = round(simulate_executor(build("allreduce", "recursive_doubling", 8), 8, cluster).makespan_s)
    return None if answer == right else f"it does not take {answer!r} latencies"


def _bytes_through_the_root(answer: Any) -> str | None:
    """The seconds of a flat allreduce of 1 MB among five ranks, where a card takes 10 MB/s and nothing else counts."""
    right = simulate_executor(build("allreduce", "flat", 5), 1_000_000, Cluster.uniform(5, Link(0.0, 10e6))).makespan_s
    return None if is_near(answer, right) else f"the root's card is not busy for {answer!r} s"


def _bus_bandwidth(answer: Any) -> str | None:
    """The busbw in GB/s of an allreduce of 64 MiB among eight ranks in 20 ms."""
    right = busbw_factor("allreduce", 8) * 2**26 / 0.020 / 1e9
    return None if is_near(answer, right) else f"it is not {answer!r} GB/s: decimal ones, and 2(N-1)/N times algbw"


EXERCISES: dict[str, Check] = {
    "05.1": _dealt_out,
    "05.2": _tree_steps,
    "05.3": _one_step_allreduce,
    "06.1": _messages_of_the_root,
    "06.2": _latency_half,
    "06.3": _doubling_to_bound,
    "07.1": _latencies_on_the_wire,
    "07.2": _bytes_through_the_root,
    "07.3": _bus_bandwidth,
}
