"""The list of what is checked: for what each is used, and what to install where it is missing."""

from __future__ import annotations

from functools import partial

from . import machine, packages, programs
from .diagnosis import Check

ROOT = "root on Linux"
BUILD = "takes a torch built with it, from source"

CHECKS = (
    Check("Python", "everything", packages.python, otherwise="Python 3.11 or newer", required=True),
    Check("torch", "everything", packages.torch, otherwise="pip install 'torch>=2.6'", required=True),
    Check("Gloo", "ranks on CPUs: 05 to 07, 09 to 11, `rankscope profile`", packages.gloo,
          otherwise="takes a torch whose torch.distributed has Gloo, as the wheels have", required=True),
    Check("loopback ports", "ranks that find each other, JupyterLab", machine.loopback,
          otherwise="let programs listen on 127.0.0.1", required=True),
    Check("NCCL", "ranks on GPUs: `rankscope profile --backend nccl`", packages.nccl,
          otherwise="NVIDIA GPUs, and a torch built for CUDA"),
    Check("MPI in torch", "`rankscope profile --backend mpi`, torch.distributed on MPI", packages.mpi_backend,
          otherwise=BUILD),
    Check("UCC in torch", "nothing here; your own ranks", packages.ucc, otherwise=BUILD),
    Check("CUDA GPUs", "copies in 08, GPU tests, `rankscope profile --device cuda`", machine.gpus,
          otherwise="an NVIDIA GPU, its driver, and a torch built for CUDA"),
    Check("cores", "ranks and loaders side by side", machine.cores),
    Check("shared memory", "batches between processes: 03, 04, 08", machine.shared_memory,
          otherwise="in a container: more of it, as in docker run --shm-size=1g"),
    Check("real-time priority", "`rankscope profile --real-time`, the emulated switch", machine.real_time,
          otherwise=f"{ROOT}, or CAP_SYS_NICE"),
    Check("emulated network", "`rankscope profile --emulate`, tests on slow networks", machine.emulated_network,
          apt=("iproute2",), otherwise=ROOT),
    Check("notebook packages", "`make lab`, explorers, figures", partial(packages.extra, "notebooks"),
          otherwise="pip install -c constraints.txt -e '.[notebooks]'"),
    Check("Jupyter kernel", "running the notebooks", packages.kernel, otherwise="pip install ipykernel"),
    Check("test packages", "`make test`, `make bench`", partial(packages.extra, "test"),
          otherwise="pip install -c constraints.txt -e '.[test]'"),
    Check("site packages", "`make site`", partial(packages.extra, "site"),
          otherwise="pip install -c constraints.txt -e '.[site]'"),
    Check("make", "`make lab`, `make test`", programs.make, apt=("make",)),
    Check("venv", "`make`, which sets up .venv", packages.venv, apt=("python3-venv",)),
    Check("C++ compiler", "tests against libtorch's own samplers", programs.compiler, apt=("g++",)),
    Check("SimGrid", "tests of the simulator against a peer", programs.simgrid, apt=("libsimgrid-dev",)),
    Check("Open MPI", "tests and `make bench` against its allreduces", programs.open_mpi,
          apt=("openmpi-bin", "libopenmpi-dev")),
    Check("Chromium", "tests of explorers in a browser", programs.browser, apt=("chromium",),
          otherwise="or name one in RANKSCOPE_CHROMIUM"),
    Check("fonts", "labels of explorers in that browser", programs.fonts, apt=("fonts-dejavu-core",)),
)  # fmt: skip
