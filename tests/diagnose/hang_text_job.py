"""A small Gloo job that hangs on purpose: ``python hang_text_job.py WHAT RANK TIMEOUT_S AFTER_S [FOLDER]``.

RANK does WHAT; the other ranks call a collective in its place. AFTER_S is the time after which a rank stops that makes
collectives in a loop. Ranks, sizes and addresses come from the environment, as under torchrun. With a folder, this
process imports torch once and forks all ranks, and each writes a log there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

_START_S = 10.0  # in which ranks must connect, however busy the machine is


def main(what: str, odd: int, timeout_s: float, after_s: float) -> None:
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
    if what.startswith("fsdp"):
        fsdp(what, is_odd, timeout, after_s)
        return
    _set_pg_timeout(timeout)
    if what == "stopped in a loop":
        stopped_in_a_loop(num_ranks, is_odd, after_s)
        return
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


def stop_after(seconds: float) -> None:
    """Stop this process then, wherever it is."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGSTOP))
    timer.daemon = True
    timer.start()


def stopped_in_a_loop(num_ranks: int, is_odd: bool, after_s: float) -> None:
    """Make the collectives of FSDP again and again; the odd rank stops in the middle of one of them, or between two."""
    part = torch.ones(1 << 18)
    whole = torch.empty(num_ranks << 18)
    if is_odd:
        stop_after(after_s)
    for _ in range(1 << 20):
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_reduce(part)
        part.fill_(1)


def fsdp(what: str, is_odd: bool, timeout: timedelta, after_s: float) -> None:
    """Train with `fully_shard`; the odd rank does something else in the third step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    for module in [*model, model]:
        # Gloo cannot divide in a reduction
        fully_shard(module, mesh=mesh).set_force_sum_reduction_for_comms(True)
    num_steps = 1 << 20 if what == "fsdp stopped" else 4
    absence_s = 2 * timeout.total_seconds()
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        absence_s = 2 * _START_S  # `_set_pg_timeout` does not reach what DETAIL wraps
    for step in range(num_steps):
        is_odd_step = is_odd and step == 2
        if step == 1:  # in step 0 the ranks make their buffers, each in its own time
            _set_pg_timeout(timeout)
            if is_odd and what == "fsdp stopped":
                stop_after(after_s)
        if is_odd_step and what == "fsdp forward":
            time.sleep(absence_s)
        if is_odd_step and what == "fsdp error":
            raise KeyError("labels")
        if is_odd_step and what == "fsdp end":
            time.sleep(absence_s)
            return
        loss = model(torch.ones(4, 64)).square().mean()
        if is_odd_step and what == "fsdp backward":
            time.sleep(absence_s)
        if is_odd_step and what == "fsdp evaluate":
            with torch.no_grad():
                model(torch.ones(4, 64))
        loss.backward()


def all_gather(num_ranks: int) -> None:
    dist.all_gather([torch.ones(4) for _ in range(num_ranks)], torch.ones(4))


def fork(folder: Path, what: str, odd: int, timeout_s: float, after_s: float) -> None:
    """Run each rank in a process of its own; wait for all of them, or until we are ended."""
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if os.fork() == 0:
            log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["RANK"] = str(rank)
            try:
                main(what, odd, timeout_s, after_s)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(0)
    for _ in range(int(os.environ["WORLD_SIZE"])):
        os.wait()


if __name__ == "__main__":
    words = (sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    if len(sys.argv) > 5:
        fork(Path(sys.argv[5]), *words)
    else:
        main(*words)
