"""Copies between host and GPU, timed by the GPU's clock; each is checked for correct data before it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..points import Point, PointKey
from .plan import ITEM_BYTES, ON_THE_FLY, Protocol, words_of
from .timing import nothing, stolen_ticks

KINDS = ("pageable", "pinned", "gpu")  # of memory
BLOCKING = ("pageable", "pinned")  # methods that copy with `non_blocking=False`


class Gpu:
    """The GPU whose copies are measured: memory, copies, events, and the host's clock.

    All memory has int32 elements. Tests use another class with these methods and its own clock.
    """

    def memory(self, num_bytes: int, kind: str) -> Tensor:
        """Return "pageable", "pinned" or "gpu" memory. Pinned memory is reused if some was released."""
        device = "cuda" if kind == "gpu" else "cpu"
        return torch.empty(num_bytes // ITEM_BYTES, dtype=torch.int32, device=device, pin_memory=kind == "pinned")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        """Give pinned memory that was released back to the system."""
        self.synchronize()  # memory that a copy still uses would stay
        release: Any = getattr(torch.accelerator, "empty_host_cache", None)
        if release is None:  # older versions of torch
            release = torch._C._host_emptyCache
        release()

    def copy(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        """Start a copy."""
        target.copy_(source, non_blocking=non_blocking)

    def mark(self) -> Any:
        """Return an event that is passed when all earlier work is done."""
        event: Any = torch.cuda.Event  # Any, because torch does not annotate it
        mark = event(enable_timing=True)
        mark.record()
        return mark

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two passed marks."""
        return float(begin.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.cuda.synchronize()

    def clock(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()


class Move(NamedTuple):
    """A timed move: `run` starts it and returns its target, which then has the elements of `source`.

    `before` is not timed.
    """

    source: Tensor
    run: Callable[[], Tensor]
    before: Callable[[], object] = nothing


class Sample(NamedTuple):
    """One iteration: its seconds by the GPU's clock, and whether it is clean."""

    seconds: float
    clean: bool


def transfer_points(keys: Sequence[PointKey], protocol: Protocol, gpu: Gpu) -> list[Point]:
    """Return the "transfer" and "pin" points of keys of one size, which take turns.

    The seconds are by the GPU's clock, from before the call on an idle GPU to the end of the copy. Options:
    ``direction`` "h2d" or "d2h"; ``method``, one of METHODS, of which those ON_THE_FLY pin memory for the copy,
    from the system or "cached" by PyTorch; ``pieces`` is 1 and ``both`` False, as other programs have copies in pieces
    or both ways at once. A "pin" is `Tensor.pin_memory`, with ``cached`` memory or new. Raises RuntimeError if a copy
    delivers wrong data.
    """
    sources = {kind: gpu.memory(keys[0].num_bytes, kind).random_() for kind in KINDS}
    targets = {kind: gpu.memory(keys[0].num_bytes, kind) for kind in KINDS}
    moves = {key: move_of(key, sources, targets, gpu) for key in keys}
    for key, move in moves.items():
        check(key, move, gpu)
    points = []
    for key, samples in protocol.in_turns(keys, lambda key: timed(moves[key], gpu), gpu.clock).items():
        seconds, clean = zip(*samples, strict=True)
        points.append(Point(key.what, key.num_bytes, seconds, clean, dict(key.options)))
    gpu.forget_pinned()
    return points


def move_of(key: PointKey, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor], gpu: Gpu) -> Move:
    """Return the move that a key describes, between buffers by their kinds of memory."""
    options: dict[str, Any] = dict(key.options)
    method = options.get("method", "pageable")  # of pinning, too
    is_cached = options.get("cached") or method == "pin_on_the_fly_cached"
    # PyTorch keeps pinned memory that is let go of.
    before = partial(gpu.memory, key.num_bytes, "pinned") if is_cached else gpu.forget_pinned
    if key.what == "pin":
        return Move(sources["pageable"], lambda: gpu.pin(sources["pageable"]), before)
    is_on_the_fly = method in ON_THE_FLY
    host = "pageable" if is_on_the_fly else method.removesuffix("_non_blocking")
    is_to_gpu = options["direction"] == "h2d"
    source = sources[host if is_to_gpu else "gpu"]

    def run() -> Tensor:
        target = targets["gpu" if is_to_gpu else host]
        sent = source
        if is_on_the_fly and is_to_gpu:
            sent = gpu.pin(source)
        elif is_on_the_fly:
            target = gpu.memory(key.num_bytes, "pinned")
        gpu.copy(target, sent, non_blocking=method not in BLOCKING)
        return target

    return Move(source, run, before if is_on_the_fly else nothing)


def check(key: PointKey, move: Move, gpu: Gpu) -> None:
    """Run one iteration of a move; raises RuntimeError unless every element has arrived."""
    move.source.add_(1)  # so that data from earlier moves are wrong
    move.before()
    target = move.run()
    gpu.synchronize()
    wrong = int((target.cpu() != move.source.cpu()).sum())
    if wrong:
        raise RuntimeError(f"{words_of(key)} delivered wrong data: {wrong} of {target.numel()} elements differ")


def timed(move: Move, gpu: Gpu) -> Sample:
    """Run and time one iteration on an idle GPU."""
    move.before()
    gpu.synchronize()
    stolen_before = stolen_ticks()
    begin = gpu.mark()
    target = move.run()
    end = gpu.mark()
    gpu.synchronize()
    del target  # only now, so that no memory is released while a copy still uses it
    return Sample(gpu.seconds(begin, end), stolen_ticks() == stolen_before)
