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
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..common.checks import of_type, optional, whole
from ..timeline import Recorder

T = TypeVar("T")
COPY = "copy"  # a lane, and the kind of its spans
COMPUTE = "compute"  # the same for steps
_now = time.perf_counter_ns


def prefetched(loader: Iterable[T], device: str | torch.device, recorder: Recorder | None = None) -> Iterable[T]:
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

    `recorder` gets a span for each copy and each step when an iteration ends, on lanes "copy" and "compute". A step
    lasts from the arrival of its batch until the device has finished all work enqueued before the next batch was
    requested. The step in which the loop is left is not recorded, because its end is unknown. Items are batch numbers,
    which continue over several iterations.

    For the CPU, the result is `loader` itself, and nothing is recorded. Raises ValueError if the device does not exist
    or is neither CPU nor CUDA.

    >>> batches = prefetched([{"x": torch.ones(2)}, {"x": torch.zeros(1)}], "cpu")
    >>> len(batches), [batch["x"].tolist() for batch in batches]
    (2, [[1.0, 1.0], [0.0]])
    """
    if not hasattr(loader, "__iter__"):
        raise ValueError(f"loader must be an iterable of batches, got {loader!r}")
    optional("recorder", recorder, of_type, Recorder)
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        where = torch.device("meta")  # a valid device that is refused below, with the message for every wrong one
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:' and its number, got {device!r}")
    if where.type == "cpu":
        return loader
    return Prefetched(loader, PrefetchGpu(where, recorder is not None), recorder)


class Prefetched(Generic[T]):
    """A loader with its batches on the device; created by `prefetched`. Each iteration starts the loader again."""

    def __init__(self, loader: Iterable[T], gpu: PrefetchGpu, recorder: Recorder | None) -> None:
        self.loader = loader
        self.gpu = gpu
        self.recorder = recorder
        self._numbers = itertools.count()  # of batches, over all iterations

    def __iter__(self) -> Iterator[T]:
        return _ahead(iter(self.loader), self.gpu, self.recorder, self._numbers)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]


class _Work(NamedTuple):
    """A copy or a step that was enqueued, with the events before and after it."""

    lane: str
    item: int
    start: Any
    end: Any


class _Copy(NamedTuple):
    """A batch whose copy was started. The sources, in pinned memory, must live until it has ended."""

    work: _Work
    sources: list[torch.Tensor]
    targets: list[torch.Tensor]


def _ahead(
    batches: Iterator[Any], gpu: PrefetchGpu, recorder: Recorder | None, numbers: Iterator[int]
) -> Iterator[Any]:
    """Yield the batches, each after the copy of the next one has been started."""
    copies: deque[_Copy] = deque()  # of batches to come, and of steps that may still run
    steps: deque[_Work] = deque()  # that may still run
    works: list[_Work] = []  # all of them, for the recorder

    def sent(batch: Any) -> tuple[_Copy, Any]:
        """Start copying a batch; return it on the device, too."""
        copy, moved = _sent(batch, gpu, next(numbers))
        copies.append(copy)
        works.append(copy.work)
        return copy, moved

    try:
        # No variable may hold a batch, because the consumer decides how long it needs memory.
        arriving = deque(map(sent, itertools.islice(batches, 1)))
        while arriving:
            if len(steps) > 1:  # the host is too far ahead of the device
                steps.popleft().end.synchronize()
                copies.popleft()
            arriving.extend(map(sent, itertools.islice(batches, 1)))
            copy = arriving[0][0]
            gpu.wait_for(copy.work.end)
            while copy.targets:
                gpu.hand_over(copy.targets.pop())
            start = gpu.mark()
            yield arriving.popleft()[1]
            # The consumer has enqueued its step, and asks for the next batch.
            steps.append(_Work(COMPUTE, copy.work.item, start, gpu.mark()))
            works.append(steps[-1])
            if recorder is None:
                works.clear()
    finally:
        for copy in copies:
            copy.work.end.synchronize()
        if recorder is not None:
            _record(works, recorder, gpu.clock())


def _record(works: list[_Work], recorder: Recorder, to_ns: Callable[[Any], int]) -> None:
    last_end_ns = {COPY: 0, COMPUTE: 0}
    for work in works:
        work.end.synchronize()
        start_ns = max(to_ns(work.start), last_end_ns[work.lane])  # a lane does one thing at a time
        end_ns = max(to_ns(work.end), start_ns)
        last_end_ns[work.lane] = end_ns
        recorder.add(work.lane, work.lane, work.item, start_ns, end_ns)


def _sent(batch: Any, gpu: PrefetchGpu, item: int) -> tuple[_Copy, Any]:
    """Start copying a batch; return it on the device, too."""
    leaves, structure = tree_flatten(batch)
    sources = {place: gpu.pinned(leaf) for place, leaf in enumerate(leaves) if _is_plain(leaf)}
    with gpu.copying():
        start = gpu.mark()
        targets = {place: gpu.copy(source) for place, source in sources.items()}
        work = _Work(COPY, item, start, gpu.mark())
    for place, leaf in enumerate(leaves):
        if place in targets:
            leaves[place] = targets[place]
        elif hasattr(leaf, "to"):
            leaves[place] = leaf.to(gpu.device)
    return _Copy(work, [*sources.values()], [*targets.values()]), tree_unflatten(leaves, structure)


def _is_plain(leaf: Any) -> bool:
    """Whether this is a tensor in plain host memory: no subclass, no autograd graph, no sparse layout."""
    if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.device.type != "cpu":
        return False
    return not (leaf.is_nested or leaf.is_quantized or leaf.requires_grad)


class PrefetchGpu:
    """The CUDA operations of a prefetcher, in one class so that a test can replace it with a slow one.

    The device has its own copy stream; the consumer's stream is the current one. Raises ValueError if the device does
    not exist.
    """

    def __init__(self, device: torch.device, timed: bool) -> None:
        if not torch.cuda.is_available():
            raise ValueError(f"device must exist, but there is no CUDA device; got {str(device)!r}")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", whole("the device's number", index, 0, torch.cuda.device_count() - 1))
        self._timed = timed
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
        event = torch.cuda.Event(enable_timing=self._timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make the current stream wait for an event; the host does not wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Keep the allocator from reusing the tensor's memory until the current stream has finished with it."""
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def clock(self) -> Callable[[torch.cuda.Event], int]:
        """Return a function from a completed, timed event to its time on the clock of `time.perf_counter_ns`.

        Both clocks are read now, to about 10 µs; before, only the device's clock is used. It states times in single
        precision: those that are 100 s ago to 8 µs.
        """
        with self.copying():
            self.mark().synchronize()  # the first one may take longer
            before_ns = _now()
            now = self.mark()
            now.synchronize()
        now_ns = (before_ns + _now()) // 2
        return lambda event: now_ns - round(event.elapsed_time(now) * 1e6)
