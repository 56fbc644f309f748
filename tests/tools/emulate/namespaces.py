"""Network namespaces of Linux, entered and made by a thread for itself: Python has its own calls from 3.12 on only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000


def enter(path: str) -> None:
    """Let this thread, and what it starts from now on, see the network of a namespace. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().setns(descriptor, _CLONE_NEWNET), "setns")
    finally:
        os.close(descriptor)


def on_its_host(
    paths: Sequence[str], interface: str, meeting: str, fn: Callable[..., Result], args: Sequence[Any], timeout_s: float
) -> Result:
    """Call the function as a rank of `launch` that moves to its namespace and talks over that interface.

    It leaves the group over loopback once all ranks have joined that, and joins another one. They meet in a file.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    num_ranks = dist.get_world_size()
    store = dist.FileStore(meeting, num_ranks)  # type: ignore[attr-defined]
    store.set(f"joined/{rank}", "")
    store.wait([f"joined/{peer}" for peer in range(num_ranks)])
    dist.destroy_process_group()
    enter(paths[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    return fn(*args)


def leave_for_new() -> int:
    """Let this thread see a new network, and return a descriptor that keeps it. Raises OSError."""
    _check(_libc().unshare(_CLONE_NEWNET), "unshare")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(code: int, call: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
