"""The events of one trace of torch.profiler that matter, by the role that each plays.

Names are those that `torch.profiler` writes (https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/) and
Kineto gives to kernels of NCCL (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

from ...timeline.events import EventArgs, TraceEvent
from .trace import KINDS_OF_WORDS


class Role(NamedTuple):
    """What an event tells, and the kind of its span.

    The roles are "span" (a phase or a range on the CPU), "evaluate" (autograd computes a gradient), "launch" (of a
    collective), "gloo" (works on a collective), "kernel" (of a GPU, or a copy), "nccl" (a kernel of a collective),
    "runtime" (a call of CUDA), "comms" and "label" (of a call of NCCL), and "" for an event that is not kept.
    """

    role: str
    kind: str = ""


class Event(NamedTuple):
    """An event that is kept, in seconds from the first one.

    `item` is the number of a step, and `thread` is a process and its thread, or a stream.
    """

    kind: str
    item: int
    thread: tuple[Any, Any]
    start_s: float
    stop_s: float
    args: EventArgs


_EVALUATE = "autograd::engine::evaluate_function"
_RANGES = (  # how the names of ranges on the CPU begin, and their roles; the first one that fits counts
    ("ProfilerStep#", Role("span", "step")),
    ("enumerate(DataLoader)#", Role("span", "loader")),
    ("DistributedDataParallel.forward", Role("span", "forward")),
    ("FullyShardedDataParallel.forward", Role("span", "forward")),
    ("Optimizer.zero_grad#", Role("span", "zero_grad")),
    ("Optimizer.step#", Role("span", "optimizer")),
    ("torch.distributed.ddp.reducer::copy_bucket_to_grad", Role("span", "unpack")),
    (f"{_EVALUATE}: torch::autograd::AccumulateGrad", Role("evaluate", "gradient")),
    (_EVALUATE, Role("evaluate", "backward")),
    ("record_param_comms", Role("comms")),
    ("c10d::", Role("launch")),
    ("gloo:", Role("gloo")),
    ("nccl:", Role("label")),
)


def events_by_role(entries: list[Any]) -> dict[str, list[Event]]:
    """Return the events of each role, in the order of their starts. Those without readable times are left out."""
    roles: dict[Any, Role] = {}  # by category and name, because a role is looked up much faster than it is found
    kept = []
    for entry in entries:
        if type(entry) is not TraceEvent or entry.ph != "X":
            continue
        key = entry.cat, entry.name
        role = roles.get(key)
        if role is None:
            role = roles[key] = _role(str(entry.cat).lower(), str(entry.name))
        if role.role and entry.has_times:
            kept.append((entry, role))
    kept.sort(key=lambda each: each[0].ts)
    by_role = defaultdict[str, list[Event]](list)
    for entry, role in kept:
        start_us = entry.ts - kept[0][0].ts  # absolute times need all bits of a float
        times_s = start_us / 1e6, (start_us + entry.dur) / 1e6
        args = entry.args if isinstance(entry.args, EventArgs) else EventArgs()
        number = entry.name.rpartition("#")[2] if role.kind == "step" else ""
        item = int(number) if number.isdecimal() else -1
        by_role[role.role].append(Event(role.kind, item, (entry.pid, entry.tid), *times_s, args))
    return by_role


def _role(category: str, name: str) -> Role:
    """Return the role of an event; versions of torch differ in the names of categories."""
    if category == "kernel":
        kind = kind_of_kernel(name)  # "kernel" for a kernel that is none of NCCL's
        return Role("kernel" if kind == "kernel" else "nccl", kind)
    if category in ("gpu_memcpy", "memcpy", "gpu_memset", "memset"):  # as "Memcpy HtoD (Pageable -> Device)"
        return Role("kernel", "memcpy h2d" if "HtoD" in name else category.removeprefix("gpu_"))
    if category in ("cuda_runtime", "cuda_driver", "runtime"):
        return Role("runtime")
    if category not in ("user_annotation", "cpu_op", "operator"):
        return Role("")
    for begin, role in _RANGES:
        if name.startswith(begin):
            return role if role.kind else role._replace(kind=collective_of(name.removeprefix(begin)))
    return Role("span", f"range: {name}") if category == "user_annotation" else Role("")


def kind_of_kernel(name: str) -> str:
    """Return the collective of a kernel of NCCL, and "kernel" for any other kernel.

    >>> kind_of_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of_kernel("sgemm")
    ('allreduce', 'kernel')
    """
    function_name = name.partition("(")[0]  # the types of its arguments follow
    return collective_of(function_name) if function_name.startswith("nccl") else "kernel"


@cache
def collective_of(name: str) -> str:
    """Return the collective in a name, "allgather" of "_allgather_base_"; "nccl" if there is none."""
    letters = re.sub("[^a-z]", "", name.lower())
    return next((kind for part, kind in KINDS_OF_WORDS.items() if part in letters), "nccl")
