"""Small jobs on Gloo that hang in a known way, and the dumps of their ranks' flight recorders."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

from rankscope.ranks import launch

_STEPS = 3  # healthy ones
_STILL_S = 1.0  # without a new call: all ranks hang


class Case(NamedTuple):
    """`rank` does `what` in place of its fourth allreduce, which a broadcast follows; the group "part" is all ranks."""

    what: str
    num_ranks: int
    rank: int


def run_case(folder: Path, case: Case) -> Path:
    """Run a case, and return the folder of its dumps."""
    folder.mkdir(exist_ok=True)
    launch(_be_rank, case.num_ranks, (case, folder))
    return folder


def _be_rank(case: Case, folder: Path) -> None:
    part = dist.new_group(group_desc="part")
    threading.Thread(target=_train, args=(case, part), daemon=True).start()
    earlier, dump = b"", _dump_fr_trace()
    while dump != earlier:
        time.sleep(_STILL_S)
        earlier, dump = dump, _dump_fr_trace()
    (folder / f"rank_{dist.get_rank()}").write_bytes(dump)
    dist.barrier(dist.new_group())  # until all have written theirs


def _train(case: Case, part: Any) -> None:
    for step in range(_STEPS + 1):
        is_sick = step == _STEPS and dist.get_rank() == case.rank
        if is_sick and case.what == "missing":
            return
        try:
            if is_sick and case.what == "group":
                dist.all_reduce(torch.ones(4), group=part)
            if not (is_sick and case.what == "left out"):
                dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(4), 0)
            dist.all_reduce(torch.ones(4), group=part)
        except RuntimeError:  # Gloo's timeout, or a peer that went away
            return
