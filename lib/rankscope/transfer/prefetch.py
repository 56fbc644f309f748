"""`prefetched`: batches are on the device before they are asked for; copies overlap with steps.

Four things can go wrong; each is prevented here. A step that starts before its copy has ended reads garbage: the
consumer's stream waits for the copy's event. Pinned memory that is overwritten or freed before its copy has ended
changes the data: buffers form a ring and are reused only after their event has completed. Device memory that is freed
after its last use was enqueued could be given to the next copy while that use is still running: each tensor is recorded
on the consumer's stream. A host that enqueues steps faster than the device runs them would fill the device with
batches: it waits for the step `num_ahead` + 1 before the one it asks for.
"""

from __future__ import annotations

import itertools
import time
from collections import UserString, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..common.checks import of_type, whole
from ..timeline import Recorder

T = TypeVar("T")
_FLAT = str | bytes | bytearray | memoryview | range | UserString  # sequences without tensors
COPY = "copy"  # a lane, and the kind of its spans
COMPUTE = "compute"  # the same for steps
_now = time.perf_counter_ns
_FAR_MS = 10_000.0  # beyond this, CUDA's single-precision times are too coarse
_NUM_MOMENTS = 5  # readings of both clocks, of which the most exact one is used


def prefetched(
    loader: Iterable[T], device: str | torch.device, num_ahead: int = 1, recorder: Recorder | None = None
) -> Prefetched[T]:
    """Return an iterable that replaces `loader`: its batches on the device, with the next `num_ahead` in flight.

    A batch is a tensor, or tensors nested in lists, tuples, named tuples, dictionaries, and other containers that are
    registered in ``torch.utils._pytree``. They are rebuilt with device tensors. Tensors in pinned memory, as from
    DataLoader(pin_memory=True), are copied directly and must not change meanwhile; others go through a ring of pinned
    buffers. Objects with both `pin_memory` and `to` are moved by these. Other objects with a `to`, and tensors that are
    not plain (such as sparse ones), are moved by their ``to(device)``: correctly, but without overlap. Anything else,
    such as a dataclass without a `to`, is unchanged.

    The loader runs in the caller's thread, `num_ahead` batches ahead, so that random numbers are always drawn in the
    same order. If a step waits for its own result (`loss.item()`), copies are therefore hidden, but reading and pinning
    are not; use a DataLoader's workers and pin thread for these. An error of the loader is raised after the batches
    before it. Leaving a loop early waits for running copies and, with a recorder, for running steps. Batches belong to
    the stream that is current when they are requested.

    `recorder` records a span for each copy and each step, by the device's clock, on lanes "copy" and "compute". A step
    lasts from the arrival of its batch until the device has finished all work enqueued before the next batch was
    requested. The step in which the loop is left is not recorded, because its end is unknown. Items are batch numbers,
    which continue over several iterations.

    On the CPU, batches are passed through and only steps are recorded. Raises ValueError if the device does not exist
    or is neither CPU nor CUDA, or if `num_ahead` is below 1.

    >>> batches = prefetched([{"x": torch.ones(2)}, {"x": torch.zeros(1)}], "cpu")
    >>> len(batches), [batch["x"].tolist() for batch in batches]
    (2, [[1.0, 1.0], [0.0]])
    """
    if not hasattr(loader, "__iter__"):
        raise ValueError(f"loader must be an iterable of batches, got {loader!r}")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        where = torch.device("meta")  # a valid device that is refused below, with the message for every wrong one
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:' and its number, got {device!r}")
    num_ahead = whole("num_ahead", num_ahead, 1)
    if recorder is not None:
        of_type("recorder", recorder, Recorder)
    cuda = PrefetchGpu(where) if where.type == "cuda" else None
    return Prefetched(loader, cuda, num_ahead, recorder)


class Prefetched(Generic[T]):
    """A loader with its batches on the device; created by `prefetched`. Each iteration starts the loader again.

    Attributes that it lacks are read from `loader`: ``prefetched(loader, device).sampler.set_epoch(3)`` sets the epoch
    of the loader's own sampler. They cannot be set through it. `cuda` is None on the CPU.
    """

    def __init__(
        self, loader: Iterable[T], cuda: PrefetchGpu | None, num_ahead: int, recorder: Recorder | None
    ) -> None:
        self.loader = loader
        self.cuda = cuda
        self.num_ahead = num_ahead
        self.recorder = recorder
        self._numbers = itertools.count()  # of batches, over all iterations

    def __iter__(self) -> Iterator[T]:
        batches = iter(self.loader)
        if self.cuda is not None:
            return _PrefetchIteration(batches, self.cuda, self.num_ahead, self.recorder, self._numbers).handed_over()
        if self.recorder is not None:
            return _timed(batches, self.recorder, self._numbers)
        return batches

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.loader, name)


def _timed(batches: Iterator[T], recorder: Recorder, numbers: Iterator[int]) -> Iterator[T]:
    """Yield the batches on the CPU, and record each step: the time until the next batch is asked for."""
    while True:
        try:
            batch = [next(batches)]
        except StopIteration:
            return
        item = next(numbers)
        start_ns = _now()
        yield batch.pop()  # so that this generator keeps no reference to it
        recorder.add(COMPUTE, COMPUTE, item, start_ns, _now())


@dataclass
class _Slot:
    """A slot of the ring: pinned buffers, and the last copy made from them, with the events before and after it."""

    buffers: list[torch.Tensor] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)  # the copy's sources, which must live until the copy has ended
    item: int = -1  # before the first copy
    copy_start: Any = None  # None without a recorder
    copy_end: Any = None  # None if there is no copy to wait for


class _StagedLeaf(NamedTuple):
    """A tensor or object of a batch on its way to the device."""

    value: Any  # in pinned memory if it uses the copy stream, else already on the device
    uses_copy_stream: bool


class _BatchInFlight(NamedTuple):
    """A batch whose copy has been started."""

    item: int
    batch: Any  # with tensors on the device
    copied: list[Any]  # those of its tensors and objects that the copy stream copies
    copy_end: Any  # the event after the copy


class _EnqueuedStep(NamedTuple):
    """A step that was enqueued, with the events before and after it."""

    item: int
    start: Any  # None without a recorder
    end: Any


class _PrefetchIteration:
    """One iteration: the batches in flight, the ring, and the steps that were enqueued but not waited for."""

    def __init__(
        self,
        batches: Iterator[Any],
        cuda: PrefetchGpu,
        num_ahead: int,
        recorder: Recorder | None,
        numbers: Iterator[int],
    ) -> None:
        self._batches = batches
        self._cuda = cuda
        self._num_ahead = num_ahead
        self._numbers = numbers
        self._arrivals: deque[_BatchInFlight] = deque()
        self._error: Exception | None = None  # of the loader or of a copy: raised after the batches before it
        # Least recently used first: a slot for the batch that was asked for, and for each one ahead of it.
        self._ring = deque(_Slot() for _ in range(num_ahead + 1))
        self._steps: deque[_EnqueuedStep] = deque()
        self._recorder = recorder
        self._is_timed = recorder is not None
        self._clock: Callable[[Any], int] | None = None  # from an event to ns; made when a timed iteration begins
        self._last_end_ns = {COPY: 0, COMPUTE: 0}  # the end of the last span on each lane

    def handed_over(self) -> Iterator[Any]:
        """Yield the batches, each after the copies of the following ones have been started."""
        try:
            if self._is_timed:
                self._clock = self._cuda.clock()
            has_next = True
            while True:
                # Besides the batch that was asked for, `num_ahead` are in flight while the consumer enqueues its step.
                while has_next and len(self._arrivals) <= self._num_ahead:
                    has_next = self._send_next()
                if not self._arrivals:
                    self._raise_error()
                    return
                item = self._arrivals[0].item
                batch = [self._receive()]
                step_start = self._cuda.mark(timed=True) if self._is_timed else None
                yield batch.pop()  # so that this generator keeps no reference to it
                # The consumer has enqueued its step, and asks for the next batch.
                self._steps.append(_EnqueuedStep(item, step_start, self._cuda.mark(timed=self._is_timed)))
        finally:
            self._finish()

    def _send_next(self) -> bool:
        """Start copying the loader's next batch; keep an error for later. Return whether there may be another batch."""
        try:
            try:
                batch = next(self._batches)
            except StopIteration:
                return False
            while len(self._steps) > self._num_ahead:  # the host is too far ahead of the device
                self._end_step()
            self._arrivals.append(self._send(batch))
        except Exception as error:
            self._error = error
        return self._error is None

    def _raise_error(self) -> None:
        """Raise the error that was kept, if there is one."""
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None  # its traceback refers to this frame, which would be a cycle

    def _send(self, batch: Any) -> _BatchInFlight:
        """Start copying a batch, from the slot of the ring that was used longest ago."""
        slot = self._ring[0]
        self._ring.rotate(-1)
        self._release(slot)
        leaves, structure = tree_flatten(batch)
        staged = [self._stage(leaf, slot) for leaf in leaves]
        slot.item = next(self._numbers)
        moved = []
        with self._cuda.copying():
            if self._is_timed:
                slot.copy_start = self._cuda.mark(timed=True)
            try:
                for leaf in staged:
                    moved.append(self._cuda.copy(leaf.value) if leaf.uses_copy_stream else leaf.value)
            finally:  # also after an error, because earlier batches are still handed over
                slot.copy_end = self._cuda.mark(timed=self._is_timed)
        copied = [target for leaf, target in zip(staged, moved, strict=True) if leaf.uses_copy_stream]
        return _BatchInFlight(slot.item, tree_unflatten(moved, structure), copied, slot.copy_end)

    def _stage(self, leaf: Any, slot: _Slot) -> _StagedLeaf:
        """Bring a leaf into pinned memory, or to the device if it cannot use the copy stream."""
        if not isinstance(leaf, torch.Tensor) and not _has_method(leaf, "to"):
            return _StagedLeaf(leaf, uses_copy_stream=False)
        if isinstance(leaf, torch.Tensor):
            if not _is_plain(leaf):
                return _StagedLeaf(leaf.to(self._cuda.device), uses_copy_stream=False)
            source = self._in_pinned(leaf, slot)
        else:
            # Only tensors can be handed over to the consumer's stream, so an object must show some.
            shows_tensors = next(_tensors(leaf), None) is not None
            if not _has_method(leaf, "pin_memory") or not shows_tensors:
                return _StagedLeaf(leaf.to(self._cuda.device), uses_copy_stream=False)
            source = leaf.pin_memory()
        slot.sources.append(source)
        return _StagedLeaf(source, uses_copy_stream=True)

    def _in_pinned(self, tensor: torch.Tensor, slot: _Slot) -> torch.Tensor:
        """Return the tensor if it is pinned and without gaps, else a pinned copy of it in a buffer of the slot.

        The n-th source of a batch uses the slot's n-th buffer, which is made larger if the tensor does not fit.
        """
        if _is_dense(tensor) and self._cuda.is_pinned(tensor):
            return tensor
        index = len(slot.sources)  # that of the source that this tensor becomes
        while len(slot.buffers) <= index:
            slot.buffers.append(torch.empty(0, dtype=torch.uint8))
        if slot.buffers[index].numel() < tensor.nbytes:
            # powers of two, so that batches of growing sizes pin new memory only now and then
            next_power_of_two = 1 << (tensor.nbytes - 1).bit_length()
            slot.buffers[index] = self._cuda.pinned(next_power_of_two)
        target = slot.buffers[index][: tensor.nbytes].view(tensor.dtype)
        return target.as_strided(tensor.shape, _copied_strides(tensor)).copy_(tensor)

    def _receive(self) -> Any:
        """Return the oldest batch, after making the consumer's stream wait for its copy."""
        arrival = self._arrivals.popleft()
        self._cuda.wait_for(arrival.copy_end)
        for tensor in _tensors(arrival.copied):
            self._cuda.hand_over(tensor)
        return arrival.batch

    def _release(self, slot: _Slot) -> None:
        """Wait for the last copy from a slot, record it, and release its sources."""
        if slot.copy_end is not None:
            slot.copy_end.synchronize()
            self._record(COPY, slot.item, slot.copy_start, slot.copy_end)
        slot.sources = []
        slot.copy_start = None
        slot.copy_end = None

    def _end_step(self) -> None:
        """Wait for the oldest step, and record it."""
        step = self._steps.popleft()
        step.end.synchronize()
        self._record(COMPUTE, step.item, step.start, step.end)

    def _record(self, lane: str, item: int, start: Any, end: Any) -> None:
        """Record a span between two completed events, if there is a recorder."""
        if self._recorder is None or self._clock is None:  # with a recorder, it is made when the iteration begins
            return
        start_ns = max(self._clock(start), self._last_end_ns[lane])  # a lane does one thing at a time
        end_ns = max(self._clock(end), start_ns)
        self._last_end_ns[lane] = end_ns
        self._recorder.add(lane, lane, item, start_ns, end_ns)

    def _finish(self) -> None:
        """Wait for all copies and, with a recorder only, for all steps."""
        for slot in self._ring:
            self._release(slot)
        if self._is_timed:
            while self._steps:
                self._end_step()


class PrefetchGpu:
    """The CUDA operations of a prefetcher, in one class so that a test can replace it with a slow one.

    The device has its own copy stream; the consumer's stream is the current one.

    Raises ValueError if the device does not exist.
    """

    def __init__(self, device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ValueError(f"device must exist, but there is no CUDA device; got {str(device)!r}")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", whole("the device's number", index, 0, torch.cuda.device_count() - 1))
        self._copy_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[object]:
        """Return a context in which the copy stream is current."""
        return torch.cuda.stream(self._copy_stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return a pinned buffer from torch's pool."""
        with torch.inference_mode(False):  # a tensor created inside cannot be written outside
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Any) -> Any:
        """Start copying a pinned tensor or object on the current stream, and return the target."""
        return source.to(self.device, non_blocking=True)

    def mark(self, timed: bool) -> torch.cuda.Event:
        """Return an event that completes when the current stream has finished all work enqueued so far."""
        # A host that waits for a blocking event yields its core.
        event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make the current stream wait for an event; the host does not wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Keep the allocator from reusing the tensor's memory until the current stream has finished with it."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self.device))

    def clock(self) -> Callable[[torch.cuda.Event], int]:
        """Return a function from a completed, timed event to its time on the clock of `time.perf_counter_ns`.

        Both clocks are read at one moment, to about 10 µs; after that only the device's clock is used. It states the
        time between two events, so there is always an `anchor`, an event whose time is known. Long times are stated too
        coarsely, so a far event becomes the next anchor.
        """
        moments = [self._moment() for _ in range(_NUM_MOMENTS)]
        best = min(moments, key=lambda moment: moment.waited_ns)
        anchor = best.event
        anchor_ns = best.event_ns

        def read(event: torch.cuda.Event) -> int:
            nonlocal anchor, anchor_ns
            elapsed_ms: float = anchor.elapsed_time(event)
            event_ns: int = anchor_ns + round(elapsed_ms * 1e6)
            if elapsed_ms > _FAR_MS:
                anchor = event
                anchor_ns = event_ns
            return event_ns

        return read

    def _moment(self) -> _Moment:
        """Read both clocks: the event happens between the two readings of the host's clock."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before_ns = _now()
        event.record(self._copy_stream)
        event.synchronize()
        after_ns = _now()
        return _Moment(after_ns - before_ns, event, (before_ns + after_ns) // 2)


class _Moment(NamedTuple):
    """An event of the copy stream, its approximate time on the host's clock, and how long the host waited for it."""

    waited_ns: int
    event: torch.cuda.Event
    event_ns: int


# ---- what a batch consists of


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor in an object once, at any depth: in containers, attributes and slots."""
    visited: dict[int, Any] = {}  # by id; a container may make its items anew, and a freed one would pass its id on
    to_visit = [value]
    while to_visit:
        item = to_visit.pop()
        if id(item) in visited or isinstance(item, type | _FLAT):
            continue
        visited[id(item)] = item
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping):
            to_visit.extend(item.values())
        elif isinstance(item, Sequence | Set):
            to_visit.extend(item)
        else:
            to_visit.extend(getattr(item, "__dict__", {}).values())
            for kind in type(item).__mro__:
                to_visit.extend(getattr(item, name, None) for name in _slots(kind))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain host memory: no subclass, no autograd graph, no sparse layout."""
    ordinary = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    special = tensor.is_nested or tensor.is_quantized or tensor.requires_grad
    return ordinary and tensor.device.type == "cpu" and not special


def _copied_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the copy that ``tensor.to(device)`` makes: those of the tensor if it has no gaps.

    `empty_like` chooses strides by the same rule. On the device "meta", it reserves no memory.

    >>> _copied_strides(torch.zeros(4, 6).t()), _copied_strides(torch.zeros(4, 6)[:, ::2])
    ((1, 6), (3, 1))
    """
    return torch.empty_like(tensor, device="meta").stride()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy of the tensor is one copy of bytes."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return not lazy and (tensor.is_contiguous() or tensor.stride() == _copied_strides(tensor))


def _has_method(value: Any, name: str) -> bool:
    return callable(getattr(value, name, None))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    if isinstance(slots, str):
        return (slots,)
    return tuple(slots)
