"""A process group seen as a wire: transfers are started on it, and its ranks agree on what to run.

Gloo and MPI take one message at a time, distinguished by tags. NCCL has no tags, and may hang unless all that a
rank sends and receives in a step starts as one batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.checks import count_of
from ..local import OPS
from ..schedule import Schedule

TAGS = 1 << 20  # the first step's: away from the small tags that a caller's own messages may have
DTYPES = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str)
OP_NAMES = tuple(OPS)


class Posted(NamedTuple):
    """A transfer to start, from or into a view of memory with this number."""

    transfer: int
    view: int
    sends: bool
    peer: int
    tag: int


Starter = Callable[[Sequence[Posted], Sequence[Tensor], list[Any]], None]


def group_of(group: Any) -> Any:
    """Return the group, or the default one for None; raises ValueError for what is none."""
    if group is None:
        if not dist.is_initialized():
            raise ValueError("group is None, and there is no default group: init_process_group makes one")
        return dist.group.WORLD
    if not all(hasattr(group, name) for name in ("send", "recv", "allgather", "rank", "size", "name")):
        raise ValueError(f"group must be a process group that this rank is in, got {group!r}")
    return group


def backend_of(group: Any, tensor: Any) -> Any:
    """Return what a group uses for such a tensor; a group that was made directly is its own backend."""
    device = tensor.device if isinstance(tensor, Tensor) else torch.device("cpu")
    return group._get_backend(device) if hasattr(group, "_get_backend") else group


def takes_batches(backend: Any) -> bool:
    """Whether all messages of a step must start together, and without tags."""
    return bool(backend.name() == "nccl")


def starter(group: Any, tensor: Any) -> Starter:
    """Return a function that starts transfers from or into views of memory, and files what to wait for under each."""
    backend = backend_of(group, tensor)
    if takes_batches(backend):
        return batches(group)
    send, receive = backend.send, backend.recv

    def start(posted: Sequence[Posted], views: Sequence[Tensor], works: list[Any]) -> None:
        for number, view, sends, peer, tag in posted:
            works[number] = (send if sends else receive)([views[view]], peer, tag)

    return start


def batches(group: Any) -> Starter:
    """Return a function that starts transfers as one batch; not run on NCCL itself yet, on Gloo only."""
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("group on NCCL must be one that torch.distributed knows, as init_process_group makes it")
    peers = [dist.get_global_rank(group, rank) for rank in range(group.size())]

    def start(posted: Sequence[Posted], views: Sequence[Tensor], works: list[Any]) -> None:
        ops = [
            dist.P2POp(dist.isend if sends else dist.irecv, views[view], peers[peer], group)
            for _, view, sends, peer, _ in posted
        ]
        found = dist.batch_isend_irecv(ops)
        found = found if len(found) == len(ops) else [found[-1]] * len(ops)  # on NCCL one for all
        for one, work in zip(posted, found, strict=True):
            works[one.transfer] = work

    return start


def fingerprint(schedule: Schedule) -> int:
    """Return a number of 63 bits that is the same for equal schedules, and for others hardly ever."""
    if "fingerprint" not in schedule.cache:
        made = hashlib.sha256(repr(sorted(schedule.header().items())).encode())
        for step in schedule.steps():
            made.update(f"{step.src.size} transfers".encode())
            for column in step:
                made.update(column.tobytes())
        schedule.cache["fingerprint"] = int.from_bytes(made.digest()[:8], "little") >> 1
    return int(schedule.cache["fingerprint"])


def agree(group: Any, tensor: Any, mine: Sequence[int] | None) -> None:
    """Wait for every rank's (fingerprint, elements, dtype, op): None where a rank refuses what it was given.

    It comes before a plan's first message, which on NCCL must have been preceded by something that joins all ranks.
    Raises ValueError where another rank refuses or has something else, RuntimeError where one does not come.
    """
    if group.size() == 1:
        return
    backend = backend_of(group, tensor)
    device = tensor.device if takes_batches(backend) else "cpu"
    row = torch.tensor([0] * 5 if mine is None else [1, *mine], device=device)
    rows = [torch.zeros_like(row) for _ in range(group.size())]
    try:
        backend.allgather([rows], [row]).wait()
    except RuntimeError as error:
        raise RuntimeError(f"not all ranks began this collective with a new schedule, size or op: {error}") from error
    if mine is None:
        return
    answers = [one.tolist() for one in rows]
    for rank, (accepts, *_) in enumerate(answers):
        if not accepts:
            raise ValueError(f"rank {rank} refuses what it was given, and so nothing is sent")
    has = [
        f"rank {rank} has schedule {schedule:016x}, {count_of(elements, 'element')} of {DTYPES[dtype]}, "
        f"op {OP_NAMES[op]!r}"
        for rank, (_, schedule, elements, dtype, op) in enumerate(answers)
    ]
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            raise ValueError(f"ranks must agree on schedule, elements, dtype and op: {has[rank]}, and {has[0]}")
