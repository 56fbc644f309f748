"""torch's fake process group: the code of DDP and FSDP runs in one process as if it were one of many ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fake_group(num_ranks: int) -> Iterator[None]:
    """Be rank 0 of so many while the context is open. Collectives return at once and communicate nothing.

    The caller's random numbers stay as they are, whatever is drawn meanwhile. Raises RuntimeError in a process that has
    a process group already.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError("this process has a process group already: observe a step in a process of its own")
    excepthook = sys.excepthook  # torch replaces it by one that names the rank
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook
