"""The explorer of notebook 08: a step under `fully_shard` on its streams, and the memory of a rank below it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...common.units import decimal_words, times_in_one_unit
from ...common.words import count_of
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...explorers.networks import BY_HAND, Networks
from ...figures.marks import Drawing
from ...networks import Measured
from ..figures.fsdp import draw_fsdp_step
from ..fsdp.step import ModuleStep, ShardedLayer, ShardedParameter
from ..fsdp.timing import PredictedStep, predict

# How many layers share a group; 0 if no layer is wrapped, and the model is the only group.
_WRAPS = {"each layer": 1, "every two layers": 2, "every four layers": 4, "the model alone": 0}
_RESHARD = {"all but the root (default)": None, "always": True, "never": False}
_WIDTH = 1024  # columns of a layer's matrix, whose rows are what is divided
_SLOW = {"network": BY_HAND, "gb_per_s": 5}
PRESETS: dict[str, dict[str, Any]] = {
    "8 layers on 32 A100s": {"network": "abci_a100_4x8"},
    "never reshard": {"reshard": "never"},
    "one group": {"wrap": "the model alone"},
    "a network of 5 GB/s": _SLOW,
    "the same, four layers per group": {**_SLOW, "wrap": "every four layers"},
    "prefetch 2 groups": {"prefetch": 2},
    "400 million parameters over Gloo": {"network": "loopback, two cores", "layer_ms": 100},
}


def step(now: Now) -> ModuleStep:
    """Return the step of equal layers, in blocks of as many as share a group."""
    num_rows = -(-now.layer_millions * 10**6 // _WIDTH)  # rounded up
    forward_s = now.layer_ms / 1e3
    backward_s = 2 * forward_s  # it multiplies two matrices where forward multiplies one
    layers = []
    for index in range(now.num_layers):
        name = _layer_name(index, _WRAPS[now.wrap])
        weight = ShardedParameter((f"{name}.weight",), (num_rows, _WIDTH))
        layers.append(ShardedLayer(name, (weight,), forward_s, backward_s, now.activations_mb * 10**6))
    return ModuleStep.of_layers(layers)


def _layer_name(index: int, layers_per_group: int) -> str:
    """Return the name of a layer, which puts it into a block together with the others of its group, if it has one."""
    if layers_per_group == 0:
        return f"layers.{index}"
    return f"blocks.{index // layers_per_group}.{index % layers_per_group}"


class Sharding:
    """The explorer's picture and report of a step on some networks."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self.predicted = lru_cache(maxsize=4)(self._predicted)  # picture and report ask for the same

    def _predicted(self, now: Now) -> PredictedStep:
        """Return the step of the chosen layers, wrapped in blocks, on the chosen network."""
        wrap = ["blocks.*"]
        layers_per_group = _WRAPS[now.wrap]
        if layers_per_group == 0:
            wrap = []
        dtypes: dict[str, Any] = {}  # the defaults are the parameters' own type, float32
        if now.precision != "float32":
            dtypes = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
        return predict(
            step(now),
            self.networks.cost(now),
            num_ranks=self.networks.num_ranks(now),
            wrap=wrap,
            reshard_after_forward=_RESHARD[now.reshard],
            prefetch=now.prefetch,
            **dtypes,
        )

    def draw(self, now: Now) -> list[Drawing]:
        """One step and its memory."""
        return [draw_fsdp_step(self.predicted(now))]

    def report(self, now: Now) -> list[str]:
        """The parts of the step, the terms of the peak, and the collectives."""
        predicted = self.predicted(now)
        whole, wait = times_in_one_unit(predicted.step_s, predicted.wait_s)
        ranks = count_of(self.networks.num_ranks(now), "rank")
        kinds = [call.kind for call in predicted.collectives]
        sizes = [call.num_bytes for call in predicted.collectives]
        calls = f"{count_of(kinds.count('allgather'), 'all-gather')} and "
        calls += count_of(kinds.count("reduce_scatter"), "reduce-scatter")
        return [
            f"{ranks}: {whole} per step, of which the rank waits {wait} for communication (exposed)",
            f"{calls} of {decimal_words(sum(sizes))} in total, the largest of {decimal_words(max(sizes))}",
            *str(predicted.memory).splitlines(),
            "an all-gather or a reduce-scatter takes half the time of an all-reduce, as in a ring",
            *self.networks.about(now, max(sizes)),
        ]


def _has_groups(now: Now) -> bool:
    """Return whether there are several groups, so that one can be gathered ahead."""
    return bool(0 < _WRAPS[now.wrap] < now.num_layers)


def fsdp(profiles: Mapping[str, Measured] | None = None) -> Explorer:
    """Return controls over one step under `fully_shard`: what runs on each of its streams, and the memory of a rank.

    The layers are equal; backward takes twice as long as forward. The networks are machines of the bank, NCCL's model,
    recorded Gloo, and latency and bandwidth set by hand. `profiles`, by name, come before them. The optimizer is Adam.

    Raises ValueError for anything but profiles, and for a profile without the backend's own allreduce.
    """
    offered = Networks(profiles)
    sharding = Sharding(offered)
    network, num_ranks, *link = offered.settings()
    millions = Steps((1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
    precisions = ("float32", "bfloat16, reduced in float32")
    settings = (
        Setting("wrap", "each layer", _WRAPS, "groups"),
        Setting("reshard", "all but the root (default)", _RESHARD, "reshard after forward"),
        Setting("prefetch", 0, range(5), "groups prefetched", _has_groups),  # 0 is torch's default
        network,
        num_ranks,
        Setting("num_layers", 8, Steps((1, 2, 4, 6, 8, 12, 16, 24)), "layers"),
        Setting("layer_millions", 50, millions, "parameters per layer [million]"),
        Setting("layer_ms", 10, Steps((0, 1, 2, 5, 10, 20, 50, 100)), "forward per layer [ms]"),
        Setting("activations_mb", 200, Steps((0, 10, 50, 100, 200, 500, 1000, 2000)), "activations per layer [MB]"),
        Setting("precision", "bfloat16, reduced in float32", precisions, "precision"),
        *link,
    )
    return Explorer(settings, sharding.draw, sharding.report, PRESETS)
