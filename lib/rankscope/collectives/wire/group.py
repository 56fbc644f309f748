"""A process group as a wire: transfers are started on it, and its ranks agree on what to run.

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

TAGS = 1 << 20  # the tag of the first step, away from the small tags that a caller's own messages may have
# Sorted, so that every rank numbers them equally: their numbers are what ranks compare.
DTYPES = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str)
OP_NAMES = tuple(OPS)


class Posted(NamedTuple):
    """A transfer to start; `view` is the number of the view of memory that it sends from or receives into."""

    transfer: int
    view: int
    sends: bool
    peer: int
    tag: int


Starter = Callable[[Sequence[Posted], Sequence[Tensor], list[Any]], None]


def group_of(group: Any) -> Any:
    """Return the group, or the default one for None; raise ValueError for anything that is no process group."""
    if group is None:
        if not dist.is_initialized():
            raise ValueError("group is None, and there is no default group: init_process_group makes one")
        return dist.group.WORLD
    if not all(hasattr(group, name) for name in ("send", "recv", "allgather", "rank", "size", "name")):
        raise ValueError(f"group must be a process group that this rank is in, got {group!r}")
    return group


def backend_of(group: Any, tensor: Tensor) -> Any:
    """Return the backend that a group uses for such a tensor."""
    return _backend_for(group, tensor.device)


def _backend_for(group: Any, device: torch.device) -> Any:
    """Return the backend that a group uses on a device; a group that was made directly is its own backend."""
    return group._get_backend(device) if hasattr(group, "_get_backend") else group


def check_device(group: Any, tensor: Tensor) -> None:
    """Raise ValueError unless the group has a backend for tensors on this device."""
    types = _device_types(group)
    if types and tensor.device.type not in types:
        raise ValueError(f"tensor must be on a device of the group ({' or '.join(types)}), got one on {tensor.device}")


def _device_types(group: Any) -> list[str]:
    """Return the types of devices for which a group has backends; none are known of one that was made directly."""
    return [device.type for device in getattr(group, "_device_types", [])]


def _device_to_agree_on(group: Any, tensor: Any) -> torch.device:
    """Return the tensor's device, or one of the group's if what was rejected is no tensor or on another device."""
    types = _device_types(group)
    if isinstance(tensor, Tensor) and (not types or tensor.device.type in types):
        return tensor.device
    return torch.device(types[0] if types and "cpu" not in types else "cpu")


def takes_batches(backend: Any) -> bool:
    """Return whether all messages of a step must start together, and without tags."""
    return bool(backend.name() == "nccl")


def starter(group: Any, tensor: Any) -> Starter:
    """Return a function that starts transfers from or into views of memory.

    It puts what to wait for into `works`, at the number of each transfer.
    """
    backend = backend_of(group, tensor)
    if takes_batches(backend):
        return batches(group)
    send = backend.send
    receive = backend.recv

    def start(posted: Sequence[Posted], views: Sequence[Tensor], works: list[Any]) -> None:
        for transfer, view, sends, peer, tag in posted:
            post = send if sends else receive
            works[transfer] = post([views[view]], peer, tag)

    return start


def batches(group: Any) -> Starter:
    """Return a function that starts transfers as one batch. It has run on Gloo only, not yet on NCCL itself."""
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("group on NCCL must be one that torch.distributed knows, as init_process_group makes it")
    global_ranks = [dist.get_global_rank(group, rank) for rank in range(group.size())]

    def start(posted: Sequence[Posted], views: Sequence[Tensor], works: list[Any]) -> None:
        operations = []
        for _, view, sends, peer, _ in posted:
            kind = dist.isend if sends else dist.irecv
            operations.append(dist.P2POp(kind, views[view], global_ranks[peer], group))
        started = dist.batch_isend_irecv(operations)
        if len(started) != len(operations):  # NCCL returns a list with one work for all
            (work_of_all,) = started
            started = [work_of_all] * len(operations)
        for post, work in zip(posted, started, strict=True):
            works[post.transfer] = work

    return start


def fingerprint(schedule: Schedule) -> int:
    """Return a number of 63 bits that is the same for equal schedules, and almost certainly differs for others."""
    if "fingerprint" not in schedule.cache:
        digest = hashlib.sha256(repr(sorted(schedule.header().items())).encode())
        for step in schedule.steps():
            digest.update(f"{step.src.size} transfers".encode())  # so that steps cannot be divided differently
            for column in step:
                digest.update(column.tobytes())
        # 63 bits, because a tensor of int64 carries it to the other ranks.
        schedule.cache["fingerprint"] = int.from_bytes(digest.digest()[:8], "little") >> 1
    return int(schedule.cache["fingerprint"])


class CommonTerms(NamedTuple):
    """What all ranks of a collective must have in common; dtype and op are places in `DTYPES` and `OP_NAMES`."""

    fingerprint: int
    num_elements: int
    dtype: int
    op: int

    def __str__(self) -> str:
        elements = count_of(self.num_elements, "element")
        return f"schedule {self.fingerprint:016x}, {elements} of {DTYPES[self.dtype]}, op {OP_NAMES[self.op]!r}"


_ACCEPTS = 1  # the first number of a rank's message: it accepts its input, and its terms follow
_REJECTS = [0] * (1 + len(CommonTerms._fields))  # the message of a rank that does not


def agree(group: Any, tensor: Any, terms: CommonTerms | None) -> None:
    """Wait for the terms of every rank, where None stands for a rank that rejects its input.

    It comes before a plan's first message, which on NCCL must come after a collective that all ranks take part in.
    Raises ValueError if another rank rejects its input or has other terms, and RuntimeError if one does not come.
    """
    if group.size() == 1:
        return
    device = _device_to_agree_on(group, tensor)
    backend = _backend_for(group, device)
    numbers = _REJECTS if terms is None else [_ACCEPTS, *terms]
    row = torch.tensor(numbers, device=device if takes_batches(backend) else "cpu")
    rows = [torch.zeros_like(row) for _ in range(group.size())]
    try:
        backend.allgather([rows], [row]).wait()
    except RuntimeError as error:
        raise RuntimeError(f"not all ranks began this collective with a new schedule, size or op: {error}") from error
    if terms is None:  # the caller raises the error that it has
        return
    terms_by_rank = []
    for rank, row_of_rank in enumerate(rows):
        accepts, *fields = row_of_rank.tolist()
        if not accepts:
            raise ValueError(f"rank {rank} rejected its input, so nothing was sent")
        terms_by_rank.append(CommonTerms(*fields))
    terms_of_rank_0 = terms_by_rank[0]
    for rank, terms_of_rank in enumerate(terms_by_rank):
        if terms_of_rank != terms_of_rank_0:
            difference = f"rank {rank} has {terms_of_rank}, and rank 0 has {terms_of_rank_0}"
            raise ValueError(f"ranks must agree on schedule, elements, dtype and op: {difference}")
