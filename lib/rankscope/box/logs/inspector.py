"""Read what the NCCL Inspector writes, a JSON object per line: the collectives of a running job (NCCL 2.28 and later).

Format: plugins/profiler/inspector of NVIDIA/nccl. From version 4.3 on, a header is of all records that follow it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..nccl.constants import COLLECTIVES, SPLIT
from ..points import NATIVE
from ..profile import Profile
from .log import Log, timed

_NOTE = "a time includes the wait for other ranks, if the file has only one rank of the call"


def inspector(log: Log, text: str) -> Iterator[Profile]:
    """Yield a profile for each number of ranks and nodes of the communicators."""
    # By ranks and nodes, then by call. The last rank to call waits for no other, so its time is the shortest.
    shortest_us: dict[tuple[int, int], dict[tuple[Any, ...], int]] = {}
    notes = [_NOTE]
    header: Mapping[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line or "{}")
        except json.JSONDecodeError:
            notes.append(f"line {number} is cut or damaged, and left out")
            continue
        header = record.get("header", header)
        call = record.get("coll_perf", {})
        collective = call.get("coll", "").lower().replace("reducescatter", "reduce_scatter")
        if collective not in COLLECTIVES or not call["coll_exec_time_us"]:  # between two ranks, or less than 1 µs
            continue
        num_bytes = call["coll_msg_size_bytes"]
        if collective in SPLIT:  # the stated size is one rank's part
            num_bytes *= header["n_ranks"]
        calls = shortest_us.setdefault((header["n_ranks"], header["nnodes"]), {})
        key = (collective, num_bytes, header["id"], call["coll_sn"])
        calls[key] = min(call["coll_exec_time_us"], calls.get(key, call["coll_exec_time_us"]))
    for (num_ranks, num_nodes), calls in shortest_us.items():
        points = []
        for (collective, num_bytes, _, _), time_us in calls.items():
            points.append(timed(collective, num_bytes, [time_us * 1e-6], {"algorithm": NATIVE}))
        about = {"backend": "nccl", "num_ranks": num_ranks, "num_nodes": num_nodes}
        yield log.profile(points, "NCCL Inspector", notes, {"statistic": "each call"}, **about)
