"""What the explorer of `box` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

from rankscope.box import stated
from rankscope.common.units import parse_bytes


def transfers(now: Any) -> list[tuple[Any, ...]]:
    """A loop that copies in turn takes a copy and a step, and one that prefetches the longer of the two."""
    size = parse_bytes("size", now.size)
    copy_s = stated(int(now.link[5])).seconds(size, "h2d", now.method)
    step_s = now.step_ms / 1e3
    batch_s = max(copy_s, step_s) if now.prefetched else copy_s + step_s
    return [(f"method {now.method} in #", copy_s), ("loop: # per batch.* computes #", batch_s, step_s / batch_s)]


TRUTHS = {"transfers": ({}, transfers)}
