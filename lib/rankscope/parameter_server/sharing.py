"""What it costs to pass a tensor to another process, and what memory that several write can lose."""

from __future__ import annotations

import fcntl
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as torch_mp
from numpy.typing import NDArray
from torch import Tensor

from ..values.checks import one_of, several, whole
from ..values.frozen import each, frozen
from ..workers.crew import memory_folder
from ..workers.joined import is_joined
from ..workers.launch import launch
from ..workers.shared import Exchange

PASSED_BYTES = tuple(4**power for power in range(6, 14))  # 4 KiB to 64 MiB
PASSED_BY = {
    "pickle": "by value: pickled, through a socket, and copied out again",
    "file_descriptor": "torch: copied into shared memory, of which the other process gets a file descriptor",
    "file_system": "torch: copied into shared memory, of which the other process gets a name",
    "shared": "torch: as file_descriptor, of a tensor that is in shared memory already",
    "ring": "workers.shared: copied into shared memory that is used again and again",
}
_PAGE_BYTES = 4096
_MOST_PROCESSES = 64
_now = time.perf_counter_ns


class Passing(NamedTuple):
    """The seconds that each tensor of `num_bytes` took by one of the ways that PASSED_BY has.

    >>> Passing("ring", 4096, (2e-5, 1e-5, 4e-5)).median_s
    2e-05
    """

    way: str
    num_bytes: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.median_s


def measure_passing(
    num_bytes: Sequence[int] = PASSED_BYTES,
    ways: Sequence[str] = tuple(PASSED_BY),
    iterations: int = 20,
    timeout_s: float = 120.0,
) -> tuple[Passing, ...]:
    """Pass tensors of these sizes from a process to another and return what that took, way by way.

    The time is from when the sender begins until the receiver has a tensor and has read a number of each page of it, on
    one clock; then it says so, and the next is sent. Except for "shared" each tensor is a new one in the sender's own
    memory, written before the time begins. PASSED_BY says what the ways are.

    Raises ValueError for bad input, RankError where a process fails or has not ended after `timeout_s`.

    >>> [one.way for one in measure_passing([4096], ["pickle", "shared"], iterations=2)]
    ['pickle', 'shared']
    """
    sizes = whole_numbers("num_bytes", num_bytes, 1 << 32)
    chosen = each("ways", ways, one_of, tuple(PASSED_BY))
    if not chosen:
        raise ValueError("ways must be at least one, got none")
    iterations = whole("iterations", iterations, 1, 10_000)
    refuse_torchrun()
    with memory_folder() as folder:
        seconds = launch(_pass, 2, (folder, sizes, chosen, iterations), timeout_s=timeout_s)[0]
    return tuple(Passing(way, size, tuple(seconds[way, size])) for way in chosen for size in sizes)


def whole_numbers(name: str, values: Any, high: int, least: int = 1) -> tuple[int, ...]:
    """Return the numbers if they are whole ones from 1 to `high`, and `least` different ones among them.

    >>> whole_numbers("num_bytes", [1, 1], high=8, least=2)
    Traceback (most recent call last):
    ValueError: num_bytes must be 2 or more different whole numbers, got [1, 1]
    """
    found = tuple(whole(name, one, 1, high) for one in several(name, values, "whole numbers"))
    if len(set(found)) < least:
        raise ValueError(f"{name} must be {least} or more different whole numbers, got {values!r}")
    return found


def refuse_torchrun() -> None:
    """Raise ValueError in a process of torchrun's: it takes one that can start others, which share its memory."""
    if is_joined("gloo"):
        raise ValueError("this starts processes of its own: call it from a script or a notebook, not under torchrun")


# ---- in a rank: tensors that are passed


def _pass(
    folder: Path, sizes: tuple[int, ...], ways: tuple[str, ...], iterations: int
) -> dict[tuple[str, int], list[float]]:
    torch.set_num_threads(1)
    rank = dist.get_rank()
    seconds: dict[tuple[str, int], list[float]] = {}
    exchange = Exchange(folder / "ring", rank)
    with _line(folder) as line:
        for way in ways:
            strategy = "file_system" if way == "file_system" else "file_descriptor"
            torch_mp.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]
            for size in sizes:
                if rank == 0:
                    times = [_send(line, exchange, way, size) for _ in range(iterations + 1)]
                    seconds[way, size] = times[1:]  # the first one connects, and makes memory
                else:
                    for _ in range(iterations + 1):
                        _receive(line, exchange, way)
    return seconds


@contextmanager
def _line(folder: Path) -> Iterator[Connection[Any, Any]]:
    """A connection between the two ranks that can pass tensors: torch has taught multiprocessing to pickle them."""
    place = str(folder / "line")
    tempfile.tempdir = str(folder)  # for multiprocessing's sockets, which a rank leaves behind
    if dist.get_rank() == 0:
        with Listener(place, "AF_UNIX") as listener:
            dist.barrier()
            line = listener.accept()
    else:
        dist.barrier()
        line = Client(place, "AF_UNIX")
    with line:
        yield line
        dist.barrier()


def _send(line: Connection[Any, Any], exchange: Exchange, way: str, size: int) -> float:
    tensor = torch.full((size,), 1, dtype=torch.uint8)
    if way == "shared":
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    start_ns = _now()
    if way == "ring":
        line.send_bytes(exchange.pack(tensor))
        done_ns = int(exchange.unpack(line.recv_bytes()))
    else:
        line.send_bytes(pickle.dumps(tensor.numpy())) if way == "pickle" else line.send(tensor)
        done_ns = int(line.recv())
    return (done_ns - start_ns) / 1e9


def _receive(line: Connection[Any, Any], exchange: Exchange, way: str) -> None:
    if way == "ring":
        got = exchange.unpack(line.recv_bytes())
        done_ns = _read(got)
        del got  # or its memory is not given back with the answer
        line.send_bytes(exchange.pack(done_ns))
    else:
        line.send(_read(torch.from_numpy(pickle.loads(line.recv_bytes())) if way == "pickle" else line.recv()))


def _read(tensor: Tensor) -> int:
    """Read a number of each page; return when that was done."""
    pages = tensor[::_PAGE_BYTES]
    if int(pages.sum()) != len(pages):
        raise RuntimeError(f"{len(pages)} pages must have arrived as they were sent, got a sum of {int(pages.sum())}")
    return _now()


# ---- memory that several processes write


@frozen(eq=False)
class Counted:
    """What shared counters stood at after each of `num_processes` had added one `num_increments` times."""

    how: str
    num_processes: int
    num_increments: int
    counts: NDArray[np.int64]

    @property
    def lost(self) -> float:
        """The share of increments that are not there."""
        return 1 - float(self.counts.mean()) / (self.num_processes * self.num_increments)


def count_together(
    how: str = "free", num_processes: int = 2, num_increments: int = 1000, num_counters: int = 1000
) -> Counted:
    """Let processes add one to all counters of a shared tensor, again and again, and return what they come to.

    "free": ``counters += 1``, which reads, adds and writes; what another has written in between is lost. "in_step": all
    read, then all write, so that of each round one increment is left. "locked": one process at a time.

    Raises ValueError for bad input, RankError where a process fails or has not ended after a minute.

    >>> count_together("in_step", 3, 4, 1).counts.tolist(), count_together("locked", 3, 4, 1).counts.tolist()
    ([4], [12])
    """
    one_of("how", how, ("free", "in_step", "locked"))
    num_processes = whole("num_processes", num_processes, 1, _MOST_PROCESSES)
    num_increments = whole("num_increments", num_increments, 1, 10_000_000)
    num_counters = whole("num_counters", num_counters, 1, 10_000_000)
    refuse_torchrun()
    with memory_folder() as folder:
        args = how, num_increments, num_counters, folder
        counts = launch(_count, num_processes, args)[0]
    return Counted(how, num_processes, num_increments, counts)


def shared_tensor(tensor: Tensor, folder: Path) -> Tensor:
    """Return the tensor of rank 0, in a file that all ranks have mapped: what one writes all read."""
    shared = torch.from_file(str(folder / "tensor"), True, tensor.numel(), dtype=tensor.dtype)
    if dist.get_rank() == 0:
        shared.copy_(tensor)
    dist.barrier()
    return shared


def _count(how: str, num_increments: int, num_counters: int, folder: Path) -> NDArray[np.int64]:
    torch.set_num_threads(1)
    counters = shared_tensor(torch.zeros(num_counters, dtype=torch.int64), folder)
    with open(folder / "lock", "wb") as file:
        for _ in range(num_increments):
            if how == "in_step":
                read = counters.clone()
                dist.barrier()
                counters.copy_(read + 1)
                dist.barrier()
            elif how == "locked":
                fcntl.flock(file, fcntl.LOCK_EX)
                counters += 1
                fcntl.flock(file, fcntl.LOCK_UN)
            else:
                counters += 1
    dist.barrier()
    return counters.numpy().copy()
