"""Probes of Python, torch, its backends and the packages of the extras."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from importlib import metadata
from pathlib import Path

from ..values.checks import count_of
from .diagnosis import PATIENCE_S, Missing

# of Python what CI runs, of torch from what pyproject.toml allows to what constraints.txt names
TESTED_PYTHON, TESTED_TORCH = ("3.11", "3.13"), ("2.6", "2.13")


def range_words(version: str, tested: tuple[str, str]) -> str:
    """Return a version, and how it lies to those that are tested. Raises Missing where it is older.

    >>> range_words("2.13.0+cpu", ("2.6", "2.13")), range_words("3.15.1", ("3.11", "3.13"))
    ('2.13.0+cpu', '3.15.1, newer than the tested 3.11 to 3.13')
    """
    low, high = (tuple(map(int, bound.split("."))) for bound in tested)
    own = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if own < low:
        raise Missing(f"{version}, which is older than {tested[0]}")
    return version if own <= high else f"{version}, newer than the tested {' to '.join(tested)}"


def python() -> str:
    return range_words(".".join(map(str, sys.version_info[:3])), TESTED_PYTHON)


def torch() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return f"{range_words(str(torch.__version__), TESTED_TORCH)}, built for {build}"


def gloo() -> str:
    """Two ranks, as threads, add what they have."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise Missing("this torch was built without it")
    from ..workers.threads import in_threads

    def total(rank: int, group: object) -> float:
        tensor = torch.tensor([rank + 1.0])
        group.allreduce([tensor]).wait()  # type: ignore[attr-defined]
        return float(tensor)

    sums = in_threads(2, total, timeout_s=PATIENCE_S)
    if sums != [3.0, 3.0]:
        raise Missing(f"two ranks that add 1 and 2 got {sums}")
    return "two ranks added up over loopback"


def nccl() -> str:
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_nccl_available()):
        raise Missing("this torch was built without it")
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if not torch.cuda.is_available():
        raise Missing(f"{version} is built in, and there is no GPU for it")
    return version


def mpi_backend() -> str:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_mpi_available()):
        raise Missing("this torch was built without it")
    return "built in"


def ucc() -> str:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_ucc_available()):
        raise Missing("this torch was built without it")
    return "built in"


def extra(name: str) -> str:
    """The packages that an extra of pyproject.toml names, by the installed metadata."""
    lines = metadata.requires("rankscope") or []
    wanted = [re.split(r"[^\w.-]", line)[0] for line in lines if re.search(rf"extra == ['\"]{name}['\"]", line)]
    if not wanted:
        raise Missing("the installed rankscope knows no such extra: it was installed before there was one")
    lacking = [package for package in wanted if not _is_installed(package)]
    if lacking:
        raise Missing(f"not here: {', '.join(lacking)}")
    return count_of(len(wanted), "package")


def kernel() -> str:
    """Jupyter's kernels that run this very Python; `python3` always does where ipykernel is here."""
    if importlib.util.find_spec("ipykernel") is None:
        raise Missing("no ipykernel in this Python")
    from jupyter_core.paths import jupyter_path

    names = ["python3"]
    for folder in map(Path, jupyter_path("kernels")):
        for file in sorted(folder.glob("*/kernel.json")):
            program = (json.loads(file.read_text(encoding="utf-8")).get("argv") or [""])[0]
            if program == sys.executable:
                names.append(file.parent.name)
    return ", ".join(dict.fromkeys(names))


def venv() -> str:
    lacking = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if lacking:
        raise Missing(f"this Python has no {' and no '.join(lacking)}")
    return "venv and ensurepip"


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
