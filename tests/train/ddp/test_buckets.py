"""Buckets are those of DistributedDataParallel on real ranks, at first and after it has rebuilt them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.ranks import launch
from rankscope.train import ddp
from rankscope.train.ddp.observed import gradients_of
from tests.extents import SAMPLE_OR_EVERYTHING

from .models import MODELS, UNUSED

pytestmark = pytest.mark.slow
MIB = 2**20
Launched = list[list[tuple[int, ...]]]  # of each iteration


class Pile(nn.Module):
    """Parameters of random sizes and dtypes whose gradients get ready in a random order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        dtypes = draw.sample([torch.float32, torch.float64, torch.bfloat16, torch.float16], draw.randint(1, 4))
        sizes = [draw.choice([0, 1, 7, 64, 300, 1000, 5000]) for _ in range(draw.randint(1, 25))]
        self.many = nn.ParameterList([torch.ones(size, dtype=draw.choice(dtypes)) for size in sizes])
        self.use = draw.sample(range(len(sizes)), len(sizes))
        mode = draw.choice(["static_graph", "find_unused_parameters", "gradient_as_bucket_view"])
        self.options: dict[str, Any] = {mode: draw.random() < 0.5}
        self.options["bucket_cap_mb"] = draw.choice([None, 1e-6, 10 ** draw.uniform(-3.5, -1.5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in self.use:
            x = x + self.many[place].double().sum()
        return x


def pile_loss(module: nn.Module) -> torch.Tensor:
    out: torch.Tensor = module(torch.zeros(1, dtype=torch.float64)).square().sum()
    return out


def loss_of(inputs: Any) -> Callable[[nn.Module], torch.Tensor]:
    def loss(module: nn.Module) -> torch.Tensor:
        out: torch.Tensor = module(*inputs).double().square().sum()
        return out

    return loss


def reducer_buckets(module: nn.Module, loss: Any, options: Any) -> Launched:
    """The buckets of three iterations on this rank, which reduces them."""
    numbers = {id(parameter): number for number, parameter in enumerate(gradients_of(module))}
    launched: Launched = []

    def note(bucket: Any) -> Any:
        launched[-1].append(tuple(numbers[id(parameter)] for parameter in bucket.parameters()))
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    wrapped = DistributedDataParallel(module, **options)
    wrapped.register_comm_hook(None, lambda state, bucket: note(bucket))
    for _ in range(3):
        launched.append([])
        loss(wrapped).backward()
    return launched


def _piles_on_a_rank(seeds: range) -> list[Launched]:
    return [reducer_buckets(Pile(seed), pile_loss, Pile(seed).options) for seed in seeds]


def _models_on_a_rank(cases: list[tuple[str, dict[str, Any]]]) -> list[Launched]:
    found = []
    for name, options in cases:
        torch.manual_seed(0)
        module, inputs = {**MODELS, **UNUSED}[name]()
        found.append(reducer_buckets(module, loss_of(inputs), options))
    return found


def modelled(pile: Pile, gradients: Sequence[ddp.Gradient], cap_mb: float | None) -> tuple[tuple[int, ...], ...]:
    """The buckets that DDP keeps, as the library models them without torch."""
    if pile.options.get("find_unused_parameters"):
        return tuple(sorted(ddp.assign(gradients, range(len(gradients)), cap_mb), key=min, reverse=True))
    return ddp.assign(gradients, pile.use[::-1], cap_mb)


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 515), marks=pytest.mark.oracle)], ids=len)
def test_buckets_of_random_modules_are_those_of_two_real_ranks(seeds: range) -> None:
    real, other = launch(_piles_on_a_rank, 2, (seeds,), timeout_s=300)
    assert real == other
    num_rebuilt = num_modelled = num_wrong = 0
    for seed, launched in zip(seeds, real, strict=True):
        pile = Pile(seed)
        buckets = ddp.buckets(pile, pile_loss, **pile.options)
        assert list(map(list, buckets.iterations)) == launched, seed
        num_rebuilt += launched[0] != launched[2]
        # Of three dtypes and more, torch has the last buckets in the order of a hash table.
        if len({gradient.dtype for gradient in buckets.gradients}) <= 2:
            cap_mb = pile.options["bucket_cap_mb"]
            assert modelled(pile, buckets.gradients, cap_mb) == buckets.rebuilt, seed
            num_modelled += 1
            num_wrong += modelled(pile, buckets.gradients, 2 * (cap_mb or 1e-3)) != buckets.rebuilt
    assert min(num_rebuilt, num_modelled) > 0.4 * len(seeds)
    assert num_wrong > 0.1 * len(seeds)


@SAMPLE_OR_EVERYTHING
def test_buckets_of_models_are_those_of_two_real_ranks(everything: bool) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [(name, {"bucket_cap_mb": 0.01}) for name in MODELS]
    cases += [(name, {"bucket_cap_mb": 0.01, "find_unused_parameters": True}) for name in UNUSED]
    if everything:
        for cap, mode in product((None, 0.001), ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")):
            names = MODELS if mode == "gradient_as_bucket_view" else (*MODELS, *UNUSED)
            cases += [(name, {"bucket_cap_mb": cap, mode: True}) for name in names]
    real, _ = launch(_models_on_a_rank, 2, (cases,), timeout_s=300)
    for (name, options), launched in zip(cases, real, strict=True):
        torch.manual_seed(0)
        module, inputs = {**MODELS, **UNUSED}[name]()
        buckets = ddp.buckets(module, loss_of(inputs), **options)
        assert list(map(list, buckets.iterations)) == launched, (name, options)


def test_sparse_gradients_are_alone_and_nothing_is_left_behind() -> None:
    module, inputs = MODELS["sparse_and_dense_bags"]()
    random_state = torch.get_rng_state()
    buckets = ddp.buckets(nn.Sequential(module, nn.Dropout()), loss_of(inputs))
    assert torch.equal(torch.get_rng_state(), random_state)
    sparse = [number for number, gradient in enumerate(buckets.gradients) if gradient.sparse]
    assert len(sparse) == 3
    assert ddp.assign(buckets.gradients, [number for bucket in buckets.rebuilt for number in bucket]) == buckets.rebuilt
    assert all((number,) in buckets.rebuilt for number in sparse)
    assert buckets.num_bytes(buckets.first[-1]) > 0
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not dist.is_initialized()
