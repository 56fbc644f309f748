"""`launch` in a process that is a rank already, because torchrun or mpirun has started it."""

from __future__ import annotations

import itertools
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from . import pickling
from .errors import RankError
from .threads import clear_frames

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Variables(NamedTuple):
    """The environment variables in which a launcher states the number of ranks and the rank of this process."""

    num_ranks: str
    rank: str


_TORCHRUN_VARIABLES = Variables("WORLD_SIZE", "RANK")
_MPIRUN_VARIABLES = (
    Variables("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # of Open MPI
    Variables("PMI_SIZE", "PMI_RANK"),  # of MPICH and its relatives
)


class _Rendezvous(NamedTuple):
    """How the launcher's ranks find each other: its store, the rank of this process, and the number of ranks."""

    store: Any
    rank: int
    num_ranks: int


# That of this process, once it is needed. It stays for later launches: rank 0 may be the store's server, which ends
# when nothing refers to the store any more, and other ranks may still be reading from it.
_rendezvous: _Rendezvous | None = None
_launches = itertools.count()  # their numbers, the same on all ranks


def is_joined(backend: str) -> bool:
    """Whether a launcher has made this process a rank. Raises ValueError for MPI where it cannot be had."""
    if backend != "mpi":
        return all(name in os.environ for name in _TORCHRUN)
    import torch
    import torch.distributed as dist

    if not dist.is_mpi_available():
        raise ValueError(f"backend='mpi' needs a torch that was built with MPI, and {torch.__version__} was not")
    if not any(variables.num_ranks in os.environ for variables in _MPIRUN_VARIABLES):
        raise ValueError("backend='mpi' needs a script that mpirun has started")
    return True


def variables_of(backend: str) -> Variables:
    """Return the variables of the launcher that has made this process a rank, which `is_joined` must have found.

    With MPI they are those of mpirun, even if others are set: a job script may export WORLD_SIZE for other programs.
    """
    if backend != "mpi":
        return _TORCHRUN_VARIABLES
    return next(variables for variables in _MPIRUN_VARIABLES if variables.num_ranks in os.environ)


def run(
    fn: Callable[..., Any], num_ranks: int | None, args: tuple[Any, ...], backend: str, timeout_s: float
) -> list[Any]:
    """Call ``fn(*args)`` as one of the ranks, and return the results of all.

    The group is made for the call and taken down after it, unless there is one already: at the exit of a process a
    group that is still there may abort it. A rank that fails takes its end of the group with it, so that the others
    fail at their next collective.
    """
    import torch.distributed as dist

    launcher = "mpirun" if backend == "mpi" else "torchrun"
    name = variables_of(backend).num_ranks
    world = os.environ[name]
    if num_ranks is not None and str(num_ranks) != world:
        raise ValueError(f"num_ranks must be None or {name}={world} under {launcher}, got {num_ranks!r}")
    if dist.is_initialized():
        return _gathered(fn, args)
    store = _join(backend, timedelta(seconds=timeout_s))
    try:
        results = _gathered(fn, args)
        if store is not None:  # nobody leaves while another still reads; MPI keeps its connections to the exit
            _wait_for_all(store, "done")
        return results
    finally:
        dist.destroy_process_group()


def _join(backend: str, timeout: timedelta) -> Any:
    """Make the default group, and return the store of this launch, or None with MPI.

    Each launch has a part of the launcher's store: its keys begin with the number of the launch.
    """
    global _rendezvous
    import torch
    import torch.distributed as dist

    if backend == "mpi":
        dist.init_process_group(backend, timeout=timeout)
        return None
    if backend == "nccl":
        # Without LOCAL_RANK, which not every launcher sets, it is the first GPU that this process sees.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if _rendezvous is None:
        results = dist.rendezvous("env://", timeout=timeout)  # type: ignore[attr-defined]  # a generator
        _rendezvous = _Rendezvous._make(next(results))
    store, rank, world = _rendezvous
    own_store = dist.PrefixStore(f"launch/{next(_launches)}", store)  # type: ignore[attr-defined]
    own_store.set_timeout(timeout)
    dist.init_process_group(backend, store=own_store, rank=rank, world_size=world, timeout=timeout)
    _wait_for_all(own_store, "joined")  # a rank that fails at once would close connections that others still make
    return own_store


def _wait_for_all(store: Any, what: str) -> None:
    """Note in the store that this rank has reached the point that `what` names, and wait for all others."""
    import torch.distributed as dist

    store.set(f"{what}/{dist.get_rank()}", "")
    store.wait([f"{what}/{rank}" for rank in range(dist.get_world_size())])


def _gathered(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Call the function on this rank, and return the results of all ranks. Raises RankError if it fails."""
    import torch.distributed as dist

    rank = dist.get_rank()
    try:
        result = pickling.to_bytes(fn(*args))  # here, so that a result that cannot be pickled is this rank's failure
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        clear_frames(error)  # otherwise they would keep this rank's end of the group open, see `run`
        raise RankError(f"rank {rank} failed: {type(error).__name__}: {error}\n\n{text}", rank) from error
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, result)
    return [pickle.loads(pickled) for pickled in results]
