"""Ranks of one process: a thread each, with a real Gloo process group, for notebooks and tests."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from ..common.checks import function, number, whole
from ..common.extras import naming_extra
from ..common.words import error_words
from .errors import RankError
from .host import MOST_RANKS

Result = TypeVar("Result")


@naming_extra()
def in_threads(num_ranks: int, work: Callable[[int, Any], Result], timeout_s: float = 60.0) -> list[Result]:
    """Call ``work(rank, group)`` for all ranks at the same time, and return the results by rank.

    Each rank is a thread, and `group` is its own end of a real Gloo process group (``ProcessGroupGloo`` over loopback).
    There is no default group, so use `group` directly, as in ``group.allreduce([tensor]).wait()``. Threads share the
    interpreter, so they can wait and communicate in parallel, but not compute in parallel.

    If a rank raises, its end of the group is closed, so the others fail at their next collective instead of waiting;
    they wait for at most `timeout_s`. Raises RankError with the first error of a rank; ValueError if an argument is
    invalid.

    >>> import torch
    >>> def total(rank, group):
    ...     tensor = torch.tensor([rank])
    ...     group.allreduce([tensor]).wait()
    ...     return tensor.item()
    >>> in_threads(4, total)
    [6, 6, 6, 6]
    """
    import torch.distributed as dist

    function("work", work, "of rank and group")
    num_ranks = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    timeout = timedelta(seconds=number("timeout_s", timeout_s, above=0, high=10**6))
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, and left out of torch's own list
    results: dict[int, Result] = {}
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, dist.ProcessGroupGloo(store, rank, num_ranks, timeout))
        except BaseException as error:
            errors.append((rank, error))
            clear_frames(error)  # which closes this rank's end of the group

    # daemon: if Ctrl-C ends the waiting below, Python's exit must not wait for ranks that wait for each other
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        rank, cause = errors[0]  # the others are often its consequences
        raise RankError(f"rank {rank} failed: {error_words(cause)}", rank) from cause
    return [results[rank] for rank in range(num_ranks)]


def clear_frames(error: BaseException) -> None:
    """Delete the local variables in the tracebacks of an error and of those during whose handling it was raised.

    They refer to the process group, which is closed only when nothing refers to it any more.
    """
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current = current.__context__
