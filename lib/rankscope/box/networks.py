"""Networks that explorers offer: machines of the bank, NCCL's model, those that we measured over Gloo, and profiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from ..common.words import count_of, one_line
from ..networks import Cost, CostTable
from .machines import PREFIX, bank, is_sick, origin_of
from .nccl.constants import GPUS, LIMITS
from .nccl.model import Model
from .profile import Profile

RECORDED = Path(__file__).parent / "recorded"
# A curve that explorers can use at any bucket cap: it must reach from latency to bandwidth.
_SMALLEST_BYTES = 64 * 2**10
_LARGEST_BYTES = 16 * 2**20
_MODEL_SIZES = tuple(round(2 ** (half / 2)) for half in range(2 * 8, 2 * 36 + 1))  # 256 B to 64 GiB, two per octave


class Network(NamedTuple):
    """A network that an explorer offers: what an allreduce takes on it.

    `cost` returns the cost for a number of ranks. A network that was measured has its `num_ranks`, and the cost is
    always for those; None means any number. Beyond `most_bytes`, the largest size that was measured, the cost is
    extrapolated. `about` says where the times are from, a line each.
    """

    label: str
    cost: Callable[[int], Cost]
    about: tuple[str, ...]
    num_ranks: int | None = None
    most_bytes: float = math.inf


@cache
def registered() -> dict[str, Network]:
    """Return the networks that are offered, by name and in the order in which explorers list them."""
    networks = {}
    for name, description in bank().items():
        profile = Profile.load(f"{PREFIX}{name}")
        sizes = profile.native_s("allreduce")
        if sizes and min(sizes) <= _SMALLEST_BYTES and max(sizes) >= _LARGEST_BYTES:
            fault = ", faulty" if is_sick(profile.provenance) else ""
            label = f"{description.partition(',')[0]}{fault} ({name})"
            networks[name] = network_of(name, profile)._replace(label=label)
    for gpu in ("a100", "h100", "b200"):  # the model was compared with times over their NVLinks
        networks[f"nccl:{gpu}"] = _of_the_model(gpu)
    for path in sorted(RECORDED.glob("*.json")):
        profile = Profile.load(path)
        name = str(profile.provenance["name"])
        networks[name] = network_of(name, profile)
    return networks


def network_of(name: str, profile: Profile) -> Network:
    """Return the network of a profile, with its ranks and its cost.

    Raises ValueError if the backend's own allreduce was measured at fewer than two sizes.
    """
    measured_s = profile.native_s("allreduce")
    if len(measured_s) < 2:
        raise ValueError("profile must have the backend's own allreduce at two sizes or more")
    ranks = count_of(profile.num_ranks, "rank")
    about = [f"network: {profile.provenance['name']}, {ranks}, measured with {profile.backend}"]
    origin = origin_of(profile.provenance.get("source", {}))
    if origin:
        about.append(f"source: {'; '.join(origin)}")
    return Network(
        f"{name} ({ranks})",
        lambda num_ranks: profile.cost(),
        tuple(map(one_line, about)),
        profile.num_ranks,
        max(measured_s),
    )


def _of_the_model(gpu: str) -> Network:
    """Return NCCL's model of nodes of up to eight such GPUs, for any number of ranks."""
    name = gpu.upper()
    about = (
        f"network: {name}, up to 8 per node, a {8 * GPUS[gpu].nic_gb_per_s:g} Gb/s InfiniBand card for each",
        "NCCL's model, not a measurement",
        LIMITS["NVLink"],
        LIMITS["InfiniBand"],
    )
    return Network(f"NCCL's model: {name}, nodes of 8", partial(_cost_by_the_model, gpu), about)


@lru_cache(maxsize=32)
def _cost_by_the_model(gpu: str, num_ranks: int) -> CostTable:
    """Return the time of NCCL's choice at each size, on equal nodes of as many GPUs as possible."""
    gpus_per_node = max(number for number in range(1, 9) if num_ranks % number == 0)
    model = Model(gpu, gpus_per_node, num_ranks // gpus_per_node)
    return CostTable(_MODEL_SIZES, tuple([model.choose("allreduce", size).time_s for size in _MODEL_SIZES]))
