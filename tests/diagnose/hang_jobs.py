"""Small jobs on Gloo that hang in a known way, and the dumps that their ranks' flight recorders give.

`run_cases` runs several in one launch. A job makes a few healthy steps, each of an allreduce and a broadcast over all
ranks and an allreduce over a part of them; in the last step one rank does something else. Where sizes or types differ
Gloo ends the process, so there the call of that rank is written into the dump of one that did not come.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

from rankscope.diagnose.dumps import _Plain
from rankscope.ranks import launch

STEPS = 3  # healthy ones
TIMEOUT_S = 1.5
_STILL_S = 0.3


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


def run_cases(folder: Path, cases: Sequence[Case]) -> list[Path]:
    """Run the cases, which must have the same number of ranks, and return a folder of dumps for each.

    Dumps are as Gloo has them in ``gloo/rank_N``; in ``stated/rank_N`` they also state the ranks of each group, as
    NCCL's do.
    """
    folders = [folder / f"case_{place:02}" for place in range(len(cases))]
    for one in folders:
        (one / "gloo").mkdir(parents=True)
        (one / "stated").mkdir()
    launch(_be_rank, cases[0].num_ranks, (list(cases), folders), timeout_s=30 + 10 * len(cases))
    return folders


def _be_rank(cases: list[Case], folders: list[Path]) -> None:
    rank = dist.get_rank()
    dist.destroy_process_group()
    for case, folder in zip(cases, folders, strict=True):
        before = max((entry["record_id"] + 1 for entry in _recorded()["entries"]), default=0)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder / "store"), case.num_ranks),
            rank=rank,
            world_size=case.num_ranks,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        groups = {dist.group.WORLD.group_name: list(range(case.num_ranks))}
        part = None
        if case.part:
            part = dist.new_group(list(case.part), timeout=timedelta(seconds=TIMEOUT_S), group_desc="part")
            if rank in case.part:
                groups[part.group_name] = list(case.part)
        made: list[int] = []
        job = threading.Thread(target=_train, args=(case, part, made), daemon=True)
        job.start()
        seen, since = -1, time.monotonic()
        while job.is_alive() and (len(made) != seen or time.monotonic() - since < _STILL_S):
            if len(made) != seen:
                seen, since = len(made), time.monotonic()
            time.sleep(0.02)
        if case.what == "late":
            job.join()
        (folder / f"still_{rank}").touch()
        while sum(1 for _ in folder.glob("still_*")) < case.num_ranks:
            time.sleep(0.02)
        if not (case.what == "dead" and rank == case.rank):
            _write(case, folder, rank, before, groups)
        job.join()
        (folder / f"done_{rank}").touch()
        while sum(1 for _ in folder.glob("done_*")) < case.num_ranks:
            time.sleep(0.02)
        if dist.is_initialized():
            dist.destroy_process_group()


def _train(case: Case, part: Any, made: list[int]) -> None:
    rank = dist.get_rank()

    def call(is_sick: bool, number: int, group: Any, fn: Any) -> None:
        made.append(number)
        if not is_sick:
            return fn(torch.ones(4), group=group)
        if case.what in ("missing", "dead", "size", "dtype"):
            time.sleep(2 * TIMEOUT_S)
            raise RuntimeError("the rank did not come")
        if case.what == "late":
            time.sleep(TIMEOUT_S + 0.5)
            fn(torch.ones(4), group=group)
        elif case.what == "collective":
            dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size(group))], torch.ones(4), group=group)
        elif case.what == "group":
            made.append(-1)
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


def _write(case: Case, folder: Path, rank: int, before: int, groups: dict[str, list[int]]) -> None:
    dump = _recorded()
    dump["entries"] = [entry for entry in dump["entries"] if entry["record_id"] >= before]
    if case.what in ("size", "dtype") and rank == case.rank:
        last = dump["entries"][-1]
        other = next(
            one
            for one in reversed(dump["entries"])
            if (one["process_group"][1] == "part") == case.in_part and one["profiling_name"] == "gloo:all_reduce"
        )
        numbers = {key: value + 1 for key, value in last.items() if key == "record_id"}
        changed = {
            "size": {"input_sizes": [[5]], "output_sizes": [[5]]},
            "dtype": {"input_dtypes": ["Int"], "output_dtypes": ["Int"]},
        }[case.what]
        dump["entries"].append(
            {
                **other,
                **numbers,
                "collective_seq_id": case.call,
                "retired": False,
                "time_created_ns": last["time_created_ns"] + 10**6,
                **changed,
            }
        )
    for entry in dump["entries"]:
        entry["record_id"] -= before
        entry["process_group"] = list(entry["process_group"])
    (folder / "gloo" / f"rank_{rank}.json").write_text(json.dumps(dump))
    descs = dict(entry["process_group"] for entry in dump["entries"])
    dump["pg_config"] = {
        name: {"name": name, "desc": descs.get(name, "undefined"), "ranks": str(ranks)}
        for name, ranks in groups.items()
    }
    (folder / "stated" / f"rank_{rank}.json").write_text(json.dumps(dump))


def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = _Plain(io.BytesIO(_dump_fr_trace())).load()
    return found
