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
from ..profile import Point, PointKey
from .plan import ITEM_BYTES, MEMORY_SHARE, ON_THE_FLY, Protocol

# Buffers of one size that exist at the same time. On the host: a source and a target in pageable and in pinned memory,
# memory pinned on the fly, and the expected data of `check`. On a GPU: a source, a target, the expected data, and the
# result of comparing them.
HOST_COPIES = 6
DEVICE_COPIES = 4
BLOCKING = ("pageable", "pinned")  # methods that copy with `non_blocking=False`
MOST_BYTES = 2**32  # elements are numbered with 32 bits
DTYPE = torch.int32  # elements of ITEM_BYTES
Pairs = Sequence[tuple[Tensor, Tensor]]  # the target and the source of each copy


class MeasuredGpu:
    """A GPU for measuring copies: three kinds of memory, two lanes (streams) of work, marks (events), a host clock.

    Work on a lane, 0 or 1, runs in order, and concurrently with the other lane. All memory has int32 elements. Tests
    use another class with these methods and its own clock. Raises ValueError if there is no such GPU.
    """

    def __init__(self, device: str = "cuda:0") -> None:
        stream: Any = torch.cuda.Stream  # Any, because torch does not annotate it
        try:
            stated = torch.device(device)
            self._device = torch.device(stated.type, stated.index or 0)  # "cuda" has no index
            self._lanes = [stream(device=self._device) for _ in range(2)]
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:  # the last: torch without CUDA
            raise ValueError(f"device must be an existing GPU, such as 'cuda:0', got {device!r}") from error
        self.index = self._device.index
        self.num_gpus = torch.cuda.device_count()

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
        if gpu is None:
            gpu = self.index
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, device=f"cuda:{gpu}")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        """Give pinned memory that was released back to the system."""
        self.synchronize()  # memory that a copy still uses would stay
        release: Any = getattr(torch.accelerator, "empty_host_cache", None)
        if release is None:  # older versions of torch
            release = getattr(torch._C, "_host_emptyCache", None)
        if release is None:
            raise RuntimeError(f"torch {torch.__version__} cannot release pinned memory, so pinning cannot be timed")
        release()

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        """Start copies on a lane, one after the other."""
        with torch.cuda.stream(self._lanes[lane]):
            for target, source in pairs:
                target.copy_(source, non_blocking=non_blocking)

    def mark(self, lane: int) -> Any:
        """Return a mark (event) that is passed when all earlier work on the lane is done."""
        event: Any = torch.cuda.Event  # Any, because torch does not annotate it
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
    """Memory of one size, allocated on first use: sources count up from `first`; copies fill the targets.

    New targets have zeros, which no source contains.
    """

    def __init__(self, num_bytes: int, device: MeasuredGpu) -> None:
        self.num_bytes = num_bytes
        self.device = device
        self.first = 1
        self._sources: dict[str | int, Tensor] = {}
        self._targets: dict[str | int, Tensor] = {}

    def source(self, kind: str | int) -> Tensor:
        """Return the source of a copy: "pageable" or "pinned" memory, or that of a GPU, by its number."""
        if kind not in self._sources:
            source = self._new(kind)
            self._sources[kind] = torch.arange(self.first, self.first + source.numel(), out=source)
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
        if kind == "pinned":
            return self.device.pinned(self.num_bytes)
        return self.device.pageable(self.num_bytes)


class Move(NamedTuple):
    """A timed move: `run` starts copies on this many lanes and returns their targets; `before` is not timed.

    The targets of a lane contain, in order, all elements of the source.
    """

    run: Callable[[], Sequence[Tensor]]
    num_lanes: int = 1
    before: Callable[[], object] = nothing


class Sample(NamedTuple):
    """One iteration: its seconds on the GPU, those for which the call blocked the host, and whether it is clean."""

    device_s: float
    host_s: float
    clean: bool


def most_bytes(device: MeasuredGpu) -> int:
    """Return the largest size for which all buffers fit into half of the free memory."""
    host_bytes, device_bytes = device.free_bytes()
    most_on_host = int(MEMORY_SHARE * host_bytes) // HOST_COPIES
    most_on_device = int(MEMORY_SHARE * device_bytes) // DEVICE_COPIES
    return min(most_on_host, most_on_device, MOST_BYTES)


def transfer_points(keys: Sequence[PointKey], protocol: Protocol, device: MeasuredGpu) -> list[Point]:
    """Return the "transfer", "transfer_host" and "pin" points of the keys from `transfer_keys`.

    Keys of the same size and GPU take turns if they are in a row. A "transfer" has the seconds by the GPU's clock, from
    before the call on an idle GPU to the end of the last copy; its "transfer_host" has the seconds for which the call
    blocked the host. Options: ``direction`` "h2d", "d2h", "d2d" or "p2p" (from GPU ``src`` to ``dst``); ``method``, one
    of TRANSFER_METHODS, of ON_THE_FLY (memory is pinned for the copy, from the system or "cached" by PyTorch), or
    "device" (without the host); ``pieces``, the number of equal parts; ``both``, whether the same thread copies as many
    bytes in the other direction at once. A "pin" has the host's seconds of `Tensor.pin_memory`, with ``cached`` memory
    or new. Raises RuntimeError if a copy delivers wrong data.
    """
    points = []

    def size_and_gpu(key: PointKey) -> tuple[int, Any]:
        """Return the size and the GPU that copies: the source's between two GPUs, else the one being measured."""
        return key.num_bytes, dict(key.options).get("src", device.index)

    for (num_bytes, gpu), group in itertools.groupby(keys, size_and_gpu):
        gpu_device = device.at(int(gpu))
        buffers = CopyBuffers(num_bytes, gpu_device)
        moves = {key: move_of(key, buffers) for key in group}
        for key, move in moves.items():
            check(key, move, buffers)
        for key, samples in sampled(moves, gpu_device, protocol).items():
            options = dict(key.options)
            clean = tuple(sample.clean for sample in samples)
            host_s = tuple(sample.host_s for sample in samples)
            if key.what == "pin":
                points.append(Point("pin", num_bytes, host_s, clean, options))
            else:
                device_s = tuple(sample.device_s for sample in samples)
                points.append(Point("transfer", num_bytes, device_s, clean, options))
                points.append(Point("transfer_host", num_bytes, host_s, clean, options))
        del buffers, moves, move  # so that their memory is free before that of the next size is allocated
        gpu_device.forget_pinned()
    return points


def move_of(key: PointKey, buffers: CopyBuffers) -> Move:
    """Return the move that a key describes, with all buffers allocated that are not part of what is timed."""
    options: dict[str, Any] = dict(key.options)
    if key.what == "pin" or options["method"] in ON_THE_FLY:
        return _pinning_move(key, buffers)
    gpu = buffers.device.index
    method = str(options["method"])
    host = method.removesuffix("_non_blocking")  # the kind of the host's memory, or "device" without the host
    ends_of_directions = {
        "h2d": (host, gpu),
        "d2h": (gpu, host),
        "d2d": (gpu, gpu),
        "p2p": (options.get("src"), options.get("dst")),
    }
    src, dst = ends_of_directions[str(options["direction"])]
    pairs_of_lanes = [_pairs(buffers, src, dst, options["pieces"])]
    if options["both"]:  # on the other lane, the same bytes in one copy in the other direction
        pairs_of_lanes.append(_pairs(buffers, dst, src, 1))

    def copy() -> list[Tensor]:
        for lane, pairs in enumerate(pairs_of_lanes):
            buffers.device.copy(pairs, non_blocking=method not in BLOCKING, lane=lane)
        return [target for pairs in pairs_of_lanes for target, _ in pairs]

    return Move(copy, num_lanes=len(pairs_of_lanes))


def _pinning_move(key: PointKey, buffers: CopyBuffers) -> Move:
    """Return a move that pins host memory while it is timed: `Tensor.pin_memory` alone, or with a copy that uses it."""
    options: dict[str, Any] = dict(key.options)
    device = buffers.device
    reuses_pinned = options.get("cached") or options.get("method") == "pin_on_the_fly_cached"

    def prepare() -> None:
        """Make sure that PyTorch has released pinned memory of this size to reuse, or that it has none."""
        if reuses_pinned:
            device.pinned(key.num_bytes)  # released at once, to PyTorch's cache
        else:
            device.forget_pinned()

    if key.what == "pin":
        host_source = buffers.source("pageable")

        def pin() -> list[Tensor]:
            return [device.pin(host_source)]

        return Move(pin, before=prepare)

    if options["direction"] == "h2d":
        host_source = buffers.source("pageable")
        gpu_target = buffers.target(device.index)

        def pin_and_copy_to_gpu() -> list[Tensor]:
            pinned_source = device.pin(host_source)
            device.copy([(gpu_target, pinned_source)], non_blocking=True, lane=0)
            return [gpu_target]

        return Move(pin_and_copy_to_gpu, before=prepare)

    gpu_source = buffers.source(device.index)

    def pin_and_copy_to_host() -> list[Tensor]:
        pinned_target = device.pinned(key.num_bytes)
        device.copy([(pinned_target, gpu_source)], non_blocking=True, lane=0)
        return [pinned_target]

    return Move(pin_and_copy_to_host, before=prepare)


def _pairs(buffers: CopyBuffers, src: Any, dst: Any, pieces: int) -> Pairs:
    """Return the equal parts of a copy between two kinds of memory, each as its target and source."""
    target = buffers.target(dst)
    source = buffers.source(src)
    piece_elements = source.numel() // pieces
    return list(zip(torch.split(target, piece_elements), torch.split(source, piece_elements), strict=True))


def check(key: PointKey, move: Move, buffers: CopyBuffers) -> None:
    """Run one iteration of a move; raises RuntimeError unless every element has arrived."""
    buffers.renew()
    move.before()
    buffers.device.synchronize()  # the lanes do not wait for `renew`, which does not run on one
    targets = move.run()
    buffers.device.synchronize()
    num_elements = key.num_bytes // ITEM_BYTES
    position = 0  # in the source, of the first element of a target; the source counts up from `buffers.first`
    for target in targets:
        first = buffers.first + position
        right = torch.arange(first, first + target.numel(), dtype=target.dtype, device=target.device)
        if not torch.equal(target, right):
            wrong = int((target != right).sum())
            options = ", ".join(f"{name}={value}" for name, value in key.options)
            copy = f"{key.what} of {bytes_words(key.num_bytes)} ({options})"
            raise RuntimeError(f"{copy} delivered wrong data: {wrong} of {target.numel()} elements differ")
        position = (position + target.numel()) % num_elements  # 0 again for the targets of the other direction


def sampled(moves: dict[PointKey, Move], device: MeasuredGpu, protocol: Protocol) -> dict[PointKey, list[Sample]]:
    """Return the samples of each move; moves take turns, so that drift affects all of them equally.

    The number of turns depends on the time of a second iteration; the first one warms up.
    """
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
    stolen_before = stolen_ticks()
    begin = device.mark(0)
    for lane in range(1, move.num_lanes):  # No lane may start its copies before the mark.
        device.follow(lane, begin)
    host_begin_s = device.clock()
    targets = move.run()
    host_s = device.clock() - host_begin_s
    ends = [device.mark(lane) for lane in range(move.num_lanes)]
    device.synchronize()
    clean = stolen_ticks() == stolen_before
    del targets  # only now, so that no memory is released while copies still use it
    return Sample(max(device.seconds(begin, end) for end in ends), host_s, clean)
