"""This machine, as torch and psutil describe it, and the optional parts of rankscope that work on it.

A part that is missing is a diagnosis, never an error.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
from collections.abc import Callable, Iterable
from ctypes.util import find_library
from functools import partial
from importlib import metadata

import attrs

from .common.checks import count_of, one_of, printable
from .common.extras import install_command, package_of_extra
from .common.units import bytes_words
from .ranks.host import num_cores

__all__ = ["examine", "machine", "remedy"]

PATIENCE_S = 20.0  # for the allreduce of two ranks; it only ends a hang
SHARED_MEMORY = "/dev/shm"
ENOUGH_SHARED_BYTES = 256 * 2**20  # a container has 64 MiB by default, too little for a few workers
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def machine() -> dict[str, str]:
    """Return the facts about this machine that torch.utils.collect_env and psutil report, as text by name."""
    facts = {"Python": platform.python_version(), "system": platform.platform(), "cores": str(num_cores())}
    if importlib.util.find_spec("torch"):
        from torch.utils.collect_env import get_env_info

        about = get_env_info()  # type: ignore[no-untyped-call]
        facts |= {
            "system": about.os,  # names the distribution, too
            "torch": about.torch_version,
            "built for": _built_for(about.cuda_compiled_version, about.hip_compiled_version),
            "GPUs": about.nvidia_gpu_models or "none",
            "NVIDIA driver": about.nvidia_driver_version or "none",
            "C compiler": about.gcc_version or "none",
        }
    if importlib.util.find_spec("psutil"):
        import psutil

        memory = psutil.virtual_memory()
        facts["memory"] = f"{bytes_words(memory.available)} free of {bytes_words(memory.total)}"
    return {name: printable(words) for name, words in facts.items()}


def _built_for(cuda: str | None, hip: str) -> str:
    """Return what torch is built for, by the versions that get_env_info reports; torch for ROCm has one of HIP."""
    if hip != "N/A":
        return f"ROCm {hip}"
    return "the CPU only" if cuda is None else f"CUDA {cuda}"


class Missing(Exception):
    """Raised by a probe if the part is missing; the message says why."""


@attrs.frozen
class Diagnosis:
    """Whether a part was found, what was found or why it is missing, its purpose, and the remedy if it is missing."""

    name: str
    is_installed: bool
    detail: str = attrs.field(converter=printable)
    used_by: str
    remedy: str = ""


@attrs.frozen
class Check:
    """A part that rankscope can use: `probe` returns what it found, or raises `Missing`.

    >>> Check("abacus", "sums", lambda: which("abacus"), "apt-get install abacus").diagnosis().detail
    'no abacus on the PATH'
    """

    name: str
    used_by: str
    probe: Callable[[], str]
    remedy: str

    def diagnosis(self) -> Diagnosis:
        """Run the probe, and turn any error that it raises into a diagnosis.

        If a package of an extra is missing, the remedy is to install that extra.
        """
        remedy = self.remedy
        try:
            return Diagnosis(self.name, is_installed=True, detail=self.probe(), used_by=self.used_by)
        except Missing as missing:
            detail = str(missing)
        except Exception as error:  # a broken part may raise anything, and is a diagnosis, too
            package = package_of_extra(error)
            if package is not None:
                remedy = install_command(package)
            first_line = str(error).strip().partition("\n")[0]
            detail = f"{type(error).__name__}: {first_line}"
        return Diagnosis(self.name, is_installed=False, detail=detail, used_by=self.used_by, remedy=remedy)


# ---- probes


def backend(name: str) -> str:
    import torch.distributed as dist

    if not (dist.is_available() and getattr(dist, f"is_{name}_available")()):
        raise Missing("this torch was built without it")
    return "built in"


def gloo() -> str:
    """Run an allreduce of two ranks, as threads."""
    backend("gloo")  # raises Missing if torch was built without it
    import torch

    from .ranks.threads import in_threads

    def total(rank: int, group: object) -> float:
        tensor = torch.tensor([rank + 1.0])
        group.allreduce([tensor]).wait()  # type: ignore[attr-defined]
        return float(tensor)

    sums = in_threads(2, total, timeout_s=PATIENCE_S)
    if sums != [3.0, 3.0]:
        raise Missing(f"two ranks that add 1 and 2 got {sums}")
    return "two ranks added up over loopback"


def nccl() -> str:
    backend("nccl")
    import torch

    if not torch.cuda.is_available():
        raise Missing("it is built in, but there is no GPU for it")
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def shared_memory() -> str:
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    words = f"{bytes_words(free_bytes)} free in {SHARED_MEMORY}"
    if free_bytes < ENOUGH_SHARED_BYTES:
        raise Missing(f"{words}, less than {bytes_words(ENOUGH_SHARED_BYTES)}")
    return words


def extra(name: str) -> str:
    """Look for the packages that an extra of pyproject.toml names, according to the installed metadata."""
    packages = []
    for requirement in metadata.requires("rankscope") or []:  # like "numpy>=2; extra == 'torch'"
        if re.search(rf"extra == ['\"]{name}['\"]", requirement):
            package = re.split(r"[^\w.-]", requirement)[0]
            packages.append(package)
    if not packages:
        raise Missing("not here: an installed rankscope that has this extra")
    installed = {_normal_name(distribution.name) for distribution in metadata.distributions()}
    missing = [package for package in packages if _normal_name(package) not in installed]
    if missing:
        raise Missing(f"not here: {', '.join(missing)}")
    return count_of(len(packages), "package")


def _normal_name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def which(*names: str) -> str:
    """Return the path of the first of these programs that is installed."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise Missing(f"no {' or '.join(names)} on the PATH")


def library(name: str) -> str:
    file_name = find_library(name)
    if file_name is None:
        raise Missing(f"no library {name}")
    return file_name


# ---- all checks: the purpose of each part, and what to install if it is missing

APT = "apt-get install"


def _installed(name: str) -> str:
    return f"pip install 'rankscope[{name}]'"


CHECKS = (
    Check("Gloo", "ranks on CPUs: 04, 05, 07, 08, `rankscope profile`", gloo, _installed("torch")),
    Check(
        "NCCL",
        "ranks on GPUs: `rankscope profile --backend nccl`",
        nccl,
        "use a machine with NVIDIA GPUs, and a torch built for CUDA",
    ),
    Check("MPI in torch", "`rankscope profile --backend mpi`", partial(backend, "mpi"), "build torch with MPI"),
    Check(
        "shared memory",
        "batches between processes: 02, 03, a2",
        shared_memory,
        "in a container, give it more, as in docker run --shm-size=1g",
    ),
    Check("notebook packages", "`make lab`, explorers, figures", partial(extra, "notebooks"), _installed("notebooks")),
    Check("test packages", "`make test`, `make bench`", partial(extra, "test"), _installed("test")),
    Check("site packages", "`make site`", partial(extra, "site"), _installed("site")),
    Check("C++ compiler", "tests against libtorch's own samplers", partial(which, "g++"), f"{APT} g++"),
    Check("SimGrid", "tests of the simulator against a peer", partial(library, "simgrid"), f"{APT} libsimgrid-dev"),
    Check(
        "Open MPI",
        "tests and `make bench` against its allreduces",
        partial(which, "mpirun"),
        f"{APT} openmpi-bin libopenmpi-dev",
    ),
    Check("Chromium", "tests of explorers in a browser", partial(which, *BROWSERS), f"{APT} chromium"),
    Check("iproute2", "tests on emulated networks, as root", partial(which, "ip"), f"{APT} iproute2"),
)


def examine(
    report: Callable[[str], object] = lambda name: None, checks: Iterable[Check] = CHECKS
) -> tuple[Diagnosis, ...]:
    """Run the checks and return their diagnoses in order. `report` is called with the name of each before it starts.

    >>> examine(checks=[Check("abacus", "sums", lambda: "10 rows of beads", "buy one")])[0].detail
    '10 rows of beads'
    """
    diagnoses = []
    for check in checks:
        report(check.name)
        diagnoses.append(check.diagnosis())
    return tuple(diagnoses)


def remedy(name: str) -> str:
    """Return the remedy if the part that a check looks for is missing.

    >>> remedy("C++ compiler")
    'apt-get install g++'
    >>> remedy("abacus")
    Traceback (most recent call last):
    ValueError: name must be one of 'Gloo', ..., got 'abacus'
    """
    names = tuple(check.name for check in CHECKS)
    return CHECKS[names.index(one_of("name", name, names))].remedy
