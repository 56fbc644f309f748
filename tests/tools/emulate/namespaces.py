"""Network namespaces of Linux, entered and made by a thread for itself: Python has its own calls from 3.12 on only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_CLONE_NEWNET = 0x40000000


def enter(path: str) -> None:
    """Let this thread, and what it starts from now on, see the network of a namespace. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().setns(descriptor, _CLONE_NEWNET), "setns")
    finally:
        os.close(descriptor)


def enter_as_rank(paths: Sequence[str], interface: str, rank: int) -> None:
    """Enter the namespace of a rank, which then talks over that interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    enter(paths[rank])


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
