"""FSDP's collectives, steps and memory, and DDP's buckets, of real modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from rankscope.cluster import Link
from rankscope.train import fsdp

from .ddp import all_buckets
from .values import Cases, ints, plain, timeline

_LINK = Link(20e-6, 5e9)
# "*" are the parts that may be wrapped by themselves.
_SETTINGS: list[dict[str, Any]] = [
    {"num_ranks": 2},
    {"num_ranks": 4, "wrap": "*"},
    {"num_ranks": 3, "wrap": "*"},
    {"num_ranks": 8, "wrap": "*", "reshard_after_forward": False},
    {"num_ranks": 8, "wrap": "*", "reshard_after_forward": None},
    {"num_ranks": 8, "wrap": "*", "reshard_after_forward": 2},
    {"num_ranks": 8, "wrap": "*", "num_replicas": 2, "prefetch": 1},
    {"num_ranks": 4, "wrap": "*", "param_dtype": "bfloat16", "reduce_dtype": "float32"},
    {"num_ranks": 4, "wrap": ["1"], "prefetch": 2},
]


def cases() -> Cases:
    all_cases: Cases = {}
    for name in _MODULES:
        all_cases[f"buckets of {name}"] = partial(_buckets, name)
        for number, settings in enumerate(_SETTINGS):
            all_cases[f"fsdp of {name}, {number}"] = partial(_fsdp, name, settings)
        all_cases[f"fsdp of {name}, recommended"] = partial(_recommended, name)
    return all_cases


def _tied() -> nn.Module:
    """A small language model whose head is its embedding."""
    blocks = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16)) for _ in range(3)]
    module = nn.Sequential(nn.Embedding(30, 16), *blocks, nn.Linear(16, 30, bias=False))
    module[-1].weight = module[0].weight
    return module


def _frozen() -> nn.Module:
    """A network with a part that is not trained, and with a buffer."""
    module = nn.Sequential(nn.Conv2d(3, 7, 3), nn.GroupNorm(1, 7), nn.ReLU(), nn.Flatten(), nn.Linear(7 * 36, 5))
    module[0].requires_grad_(False)
    module[1].register_buffer("usual", torch.ones(7))
    return module


def _deep() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 33)) for _ in range(6)))


# Each module, an input, and the names that "*" stands for; what shares a tensor is not wrapped apart.
_MODULES: dict[str, tuple[Any, Any, list[str]]] = {
    "tied": (_tied, torch.arange(40).reshape(4, 10) % 30, ["1", "2", "3"]),
    "frozen": (_frozen, torch.ones(4, 3, 8, 8), ["0", "1", "4"]),
    "deep": (_deep, torch.ones(8, 33), ["0", "1", "2", "3", "4", "5"]),
}


def _loss(name: str) -> Any:
    """A loss of the named module as FSDP's functions call it."""
    return lambda module, rank, number: module(_MODULES[name][1]).float().square().mean()


def _observed(name: str, wrap: list[str], param_dtype: str | None = None) -> fsdp.ModuleStep:
    """The step of a module without the times that were measured: pieces share the totals by their parameters."""
    step = fsdp.observed_step(_MODULES[name][0](), _loss(name), wrap, param_dtype=param_dtype)
    return step.scaled(0.0, 0.0, 0.0).scaled(0.010, 0.020, 0.001)


def _fsdp(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    wrap = settings.get("wrap", [])
    if wrap == "*":
        wrap = _MODULES[name][2]
    options = settings | {"wrap": wrap}
    step = _observed(name, wrap, options.get("param_dtype"))
    replicas = options.get("num_replicas", 1)
    costs = fsdp.FSDPCosts.of_link(_LINK, options["num_ranks"] // replicas, num_replicas=replicas, replica_link=_LINK)
    calls = fsdp.collectives(_MODULES[name][0](), loss=_loss(name), **options)
    return {
        "collectives": plain(calls),
        "with overlap": _step(fsdp.predict(step, costs, **options)),
        "blocking": _step(fsdp.predict(step, costs, overlap=False, **options)),
    }


def _step(predicted: fsdp.PredictedStep) -> dict[str, Any]:
    memory = predicted.memory
    return {
        "times_s": [float(predicted.step_s), float(predicted.wait_s)],
        "groups": plain(predicted.groups),
        "spans": timeline(predicted.timeline),
        "peak": [memory.peak_bytes, plain(memory.peak_terms)],
        "num_bytes": ints(memory.num_bytes),
    }


def _recommended(name: str) -> list[Any]:
    module, step = _MODULES[name][0](), _observed(name, [])
    costs = fsdp.FSDPCosts.of_link(_LINK, 4)
    values = []
    for memory_bytes in (1e4, 1e5, 1e6):
        advice = fsdp.recommend(module, num_ranks=4, memory_bytes=memory_bytes, cost=costs, step=step)
        chosen = None if advice.chosen is None else advice.chosen.name
        values.append([chosen, {row.name: [row.step_s, row.wait_s, row.peak_bytes] for row in advice.candidates}])
    return values


def _buckets(name: str) -> list[Any]:
    module = _MODULES[name][0]()
    return all_buckets(module, list(range(sum(parameter.requires_grad for parameter in module.parameters()))))
