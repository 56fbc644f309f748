"""Dumps as NCCL's recorder would write them, made by code: jobs in which one rank does something wrong.

A job is a list of calls per rank, which the host of each rank queues as far as the list goes. A group runs a call when
all of its ranks have queued the same, and then its next one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

STEPS, SICK = 5, 3  # steps, and the one in which something is wrong
CALL = 3 * SICK + 2  # the second allreduce of that step
TIMEOUT_S = 600.0
_DESCRIPTIONS = {"0": "default_pg", "1": "part"}
CAUSES = ("missing", "left out", "order", "late", "collective", "size", "dtype", "group", "dead")


class QueuedCall(NamedTuple):
    """A call of a rank, before its group numbers it."""

    group: str
    kind: str = "all_reduce"
    sizes: Sequence[int] = (4,)
    dtype: str = "Float"
    at_s: float = 0.0
    fields: Mapping[str, Any] = MappingProxyType({})  # of its entry in the dump, in place of the usual ones


Job = dict[int, list[QueuedCall]]


def healthy(num_ranks: int, part: Sequence[int] = ()) -> Job:
    """Each step: two allreduces of other sizes and a broadcast over all, and one over a part of the ranks."""
    job: Job = {rank: [] for rank in range(num_ranks)}
    for rank, calls in job.items():
        for step in range(STEPS):
            calls += [QueuedCall("0", sizes=(64,)), QueuedCall("0", sizes=(32,)), QueuedCall("0", "broadcast", (8,))]
            calls += [QueuedCall("1", sizes=(16,))] * (rank in part)
            calls[:] = [call if call.at_s else call._replace(at_s=10.0 + step) for call in calls]
    return job


def sick(cause: str, num_ranks: int, rank: int, part: Sequence[int] = ()) -> Job:
    """In the fourth step one rank does not make the second allreduce as the others do."""
    job = healthy(num_ranks, part)
    calls = job[rank]
    at = next(place for place, call in enumerate(calls) if call.at_s == 10.0 + SICK) + 1
    if cause in ("missing", "dead"):
        del calls[at:]
    elif cause == "left out":
        del calls[at]
    elif cause == "order":
        calls[at : at + 2] = calls[at + 1], calls[at]
    elif cause == "late":
        calls[at:] = [call._replace(at_s=call.at_s + TIMEOUT_S + 1) for call in calls[at:]]
    elif cause == "group":  # and its host waits for the call of the other group
        calls[at:] = [QueuedCall("1", sizes=(16,), at_s=calls[at].at_s)]
        for other in job:
            if other != rank:
                job[other] = job[other][: at + 1]
    else:
        other = {"collective": {"kind": "all_gather"}, "size": {"sizes": (31,)}, "dtype": {"dtype": "Half"}}[cause]
        calls[at] = calls[at]._replace(**other)
    return job


def blocking(job: Job, groups: Mapping[str, Sequence[int]]) -> Job:
    """Cut the calls that hosts would not come to if each call blocked its host until all ranks of its group made it."""
    done = dict.fromkeys(job, 0)
    moved = True
    while moved:
        moved = False
        for name, ranks in groups.items():
            calls = [job[rank][done[rank]] for rank in ranks if done[rank] < len(job[rank])]
            if len(calls) == len(ranks) and {call[:4] for call in calls} == {calls[0][:4]} and calls[0].group == name:
                done |= {rank: done[rank] + 1 for rank in ranks}
                moved = True
    return {rank: calls[: done[rank] + 1] for rank, calls in job.items()}


def write(
    folder: Path,
    job: Job,
    groups: dict[str, Sequence[int]] | None = None,
    keep: int = 10**9,
    without: Collection[int] = (),
    as_json: bool = False,
) -> Path:
    """Write a dump per rank, of its last `keep` calls, half of them as pickles unless `as_json`; none for `without`."""
    groups = groups or {"0": range(max(job) + 1)}
    folder.mkdir(parents=True, exist_ok=True)
    ran = {name: _num_ran([[c for c in job.get(r, []) if c.group == name] for r in groups[name]]) for name in groups}
    for rank, calls in ((rank, calls) for rank, calls in job.items() if rank not in without):
        numbers = dict.fromkeys(groups, 0)
        entries = []
        for place, call in enumerate(calls):
            numbers[call.group] += 1
            number, done = numbers[call.group], ran[call.group]
            state = "completed" if number <= done else "started" if number == done + 1 else "scheduled"
            entry = {
                "record_id": place,
                "pg_id": int(call.group),
                "process_group": (call.group, _DESCRIPTIONS.get(call.group, "mesh_tp")),
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": f"nccl:{call.kind}",
                "time_created_ns": int(1e9 * (1000 + call.at_s)) + 1000 * place,
                "input_sizes": [list(call.sizes)],
                "output_sizes": [list(call.sizes)],
                "input_dtypes": [call.dtype],
                "output_dtypes": [call.dtype],
                "state": state,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": state == "completed",
                "timeout_ms": int(1000 * TIMEOUT_S),
                "is_p2p": False,
                "frames": [
                    {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/c10d.py", "line": 9},
                    {"name": "step", "filename": "/home/me/train.py", "line": 12 + place % 4},
                ],
            }
            entries.append({**entry, **call.fields})
        config = {
            name: {"name": name, "desc": _DESCRIPTIONS.get(name, "mesh_tp"), "ranks": str(list(ranks))}
            for name, ranks in groups.items()
            if rank in ranks
        }
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries[-keep:]}
        as_bytes: Callable[[Any], bytes] = (
            pickle.dumps if rank % 2 and not as_json else lambda contents: json.dumps(contents).encode()
        )
        (folder / f"trace_rank_{rank}").write_bytes(as_bytes(dump))
    return folder


def _num_ran(queued: list[list[QueuedCall]]) -> int:
    """How many calls of a group run to their end."""
    ran = 0
    while all(ran < len(calls) for calls in queued):
        calls = [calls_of_rank[ran] for calls_of_rank in queued]
        times_s = [call.at_s for call in calls]
        if any(call[1:4] != calls[0][1:4] for call in calls) or max(times_s) - min(times_s) >= TIMEOUT_S:
            break
        ran += 1
    return ran
