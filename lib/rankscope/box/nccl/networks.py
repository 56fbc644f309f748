"""NCCL's model as networks that explorers offer: nodes of eight GPUs, for any number of ranks."""

from __future__ import annotations

from functools import lru_cache, partial

from ...networks import CostTable, Network
from .constants import GPUS, LIMITS
from .model import Model

_SIZES = tuple(round(2 ** (half / 2)) for half in range(2 * 8, 2 * 36 + 1))  # 256 B to 64 GiB, two per octave


def of_the_model() -> tuple[Network, ...]:
    """Return a network for each GPU whose times over NVLink the model was compared with."""
    return tuple([_network(gpu) for gpu in ("a100", "h100", "b200")])


def _network(gpu: str) -> Network:
    name = gpu.upper()
    gigabits_per_s = 8 * GPUS[gpu].nic_gb_per_s
    about = (
        f"network: {name}, up to 8 per node, a {gigabits_per_s:g} Gb/s InfiniBand card for each",
        "NCCL's model, not a measurement",
        LIMITS["NVLink"],
        LIMITS["InfiniBand"],
    )
    return Network(f"nccl:{gpu}", f"NCCL's model: {name}, nodes of 8", partial(_cost, gpu), about=about)


@lru_cache(maxsize=32)
def _cost(gpu: str, num_ranks: int) -> CostTable:
    """Return the time by the model of NCCL's choice at each size, on equal nodes of as many GPUs as possible."""
    gpus_per_node = max(number for number in range(1, 9) if num_ranks % number == 0)
    model = Model(gpu, gpus_per_node, num_ranks // gpus_per_node)
    return CostTable(_SIZES, tuple([model.choose("allreduce", size).time_s for size in _SIZES]))
