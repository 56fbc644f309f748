"""What rankscope, its notebooks and its tests can use on this machine, and what to install for the rest.

Each check tries one thing. One that fails is a diagnosis, never an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path

import attrs

from .values.checks import count_of, one_of, printable
from .values.units import bytes_words
from .workers.host import num_cores

__all__ = ["examine", "remedy"]

PATIENCE_S = 20.0  # timeout for a program, loopback or two ranks; it only bounds a hang


@attrs.frozen
class Diagnosis:
    """Whether something was found, its version or why it is missing, its purpose, and the remedy.

    `remedy` is "" if it was found; `required` says that rankscope does not work without it.
    """

    name: str
    found: bool
    detail: str = attrs.field(converter=printable)
    used_by: str
    remedy: str = ""
    required: bool = False


class Missing(Exception):
    """Raised by a probe if the thing is missing; it says why."""


@attrs.frozen
class Check:
    """One check of the machine: `probe` returns a detail of what it found, or raises `Missing`.

    >>> def probe():
    ...     raise Missing("no such program")
    >>> found = Check("abacus", "sums", probe, "apt-get install abacus").diagnosis()
    >>> found.found, found.detail, found.remedy
    (False, 'no such program', 'apt-get install abacus')
    """

    name: str
    used_by: str
    probe: Callable[[], str]
    remedy: str = ""
    required: bool = False

    def diagnosis(self) -> Diagnosis:
        """Run the probe and return the diagnosis; any exception of the probe is a diagnosis, too."""
        try:
            return Diagnosis(self.name, True, self.probe(), self.used_by, required=self.required)
        except Missing as missing:
            detail = str(missing)
        except Exception as error:
            detail = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
        return Diagnosis(self.name, False, detail, self.used_by, self.remedy, self.required)


def output_of(command: list[str], text: str = "") -> str:
    """Return the output of a program, given `text` on its standard input. Raises Missing if it fails or hangs."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} did not answer within {PATIENCE_S:g} s") from None
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror or error}") from None
    if done.returncode:
        first = next(iter(done.stderr.strip().splitlines()), "")
        raise Missing(f"{command[0]} ended with exit code {done.returncode}{': ' * bool(first)}{first}")
    return done.stdout


# ---- Python, torch, packages

# Python: versions in CI; torch: from pyproject.toml to constraints.txt
TESTED_PYTHON, TESTED_TORCH = ("3.11", "3.13"), ("2.6", "2.13")


def range_words(version: str, tested: tuple[str, str]) -> str:
    """Return a version, and whether it is newer than the tested ones. Raises Missing if it is older.

    >>> range_words("2.13.0+cpu", ("2.6", "2.13")), range_words("3.15.1", ("3.11", "3.13"))
    ('2.13.0+cpu', '3.15.1, newer than the tested 3.11 to 3.13')
    """
    low, high = (tuple(map(int, bound.split("."))) for bound in tested)
    own = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if own < low:
        raise Missing(f"{version}, which is older than {tested[0]}")
    return version if own <= high else f"{version}, newer than the tested {' to '.join(tested)}"


def python_version() -> str:
    return range_words(".".join(map(str, sys.version_info[:3])), TESTED_PYTHON)


def torch_version() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return f"{range_words(str(torch.__version__), TESTED_TORCH)}, built for {build}"


def backend(name: str) -> str:
    import torch.distributed as dist

    if not (dist.is_available() and getattr(dist, f"is_{name}_available")()):
        raise Missing("this torch was built without it")
    return "built in"


def gloo() -> str:
    """Run an allreduce of two ranks, as threads."""
    backend("gloo")
    import torch

    from .workers.threads import in_threads

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

    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if not torch.cuda.is_available():
        raise Missing(f"{version} is built in, and there is no GPU for it")
    return version


def extra(name: str) -> str:
    """The packages that an extra of pyproject.toml names, by the installed metadata."""
    lines = metadata.requires("rankscope") or []
    wanted = [re.split(r"[^\w.-]", line)[0] for line in lines if re.search(rf"extra == ['\"]{name}['\"]", line)]
    if not wanted:
        raise Missing("the installed rankscope is too old to have this extra: install it again")
    here = {re.sub(r"[-_.]+", "-", one.name).lower() for one in metadata.distributions()}
    lacking = [package for package in wanted if re.sub(r"[-_.]+", "-", package).lower() not in here]
    if lacking:
        raise Missing(f"not here: {', '.join(lacking)}")
    return count_of(len(wanted), "package")


def kernel() -> str:
    """The Jupyter kernels that run this Python; `python3` always does if ipykernel is installed."""
    if importlib.util.find_spec("ipykernel") is None:
        raise Missing("no ipykernel in this Python")
    from jupyter_client.kernelspec import KernelSpecManager

    major, minor = sys.version_info[:2]
    mine = {sys.executable, "python", f"python{major}", f"python{major}.{minor}"}  # Jupyter runs itself for these names
    specs = KernelSpecManager().get_all_specs()
    return ", ".join(name for name, one in specs.items() if mine.intersection(one["spec"]["argv"][:1]))


# ---- the machine

SHARED_MEMORY = Path("/dev/shm")
ENOUGH_SHARED_BYTES = 256 * 2**20  # a container has 64 MiB by default, too little for a few workers


def cores() -> str:
    return f"{count_of(num_cores(), 'core')}; more ranks than that take turns"


def shared_memory() -> str:
    if not (SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)):
        raise Missing(f"no {SHARED_MEMORY} to write to: batches between processes go through temporary files")
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < ENOUGH_SHARED_BYTES:
        raise Missing(f"{bytes_words(free)} free in {SHARED_MEMORY}, less than {bytes_words(ENOUGH_SHARED_BYTES)}")
    return f"{bytes_words(free)} free in {SHARED_MEMORY}"


def loopback() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        with socket.create_connection(server.getsockname(), timeout=PATIENCE_S), server.accept()[0]:
            return "127.0.0.1 listens and answers"


def gpus() -> str:
    import torch

    from .machine import provenance

    if not torch.version.cuda:
        raise Missing(f"torch {torch.__version__} is built for {'ROCm' if torch.version.hip else 'the CPU only'}")
    found = provenance.gpus()
    if not found:
        raise Missing("torch sees none")
    cards = [f"{one['name']} ({bytes_words(one['memory_bytes'])})" for one in found]
    words = [f"{cards.count(card)} × {card}" for card in dict.fromkeys(cards)]
    words.append(f"driver {found[0]['driver'] or 'unknown'}")
    pairs = [(one, other) for one in range(len(found)) for other in range(len(found)) if one != other]
    if pairs:
        reach = sum(bool(torch.cuda.can_device_access_peer(*pair)) for pair in pairs)
        words.append(f"peer access between {reach} of {count_of(len(pairs), 'pair')}")
    return ", ".join(words)


def real_time() -> str:
    """Request it in a separate thread, so that this process does not keep it."""
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))).result()
    except (OSError, AttributeError) as error:
        raise Missing(getattr(error, "strerror", None) or "this system has no SCHED_RR") from None
    return "SCHED_RR is allowed"


# ---- programs and files

COMPILERS = ("g++", "c++", "clang++")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SAMPLERS_HEADER = "include/torch/csrc/api/include/torch/data/samplers/distributed.h"


def which(*names: str) -> str:
    """Return the path of the first of these programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Missing(f"no {' or '.join(names)} on the PATH")
    return found


def version_in(text: str) -> str:
    """Return the first version number in a string, or its first line.

    >>> version_in("mpirun (Open MPI) 4.1.4\\nReport bugs")
    '4.1.4'
    """
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else text.strip().partition("\n")[0]


def compiler() -> str:
    """A compiler that accepts a program with a standard header; libtorch's headers come from the wheel."""
    program = which(*filter(None, [os.environ.get("CXX", "")]), *COMPILERS)
    output_of([program, "-fsyntax-only", "-x", "c++", "-"], "#include <random>\nint main() { return 0; }\n")
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent if torch and torch.origin else None
    headers = "with" if folder and (folder / SAMPLERS_HEADER).is_file() else "without"
    version = version_in(output_of([program, "-dumpfullversion", "-dumpversion"]))
    return f"{Path(program).name} {version}, {headers} libtorch's headers"


def simgrid() -> str:
    line = "#include <simgrid/version.h>\nSIMGRID_VERSION_MAJOR SIMGRID_VERSION_MINOR\n"
    return ".".join(output_of([which("g++"), "-E", "-P", "-x", "c++", "-"], line).split()[-2:])


def open_mpi() -> str:
    said = output_of([which("mpirun"), "--version"])
    if "Open MPI" not in said:
        raise Missing(f"mpirun is another MPI's: {said.strip().partition(chr(10))[0]}")
    output_of([which("mpicc"), "--version"])
    return f"{version_in(said)}, mpirun and mpicc"


def find_browser() -> str:
    """Return the path of the browser that tests use: RANKSCOPE_CHROMIUM, or one of `BROWSERS`.

    Raises Missing if there is none.
    """
    named = os.environ.get("RANKSCOPE_CHROMIUM")
    if named and shutil.which(named) is None:
        raise Missing(f"RANKSCOPE_CHROMIUM names {named}, which is no program")
    return which(named) if named else which(*BROWSERS)


def browser() -> str:
    return version_in(output_of([find_browser(), "--version"]))


# ---- all checks: what each is used for, and what to install where it is missing

ROOT, APT = "root on Linux", "apt-get install"


def _installed(name: str) -> str:
    return f"pip install -c constraints.txt -e '.[{name}]'"


CHECKS = (
    Check("Python", "everything", python_version, "install Python 3.11 or newer", required=True),
    Check("torch", "whatever runs for real: ranks, samplers, loaders, steps", torch_version, _installed("torch")),
    Check(
        "Gloo",
        "ranks on CPUs: 05 to 07, 09 to 11, `rankscope profile`",
        gloo,
        "install a torch whose torch.distributed has Gloo, as the wheels do",
    ),
    Check(
        "loopback ports",
        "ranks that find each other, JupyterLab",
        loopback,
        "let programs listen on 127.0.0.1",
        required=True,
    ),
    Check(
        "NCCL",
        "ranks on GPUs: `rankscope profile --backend nccl`",
        nccl,
        "use a machine with NVIDIA GPUs, and a torch built for CUDA",
    ),
    Check(
        "MPI in torch",
        "`rankscope profile --backend mpi`, torch.distributed on MPI",
        partial(backend, "mpi"),
        "build torch from source with MPI",
    ),
    Check(
        "CUDA GPUs",
        "copies in 08, GPU tests, `rankscope profile --device cuda`",
        gpus,
        "use a machine with an NVIDIA GPU and its driver, and a torch built for CUDA",
    ),
    Check("cores", "ranks and loaders side by side", cores),
    Check(
        "shared memory",
        "batches between processes: 03, 04, 08",
        shared_memory,
        "in a container, give it more, as in docker run --shm-size=1g",
    ),
    Check(
        "real-time priority",
        "`rankscope profile --real-time`",
        real_time,
        f"run as {ROOT}, or with CAP_SYS_NICE",
    ),
    Check("notebook packages", "`make lab`, explorers, figures", partial(extra, "notebooks"), _installed("notebooks")),
    Check("Jupyter kernel", "running the notebooks", kernel, "pip install ipykernel"),
    Check("test packages", "`make test`, `make bench`", partial(extra, "test"), _installed("test")),
    Check("site packages", "`make site`", partial(extra, "site"), _installed("site")),
    Check("C++ compiler", "tests against libtorch's own samplers", compiler, f"{APT} g++"),
    Check("SimGrid", "tests of the simulator against a peer", simgrid, f"{APT} libsimgrid-dev"),
    Check("Open MPI", "tests and `make bench` against its allreduces", open_mpi, f"{APT} openmpi-bin libopenmpi-dev"),
    Check("Chromium", "tests of explorers in a browser", browser, f"{APT} chromium; or name one in RANKSCOPE_CHROMIUM"),
)


def examine(
    report: Callable[[str], object] = lambda name: None, checks: Iterable[Check] = CHECKS
) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of each check, in order; `report` is called with the name of each before it starts.

    >>> examine(checks=[Check("abacus", "sums", lambda: "10 rows of beads")])[0].detail
    '10 rows of beads'
    """
    found = []
    for check in checks:
        report(check.name)
        found.append(check.diagnosis())
    return tuple(found)


def remedy(name: str) -> str:
    """Return what to do if the thing that a check looks for is missing.

    >>> remedy("C++ compiler")
    'apt-get install g++'
    >>> remedy("abacus")
    Traceback (most recent call last):
    ValueError: name must be one of 'Python', ..., got 'abacus'
    """
    names = tuple(check.name for check in CHECKS)
    return CHECKS[names.index(one_of("name", name, names))].remedy
