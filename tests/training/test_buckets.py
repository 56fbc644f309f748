"""Buckets assigned in plain Python are those of the function that DDP's Reducer calls, and say why they part."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankscope.ddp.bucket_keys import table_order
from rankscope.ddp.buckets import Bucket, BucketError, DDPBuckets, assign_buckets, ddp_buckets, parameter_specs
from rankscope.ddp.local_step import ParameterSpec

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn")
MIB = 2**20


def random_tensors(rng: random.Random) -> tuple[list[torch.Tensor], list[bool]]:
    """Tensors without memory, of up to 16 dtypes and devices; some whose gradient would be sparse."""
    keys = [(dtype, device) for dtype in DTYPES for device in ("cpu", "meta")]
    keys = rng.sample(keys, rng.choice([1, 1, 2, 3, 5, 16]))
    tensors = []
    for _ in range(rng.randint(1, 60)):
        dtype, device = rng.choice(keys)
        size = rng.choice([0, 1, 100, 10_000]) if device == "cpu" else rng.choice([0, 50, 10**6, 10**7])
        tensors.append(torch.empty(size, dtype=getattr(torch, dtype), device=device, requires_grad=True))
    sparse = [rng.random() < 0.1 for _ in tensors] if rng.random() < 0.5 else [False] * len(tensors)
    return tensors, sparse


def specs_of(tensors: list[torch.Tensor], sparse: list[bool]) -> list[ParameterSpec]:
    rows = zip(parameter_specs(tensors), sparse, strict=True)
    return [ParameterSpec(spec.name, spec.num_bytes, spec.dtype, spec.device, alone) for spec, alone in rows]


def indices(buckets: tuple[Bucket, ...]) -> list[list[int]]:
    return [list(bucket.indices) for bucket in buckets]


# ---- the function that the Reducer calls


@pytest.mark.parametrize("seed", range(5))
def test_500_random_lists_are_assigned_as_torch_does(seed: int) -> None:
    for case in range(100):
        rng = random.Random(1000 * seed + case)
        tensors, sparse = random_tensors(rng)
        specs = specs_of(tensors, sparse)
        order = rng.sample(range(len(specs)), len(specs))
        cap, small = rng.choice([0.001, 0.01, 1, 25, 1000]), rng.choice([1e-6, 0.001, 1])
        limits = [int(small * MIB), int(cap * MIB)]

        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, limits, sparse)
        assert assign_buckets(specs, cap, small) == theirs[::-1]

        predicted = ddp_buckets(specs, cap, ready_order=order)
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [sys.maxsize], sparse)
        assert indices(predicted.first) == theirs[::-1]
        in_order = [tensors[place] for place in order]
        theirs, caps = dist._compute_bucket_assignment_by_size(in_order, limits[1:], sparse, order)
        assert indices(predicted.rebuilt) == theirs
        assert [bucket.cap_bytes or 0 for bucket in predicted.rebuilt] == caps  # 0 is a sparse one's


def test_open_buckets_come_in_the_order_of_torchs_hash_table() -> None:
    """All dtypes on two devices: more keys than slots, of which several coincide; last come, first served is not it."""
    keys = [(dtype, device) for device in ("cpu", "meta") for dtype in DTYPES]
    reversed_ones = 0
    for seed in range(200):
        some = random.Random(seed).sample(keys, random.Random(seed).randint(1, len(keys)))
        tensors = [torch.empty(1, dtype=getattr(torch, dtype), device=device) for dtype, device in some]
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [MIB], [], list(range(len(some))))
        assert table_order(some) == [some[place] for (place,) in theirs]
        reversed_ones += table_order(some) == some[::-1]
    assert reversed_ones < 150


def test_a_device_that_is_not_known_here_shares_no_slot() -> None:
    keys = [("float32", "cpu"), ("float32", "npu:0"), ("float32", "npu:1"), ("float4", "cpu")]
    assert table_order(keys) == keys[::-1]


# ---- what is asked of parameters


def test_a_module_its_parameters_and_specs_give_the_same() -> None:
    module = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300, dtype=torch.float64))
    module[0].bias.requires_grad_(False)
    specs = parameter_specs(module)
    assert [(spec.name, spec.num_bytes, spec.dtype) for spec in specs] == [
        ("0.weight", 360_000, "float32"),
        ("1.weight", 720_000, "float64"),
        ("1.bias", 2400, "float64"),
    ]
    assert assign_buckets(module) == assign_buckets(module.parameters()) == assign_buckets(specs) == [[1, 2], [0]]


def test_a_shared_parameter_counts_once_and_sparse_ones_belong_to_their_first_owner() -> None:
    words, dense = nn.Embedding(9, 4, sparse=True), nn.Embedding(9, 4)
    head, bag = nn.Linear(4, 9, bias=False), nn.EmbeddingBag(9, 4, sparse=True)
    head.weight = words.weight
    flags = {spec.name: spec.sparse for spec in parameter_specs(nn.ModuleList([words, dense, head, bag]))}
    assert flags == {"0.weight": True, "1.weight": False, "3.weight": True}
    assert [spec.sparse for spec in parameter_specs(nn.ModuleList([head, words]))] == [False]
    assert len(parameter_specs([head.weight, words.weight])) == 1


@pytest.mark.parametrize("params", [[], nn.ReLU(), [torch.zeros(3)[0].requires_grad_(False)]])
def test_nothing_to_reduce_is_refused(params) -> None:
    with pytest.raises(ValueError, match="params must hold at least one that requires a gradient, got none"):
        assign_buckets(params)


@pytest.mark.parametrize("params", [3, [3], ["weight"], None])
def test_what_is_no_parameter_is_refused(params) -> None:
    with pytest.raises(ValueError, match="params must be a module, its parameters or ParameterSpec values, got"):
        assign_buckets(params)


# ---- why a bucket was closed


def test_a_bucket_is_closed_at_its_cap_and_a_parameter_never_split() -> None:
    layers = [ParameterSpec("small", MIB), ParameterSpec("huge", 90 * MIB), ParameterSpec("last", 2 * MIB)]
    assert ddp_buckets(layers).rebuilt == (
        Bucket((2,), 2 * MIB, MIB, "cap"),
        Bucket((1,), 90 * MIB, 25 * MIB, "cap"),
        Bucket((0,), MIB, 25 * MIB, "end"),
    )


def test_each_dtype_has_its_own_bucket_of_1_mib() -> None:
    layers = [ParameterSpec(f"{n}", MIB, dtype) for n in range(3) for dtype in ("float32", "bfloat16")]
    assert indices(ddp_buckets(layers).rebuilt) == [[5], [4], [2, 0], [3, 1]]
    assert [bucket.closed for bucket in ddp_buckets(layers).rebuilt] == ["cap", "cap", "end", "end"]


def test_the_small_bucket_is_launched_first_only_once_rebuilt() -> None:
    layers = [ParameterSpec(f"{n}", MIB) for n in range(4)]
    assert indices(ddp_buckets(layers).rebuilt) == [[3], [2, 1, 0]]
    assert indices(ddp_buckets(layers, find_unused_parameters=True).rebuilt) == [[1, 2, 3], [0]]
    assert indices(ddp_buckets(layers, 25).rebuilt) == [[3, 2, 1, 0]]


def test_parameters_without_a_gradient_come_last_in_a_static_graph() -> None:
    layers = [ParameterSpec(f"{n}", MIB) for n in range(4)]
    buckets = ddp_buckets(layers, 1, ready_order=[2, 1], static_graph=True)
    assert indices(buckets.rebuilt) == [[2], [1], [0], [3]]
    assert (buckets.at(1), buckets.at(2)) == (buckets.first, buckets.rebuilt)
    with pytest.raises(ValueError, match="DDP stops where one gets no gradient, as '0'"):
        ddp_buckets(layers, 1, ready_order=[2, 1])


def test_words() -> None:
    layers = [
        ParameterSpec("words", 40 * MIB, sparse=True),
        *[ParameterSpec(f"layer {n}", 10 * MIB) for n in range(4)],
        ParameterSpec("scale", 2),
    ]
    assert str(ddp_buckets(layers, static_graph=True)).splitlines() == [
        "6 parameters, 80 MiB",
        "iterations 0 to 1: 2 buckets",
        "    0  5 parameters, 40 MiB         nothing left to add              layer 0 … scale",
        "    1  1 parameter, 40 MiB          a sparse gradient, always alone  words",
        "from iteration 2: 3 buckets",
        "    0  2 parameters, 10 MiB         reached its cap of 1 MiB         scale … layer 3",
        "    1  3 parameters, 30 MiB         reached its cap of 25 MiB        layer 2 … layer 0",
        "    2  1 parameter, 40 MiB          a sparse gradient, always alone  words",
    ]
    assert str(ddp_buckets(layers, find_unused_parameters=True)).splitlines()[1] == "every iteration: 4 buckets"


# ---- input and checks


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"bucket_cap_mb": -1}, "bucket_cap_mb must be a finite number of at least 0, got -1"),
        ({"bucket_cap_mb": "25"}, "bucket_cap_mb must be a finite number of at least 0, got '25'"),
        (
            {"bucket_cap_mb_list": [1, float("inf")]},
            "bucket_cap_mb_list must be a finite number of at least 0, got inf",
        ),
        ({"ready_order": [0, 0, 1]}, "ready_order must name each parameter once, got .0, 0, 1."),
        ({"ready_order": [0, 1, 3]}, "ready_order must be a whole number from 0 to 2, got 3"),
        ({"ready_order": 2}, "ready_order must be a list of places, got 2"),
        ({"bucket_cap_mb_list": 25}, "bucket_cap_mb_list must be a list of caps, got 25"),
        ({"bucket_cap_mb_list": "25"}, "bucket_cap_mb_list must be a list of caps, got '25'"),
        ({"static_graph": 1}, "static_graph must be True or False, got 1"),
        ({"find_unused_parameters": None}, "find_unused_parameters must be True or False, got None"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        ddp_buckets([ParameterSpec(f"{n}", 4) for n in range(3)], **arguments)


def predicted() -> DDPBuckets:
    return ddp_buckets([ParameterSpec(f"{n}", 2 * MIB) for n in range(6)], 4)  # 5 4 | 3 2 | 1 0


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([[5, 4], [1, 0], [3, 2]], "bucket 1: expected parameters 3, 2, found 1, 0"),
        ([[5, 4], [3], [2, 1, 0]], "bucket 1: expected parameters 3, 2, found 3"),
        ([[4, 5], [3, 2], [1, 0]], "bucket 0: expected parameters 5, 4, found 4, 5"),
        ([[5, 4], [3, 2]], "bucket 2: expected parameters 1, 0, found no such bucket"),
        ([[5, 4], [3, 2], [1, 0], []], "bucket 3: expected parameters no such bucket, found none"),
        ([[5, 4], [3, 2], [1, 0], [0]], "bucket 3: expected parameters no such bucket, found 0"),
        ([[5, 4, 3, 2, 1, 0]], "bucket 0: expected parameters 5, 4, found 5, 4, 3, 2, 1, 0"),
        ([], "bucket 0: expected parameters 5, 4, found no such bucket"),
    ],
)
def test_other_buckets_are_told_from_the_predicted_ones(found: list[list[int]], problem: str) -> None:
    predicted().check([[5, 4], [3, 2], [1, 0]], iteration=1)
    with pytest.raises(BucketError, match=f"^iteration 1, {problem}$"):
        predicted().check(found, iteration=1)
    with pytest.raises(BucketError, match="^iteration 0, bucket 0"):
        predicted().check([[5, 4], [3, 2], [1, 0]], iteration=0)
    with pytest.raises(ValueError, match="found must be a list of places, got 5"):
        predicted().check([5, 4], iteration=0)  # type: ignore[list-item]


def test_caps_in_an_array_are_those_in_a_list() -> None:
    layers = [ParameterSpec(f"{n}", 2**20) for n in range(4)]
    assert ddp_buckets(layers, bucket_cap_mb_list=np.array([1, 2])) == ddp_buckets(layers, bucket_cap_mb_list=[1, 2])
