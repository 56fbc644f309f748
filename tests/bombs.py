"""Small files that ask for much: each maker takes a size, and returns a file whose length is in proportion to it."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.train.ddp import LocalStep

from .diagnose.made_dumps import entry
from .diagnose.made_traces import write_traces

MARK, EMPTY_LIST, EMPTY_DICT, NONE, MEMOIZE, STOP = b"(", b"]", b"}", b"N", b"\x94", b"."
PROTOCOL = b"\x80\x04"


def dump(entries: Any, **more: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {}, "entries": entries, **more}


def shared_sizes(num: int) -> bytes:
    """A pickle whose calls, tensors and dimensions are each one object, named `num` times: num³ numbers in all."""
    call = entry(0) | {"input_sizes": [[1] * num] * num}
    return pickle.dumps(dump([call] * num), 2)


def shared_tensors(num: int) -> bytes:
    """A pickle of different calls whose sizes are one object: num² tensors in all."""
    sizes = [[1] * 60] * num
    return pickle.dumps(dump([entry(place) | {"input_sizes": sizes} for place in range(num)]), 2)


def shared_frames(num: int) -> bytes:
    frames = [{"name": "f", "filename": "/site-packages/torch/a.py", "line": 1}] * num
    return pickle.dumps(dump([entry(place) | {"frames": frames} for place in range(num)]), 2)


def shared_ranks(num: int) -> bytes:
    """A pickle of `num` groups that share one long text of ranks."""
    config = {str(place): {"desc": "", "ranks": ranks} for ranks in [str(list(range(num)))] for place in range(num)}
    return pickle.dumps(dump([entry(0)], pg_config=config), 2)


def in_itself(num: int) -> bytes:
    """A pickle of a list that holds itself."""
    return PROTOCOL + b"]" + MEMOIZE + (b"h\0a" * num) + STOP


def opcodes(opcode: bytes) -> Callable[[int], bytes]:
    """Return the maker of a pickle that repeats an opcode."""
    return lambda num: PROTOCOL + b"N" + opcode * num + STOP


def long_sizes(num: int) -> bytes:
    """A call of one tensor with 100 dimensions for each of `num`, as large as can be."""
    return json.dumps(dump([entry(0) | {"input_sizes": [[2**62] * (100 * num)]}])).encode()


def empty_frames(num: int) -> bytes:
    return json.dumps(dump([entry(0) | {"frames": [{}] * num}]), separators=(",", ":")).encode()


PICKLES: dict[str, Callable[[int], bytes]] = {
    "shared sizes": shared_sizes,
    "shared tensors": shared_tensors,
    "shared frames": shared_frames,
    "shared ranks": shared_ranks,
    "in itself": in_itself,
    "marks": opcodes(MARK),
    "lists": opcodes(EMPTY_LIST),
    "dictionaries": opcodes(EMPTY_DICT),
    "pairs": opcodes(b"NN\x86"),
    "nothing": opcodes(NONE),
    "memo": opcodes(MEMOIZE),
    "numbers": opcodes(b"M\x00\xff"),
    "long memo": lambda num: PROTOCOL + b"N" + b"".join(b"r" + place.to_bytes(4, "little") for place in range(num)),
}
JSON: dict[str, Callable[[int], bytes]] = {"long sizes": long_sizes, "empty frames": empty_frames}


# ---- folders of dumps


def groups_apart(num: int) -> dict[str, bytes]:
    """Two ranks, each of which waits for the other in `num` groups."""
    config = {f"{rank}.{place}": {"desc": "", "ranks": "[0, 1]"} for rank in range(2) for place in range(num)}
    return {
        f"trace_{rank}": json.dumps(
            dump([entry(place, f"{rank}.{place}") for place in range(num)], pg_config=config)
        ).encode()
        for rank in range(2)
    }


def groups_in_a_row(num: int) -> dict[str, bytes]:
    """Each of `num` ranks waits for the next one in a group of the two."""
    files = {}
    for rank in range(num):
        groups = [place for place in (rank - 1, rank) if 0 <= place < num - 1]
        config = {str(place): {"desc": "", "ranks": f"[{place}, {place + 1}]"} for place in groups}
        calls = [entry(0, str(rank))] if rank in groups else []
        files[f"trace_{rank}"] = json.dumps(dump(calls, pg_config=config)).encode()
    return files


def groups_that_differ(num: int) -> dict[str, bytes]:
    """Two ranks that make another call than the other in each of `num` groups."""
    config = {str(place): {"desc": "", "ranks": "[0, 1]"} for place in range(num)}
    files = {}
    for rank, kind in enumerate(("all_reduce", "broadcast")):
        calls = [entry(place, str(place), kind) for place in range(num)]
        files[f"trace_{rank}"] = json.dumps(dump(calls, pg_config=config)).encode()
    return files


def pairs_that_differ(num: int) -> dict[str, bytes]:
    """Pairs of ranks in `num` groups; one of a pair makes another call than the other."""
    files = {}
    for rank in range(2 * num):
        pair = rank // 2
        config = {str(pair): {"desc": "", "ranks": f"[{2 * pair}, {2 * pair + 1}]"}}
        call = entry(0, str(pair), ("all_reduce", "broadcast")[rank % 2])
        files[f"trace_{rank}"] = json.dumps(dump([call], pg_config=config)).encode()
    return files


def forgotten(num: int) -> dict[str, bytes]:
    """Two ranks, of which one has forgotten the `num` calls that the other remembers."""
    kept = [[entry(place + 1) for place in range(num)], [entry(place + num) for place in range(num)]]
    return {f"trace_{rank}": json.dumps(dump(calls)).encode() for rank, calls in enumerate(kept)}


def large_rank(num: int) -> dict[str, bytes]:
    """A dump of a rank with a large number, which calls groups whose ranks are not stated."""
    return {f"trace_{9999 * num}": json.dumps(dump([entry(place, str(place)) for place in range(num)])).encode()}


DUMPS: dict[str, Callable[[int], dict[str, bytes]]] = {
    "groups apart": groups_apart,
    "groups in a row": groups_in_a_row,
    "groups that differ": groups_that_differ,
    "pairs that differ": pairs_that_differ,
    "forgotten": forgotten,
    "large rank": large_rank,
}


# ---- traces: a healthy job of two ranks, with much of one thing in each of its steps

STEPS_US = [(100_000.0 + 34_000.0 * number, 34_000.0) for number in range(6)]


def _within_step(place: int, num: int, **more: Any) -> dict[str, Any]:
    """An event in the steps, as many in each, with what is stated of it."""
    begin_us, length_us = STEPS_US[place % len(STEPS_US)]
    at_us = begin_us + length_us * (0.05 + 0.9 * place / num)
    return {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": at_us, "dur": 0.5, "name": "x"} | more


def _kernel(place: int, num: int, name: str = "gemm", tid: int = 7, **args: Any) -> dict[str, Any]:
    return _within_step(place, num, cat="kernel", name=name, tid=tid, args=args)


def _nccl(place: int, num: int, group: str) -> dict[str, Any]:
    args = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Process Group Name": group}
    return _kernel(place, num, "ncclDevKernel_AllReduce_Sum_f32", **args)


EVENTS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "threads": lambda place, num: _within_step(place, num, tid=place + 10, name="Optimizer.step#SGD"),
    "threads that launch": lambda place, num: _within_step(place, num, tid=place + 10, name="c10d::allreduce_"),
    "threads with gradients": lambda place, num: _within_step(
        place,
        num,
        cat="cpu_op",
        tid=place + 10,
        name="autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    ),
    "processes": lambda place, num: _within_step(place, num, pid=place + 10, name="Optimizer.step#SGD"),
    "streams": lambda place, num: _kernel(place, num, tid=place),
    "ranges": lambda place, num: _within_step(place, num, name=f"range {place}"),
    "steps": lambda place, num: _within_step(place, num, name=f"ProfilerStep#{place + 10}"),
    "categories": lambda place, num: _within_step(place, num, cat=f"category {place}"),
    "kernels": lambda place, num: _kernel(place, num),
    "gradients": lambda place, num: _within_step(
        place, num, cat="cpu_op", name="autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    ),
    "calls": lambda place, num: _nccl(place, num, "0"),
    "groups": lambda place, num: _nccl(place, num, str(place)),
    "launches": lambda place, num: _within_step(place, num, cat="cpu_op", name="c10d::allreduce_"),
    "work of Gloo": lambda place, num: _within_step(place, num, tid=2, name="gloo:all_reduce"),
    "open events": lambda place, num: _within_step(place, num, ph="B"),
    "loaders": lambda place, num: _within_step(place, num, name="enumerate(DataLoader)#x"),
    "forwards": lambda place, num: _within_step(place, num, name="DistributedDataParallel.forward"),
}


def traces(folder: Path, name: str, num: int) -> None:
    """Write the traces of a job, with `num` more events of a kind."""
    write_traces(folder, LocalStep.modelled([1 << 18] * 4, backward_s=0.02), lambda num_bytes: 1e-3)
    for path in folder.glob("rank*.json"):
        content = json.loads(path.read_bytes())
        content["traceEvents"] += [EVENTS[name](place, num) for place in range(num)]
        path.write_text(json.dumps(content))


# ---- gzip


def packed(before: bytes, repeated: bytes, after: bytes, num_mb: int) -> bytes:
    """Return gzip of so many megabytes, which are never there as a whole."""
    pack = zlib.compressobj(9, wbits=31)
    block = repeated * ((1 << 20) // len(repeated))
    pieces = [pack.compress(before), *(pack.compress(block) for _ in range(num_mb)), pack.compress(after), pack.flush()]
    return b"".join(pieces)


_HEAD, _KERNEL = b'{"schemaVersion":1,"traceEvents":[', b'{"ph":"X","cat":"kernel","name":"k","tid":7,"ts":1,"dur":5}'
PACKED_TRACES: dict[str, tuple[bytes, bytes, bytes]] = {  # what comes first, what is repeated, and what follows
    "kernels": (_HEAD, _KERNEL + b",", _KERNEL + b"]}"),
    "lists": (_HEAD, b"[],", _KERNEL + b"]}"),
    "empty events": (_HEAD, b"{},", _KERNEL + b"]}"),
    "open events": (_HEAD, b'{"ph":"B","name":"n","cat":"user_annotation","ts":0},', _KERNEL + b"]}"),
    "a field": (b'{"x":[', b"[],", b"0]," + _HEAD[1:] + _KERNEL + b"]}"),
    "a field at the end": (_HEAD + _KERNEL + b'],"x":[', b"[],", b"0]}"),
    "blanks": (_HEAD, b" ", _KERNEL + b"]}"),
}
PACKED_LOGS: dict[str, tuple[bytes, bytes, bytes]] = {
    "lines": (b"", b"\n", b"algbw   busbw\n"),
    "short lines": (b"algbw   busbw\n", b"ab\n", b""),
    "blanks": (b"algbw   busbw\n", b" ", b""),
    "letters of four bytes": (b"algbw   busbw\n", "😀".encode(), b""),
    "JSON": (b'{"bus_bw":[', b"[],", b"0]}"),
    "a trace": PACKED_TRACES["kernels"],
    "a trace's field": PACKED_TRACES["a field"],
}
