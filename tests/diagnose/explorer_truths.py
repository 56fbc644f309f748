"""What the explorer of `diagnose` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any


def paste(now: Any) -> list[tuple[Any, ...]]:
    """What stands in two of the examples."""
    if "busbw" in now.text:
        return [("allreduce at # reaches #/s, # of the #/s", 2**28, 260.71e9, 260.71 / 450, 450e9)]
    return [("# GPUs, # pair NV4, # pairs NODE, # pairs SYS", 4, 1, 2, 3)] if "GPU3" in now.text else []


TRUTHS = {"paste": ({}, paste)}
