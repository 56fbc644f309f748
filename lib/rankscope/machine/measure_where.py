"""Where a run measures: by which backend, on which device, with how many ranks; and which process writes the file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..values.checks import one_of, whole
from ..workers.errors import MOST_RANKS
from ..workers.joined import is_joined

BACKENDS = ("gloo", "nccl", "mpi")
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",), "mpi": ("cpu",)}  # of the buffers; the first by default
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_NUM_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def writes(backend: str) -> bool:
    """Whether this process is the one that writes the file: any but the other ranks of torchrun or mpirun."""
    return not is_joined(one_of("backend", backend, BACKENDS)) or _told_by(_RANK) == 0


def num_ranks_of(num_ranks: int | None, backend: str) -> int:
    """How many ranks there are to be: as many as asked for, as torchrun or mpirun has, as there are GPUs, or 4."""
    if num_ranks is None and is_joined(backend):
        num_ranks = _told_by(_NUM_RANKS)
    if num_ranks is not None:
        return whole("num_ranks", num_ranks, 1 if backend == "nccl" else 2, 10**6 if is_joined(backend) else MOST_RANKS)
    if backend == "nccl":
        import torch

        return whole("num_ranks, the GPUs that there are,", torch.cuda.device_count(), 1)
    return 4


def device_of(device: str | None, backend: str) -> str:
    """Return "cpu" or "cuda", whichever the buffers are to be on.

    Raises ValueError for one that the backend does not take, and for Gloo on a GPU that is not there (NCCL's ranks say
    so themselves).

    >>> device_of(None, "nccl"), device_of(None, "gloo")
    ('cuda', 'cpu')
    >>> device_of("cpu", "nccl")
    Traceback (most recent call last):
    ValueError: device with backend='nccl' must be one of 'cuda', got 'cpu'
    """
    allowed = DEVICES[backend]
    if device is None:
        return allowed[0]
    one_of(f"device with backend={backend!r}", device, allowed)
    if is_gloo_on_gpu(device, backend):
        import torch

        if not torch.cuda.is_available():
            raise ValueError("device='cuda' needs a GPU that torch can use, and there is none")
    return device


def is_gloo_on_gpu(device: str, backend: str) -> bool:
    """Whether collectives go from a GPU's memory through the host's."""
    return (device, backend) == ("cuda", "gloo")


def _told_by(names: Sequence[str]) -> int:
    """What the launcher that made this process a rank says under one of these names."""
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
