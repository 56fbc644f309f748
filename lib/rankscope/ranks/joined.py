"""`launch` in a process that is a rank already: torchrun, or mpirun with MASTER_ADDR and MASTER_PORT, has started it.

Each process calls `launch` with the same arguments, `num_ranks` as many or None, and gets all results. Nothing is
forked, what ranks print goes where the launcher sends it, and `timeout_s` is the group's. A rank that fails raises
RankError in its own process, and the others at their next collective.
"""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from ..common.words import error_words
from .errors import RankError, unpickled
from .threads import clear_frames

# Variables with the rank of this process and the number of ranks: of torchrun, of Open MPI, of MPICH and its relatives.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_launches = itertools.count()  # their numbers, the same on all ranks
# The launcher's store, once it is needed. It stays for later launches: rank 0 may be the store's server, which ends
# when nothing refers to the store any more, and other ranks may still be reading from it.
_stores: list[Any] = []


class Place(NamedTuple):
    """The rank of this process, and the number of ranks."""

    rank: int
    num_ranks: int


def place() -> Place | None:
    """Return the place of this process among the ranks, or None if no launcher has made it one."""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return None
    for rank, num_ranks in _VARIABLES:
        if rank in os.environ and num_ranks in os.environ:
            return Place(int(os.environ[rank]), int(os.environ[num_ranks]))
    return None


def run(fn: Callable[..., Any], num_ranks: int | None, args: list[Any], backend: str, timeout_s: float) -> list[Any]:
    """Call ``fn(*args)`` as one of the ranks, and return the results of all.

    The group is made for the call and taken down after it, unless there is one already: at the exit of a process a
    group that is still there may abort it. A rank that fails takes its end of the group with it.
    """
    import torch
    import torch.distributed as dist

    here = place()
    assert here is not None
    if num_ranks not in (None, here.num_ranks):
        raise ValueError(f"num_ranks must be None or WORLD_SIZE={here.num_ranks} under torchrun, got {num_ranks!r}")
    if dist.is_initialized():
        return _gathered(fn, args)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", here.rank % torch.cuda.device_count())))
    timeout = timedelta(seconds=timeout_s)
    store = _store_of_launch(here, timeout)
    dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.num_ranks, timeout=timeout)
    try:
        _wait_for_all(store, "joined", here)  # a rank that fails at once would close connections that others still make
        results = _gathered(fn, args)
        _wait_for_all(store, "done", here)  # nobody leaves while another still reads
        return results
    finally:
        dist.destroy_process_group()


def _store_of_launch(here: Place, timeout: timedelta) -> Any:
    """Return this launch's part of the launcher's store: its keys begin with the number of the launch.

    The store of torchrun's agent outlives the ranks. After a restart, its keys of before must not count.
    """
    import torch.distributed as dist

    if not _stores:
        store, _, _ = next(dist.rendezvous("env://", here.rank, here.num_ranks, timeout=timeout))  # type: ignore[attr-defined]
        _stores.append(store)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own_store = dist.PrefixStore(f"launch/{restarts}/{next(_launches)}", _stores[0])  # type: ignore[attr-defined]
    own_store.set_timeout(timeout)
    return own_store


def _wait_for_all(store: Any, what: str, here: Place) -> None:
    """Note in the store that this rank has reached the point that `what` names, and wait for all others."""
    store.set(f"{what}/{here.rank}", "")
    store.wait([f"{what}/{rank}" for rank in range(here.num_ranks)])


def _gathered(fn: Callable[..., Any], args: list[Any]) -> list[Any]:
    """Call the function on this rank, and return the results of all ranks. Raises RankError if it fails."""
    import cloudpickle
    import torch.distributed as dist

    rank = dist.get_rank()
    try:
        result = cloudpickle.dumps(fn(*args))  # here, so that a result that cannot be pickled is this rank's failure
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        clear_frames(error)  # otherwise they would keep this rank's end of the group open, and the others waiting
        raise RankError(f"rank {rank} failed: {error_words(error)}\n\n{text}", rank) from error
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, result)
    return [unpickled(pickled, rank) for rank, pickled in enumerate(results)]
