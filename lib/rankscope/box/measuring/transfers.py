"""Copies between host and GPU, timed by the clocks of both; each is checked for correct data before it is timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...collectives.timing import nothing, stolen_ticks
from ...common.units import bytes_words
from ...provenance import free_bytes
from ..profile import Key, Point
from .plan import ITEM_BYTES, ON_THE_FLY, Protocol

HOST_COPIES, DEVICE_COPIES = 6, 4  # buffers of one size that exist at the same time
BLOCKING = ("pageable", "pinned")
MOST_BYTES = 2**32  # elements are numbered with 32 bits
DTYPE = torch.int32  # elements of ITEM_BYTES
Pairs = Sequence[tuple[Tensor, Tensor]]  # where to, where from


class MeasuredGpu:
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

    def at(self, gpu: int) -> MeasuredGpu:
        """Return the GPU of that number."""
        return self if gpu == self.index else MeasuredGpu(f"cuda:{gpu}")

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


class CopyBuffers:
    """Memory of one size, allocated on first use: sources count up from `first`; copies fill the targets."""

    def __init__(self, num_bytes: int, device: MeasuredGpu) -> None:
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


def most_bytes(device: MeasuredGpu) -> int:
    """Return the largest size for which all buffers fit into half of the free memory."""
    host, own = device.free_bytes()
    return min(host // HOST_COPIES // 2, own // DEVICE_COPIES // 2, MOST_BYTES)


def transfer_points(keys: Sequence[Key], protocol: Protocol, device: MeasuredGpu) -> list[Point]:
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
        buffers = CopyBuffers(num_bytes, own)
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


def move_of(key: Key, buffers: CopyBuffers) -> Move:
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


def _pairs(buffers: CopyBuffers, src: Any, dst: Any, pieces: int) -> Pairs:
    target, source = buffers.target(dst), buffers.source(src)
    each = source.numel() // pieces
    return list(zip(torch.split(target, each), torch.split(source, each), strict=True))


def check(key: Key, move: Move, buffers: CopyBuffers) -> None:
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


def sampled(moves: dict[Key, Move], device: MeasuredGpu, protocol: Protocol) -> dict[Key, list[Sample]]:
    """Return the samples of each move; moves take turns, so that drift affects all of them equally."""
    expected_s = {}
    for key, move in moves.items():
        timed(move, device)
        begin = device.clock()
        timed(move, device)
        expected_s[key] = device.clock() - begin
    return protocol.in_turns(expected_s, lambda key: timed(moves[key], device))


def timed(move: Move, device: MeasuredGpu) -> Sample:
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
