"""FSDP's collectives, steps and memory, of real modules."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from rankscope.cluster import Link
from rankscope.networks import ring_cost
from rankscope.train import fsdp

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
    {"num_ranks": 4, "wrap": "*", "param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
    {"num_ranks": 4, "wrap": ["1"], "prefetch": 2},
]


def cases() -> Cases:
    all_cases: Cases = {}
    for name in _MODULES:
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
    """A loss of the named module."""
    return lambda module: module(_MODULES[name][1]).float().square().mean()


def _cost(settings: dict[str, Any]) -> Any:
    replicas = settings.get("num_replicas", 1)
    shards = ring_cost(_LINK, settings["num_ranks"] // replicas)
    return fsdp.cost(shards, flops_per_s=1e9, bytes_per_s=1e9, replicas=ring_cost(_LINK, replicas))


def _fsdp(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    options = dict(settings)
    if settings.get("wrap") == "*":
        options["wrap"] = _MODULES[name][2]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # that returns a view, such as Flatten
        step = fsdp.observe(_MODULES[name][0](), _loss(name), optimizer=torch.optim.Adam, **options)
    totals = sum(step.memory().values())
    return {
        "collectives": plain(step.collectives),
        "groups": plain(step.groups),
        "with overlap": timeline(step.timeline(_cost(options))),
        "blocking": timeline(step.timeline(_cost(options), overlap=False)),
        "peak": [step.peak_bytes, plain(step.peak)],
        "num_bytes": ints(totals),
    }


def _recommended(name: str) -> list[Any]:
    values = []
    for memory_bytes in (1e4, 1e5, 1e6):
        settings: dict[str, Any] = {"num_ranks": 4, "memory_bytes": memory_bytes, "wraps": [(), _MODULES[name][2]]}
        cost = _cost({"num_ranks": 4})
        advice = fsdp.recommend(_MODULES[name][0](), _loss(name), cost, optimizer=torch.optim.Adam, **settings)
        rows = {str(row): [row.step_s, row.wait_s, row.peak_bytes] for row in advice.candidates}
        values.append([None if advice.chosen is None else str(advice.chosen), rows])
    return values
