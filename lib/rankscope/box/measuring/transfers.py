"""Copies between host and GPU, timed by the GPU's clock; each is checked for correct data before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...collectives.timing import nothing, stolen_ticks
from ..points import Point, PointKey
from .plan import ITEM_BYTES, Protocol, measure_in_turns, words_of

KINDS = ("pageable", "pinned", "gpu")  # of memory


class Gpu:
    """The GPU whose copies are measured: memory, copies and events.

    All memory has int32 elements. Tests use another class with these methods.
    """

    def memory(self, num_bytes: int, kind: str) -> Tensor:
        """Return "pageable", "pinned" or "gpu" memory."""
        device = "cuda" if kind == "gpu" else "cpu"
        return torch.empty(num_bytes // ITEM_BYTES, dtype=torch.int32, device=device, pin_memory=kind == "pinned")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        """Give pinned memory that was released back to the system; PyTorch would use it again."""
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


class Move(NamedTuple):
    """A timed move: `run` starts it and returns its target, which then has the elements of `source`.

    `before` is not timed.
    """

    source: Tensor
    run: Callable[[], Tensor]
    before: Callable[[], object] = nothing


def transfer_points(keys: Sequence[PointKey], protocol: Protocol, gpu: Gpu) -> list[Point]:
    """Return the "transfer" points of keys of one size, which take turns.

    The seconds are by the GPU's clock, from before the call on an idle GPU to the end of the copy. Options:
    ``direction`` "h2d" or "d2h"; ``method``, one of METHODS, of which "pin_on_the_fly" pins new memory for the copy;
    ``pieces`` is 1 and ``both`` False, as other programs have copies in pieces or both ways at once. Raises
    RuntimeError if a copy delivers wrong data.
    """
    sources = {kind: gpu.memory(keys[0].num_bytes, kind).random_() for kind in KINDS}
    targets = {kind: gpu.memory(keys[0].num_bytes, kind) for kind in KINDS}
    moves = {key: move_of(key, sources, targets, gpu) for key in keys}
    for key, move in moves.items():
        check(key, move, gpu)
    points = measure_in_turns(keys, lambda key: timed(moves[key], gpu), protocol)
    gpu.forget_pinned()
    return points


def move_of(key: PointKey, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor], gpu: Gpu) -> Move:
    """Return the move that a key describes, between buffers by their kinds of memory."""
    options: dict[str, Any] = dict(key.options)
    method = options["method"]
    is_pinned_now = method == "pin_on_the_fly"
    is_to_gpu = options["direction"] == "h2d"
    host = "pageable" if is_pinned_now else method
    source = sources[host if is_to_gpu else "gpu"]

    def run() -> Tensor:
        target = targets["gpu" if is_to_gpu else host]
        sent = source
        if is_pinned_now and is_to_gpu:
            sent = gpu.pin(source)
        elif is_pinned_now:
            target = gpu.memory(key.num_bytes, "pinned")
        gpu.copy(target, sent, non_blocking=is_pinned_now)
        return target

    return Move(source, run, gpu.forget_pinned if is_pinned_now else nothing)


def check(key: PointKey, move: Move, gpu: Gpu) -> None:
    """Run one iteration of a move; raises RuntimeError unless every element has arrived."""
    move.source.add_(1)  # so that data from earlier moves are wrong
    move.before()
    target = move.run()
    gpu.synchronize()
    if not torch.equal(target.cpu(), move.source.cpu()):
        raise RuntimeError(f"{words_of(key)} delivered wrong data")


def timed(move: Move, gpu: Gpu) -> tuple[float, bool]:
    """Run one iteration on an idle GPU; return its seconds by the GPU's clock, and whether the host lost no time."""
    move.before()
    gpu.synchronize()
    stolen_before = stolen_ticks()
    begin = gpu.mark()
    target = move.run()
    end = gpu.mark()
    gpu.synchronize()
    del target  # only now, so that no memory is released while a copy still uses it
    return gpu.seconds(begin, end), stolen_ticks() == stolen_before
