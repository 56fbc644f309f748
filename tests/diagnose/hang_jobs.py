"""Small jobs on Gloo that hang in a known way, and the dumps that their ranks' flight recorders give.

A job makes a few healthy steps, each of an allreduce and a broadcast over all
ranks and an allreduce over a part of them; in the last step one rank does something else. Where sizes or types differ
Gloo ends the process, so there the call of that rank is written into the dump of one that did not come.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout

from rankscope.diagnose.pickles import read_pickle
from rankscope.ranks import launch

STEPS = 3  # healthy ones
TIMEOUT_S = 1.5  # of a rank that is late
_STILL_S = 0.5


class Case(NamedTuple):
    """`rank` does `what` in place of its call of a group of these ranks; `call` is the number of that call."""

    what: str
    num_ranks: int
    rank: int
    part: tuple[int, ...] = ()
    in_part: bool = False

    @property
    def call(self) -> int:
        return STEPS + 1 if self.in_part else 2 * STEPS + 1

    @property
    def group(self) -> str:
        return "part" if self.in_part else "default_pg"

    @property
    def cause(self) -> str:
        """How it is named: who leaves out a call of a part goes on to one of all ranks."""
        return "group" if self.what == "left out" and self.in_part else self.what

    def __str__(self) -> str:
        return f"{self.what}, rank {self.rank} of {self.num_ranks}, in {self.group}"


def run_case(folder: Path, case: Case) -> Path:
    """Run a case, and return the folder of its dumps.

    Dumps are as Gloo has them in ``gloo/rank_N.json``; in ``stated/`` they also state the ranks of each group, as
    NCCL's do.
    """
    for kind in ("gloo", "stated"):
        (folder / kind).mkdir(parents=True)
    launch(_be_rank, case.num_ranks, (case, folder))
    return folder


def _be_rank(case: Case, folder: Path) -> None:
    rank = dist.get_rank()
    groups, part = {dist.group.WORLD.group_name: list(range(case.num_ranks))}, None
    if case.part:
        part = dist.new_group(list(case.part), group_desc="part")
        if rank in case.part:
            groups[part.group_name] = list(case.part)
    if case.what == "late":
        for group in (None, part) if rank in case.part else (None,):
            _set_pg_timeout(timedelta(seconds=TIMEOUT_S), group)
    calls_made: list[int] = []
    job = threading.Thread(target=_train, args=(case, part, calls_made), daemon=True)
    job.start()
    seen, since = -1, time.monotonic()
    while job.is_alive() and (len(calls_made) != seen or time.monotonic() - since < _STILL_S):
        if len(calls_made) != seen:
            seen, since = len(calls_made), time.monotonic()
        time.sleep(0.02)
    if case.what == "late":
        job.join()
    (folder / f"still_{rank}").touch()
    while sum(1 for _ in folder.glob("still_*")) < case.num_ranks:
        time.sleep(0.02)
    if not (case.what == "dead" and rank == case.rank):
        _write(case, folder, rank, groups)


def _train(case: Case, part: Any, calls_made: list[int]) -> None:
    rank = dist.get_rank()

    def call(is_sick: bool, number: int, group: Any, fn: Any) -> None:
        calls_made.append(number)
        if not is_sick:
            return fn(torch.ones(4), group=group)
        if case.what in ("missing", "dead", "size", "dtype"):
            threading.Event().wait()  # until the launch ends
        if case.what == "late":
            time.sleep(TIMEOUT_S + 0.5)
            fn(torch.ones(4), group=group)
        elif case.what == "collective":
            dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size(group))], torch.ones(4), group=group)
        elif case.what == "group":
            calls_made.append(-1)
            dist.all_reduce(torch.ones(4), group=part)
        # "left out": nothing

    def broadcast(tensor: Any, group: Any) -> None:
        dist.broadcast(tensor, 0, group=group)

    try:
        for step in range(STEPS + 2):
            is_sick = step == STEPS and rank == case.rank
            call(is_sick and not case.in_part, 0, None, dist.all_reduce)
            call(False, 1, None, broadcast)
            if rank in case.part:
                call(is_sick and case.in_part, 2, part, dist.all_reduce)
    except RuntimeError:
        pass  # Gloo's timeout, or a peer that went away


def _write(case: Case, folder: Path, rank: int, groups: dict[str, list[int]]) -> None:
    dump = read_pickle(_dump_fr_trace())
    if case.what in ("size", "dtype") and rank == case.rank:
        last = dump["entries"][-1]
        changed: dict[str, Any] = {"input_sizes": [[5]], "output_sizes": [[5]]}
        if case.what == "dtype":
            changed = {"input_dtypes": ["Int"], "output_dtypes": ["Int"]}
        changed |= {"record_id": last["record_id"] + 1, "time_created_ns": last["time_created_ns"] + 10**6}
        other = next(entry for entry in dump["entries"] if (entry["process_group"][1] == "part") == case.in_part)
        dump["entries"].append({**other, **changed, "collective_seq_id": case.call, "retired": False})
    for entry in dump["entries"]:
        entry["process_group"] = list(entry["process_group"])
    (folder / "gloo" / f"rank_{rank}.json").write_text(json.dumps(dump))
    descs = dict(entry["process_group"] for entry in dump["entries"])
    dump["pg_config"] = {
        name: {"name": name, "desc": descs.get(name, "undefined"), "ranks": str(ranks)}
        for name, ranks in groups.items()
    }
    (folder / "stated" / f"rank_{rank}.json").write_text(json.dumps(dump))
