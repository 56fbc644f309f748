"""Copies between host and GPU, timed by the clocks of both; each is checked for correct data before it is timed."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...values.units import bytes_words
from ..profile import Key, Point
from ..provenance import free_bytes
from .plan import ITEM_BYTES, ON_THE_FLY, Protocol
from .timing import nothing, stolen_ticks

HOST_COPIES, DEVICE_COPIES = 6, 4  # buffers of one size that exist at the same time
BLOCKING = ("pageable", "pinned")
MOST_BYTES = 2**32  # elements are numbered with 32 bits
DTYPE = torch.int32  # elements of ITEM_BYTES
Pairs = Sequence[tuple[Tensor, Tensor]]  # where to, where from


class Cuda:
    """A GPU for measuring copies: three kinds of memory, two lanes (streams) of work, marks (events), a host clock.

    Work on a lane, 0 or 1, runs in order, and concurrently with the other lane. All memory has int32 elements. Tests
    use another class with these methods and its own clock. Raises ValueError if there is no such GPU.
    """

    def __init__(self, device: str = "cuda:0") -> None:
        stream: Any = torch.cuda.Stream
        try:
            found = torch.device(device)
            self._device = torch.device(found.type, found.index or 0)
            self._lanes = [stream(device=self._device) for _ in range(2)]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"device must be a GPU like 'cuda:0' that is there, got {device!r}") from error
        self.index, self.num_gpus = self._device.index, torch.cuda.device_count()

    def at(self, gpu: int) -> Cuda:
        """Return the GPU of that number."""
        return self if gpu == self.index else Cuda(f"cuda:{gpu}")

    def free_bytes(self) -> tuple[int, int]:
        """Return the free bytes of host memory and of GPU memory."""
        return free_bytes(), torch.cuda.mem_get_info(self._device)[0]

    def pageable(self, num_bytes: int) -> Tensor:
        """Return ordinary, pageable host memory."""
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE)

    def pinned(self, num_bytes: int) -> Tensor:
        """Return pinned host memory, reusing released memory if that is large enough."""
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, pin_memory=True)

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        """Return memory of this GPU, or of GPU number `gpu`."""
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, device=f"cuda:{self.index if gpu is None else gpu}")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        """Give pinned memory that was released back to the system."""
        self.synchronize()
        own: Any = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
        if own is None:
            raise RuntimeError(f"torch {torch.__version__} cannot give pinned memory back, so pinning cannot be timed")
        own()

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        """Start copies on a lane, one after the other."""
        with torch.cuda.stream(self._lanes[lane]):
            for to, source in pairs:
                to.copy_(source, non_blocking=non_blocking)

    def mark(self, lane: int) -> Any:
        """Return a mark (event) that is passed when all earlier work on the lane is done."""
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record(self._lanes[lane])
        return mark

    def follow(self, lane: int, mark: Any) -> None:
        """Make further work on a lane wait for a mark."""
        self._lanes[lane].wait_event(mark)

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two passed marks."""
        return float(begin.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.cuda.synchronize(self._device)

    def clock(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()


class Buffers:
    """Memory of one size, allocated on first use: sources count up from `first`; copies fill the targets."""

    def __init__(self, num_bytes: int, device: Cuda) -> None:
        self.num_bytes, self.device = num_bytes, device
        self.first = 1
        self._sources: dict[str | int, Tensor] = {}
        self._targets: dict[str | int, Tensor] = {}

    def source(self, kind: str | int) -> Tensor:
        """Return the source of a copy: "pageable" or "pinned" memory, or that of a GPU, by its number."""
        if kind not in self._sources:
            made = self._new(kind)
            self._sources[kind] = torch.arange(self.first, self.first + made.numel(), out=made)
        return self._sources[kind]

    def target(self, kind: str | int) -> Tensor:
        """Return the target of a copy."""
        if kind not in self._targets:
            self._targets[kind] = self._new(kind).zero_()
        return self._targets[kind]

    def renew(self) -> None:
        """Change the contents of all sources, so that data from earlier copies are wrong."""
        self.first += 1
        for source in self._sources.values():
            source.add_(1)

    def _new(self, kind: str | int) -> Tensor:
        if isinstance(kind, int):
            return self.device.memory(self.num_bytes, kind)
        return self.device.pinned(self.num_bytes) if kind == "pinned" else self.device.pageable(self.num_bytes)


class Move(NamedTuple):
    """A timed move: `run` starts copies on this many lanes and returns their targets; `before` is not timed."""

    run: Callable[[], Sequence[Tensor]]
    num_lanes: int = 1
    before: Callable[[], object] = nothing


class Sample(NamedTuple):
    """One iteration: seconds on the GPU, seconds for which the call blocked the host thread, and whether it is
    clean."""

    device_s: float
    host_s: float
    clean: bool


def most_bytes(device: Cuda) -> int:
    """Return the largest size for which all buffers fit into half of the free memory."""
    host, own = device.free_bytes()
    return min(host // HOST_COPIES // 2, own // DEVICE_COPIES // 2, MOST_BYTES)


def transfer_points(keys: Sequence[Key], protocol: Protocol, device: Cuda) -> list[Point]:
    """Return the "transfer", "transfer_host" and "pin" points of the keys from `transfer_keys`.

    Keys of the same size and GPU take turns. A "transfer" has the seconds by the GPU's clock, from before the call on
    an idle GPU to the end of the last copy; its "transfer_host" has the seconds for which the call blocked the host.
    Options: ``direction`` "h2d", "d2h", "d2d" or "p2p" (from GPU ``src`` to ``dst``); ``method``, one of
    TRANSFER_METHODS, of ON_THE_FLY (memory is pinned for the copy, from the system or "cached" by PyTorch), or "device"
    (without the host); ``pieces``, the number of equal parts; ``both``, whether the same thread copies as many bytes in
    the other direction at once. A "pin" has the host's seconds of `Tensor.pin_memory`, with ``cached`` memory or new.
    Raises RuntimeError if a copy delivers wrong data.
    """
    points = []
    for (num_bytes, gpu), some in itertools.groupby(keys, lambda key: (key[1], dict(key[2]).get("src", device.index))):
        own = device.at(int(gpu))
        buffers = Buffers(num_bytes, own)
        moves = {key: move_of(key, buffers) for key in some}
        for key, move in moves.items():
            check(key, move, buffers)
        for (what, _, options), samples in sampled(moves, own, protocol).items():
            device_s, host_s, clean = (tuple(column) for column in zip(*samples, strict=True))
            times_s = {"pin": host_s} if what == "pin" else {"transfer": device_s, "transfer_host": host_s}
            points += [Point(name, num_bytes, s, clean, dict(options)) for name, s in times_s.items()]
        del buffers, moves, move
        own.forget_pinned()
    return points


def move_of(key: Key, buffers: Buffers) -> Move:
    """Return the move that a key describes."""
    what, num_bytes, options = key
    chosen: dict[str, Any] = dict(options)
    device = buffers.device
    gpu = device.index
    method, direction, cached = chosen.get("method"), chosen.get("direction"), chosen.get("cached")

    def prepare() -> None:
        """Make sure that pinned memory of this size is cached, or that none is."""
        if cached or method == ON_THE_FLY[1]:
            device.pinned(num_bytes)
        else:
            device.forget_pinned()

    def pin_and_copy() -> list[Tensor]:
        if direction == "h2d":
            to, source = buffers.target(gpu), device.pin(buffers.source("pageable"))
        else:
            to, source = device.pinned(num_bytes), buffers.source(gpu)
        device.copy([(to, source)], True, 0)
        return [to]

    def copy() -> list[Tensor]:
        for lane, pairs in enumerate(ways):
            device.copy(pairs, method not in BLOCKING, lane)
        return [to for pairs in ways for to, _ in pairs]

    if what == "pin" or method in ON_THE_FLY:
        for made in (buffers.target(gpu), buffers.source("pageable"), buffers.source(gpu)):
            assert made.numel()  # allocated before anything is timed
        return Move(pin_and_copy if method else lambda: [device.pin(buffers.source("pageable"))], before=prepare)
    host = str(method).removesuffix("_non_blocking")
    ends = {"h2d": (host, gpu), "d2h": (gpu, host), "d2d": (gpu, gpu), "p2p": (chosen.get("src"), chosen.get("dst"))}
    src, dst = ends[str(direction)]
    ways = [_pairs(buffers, src, dst, chosen["pieces"]), *([_pairs(buffers, dst, src, 1)] if chosen["both"] else [])]
    return Move(copy, len(ways))


def _pairs(buffers: Buffers, src: Any, dst: Any, pieces: int) -> Pairs:
    target, source = buffers.target(dst), buffers.source(src)
    each = source.numel() // pieces
    return list(zip(torch.split(target, each), torch.split(source, each), strict=True))


def check(key: Key, move: Move, buffers: Buffers) -> None:
    """Run one iteration; raises RuntimeError unless every element has arrived."""
    buffers.renew()
    move.before()
    buffers.device.synchronize()
    targets = move.run()
    buffers.device.synchronize()
    num_elements, place = key[1] // ITEM_BYTES, 0
    for target in targets:
        first = buffers.first + place
        right = torch.arange(first, first + target.numel(), dtype=target.dtype, device=target.device)
        if not torch.equal(target, right):
            wrong = int((target != right).sum())
            options = ", ".join(f"{name}={value}" for name, value in key[2])
            what = f"{key[0]} of {bytes_words(key[1])} ({options})"
            raise RuntimeError(f"{what} delivered wrong data: {wrong} of {target.numel()} elements differ")
        place = (place + target.numel()) % num_elements


def sampled(moves: dict[Key, Move], device: Cuda, protocol: Protocol) -> dict[Key, list[Sample]]:
    """Return the samples of each move; moves take turns, so that drift affects all of them equally."""
    expected_s = {}
    for key, move in moves.items():
        timed(move, device)
        begin = device.clock()
        timed(move, device)
        expected_s[key] = device.clock() - begin
    return protocol.in_turns(expected_s, lambda key: timed(moves[key], device))


def timed(move: Move, device: Cuda) -> Sample:
    """Run and time one iteration on an idle device."""
    move.before()
    device.synchronize()
    stolen = stolen_ticks()
    begin = device.mark(0)
    for lane in range(1, move.num_lanes):
        device.follow(lane, begin)
    start = device.clock()
    targets = move.run()
    host_s = device.clock() - start
    ends = [device.mark(lane) for lane in range(move.num_lanes)]
    device.synchronize()
    clean = stolen_ticks() == stolen
    del targets
    return Sample(max(device.seconds(begin, end) for end in ends), host_s, clean)


# ---- experiments: a target that is read, and a source that is changed, too early

NUM_BYTES = 2**28  # takes so long that the host reaches its end first
LOOKED_AT = 2**14  # the last elements, which a copy delivers last
TRIES = 5
METHODS = ("pinned_non_blocking", "pageable_non_blocking")


def measure_traps(device: str | Cuda = "cuda:0", num_bytes: int = NUM_BYTES) -> list[Point]:
    """Return a "too_early" and a "changed_source" point for each of `METHODS`.

    As soon as the call has returned, "too_early" reads the target of a copy to the host, and "changed_source" sets the
    source of a copy to the GPU to 0. Options: ``method``; ``num_looked_at``, the number of elements read or set, the
    last of the copy; ``num_wrong`` of them, the fewest of several tries. The seconds are those of the copy. `num_bytes`
    is reduced if it does not fit into memory. Raises ValueError if there is no such GPU, RuntimeError if the data never
    arrive.
    """
    chosen = Cuda(device) if isinstance(device, str) else device
    size = min(num_bytes, most_bytes(chosen) // ITEM_BYTES * ITEM_BYTES)
    buffers = Buffers(size, chosen)
    right = buffers.source("pageable")[-LOOKED_AT:].clone()
    points = []
    for what, trap in {"too_early": read_too_early, "changed_source": change_source}.items():
        for method in METHODS:
            seconds, clean, wrong = [], [], []
            for _ in range(TRIES):
                stolen = stolen_ticks()
                took_s, found = trap(method.removesuffix("_non_blocking"), buffers)
                seconds.append(took_s)
                clean.append(stolen_ticks() == stolen)
                wrong.append(int((found != right).sum()))
            options = {"method": method, "num_wrong": min(wrong), "num_looked_at": right.numel()}
            points.append(Point(what, size, tuple(seconds), tuple(clean), options))
    del buffers
    chosen.forget_pinned()
    return points


def read_too_early(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds, and its last elements as read right after the call."""
    device, target = buffers.device, buffers.target(kind).zero_()
    source = buffers.source(device.index)
    read: list[Tensor] = []
    seconds = _copied_s(device, target, source, lambda: read.append(target[-LOOKED_AT:].clone()))
    if not torch.equal(target, torch.arange(1, target.numel() + 1, dtype=target.dtype)):
        raise RuntimeError(f"a copy from the GPU to {kind} memory delivered wrong data")
    return seconds, read[0]


def change_source(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds, and the last elements that arrived after the source was set to 0 right after the
    call."""
    device, target = buffers.device, buffers.target(buffers.device.index).zero_()
    source = buffers.source(kind)
    last = source[-LOOKED_AT:]
    right = last.clone()
    seconds = _copied_s(device, target, source, last.zero_)
    last.copy_(right)
    return seconds, target[-LOOKED_AT:].cpu()


def _copied_s(device: Cuda, target: Tensor, source: Tensor, then: Callable[[], object]) -> float:
    """Start a non-blocking copy, do something right after the call, and return the copy's seconds."""
    device.synchronize()
    begin = device.mark(0)
    device.copy([(target, source)], True, 0)
    end = device.mark(0)
    then()
    device.synchronize()
    return device.seconds(begin, end)


# ---- epochs of a DataLoader, with pin_memory and without

BATCH_SIZE, NUM_BATCHES, SAMPLE_BYTES = 32, 40, 2**18
EPOCHS, WORKERS, PINS = 5, (0, 2), (False, True)
SHARED, BATCHES_SHARED = Path("/dev/shm"), 32  # holds the batches of workers
TIMEOUT_S = 60.0
MATRIX, PRODUCTS = 4096, 4

Step = Callable[[Tensor], object]


class Samples(Dataset[Tensor]):
    """A dataset that makes samples on demand: sample i is filled with i."""

    def __init__(self, number: int, num_elements: int) -> None:
        self._number, self._elements, self.num_bytes = number, num_elements, 4 * num_elements

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((self._elements,), float(index))


def measure_loader(device: str = "cuda:0") -> list[Point]:
    """Return a "loader" point (an epoch's mean seconds per batch) per number of workers, with and without pin_memory.

    Options: ``num_workers`` and ``pin_memory``; with it the copy is ``.to(device, non_blocking=True)``, without it the
    copy blocks. Each batch is followed by some work of the device. Epochs with and without pin_memory take turns; the
    first of each does not count, because workers start in it. Samples are smaller if there is little shared memory.
    Raises RuntimeError if a batch has wrong data or does not arrive.
    """
    sample_bytes = SAMPLE_BYTES
    if SHARED.exists():
        sample_bytes = min(sample_bytes, shutil.disk_usage(SHARED).free // (BATCHES_SHARED * BATCH_SIZE))
    samples, step = Samples(NUM_BATCHES * BATCH_SIZE, max(1, sample_bytes // 4)), products(device)
    points = []
    for num_workers in WORKERS:
        kept: Any = {"persistent_workers": True, "timeout": TIMEOUT_S} if num_workers else {}
        loaders = {
            pin: DataLoader(samples, BATCH_SIZE, num_workers=num_workers, pin_memory=pin, **kept) for pin in PINS
        }
        found: dict[bool, list[tuple[float, bool]]] = {pin: [] for pin in PINS}
        for _ in range(EPOCHS + 1):
            for pin, loader in loaders.items():
                stolen = stolen_ticks()
                seconds = epoch_s(loader, device, pin, step) / NUM_BATCHES
                found[pin].append((seconds, stolen_ticks() == stolen))
        del loaders, loader
        for pin, runs in found.items():
            seconds_each, clean = zip(*runs[1:], strict=True)
            options = {"pin_memory": pin, "num_workers": num_workers}
            points.append(Point("loader", samples.num_bytes * BATCH_SIZE, seconds_each, clean, options))
    return points


def products(device: str) -> Step:
    """Return a step that multiplies matrices, independent of the batch; it takes some ms on a large GPU."""
    matrix = torch.ones(MATRIX, MATRIX, device=device)

    def step(batch: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix)
        return batch

    return step


def epoch_s(loader: Any, device: str, pin: bool, step: Step) -> float:
    """Return the seconds of an epoch, up to the end of all work. Raises RuntimeError for a batch with wrong data."""
    begin = time.perf_counter()
    sums = []
    for batch in loader:
        here = batch.to(device, non_blocking=pin)
        step(here)
        sums.append(here[:, -1].sum())
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    for place, total in enumerate(sums):
        right = sum(range(place * BATCH_SIZE, (place + 1) * BATCH_SIZE))
        if total.item() != right:
            wrong = f"its last elements sum up to {total.item():g}, not {right}"
            raise RuntimeError(f"batch {place} has wrong data: {wrong}")
    return seconds
