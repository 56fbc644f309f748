"""Exercises of notebook 10: DataParallel against DDP."""

from __future__ import annotations

from typing import Any

from ..cluster import Link
from ..data_parallel import model as data_parallel
from .answers import Check, is_near, is_number


def _devices_used(answer: Any) -> str | None:
    """How many of eight devices have work in DataParallel with 20 samples."""
    right = len(data_parallel.chunk_sizes(20, 8))
    return None if answer == right else f"20 samples over 8 devices do not give {answer!r} chunks"


def _busiest_port(answer: Any) -> str | None:
    """How many times a DDP rank's bytes pass device 0 among 16, parameters and gradients alone counted."""
    sizes = data_parallel.StepSizes(16, 0, 0, 1600)
    right = data_parallel.traffic(sizes, 16).port_bytes[0] / data_parallel.ddp_traffic(sizes, 16).port_bytes[0]
    return None if is_near(answer, right) else f"device 0 does not carry {answer!r} times as much"


def _least_link(answer: Any) -> str | None:
    """From how many GB/s on four devices with 100 MB of parameters are quicker than one that takes 200 ms."""
    if not is_number(answer) or not 0 < answer <= 1e6:
        return f"a bandwidth above 0 and of at most 1,000,000 GB/s is asked for, got {answer!r}"

    def step_s(gb_per_s: float) -> float:
        costs = data_parallel.StepCosts(Link(0.0, gb_per_s * 1e9), forward_s=0.001, backward_s=0.001)
        return data_parallel.simulate(data_parallel.StepSizes(100, 0, 0, 10**8), 4, costs).makespan_s

    if step_s(answer * 1.005) > 0.2:
        return f"with {answer} GB/s a step of the four takes {step_s(answer) * 1e3:.0f} ms"
    return "with less they are, too" if step_s(answer * 0.995) < 0.2 else None


EXERCISES: dict[str, Check] = {
    "10.1": _devices_used,
    "10.2": _busiest_port,
    "10.3": _least_link,
}
