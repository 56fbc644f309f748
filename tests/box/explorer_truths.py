"""What the explorer of `box` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

from rankscope.box import Profile, nccl, stated
from rankscope.common.units import parse_bytes


def transfers(now: Any) -> list[tuple[Any, ...]]:
    """A loop that copies in turn takes a copy and a step, and one that prefetches the longer of the two."""
    size = parse_bytes("size", now.size)
    copy_s = stated(int(now.link[5])).seconds(size, "h2d", now.method)
    step_s = now.step_ms / 1e3
    batch_s = max(copy_s, step_s) if now.prefetched else copy_s + step_s
    return [
        (f"method {now.method} in #", copy_s),
        ("loop: # per batch", batch_s),
        ("waits # of the time", 1 - step_s / batch_s),
    ]


def box(now: Any) -> list[tuple[Any, ...]]:
    """The rate at a size that was measured, by the formula of nccl-tests."""
    machine = Profile.load(f"bank:{now.machine}")
    seconds = machine.native_s(now.collective).get(parse_bytes("size", now.size))
    if seconds is None:
        return []
    sent = {"allreduce": 2, "reduce": machine.num_ranks / (machine.num_ranks - 1)}.get(now.collective, 1)
    rate = sent * (1 - 1 / machine.num_ranks) * parse_bytes("size", now.size) / seconds
    return [(": #(?: vs .*)? GB/s", rate / 1e9)]


def of_nccl(now: Any) -> list[tuple[Any, ...]]:
    """The shortest time that NCCL expects, pair by pair."""
    model = nccl.Model(now.gpu, now.gpus_per_node, now.num_nodes)
    size = parse_bytes("size", now.size)
    shortest_us = min(model.expected_us(now.collective, *pair, size) for pair in model.eligible(now.collective))
    return [("NCCL expects #, our", shortest_us / 1e6)]


TRUTHS = {"transfers": ({}, transfers), "box": ({}, box), "nccl": ({}, of_nccl)}
