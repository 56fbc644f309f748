"""NCCL's model as networks that explorers offer: nodes of eight GPUs, for any number of ranks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...networks import CostTable, Network
from .constants import GPUS
from .model import Model
from .public import PUBLIC_ERRORS

_GPUS = ("a100", "h100", "b200")
_GPUS_PER_NODE = 8
_SIZES = tuple(round(2 ** (half / 2)) for half in range(2 * 8, 2 * 36 + 1))  # 256 B to 64 GiB, two per octave
_ON_A_NODE = "{} to {} %".format(*PUBLIC_ERRORS["NVLink"].model)
_BETWEEN_NODES = "{} to {} %".format(*PUBLIC_ERRORS["InfiniBand"].model)
_ERRORS = (
    f"NCCL's model, not a measurement; on public machines it is off by {_ON_A_NODE} on one node, and by "
    f"{_BETWEEN_NODES} between nodes"
)


def of_the_model() -> tuple[Network, ...]:
    """Return a network for each GPU whose times over NVLink the model was compared with."""
    return tuple([_network(gpu) for gpu in _GPUS])


def _network(gpu: str) -> Network:
    name = gpu.upper()
    gigabits_per_s = 8 * GPUS[gpu].nic  # from GB/s
    nic = f"{gigabits_per_s:g} Gb/s InfiniBand"
    return Network(
        f"nccl:{gpu}",
        f"NCCL's model: {name}, nodes of {_GPUS_PER_NODE}",
        lambda num_ranks: _cost(gpu, num_ranks),
        about=(f"network: {name}, up to {_GPUS_PER_NODE} per node, a {nic} card for each", _ERRORS),
    )


@lru_cache(maxsize=32)
def _cost(gpu: str, num_ranks: int) -> CostTable:
    """Return the time by the model of the algorithm and protocol that NCCL chooses at each size.

    The ranks are spread evenly over nodes as large as possible.
    """
    gpus_per_node = max(number for number in range(1, _GPUS_PER_NODE + 1) if num_ranks % number == 0)
    model = Model(gpu, gpus_per_node, num_ranks // gpus_per_node)
    compared = model.compared("allreduce", _SIZES).values()
    expected_s = np.array([figures.nccl_s for figures in compared])  # rows: algorithms and protocols; columns: sizes
    times_s = np.array([figures.time_s for figures in compared])
    chosen_row = expected_s.argmin(axis=0)  # at each size
    seconds = times_s[chosen_row, np.arange(len(_SIZES))]
    return CostTable(_SIZES, tuple(seconds.tolist()))
