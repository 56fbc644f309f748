"""Predicted buckets are those of DistributedDataParallel's own Reducer, at first and after it has rebuilt them."""

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.ranks import launch
from rankscope.train import ddp
from rankscope.train.ddp.buckets import BucketError, parameter_specs

from .models import MODELS, UNUSED, layers_used

pytestmark = pytest.mark.slow

LaunchedBuckets = list[list[int]]


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # a DDP that outlives its group may hang at exit
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [param for param in module.parameters() if param.requires_grad]


def loss(out: torch.Tensor) -> torch.Tensor:
    return (out.real if out.is_complex() else out).double().square().sum()


def ready_order(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[int]:
    """The order of gradients in a backward of the module alone, before DDP has seen it."""
    order: list[int] = []
    hooks = [
        param.register_post_accumulate_grad_hook(lambda _, place=place: order.append(place))
        for place, param in enumerate(trained(module))
    ]
    loss(module(*inputs)).backward()
    for hook in hooks:
        hook.remove()
    return order


def noting_ddp(module: nn.Module, launched: LaunchedBuckets, **options: Any) -> DistributedDataParallel:
    """Return a DDP that adds to `launched` what its communication hook gets: a bucket as its parameters' numbers."""
    places = {id(param): place for place, param in enumerate(trained(module))}

    def note(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        launched.append([places[id(param)] for param in bucket.parameters()])
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    wrapped = DistributedDataParallel(module, **options)
    wrapped.register_comm_hook(None, note)
    return wrapped


def reducer_buckets(module: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> list[LaunchedBuckets]:
    """The Reducer's buckets at each of three iterations, in launch order."""
    launched: LaunchedBuckets = []
    wrapped = noting_ddp(module, launched, **options)
    iterations = []
    for _ in range(3):
        launched.clear()
        loss(wrapped(*inputs)).backward()
        iterations.append(list(launched))
    return iterations


def assert_same(module: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> list[LaunchedBuckets]:
    """Predict from the module and its own backward; then run DDP, compare, and return what it did."""
    known = {name: value for name, value in options.items() if name != "gradient_as_bucket_view"}
    predicted = ddp.buckets(module, ready_order=ready_order(module, inputs), **known)
    iterations = reducer_buckets(module, inputs, **options)
    for iteration, launched in enumerate(iterations):
        predicted.check(launched, iteration)
    return iterations


@pytest.mark.parametrize("name", MODELS)
def test_buckets_are_the_reducers(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    third_mb = sum(spec.num_bytes for spec in parameter_specs(module)) / 3 / 2**20 or 0.001  # torch 2.11 refuses 0
    for cap in (None, 0.001, third_mb, 25, 1000):
        assert_same(module, inputs, bucket_cap_mb=cap)
    assert_same(module, inputs, bucket_cap_mb=third_mb, static_graph=True)
    for cap in (None, third_mb):
        assert_same(module, inputs, bucket_cap_mb=cap, find_unused_parameters=True)


@pytest.mark.parametrize("name", UNUSED)
def test_buckets_if_parameters_get_no_gradient(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = UNUSED[name]()
    for cap in (None, 0.001, 0.003):
        for mode in ("find_unused_parameters", "static_graph"):
            assert_same(module, inputs, bucket_cap_mb=cap, **{mode: True})


@pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel")
@pytest.mark.parametrize("name", ["three_dtypes", "sparse_and_dense_bags"])
def test_a_static_graph_is_rebuilt_even_with_a_search_for_unused_parameters(name: str) -> None:
    assert_same(*MODELS[name](), bucket_cap_mb=0.001, find_unused_parameters=True, static_graph=True)


def test_iterations_without_synchronisation_do_not_count() -> None:
    module, (x,) = MODELS["deep_mlp"]()
    predicted = ddp.buckets(module, 0.002)
    launched: LaunchedBuckets = []
    wrapped = noting_ddp(module, launched, bucket_cap_mb=0.002)
    for _ in range(3):
        with wrapped.no_sync():
            loss(wrapped(x)).backward()
    assert launched == []
    for iteration in range(2):
        launched.clear()
        loss(wrapped(x)).backward()
        predicted.check(launched, iteration)


class Pile(nn.Module):
    """Parameters of random sizes and dtypes whose gradients get ready in a random order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        dtypes = rng.sample([torch.float32, torch.float64, torch.bfloat16, torch.float16], rng.randint(1, 4))
        sizes = [rng.choice([0, 1, 7, 64, 300, 1000, 5000]) for _ in range(rng.randint(1, 25))]
        self.many = nn.ParameterList([torch.ones(size, dtype=rng.choice(dtypes)) for size in sizes])
        self.use = rng.sample(range(len(sizes)), len(sizes))
        self.options = {
            "bucket_cap_mb": rng.choice([None, 1e-7, 10 ** rng.uniform(-3.5, -1.5)]),
            rng.choice(["static_graph", "find_unused_parameters", "gradient_as_bucket_view"]): rng.random() < 0.5,
        }

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in self.use:
            x = x + self.many[place].double().sum()
        return x


def test_buckets_of_random_lists() -> None:
    rebuilt = 0
    for seed in range(250):
        pile = Pile(seed)
        iterations = assert_same(pile, (torch.zeros(1, dtype=torch.float64),), **pile.options)
        rebuilt += iterations[0] != iterations[2]
    assert rebuilt > 125


def test_a_wrong_prediction_is_found() -> None:
    module, inputs = MODELS["used_in_another_order"]()
    iterations = reducer_buckets(module, inputs, bucket_cap_mb=0.002)
    order = ready_order(module, inputs)
    ddp.buckets(module, 0.002, ready_order=order).check(iterations[1], 1)
    for cap, options in (
        (0.003, {"ready_order": order}),
        (0.002, {}),  # the order of definition
        (0.002, {"ready_order": order, "static_graph": True}),  # rebuilt a step later
        (0.002, {"ready_order": order, "find_unused_parameters": True}),  # never rebuilt
    ):
        with pytest.raises(BucketError, match="iteration 1, bucket 0: expected parameters"):
            ddp.buckets(module, cap, **options).check(iterations[1], 1)


def _on_two_ranks(uses: list[list[int]], cap_mb: float) -> tuple[list[int], list[LaunchedBuckets]]:
    torch.manual_seed(0)
    module, inputs = layers_used(uses[dist.get_rank()])
    return ready_order(module, inputs), reducer_buckets(module, inputs, bucket_cap_mb=cap_mb)


def test_all_ranks_follow_the_first_ones_order() -> None:
    uses = [[2, 0, 4, 1, 3], [3, 1, 4, 0, 2]]
    (order, iterations), (other_order, other_iterations) = launch(_on_two_ranks, 2, (uses, 0.002), timeout_s=300)
    assert order != other_order
    assert iterations == other_iterations
    predicted = ddp.buckets(MODELS["used_in_another_order"]()[0], 0.002, ready_order=order)
    for iteration, launched in enumerate(iterations):
        predicted.check(launched, iteration)
