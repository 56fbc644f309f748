"""A process group of torch.distributed, on which messages from rank to rank are started.

Gloo and MPI take one message at a time, distinguished by tags. NCCL has no tags, and may hang unless all that a rank
sends and receives in a step starts as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

TAGS = 1 << 20  # the tag of step 0, away from the small tags that a caller's own messages may have


class Message(NamedTuple):
    """What goes to a peer in a step, or comes from it: from one rank to another, a step has one message at most.

    `place` is the key of the tensor that it is sent from or received into.
    """

    place: Any
    sends: bool
    peer: int
    step: int


def group_of(group: Any) -> Any:
    """Return the group, or the default one for None; raise ValueError for anything that is no process group."""
    import torch.distributed as dist

    if group is None:
        if not dist.is_initialized():
            raise ValueError("group is None, and there is no default group: init_process_group makes one")
        return dist.group.WORLD
    if not hasattr(group, "allgather"):
        raise ValueError(f"group must be a process group that this rank is in, got {group!r}")
    return group


def backend_of(group: Any, tensor: Tensor) -> Any:
    """Return the backend that a group uses for a tensor; a group that was made directly is its own backend."""
    return group._get_backend(tensor.device) if hasattr(group, "_get_backend") else group


def takes_batches(backend: Any) -> bool:
    """Return whether all messages of a step must start together, and without tags."""
    return bool(backend.name() == "nccl")


def starter(group: Any, tensor: Tensor) -> Callable[..., None]:
    """Return a function that starts messages, and puts what to wait for into `works`; tensors are on this one's device.

    Each message is sent from, or received into, the tensor that `view` returns for its place.
    """
    import torch.distributed as dist

    backend = backend_of(group, tensor)
    is_batched = takes_batches(backend)

    def start(messages: Sequence[Message], view: Callable[[Any], Tensor], works: dict[Message, Any]) -> None:
        operations = []
        for message in messages:
            if is_batched:
                call = dist.isend if message.sends else dist.irecv
                peer = dist.get_global_rank(group, message.peer)
                operations.append(dist.P2POp(call, view(message.place), peer, group))
                continue
            call = backend.send if message.sends else backend.recv
            with naming(message):
                works[message] = call([view(message.place)], message.peer, TAGS + message.step)
        if operations:
            works.update(zip(messages, cycle(dist.batch_isend_irecv(operations))))  # NCCL returns one for all

    return start


@contextmanager
def naming(message: Message) -> Iterator[None]:
    """Say which message it was that failed, where starting it or waiting for it raises RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        verb = "sending to" if message.sends else "receiving from"
        raise RuntimeError(f"step {message.step}: {verb} rank {message.peer} failed: {error}") from error
