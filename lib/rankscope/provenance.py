"""Provenance: where, how and when something was measured, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from . import __version__
from .common.checks import while_processing
from .ranks.host import num_cores

_PATIENCE_S = 20.0  # with another program

Count = Annotated[int, msgspec.Meta(ge=1)]


class Gpu(TypedDict, total=False):
    """A GPU, and the versions of its software."""

    name: str
    memory_bytes: int
    driver: str
    cuda: str
    nccl: str


class _Needed(TypedDict):
    """What every provenance states."""

    name: str
    backend: str
    num_ranks: Count


class Provenance(_Needed, total=False):
    """Where, how and when something was measured; a fact that is not stated has no entry."""

    date: str  # UTC, in ISO form
    command: str
    rankscope: str
    python: str
    torch: str
    device: str  # of the buffers, if the backend does not imply it
    num_nodes: Count
    ranks_per_node: tuple[Count, ...]
    network: str
    system: str
    cpu: str
    num_cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    environment: str  # environment variables, as in NCCL_P2P_DISABLE=1
    source: dict[str, str]  # of a log: program, repository, path, commit, licence, date and notes


class MeasuredHow(TypedDict, total=False):
    """How a profile's points were measured; a fact that is not stated has no entry."""

    warm_up: int
    iterations: int
    budget_s: float
    dtype: str
    start: str
    statistic: str
    clock: str
    verified: bool


def converted(name: str, value: Any, kind: Any) -> Any:
    """Return a copy of a mapping as this kind of mapping; fields unknown to it are left out.

    Raises ValueError for a value of another type, and if a field that is required is missing.

    >>> converted("provenance", {"name": "a box", "num_ranks": 2}, Provenance)
    Traceback (most recent call last):
    ValueError: provenance: Object missing required field `backend`
    """
    with while_processing(name):
        return msgspec.convert(value, kind)


# ---- the values for this machine and this run


def of_machine() -> dict[str, Any]:
    """Return the hardware and software of this machine. Loads torch.

    >>> sorted(of_machine())
    ['cpu', 'gpus', 'memory_bytes', 'num_cores', 'python', 'rankscope', 'system', 'torch']
    """
    import torch

    return {
        "rankscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": system(),
        "cpu": cpu(),
        "num_cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": gpus(),
    }


def of_run(name: str, command: str, network: str) -> dict[str, Any]:
    """Return the provenance of one run, dated today.

    >>> of_run("mine", "rankscope profile", "loopback")["network"]
    'loopback'
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"name": name, "date": date, "command": command, "network": network}


def command_words(words: Sequence[str]) -> str:
    """Return a command as one line, with paths reduced to their file names.

    >>> command_words(["/usr/bin/rankscope", "profile", "-o", "/tmp/machine.json", "--sizes", "1KiB:64MiB"])
    'rankscope profile -o machine.json --sizes 1KiB:64MiB'
    """
    return re.sub(r"[^\s=]*/", "", " ".join(words))


def system() -> str:
    """Return the operating system, its major and minor version, and the processor architecture."""
    words = [platform.system(), platform.machine()]
    version = re.match(r"\d+(\.\d+)?", platform.release())
    if version is not None:
        words.insert(1, version[0])
    return " ".join(words)


def cpu() -> str:
    """Return the processor's name."""
    with suppress(OSError):  # only Linux has this file
        facts = Path("/proc/cpuinfo").read_text()
        # The line has another name on each architecture.
        name = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", facts, re.MULTILINE)
        if name is not None:
            return name[1].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """Return the GPUs that torch sees: the name and memory of each, and the versions of driver, CUDA and NCCL.

    A version is "" if it is not known.
    """
    import torch

    if not torch.cuda.is_available():
        return []
    versions = {"driver": "", "cuda": str(torch.version.cuda or ""), "nccl": ""}
    drivers = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).split()
    if drivers:
        versions["driver"] = drivers[0]  # of the first GPU: all have the same
    if torch.distributed.is_nccl_available():
        nccl: Any = torch.cuda.nccl  # without types
        versions["nccl"] = ".".join(map(str, nccl.version()))
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": card.name, "memory_bytes": int(card.total_memory), **versions} for card in cards]


def _output(command: list[str]) -> str:
    """Return the output of a program; "" if it does not exist or fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout
