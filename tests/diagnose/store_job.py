"""A watched training job whose process group has its store in a process of its own, which can be stopped or killed.

    python -m tests.diagnose.store_job FOLDER '{"num_ranks": 2, ...}'   the fields of Settings

One process imports torch and forks the server of the store and the ranks; what they say is in files of the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENDS_S = 120.0  # for all processes of a job, on the busiest machine


@dataclass
class Settings:
    """What each rank does: steps unwatched, then as many watched."""

    num_ranks: int = 2
    num_steps: int = 60
    every: int = 10
    stop_at: int = 0  # the watched step before which the store is stopped
    answer_s: float = 0.5
    step_s: float = 0.002  # of sleep
    goes_on: bool = False  # that the store's server goes on while Python ends on the first rank, which takes a while


@dataclass
class Result:
    """What became of the ranks."""

    exit_codes: list[int]
    said: list[dict[str, Any]]  # by each rank at its end
    lines: list[str]  # that the watches printed on stderr
    errors: str  # all that stands on stderr


def run(settings: Settings) -> Result:
    """Run the job; when it asks for it, stop the store's server.

    A job that has not ended in time is killed, and then the exit codes of its ranks are missing.
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "err").open("wb") as errors:
            job = subprocess.Popen(
                [sys.executable, "-m", "tests.diagnose.store_job", name, json.dumps(asdict(settings))],
                env=environment,
                cwd=ROOT,
                stderr=errors,
                start_new_session=True,
            )
        deadline = time.monotonic() + ENDS_S
        try:
            while not (folder / "stop").exists() and job.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if (folder / "stop").exists():
                os.kill(int((folder / "server").read_text()), signal.SIGSTOP)
                (folder / "stopped").touch()
            with suppress(subprocess.TimeoutExpired):
                job.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        said = [json.loads(path.read_text()) for path in sorted(folder.glob("said*"))]
        text = (folder / "err").read_text(errors="replace")
        codes = json.loads((folder / "codes").read_text()) if (folder / "codes").exists() else []
    lines = [line for line in text.splitlines() if line.startswith("rankscope.watch")]
    return Result(codes, said, lines, text)


class _Ending:
    """What Python deletes when it ends: it lets a process go on, and waits until that has done something."""

    def __init__(self, pid: int) -> None:
        self._go_on = partial(os.kill, pid, signal.SIGCONT)
        self._wait = partial(time.sleep, 0.5)

    def __del__(self) -> None:
        self._go_on()
        self._wait()


def _be_server(folder: Path) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    (folder / "half").write_text(str(store.port))
    (folder / "half").rename(folder / "port")
    threading.Event().wait()


def _be_rank(rank: int, folder: Path, settings: Settings) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import rankscope
    from rankscope.diagnose import exchange

    exchange.ANSWER_S = settings.answer_s
    torch.set_num_threads(1)
    while not (folder / "port").exists():
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int((folder / "port").read_text()), settings.num_ranks, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=settings.num_ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def ask_for_the_stop() -> None:
        if rank == 0:
            (folder / "stop").touch()
            while not (folder / "stopped").exists():
                time.sleep(0.01)
        model(torch.ones(1, 16)).mean().backward()  # which ends once the first rank has come

    def batches(stop_at: int | None) -> Iterator[torch.Tensor]:
        for step in range(settings.num_steps):
            if step == stop_at:
                ask_for_the_stop()
            yield torch.full((4, 16), float(rank + step % 3))

    def train(is_watched: bool) -> list[float]:
        times_s = [time.perf_counter()]
        loader = batches(settings.stop_at if is_watched else None)
        opened = rankscope.watch(model, loader, settings.every) if is_watched else nullcontext()
        with opened as watched:
            for inputs in watched.loader if watched is not None else loader:
                time.sleep(settings.step_s)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                times_s.append(time.perf_counter())
        return [after - before for before, after in pairwise(times_s)]

    model(torch.ones(1, 16)).mean().backward()
    unwatched_s = train(False)
    watched_s = train(True)
    return {"unwatched_s": unwatched_s, "watched_s": watched_s}


def main() -> None:
    folder = Path(sys.argv[1])
    settings = Settings(**json.loads(sys.argv[2]))
    import torch._dynamo  # noqa: F401  # which DDP imports
    from torch.nn import parallel  # noqa: F401

    import rankscope

    assert rankscope.watch
    server = os.fork()
    if server == 0:
        _be_server(folder)
    (folder / "server").write_text(str(server))
    ranks = list[int]()
    for rank in range(settings.num_ranks):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            said = _be_rank(rank, folder, settings)
            if settings.goes_on and rank == 0:
                sys.modules["ending"] = _Ending(server)  # type: ignore[assignment]
            (folder / f"said{rank}").write_text(json.dumps(said))
            return  # so that Python ends as that of a training script does
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    (folder / "codes").write_text(json.dumps(codes))
    with suppress(ProcessLookupError):
        os.kill(server, signal.SIGKILL)


if __name__ == "__main__":
    main()
