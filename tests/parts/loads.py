"""What loader processes and trainers of the tests run: importable by them, and quickly, so without torch or pytest."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

from rankscope.parts.files import load_part
from rankscope.parts.loaders import PartLoaders, Setting
from rankscope.workers import crew


class Awkward(Exception):  # which does not survive a pickle
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def number(path):
    return int(path[-9:-4])


def hang_but_on(one, path):
    """One part comes; any other never does."""
    if path != one:
        time.sleep(600)
    return load_part(path)


def fail_on_two(path):
    if number(path) == 2:
        raise OSError(5, "the disk is gone")
    return load_part(path)


def fail_awkwardly(path):
    raise Awkward("this", "that")


def leave(path):
    os._exit(3)


def kill_self(path):
    os.kill(os.getpid(), signal.SIGKILL)


def no_part(path):
    return [1, 2, 3]


def with_tensors(path):
    import torch

    return {name: torch.from_numpy(rows) for name, rows in load_part(path).items()}


def placed(path):
    """A part that says how the loader is placed: threads of its parent, and whether torch came along."""
    import numpy as np

    with open(f"/proc/{os.getppid()}/status") as file:
        (threads,) = (line.split()[1] for line in file if line.startswith("Threads"))
    from threadpoolctl import threadpool_info

    limited = all(pool["num_threads"] == 1 for pool in threadpool_info())
    found = {"threads": int(threads), "torch": "torch" in sys.modules, "limited": limited}
    return {name: np.array([value]) for name, value in found.items()}


def trainer(folder, end):
    """A trainer that has taken one part and ends as it is told: for the tests that look whom it leaves behind."""
    files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".npz"))
    loaders = PartLoaders(Setting(partial(hang_but_on, files[0]), queue_size=2, num_loaders=2))
    loaders.begin(files)
    part, child = loaders.take(), -1
    if end == "with a child" and (child := os.fork()) == 0:  # which holds the socket, too
        os.closerange(1, 3)
        time.sleep(600)
    print(crew.workshop().memory, child, *[worker.pid for worker in loaders.workers], flush=True)
    if end == "by itself":
        sys.exit(0)
    if end == "by an error":
        raise RuntimeError("out of luck")
    loaders.take()
    return part
