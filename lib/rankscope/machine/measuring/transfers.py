"""Copies between host and GPU timed by the GPU's clock and the host's, each checked to arrive before it is timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor

from ...values.checks import whole
from ...values.units import bytes_words
from ..profile import Key, Point
from ..provenance import free_bytes
from .plan import IN_A_ROW, ITEM_BYTES, ON_THE_FLY, Protocol, checked_sizes, transfer_keys
from .timing import nothing, stolen_ticks

HOST_COPIES, DEVICE_COPIES = 6, 4  # of a size, that are there at a time
BLOCKING = ("pageable", "pinned")
MOST_BYTES = 2**32  # elements, which are counted through, have 32 bits


@dataclass(frozen=True)
class Sample:
    """One iteration: the GPU's seconds, those for which the call held the host's thread, and whether it is clean."""

    device_s: float
    host_s: float
    clean: bool


@dataclass(frozen=True)
class Move:
    """What is timed: `run` starts copies on so many lanes and returns where to; `before` is not timed."""

    run: Callable[[], Sequence[Tensor]]
    num_lanes: int = 1
    before: Callable[[], object] = nothing


def measure_transfers(protocol: Protocol, sizes: Sequence[int], device: str | Device = "cuda:0") -> list[Point]:
    """Return "transfer", "transfer_host" and "pin" points of these sizes in bytes; those too large for memory lack.

    A "transfer" has the seconds by the GPU's clock from before the call, on an idle GPU, to the end of the last copy;
    its "transfer_host" those for which the call held the host. Options: ``direction`` "h2d", "d2h", "d2d" or "p2p"
    (from GPU ``src`` to ``dst``); ``method``, one of TRANSFER_METHODS, of ON_THE_FLY, where memory is pinned for the
    copy (taken from the system, or "cached" from what PyTorch keeps), or "device", where the host has no part in it;
    ``pieces``, how many equal ones the bytes go in; ``both``, whether as much goes the other way at once, by the same
    thread. A "pin" has the host's seconds of `Tensor.pin_memory`, by memory that is ``cached`` or not.

    Raises ValueError for bad input and where there is no such GPU, RuntimeError where a copy brings wrong data.
    """
    chosen: Device = Cuda(device) if isinstance(device, str) else device
    fitting = [size for size in checked_sizes(sizes) if size <= most_bytes(chosen)]
    return transfer_points([key for size in fitting for key in transfer_keys(size, chosen.num_gpus)], protocol, chosen)


def most_bytes(device: Device) -> int:
    """Return the largest size of which all copies fit into half of what is free."""
    host, own = device.free_bytes()
    return min(host // HOST_COPIES // 2, own // DEVICE_COPIES // 2, MOST_BYTES)


def transfer_points(keys: Sequence[Key], protocol: Protocol, device: Device) -> list[Point]:
    """Return the points of keys that `transfer_keys` gave; those of one size and GPU take turns."""
    points = []
    for (num_bytes, gpu), some in itertools.groupby(keys, lambda key: (key[1], dict(key[2]).get("src", device.index))):
        own = device.at(int(gpu))
        buffers = Buffers(num_bytes, own)
        moves = {key: move_of(key, buffers) for key in some}
        for key, move in moves.items():
            check(key, move, buffers)
        for key, samples in in_turns(moves, own, protocol).items():
            points += _points(key, samples)
        del buffers, moves, move
        own.forget_pinned()
    return points


class Buffers:
    """Memory of one size, made when it is first asked for: sources count up from `first`; copies fill the targets."""

    def __init__(self, num_bytes: int, device: Device) -> None:
        self.num_bytes, self.device = num_bytes, device
        self.first = 1
        self._sources: dict[str | int, Tensor] = {}
        self._targets: dict[str | int, Tensor] = {}

    def source(self, kind: str | int) -> Tensor:
        """Return what is copied from: "pageable", "pinned", or the memory of the GPU of that number."""
        if kind not in self._sources:
            made = self._new(kind)
            self._sources[kind] = torch.arange(self.first, self.first + made.numel(), out=made)
        return self._sources[kind]

    def target(self, kind: str | int) -> Tensor:
        """Return what is copied to."""
        if kind not in self._targets:
            self._targets[kind] = self._new(kind).zero_()
        return self._targets[kind]

    def renew(self) -> None:
        """Change all that sources hold, so that nothing which arrived before is right any more."""
        self.first += 1
        for source in self._sources.values():
            source.add_(1)

    def _new(self, kind: str | int) -> Tensor:
        if isinstance(kind, int):
            return self.device.memory(self.num_bytes, kind)
        return self.device.pinned(self.num_bytes) if kind == "pinned" else self.device.pageable(self.num_bytes)


def move_of(key: Key, buffers: Buffers) -> Move:
    """Return what a key names."""
    what, _, options = key
    told: dict[str, Any] = dict(options)
    if what == "pin":
        return _pinning(buffers, told["cached"])
    method, direction = told["method"], told["direction"]
    if method in ON_THE_FLY:
        return _on_the_fly(buffers, direction == "h2d", method == ON_THE_FLY[1])
    gpu = buffers.device.index
    host = method.removesuffix("_non_blocking")
    ends = {"h2d": (host, gpu), "d2h": (gpu, host), "d2d": (gpu, gpu), "p2p": (told.get("src"), told.get("dst"))}
    src, dst = ends[direction]
    ways = [_pairs(buffers, src, dst, told["pieces"]), *([_pairs(buffers, dst, src, 1)] if told["both"] else [])]
    return Move(partial(_start, buffers.device, ways, method not in BLOCKING), len(ways))


def _pairs(buffers: Buffers, src: str | int, dst: str | int, pieces: int) -> Pairs:
    target, source = buffers.target(dst), buffers.source(src)
    each = source.numel() // pieces
    return list(zip(torch.split(target, each), torch.split(source, each), strict=True))


def _start(device: Device, ways: Sequence[Pairs], non_blocking: bool) -> list[Tensor]:
    for lane, pairs in enumerate(ways):
        device.copy(pairs, non_blocking, lane)
    return [to for pairs in ways for to, _ in pairs]


def _on_the_fly(buffers: Buffers, to_device: bool, cached: bool) -> Move:
    device, gpu = buffers.device, buffers.device.index

    def run() -> list[Tensor]:
        if to_device:
            pairs = [(buffers.target(gpu), device.pin(buffers.source("pageable")))]
        else:
            pairs = [(device.pinned(buffers.num_bytes), buffers.source(gpu))]
        return _start(device, [pairs], True)

    for made in (buffers.target(gpu), buffers.source("pageable"), buffers.source(gpu)):
        assert made.numel()  # made before anything is timed
    return Move(run, before=partial(_prepare, buffers, cached))


def _pinning(buffers: Buffers, cached: bool) -> Move:
    source = buffers.source("pageable")
    return Move(lambda: [buffers.device.pin(source)], before=partial(_prepare, buffers, cached))


def _prepare(buffers: Buffers, cached: bool) -> None:
    """See that pinned memory of this size is at hand, or that none is."""
    if cached:
        buffers.device.pinned(buffers.num_bytes)
    else:
        buffers.device.forget_pinned()


def check(key: Key, move: Move, buffers: Buffers) -> None:
    """Carry out one iteration; raises RuntimeError unless every element has arrived."""
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
            raise RuntimeError(f"{what} brought wrong data: {wrong} of {target.numel()} elements differ")
        place = (place + target.numel()) % num_elements


def in_turns(moves: Mapping[Key, Move], device: Device, protocol: Protocol) -> dict[Key, list[Sample]]:
    """Return the samples of each, which take turns so that what drifts hits all of them alike."""
    keys = list(moves)
    turns = {key: protocol.turns(_estimate_s(moves[key], device)) for key in keys}
    found: dict[Key, list[Sample]] = {key: [] for key in keys}
    for turn in range(max(turns.values(), default=0)):
        first = turn % len(keys)
        for key in keys[first:] + keys[:first]:
            if turn < turns[key]:
                runs = [timed(moves[key], device) for _ in range(protocol.warm_up + IN_A_ROW)]
                found[key] += runs[protocol.warm_up :]
    return {key: samples[: protocol.iterations] for key, samples in found.items()}


def _estimate_s(move: Move, device: Device) -> float:
    """The seconds of one iteration with all that belongs to it."""
    timed(move, device)
    begin = device.clock()
    timed(move, device)
    return device.clock() - begin


def timed(move: Move, device: Device) -> Sample:
    """Carry out one iteration on an idle device."""
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


def _points(key: Key, samples: Sequence[Sample]) -> list[Point]:
    what, num_bytes, options = key
    clean = tuple(one.clean for one in samples)
    host_s = tuple(one.host_s for one in samples)
    if what == "pin":
        return [Point(what, num_bytes, host_s, clean, dict(options))]
    device_s = tuple(one.device_s for one in samples)
    return [
        Point("transfer", num_bytes, device_s, clean, dict(options)),
        Point("transfer_host", num_bytes, host_s, clean, dict(options)),
    ]


DTYPE = torch.int32  # of ITEM_BYTES
Pairs = Sequence[tuple[Tensor, Tensor]]  # where to, where from


class Device(Interface):
    """What stands for a GPU; tests have one with a clock of its own.

    Work on a lane, 0 or 1, goes in its order, and beside that on the other lane. All memory is of int32 elements.
    """

    index: int
    num_gpus: int

    def at(self, gpu: int) -> Device:
        """Return the GPU of that number."""

    def free_bytes(self) -> tuple[int, int]:
        """Return how much memory of the host, and of the GPU, may be taken."""

    def pageable(self, num_bytes: int) -> Tensor:
        """Return memory of the host as any program has it."""

    def pinned(self, num_bytes: int) -> Tensor:
        """Return memory of the host that stays where it is, from what was let go of where that is enough."""

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        """Return memory of this GPU, or of another."""

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""

    def forget_pinned(self) -> None:
        """Give pinned memory that was let go of back to the system."""

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        """Start copies on a lane, one after the other."""

    def mark(self, lane: int) -> Any:
        """Return a mark that is passed when all work of the lane before it is done."""

    def follow(self, lane: int, mark: Any) -> None:
        """Let the work of a lane that comes from now on wait for a mark."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks that have been passed."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def clock(self) -> float:
        """Return the host's time in seconds."""


class Cuda:
    """A `Device` of torch's. Raises ValueError for a GPU that is not there."""

    def __init__(self, device: str = "cuda:0") -> None:
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device must be a GPU like 'cuda:0', got {device!r}") from error
        self.num_gpus = torch.cuda.device_count()
        if found.type != "cuda" or not self.num_gpus:
            why = "" if self.num_gpus else ", and there is none"
            raise ValueError(f"device must be a GPU like 'cuda:0'{why}, got {device!r}")
        self.index = whole("device", found.index or 0, 0, self.num_gpus - 1)
        self._device = torch.device("cuda", self.index)
        stream: Any = torch.cuda.Stream
        self._lanes = [stream(device=self._device) for _ in range(2)]

    def at(self, gpu: int) -> Cuda:
        return self if gpu == self.index else Cuda(f"cuda:{gpu}")

    def free_bytes(self) -> tuple[int, int]:
        return free_bytes(), torch.cuda.mem_get_info(self._device)[0]

    def pageable(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE)

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, pin_memory=True)

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, device=f"cuda:{self.index if gpu is None else gpu}")

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        self.synchronize()
        own: Any = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
        if own is None:
            raise RuntimeError(f"torch {torch.__version__} cannot give pinned memory back, so pinning cannot be timed")
        own()

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        with torch.cuda.stream(self._lanes[lane]):
            for to, source in pairs:
                to.copy_(source, non_blocking=non_blocking)

    def mark(self, lane: int) -> Any:
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record(self._lanes[lane])
        return mark

    def follow(self, lane: int, mark: Any) -> None:
        self._lanes[lane].wait_event(mark)

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def clock(self) -> float:
        return time.perf_counter()
