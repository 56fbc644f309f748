"""What the ranks of the tests do; a module, as a user's functions are, and without torch until a rank needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def rank() -> int:
    import torch.distributed as dist

    return int(dist.get_rank())


def barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def meet() -> int:
    """Meet the others for a quarter of a second, and return the rank."""
    for _ in range(25):
        barrier()
        time.sleep(0.01)
    return rank()


def total(base: int = 0) -> int:
    """The sum over all ranks of the base and the rank."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([base + dist.get_rank()])
    dist.all_reduce(tensor)
    return int(tensor.item())


def note(folder: str) -> None:
    """Leave the process id where the test finds it, and be sure that all have."""
    Path(folder, str(rank())).write_text(str(os.getpid()))
    barrier()


def noted(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.iterdir()) if path.read_text()]


class Speechless(Exception):
    """An error without words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail_speechless() -> None:
    raise Speechless


def load_as(text: str) -> None:
    """Stand for a value that only the rank can make."""
    raise OSError(text)


class OfTheRank:
    def __reduce__(self) -> tuple[Any, ...]:
        return load_as, ("no such device",)


def lose() -> None:
    barrier()
    if rank() == 1:
        raise KeyError("lost")
    barrier()


def signalled(which: int, number: int) -> None:
    """One rank sends itself a signal, and the others wait for it."""
    barrier()
    if rank() == which:
        os.kill(os.getpid(), number)
    barrier()


def wait_long(folder: str) -> None:
    """Leave the process ids of the rank and of one that it has started, and wait."""
    child = subprocess.Popen(["sleep", "600"])
    Path(folder, f"{rank()}-child").write_text(str(child.pid))
    note(folder)
    time.sleep(600)


def stop_with_a_process(folder: str) -> None:
    """As `wait_long`, but rank 0 stops."""
    if rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_long(folder)


def say() -> None:
    print(f"line of {rank()}")
    print(f"warning of {rank()}", file=sys.stderr)
    os.write(1, b"second line\n")
    print("no end", end="")


def surroundings() -> dict[str, Any]:
    import torch

    return {
        "threads": torch.get_num_threads(),
        "setting": os.environ.get("RANKSCOPE_TEST"),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "folder": os.getcwd(),
        "argv": sys.argv,
        "path": sys.path,
    }


def listening() -> list[str]:
    """The local addresses on which this process listens, as /proc/net gives them."""
    barrier()
    mine = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(path))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in mine and fields[3] in ("0A", "07"):
                found.append(fields[1].split(":")[0])
    barrier()
    return found


def train() -> float:
    """Two steps of DistributedDataParallel, with a DataLoader that forks; the module outlives all."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    data = torch.utils.data.TensorDataset(torch.ones(8, 4) * (rank() + 1))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        model(batch).sum().backward()
    globals()["kept"] = model
    return float(next(model.parameters()).grad.sum())


def load() -> tuple[int, str]:
    """The sum of 0 … 9, which two workers of a DataLoader read, and how their processes start."""
    import multiprocessing

    from torch.utils.data import DataLoader

    loader = DataLoader(range(10), batch_size=5, num_workers=2)  # type: ignore[arg-type]
    return sum(int(batch.sum()) for batch in loader), multiprocessing.get_start_method()


def use_train() -> tuple[Any, ...]:
    from rankscope.train import ddp, uneven

    return ddp.measure.__name__, uneven.measure.__name__


def record(recorder: Any) -> None:
    own = recorder.for_rank(rank())
    for item in range(2):
        with own.span("work", "meet", item):
            barrier()
