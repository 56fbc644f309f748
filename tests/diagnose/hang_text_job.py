"""A small Gloo job that hangs on purpose: ``python hang_text_job.py WHAT RANK TIMEOUT_S [FOLDER]``.

RANK does WHAT; the other ranks call a collective in its place. Ranks, sizes and addresses come from the environment, as
under torchrun. With a folder, this process imports torch once and forks all ranks, and each writes a log there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

_START_S = 10.0  # in which ranks must connect, however busy the machine is


def main(what: str, odd: int, timeout_s: float) -> None:
    rank = int(os.environ["RANK"])
    num_ranks = int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    start = timedelta(seconds=_START_S)
    is_odd = rank == odd
    if what == "no init" and is_odd:
        time.sleep(2 * _START_S)
        return
    if what == "store only" and is_odd:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, num_ranks, is_master=False, timeout=start)
        time.sleep(2 * _START_S)
        del store
        return
    dist.init_process_group("gloo", timeout=start)
    part = None
    if what.startswith("part"):
        part = dist.new_group([1, 3], timeout=start)
        if rank in (1, 3):
            _set_pg_timeout(timeout, part)
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    _set_pg_timeout(timeout)
    hang(what, rank, num_ranks, is_odd, timeout, part)


def hang(
    what: str, rank: int, num_ranks: int, is_odd: bool, timeout: timedelta, part: dist.ProcessGroup | None
) -> None:
    is_missing = what.startswith(("missing", "barrier")) and is_odd
    if is_missing or (what == "barrier two" and rank == num_ranks - 1):
        time.sleep(2 * timeout.total_seconds())
    elif what == "missing all_gather":
        all_gather(num_ranks)
    elif what == "missing broadcast":
        dist.broadcast(torch.ones(4), src=num_ranks - 1)
    elif what == "missing barrier":
        dist.barrier()
    elif what.startswith("barrier"):
        dist.monitored_barrier(timeout=timeout, wait_all_ranks=what == "barrier two")
    elif what == "stopped" and is_odd:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "killed" and is_odd:
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "error" and is_odd:
        raise ValueError("the batch has no samples")
    elif what == "collective" and is_odd:
        all_gather(num_ranks)
    elif what == "left out" and is_odd:
        dist.all_gather([torch.ones(9) for _ in range(num_ranks)], torch.ones(9))
    elif what == "size":
        dist.all_reduce(torch.ones(8 if is_odd else 4))
    elif what == "dtype":
        dist.all_reduce(torch.ones(4, dtype=torch.int64 if is_odd else torch.float32))
    elif what == "dimensions":
        dist.all_reduce(torch.ones((2, 2) if is_odd else 4))
    elif part is not None and rank in (1, 3):
        if what == "part missing" and is_odd:
            time.sleep(2 * timeout.total_seconds())
        elif what == "part collective" and is_odd:
            dist.all_gather([torch.ones(4) for _ in range(2)], torch.ones(4), group=part)
        else:
            dist.all_reduce(torch.ones(4), group=part)
    elif what == "recv":
        if not is_odd:
            dist.recv(torch.ones(4), src=(rank + 1) % num_ranks)
        time.sleep(2 * timeout.total_seconds())
    else:
        dist.all_reduce(torch.ones(4))


def all_gather(num_ranks: int) -> None:
    dist.all_gather([torch.ones(4) for _ in range(num_ranks)], torch.ones(4))


def fork(folder: Path, what: str, odd: int, timeout_s: float) -> None:
    """Run each rank in a process of its own; wait for all of them, or until we are ended."""
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if os.fork() == 0:
            log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["RANK"] = str(rank)
            try:
                main(what, odd, timeout_s)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(0)
    for _ in range(int(os.environ["WORLD_SIZE"])):
        os.wait()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        fork(Path(sys.argv[4]), sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
