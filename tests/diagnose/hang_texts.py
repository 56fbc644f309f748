"""What real Gloo ranks print when they hang: the cases, how to record one, and the recorded texts.

``python -m tests.diagnose.hang_texts`` records all of them anew, which takes some minutes; with a word, only those
cases that begin with it, and the others stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.ports import free_port

STORED = Path(__file__).parent / "stored" / "gloo_hangs.json"
_JOB = Path(__file__).parent / "hang_text_job.py"
_TIMEOUT_S = 3.0
_LONGEST_S = 40.0  # a rank that is still there then has printed all that it prints


class TextCase(NamedTuple):
    """What a rank of a job does in place of its collective.

    `causes` are those that are true of it; empty if nothing in the text can show the rank. `is_detail` sets
    TORCH_DISTRIBUTED_DEBUG=DETAIL; a job is started by torchrun, with one log, or has one log per rank. `after_s` is
    the time after which a rank stops that makes collectives in a loop.
    """

    what: str
    num_ranks: int
    rank: int
    causes: tuple[str, ...]
    is_detail: bool = False
    is_torchrun: bool = False
    after_s: float = 0.0

    @property
    def truths(self) -> set[tuple[int, str]]:
        """The ranks and causes that a verdict may name."""
        truths = {(self.rank, cause) for cause in self.causes}
        if self.what == "barrier two":
            truths.add((self.num_ranks - 1, "missing"))
        if self.what == "part collective" and self.is_detail:  # neither rank of the part comes to the others' barrier
            truths |= {(1, "missing"), (3, "missing")}
        return truths

    def __str__(self) -> str:
        detail = ", DETAIL" if self.is_detail else ""
        launcher = ", torchrun" if self.is_torchrun else ""
        after = f", after {self.after_s} s" if self.after_s else ""
        return f"{self.what}, rank {self.rank} of {self.num_ranks}{detail}{launcher}{after}"


_GONE = ("missing",)
CASES = [
    TextCase("missing", 2, 0, _GONE),
    TextCase("missing", 3, 2, _GONE),
    TextCase("missing", 4, 1, _GONE),
    TextCase("missing", 3, 1, _GONE, is_torchrun=True),
    TextCase("missing", 3, 1, _GONE, is_detail=True),
    TextCase("missing", 4, 3, _GONE, is_detail=True, is_torchrun=True),
    TextCase("missing all_gather", 3, 1, _GONE),
    TextCase("missing broadcast", 4, 3, _GONE),
    TextCase("missing broadcast", 4, 1, _GONE),
    TextCase("missing barrier", 3, 0, _GONE),
    TextCase("stopped", 3, 2, _GONE),
    TextCase("collective", 2, 1, ("collective",)),
    TextCase("collective", 3, 0, ("collective",)),
    TextCase("collective", 4, 2, ("collective",)),
    TextCase("collective", 3, 2, ("collective",), is_torchrun=True),
    TextCase("collective", 2, 0, ("collective",), is_detail=True),
    TextCase("collective", 3, 0, ("collective",), is_detail=True),
    TextCase("collective", 4, 1, ("collective",), is_detail=True),
    TextCase("left out", 3, 1, ("collective",)),
    TextCase("left out", 4, 3, ("collective",), is_detail=True),
    TextCase("size", 2, 1, ("size",)),
    TextCase("size", 3, 0, ("size",)),
    TextCase("size", 3, 1, ("size",), is_detail=True),
    TextCase("size", 4, 3, ("size",), is_detail=True, is_torchrun=True),
    TextCase("dtype", 3, 2, ("dtype",), is_detail=True),
    TextCase("dimensions", 3, 1, ("size", "call"), is_detail=True),
    TextCase("killed", 2, 0, ("dead",)),
    TextCase("killed", 3, 1, ("dead",)),
    TextCase("killed", 3, 2, ("dead",), is_torchrun=True),
    TextCase("error", 2, 1, ("error",)),
    TextCase("error", 4, 2, ("error",)),
    TextCase("error", 3, 0, ("error",), is_torchrun=True),
    TextCase("barrier", 3, 2, _GONE),
    TextCase("barrier", 3, 0, _GONE),
    TextCase("barrier", 4, 1, _GONE, is_torchrun=True),
    TextCase("barrier two", 4, 1, _GONE),
    TextCase("no init", 3, 1, _GONE),
    TextCase("no init", 3, 0, _GONE, is_torchrun=True),
    TextCase("no init", 4, 2, _GONE, is_torchrun=True),
    TextCase("store only", 3, 2, _GONE),
    TextCase("part missing", 4, 3, _GONE),
    TextCase("part collective", 4, 3, ("collective",)),
    TextCase("part collective", 4, 1, ("collective",), is_detail=True),
    TextCase("recv", 3, 1, _GONE),
    *(TextCase("stopped in a loop", 3, 2, _GONE, after_s=after_s) for after_s in (0.31, 0.47, 0.62, 0.83, 1.04, 1.37)),
    *(TextCase("stopped in a loop", 4, 3, _GONE, after_s=after_s) for after_s in (0.35, 0.52, 0.71, 0.96, 1.18, 1.49)),
    TextCase("stopped in a loop", 4, 1, _GONE, after_s=0.66),
    TextCase("stopped in a loop", 3, 0, _GONE, is_detail=True, after_s=0.78),
    TextCase("fsdp forward", 3, 1, _GONE),
    TextCase("fsdp forward", 4, 0, _GONE),
    TextCase("fsdp forward", 3, 1, _GONE, is_detail=True),
    TextCase("fsdp backward", 3, 1, _GONE),
    TextCase("fsdp backward", 3, 2, _GONE, is_detail=True),
    TextCase("fsdp end", 3, 2, _GONE),
    TextCase("fsdp error", 3, 1, ("error",)),
    TextCase("fsdp error", 4, 2, ("error",), is_torchrun=True),
    TextCase("fsdp evaluate", 3, 1, ("collective",)),
    TextCase("fsdp evaluate", 4, 2, ("collective",), is_detail=True),
    *(TextCase("fsdp stopped", 3, 1, _GONE, after_s=after_s) for after_s in (0.21, 0.34, 0.58)),
    TextCase("fsdp stopped", 4, 3, _GONE, after_s=0.43),
    TextCase("fsdp stopped", 3, 2, _GONE, is_detail=True, after_s=0.39),
]


class RecordedHang(NamedTuple):
    """A case, and the text of each log by its name."""

    case: TextCase
    logs: dict[str, str]


def recorded() -> list[RecordedHang]:
    """Return the stored texts."""
    stored = json.loads(STORED.read_text())
    return [RecordedHang(TextCase(*case[:3], tuple(case[3]), *case[4:]), logs) for case, logs in stored["hangs"]]


def record(case: TextCase) -> RecordedHang:
    """Run a case, and return what its processes print, without the paths of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        run = _under_torchrun if case.is_torchrun else _by_ourselves
        run(case, Path(folder))
        return RecordedHang(case, {path.name: _plain(path.read_text()) for path in sorted(Path(folder).iterdir())})


def _environment(case: TextCase) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if case.is_detail:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return environment


def _by_ourselves(case: TextCase, folder: Path) -> None:
    environment = _environment(case) | {"WORLD_SIZE": str(case.num_ranks)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(_JOB), case.what, str(case.rank), str(_TIMEOUT_S), str(case.after_s), str(folder)]
    job = subprocess.Popen(command, env=environment, start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):  # of a rank that is stopped
        job.wait(_LONGEST_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def _under_torchrun(case: TextCase, folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={case.num_ranks}", "--tee=3"]
    command += [f"--master-port={free_port()}", str(_JOB), case.what, str(case.rank), str(_TIMEOUT_S)]
    command += [str(case.after_s)]
    with open(folder / "job.log", "wb") as log:
        subprocess.run(command, env=_environment(case), stdout=log, stderr=subprocess.STDOUT, timeout=3 * _LONGEST_S)


def _plain(text: str) -> str:
    text = text.replace(str(_JOB), "/home/user/train.py").replace(sys.executable, "/usr/bin/python3")
    text = re.sub(r"\"/[^\"]*/(site-packages|lib/python3\.\d+)/", r'"/usr/lib/python3/\1/', text)
    return re.sub(r"(host +: ).*", r"\1node1", text)


def main(begin: str = "") -> None:
    import torch

    wanted = [case for case in CASES if case.what.startswith(begin)]
    with ThreadPoolExecutor(3) as threads:
        hang_of = dict(zip(wanted, threads.map(record, wanted), strict=True))
    if begin:
        hang_of = {hang.case: hang for hang in recorded()} | hang_of
    hangs = [hang_of[case] for case in CASES if case in hang_of]
    provenance = f"python -m tests.diagnose.hang_texts, torch {torch.__version__}, Gloo on loopback, one machine"
    STORED.parent.mkdir(exist_ok=True)
    STORED.write_text(json.dumps({"provenance": provenance, "hangs": hangs}, indent=0) + "\n")
    for case in wanted:
        print(case, {name: len(text) for name, text in hang_of[case].logs.items()})


if __name__ == "__main__":
    main(*sys.argv[1:2])
