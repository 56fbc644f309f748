"""`prefetched`: batches are on the device before they are asked for; copies overlap with steps.

Four things can go wrong; each is prevented here. A step that starts before its copy has ended reads garbage: the
consumer's stream waits for the copy's event. Pinned memory that is freed before its copy has ended could be given to
the next batch: torch's allocator of pinned memory waits for the copies from it. Device memory that is freed after its
last use was enqueued could be given to the next copy while that use is still running: each tensor is recorded on the
consumer's stream. A host that enqueues steps faster than the device runs them would fill the device with batches: it
waits for the step before the last one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...common.checks import whole

T = TypeVar("T")


def prefetched(loader: Iterable[T], device: str | torch.device) -> Iterable[T]:
    """Return an iterable that replaces `loader`: its batches on the device, with the next one already in flight.

    A batch is a tensor, or tensors nested in lists, tuples, named tuples, dictionaries, and other containers that are
    registered in ``torch.utils._pytree``. They are rebuilt with device tensors. Tensors in pinned memory, as from
    DataLoader(pin_memory=True), are copied directly and must not change meanwhile; others are pinned first. Objects
    with a `to`, and tensors that are not plain (such as sparse ones), are moved by their ``to(device)``: correctly, but
    without overlap. Anything else, such as a dataclass without a `to`, is unchanged.

    The loader runs in the caller's thread, one batch ahead, so that random numbers are always drawn in the same order.
    If a step waits for its own result (`loss.item()`), copies are therefore hidden, but reading and pinning are not;
    use a DataLoader's workers and pin thread for these. Batches belong to the stream that is current when they are
    requested.

    For the CPU, the result is `loader` itself. Raises ValueError if the device does not exist
    or is neither CPU nor CUDA; RuntimeError, by torch, if `device` is not the name of one.

    >>> batches = prefetched([{"x": torch.ones(2)}, {"x": torch.zeros(1)}], "cpu")
    >>> len(batches), [batch["x"].tolist() for batch in batches]
    (2, [[1.0, 1.0], [0.0]])
    """
    where = torch.device(device)
    if where.type == "cpu":
        return loader
    return Prefetched(loader, PrefetchGpu(where))


class Prefetched:
    """A loader with its batches on the device; created by `prefetched`. Each iteration starts the loader again."""

    def __init__(self, loader: Iterable[Any], gpu: PrefetchGpu) -> None:
        self.loader = loader
        self.gpu = gpu

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches, each after the copy of the next one has been started."""
        gpu = self.gpu
        batches = iter(self.loader)
        arriving: deque[_Sent] = deque()
        step_ends: deque[Any] = deque()  # events at the ends of the steps that may still run
        # No variable may hold a batch, because the consumer decides how long it needs memory.
        arriving.extend(map(self._sent, itertools.islice(batches, 1)))
        while arriving:
            if len(step_ends) > 1:  # the host is too far ahead of the device
                step_ends.popleft().synchronize()
            arriving.extend(map(self._sent, itertools.islice(batches, 1)))
            gpu.wait_for(arriving[0].copied)
            gpu.hand_over(arriving[0].tensors)
            yield arriving.popleft().batch
            step_ends.append(gpu.mark())  # the consumer has enqueued its step, and asks for the next batch

    def _sent(self, batch: Any) -> _Sent:
        """Start copying a batch."""
        gpu = self.gpu
        leaves, structure = tree_flatten(batch)
        places = [place for place, leaf in enumerate(leaves) if _is_plain(leaf)]
        for place in places:
            leaves[place] = gpu.pinned(leaves[place])
        with gpu.copying():
            for place in places:
                leaves[place] = gpu.copy(leaves[place])
            copied = gpu.mark()
        tensors = [leaves[place] for place in places]
        for place, leaf in enumerate(leaves):
            if place not in places and hasattr(leaf, "to"):
                leaves[place] = leaf.to(gpu.device)
        return _Sent(tree_unflatten(leaves, structure), tensors, copied)


class _Sent(NamedTuple):
    """A batch on the device whose copy was started, the tensors that are being copied, and the event at the end."""

    batch: Any
    tensors: list[torch.Tensor]
    copied: Any


def _is_plain(leaf: Any) -> bool:
    """Whether this is a tensor in plain host memory: no subclass, no autograd graph, no sparse or nested layout."""
    if type(leaf) is not torch.Tensor or leaf.is_nested or leaf.requires_grad:
        return False
    return leaf.layout == torch.strided and leaf.device.type == "cpu"


class PrefetchGpu:
    """The CUDA operations of a prefetcher, in one class so that a test can replace it with a slow one.

    The device has its own copy stream; the consumer's stream is the current one. Raises ValueError if the device does
    not exist.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise ValueError(f"device must be the CPU or a CUDA device of this machine, got {str(device)!r}")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", whole("the device's number", index, 0, torch.cuda.device_count() - 1))
        self._copy_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[object]:
        """Return a context in which the copy stream is current."""
        return torch.cuda.stream(self._copy_stream)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor if a copy from it is one copy of pinned bytes, else a pinned copy with the same strides."""
        if tensor.is_pinned() and tensor.is_contiguous():
            return tensor
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Start copying a pinned tensor on the current stream, and return the target."""
        return source.to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Return an event that completes when the current stream has finished all work enqueued so far."""
        # A host that waits for a blocking event yields its core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make the current stream wait for an event; the host does not wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def hand_over(self, tensors: list[torch.Tensor]) -> None:
        """Keep the allocator from reusing the tensors' memory until the current stream has finished with it."""
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream(self.device))
