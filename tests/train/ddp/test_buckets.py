"""Buckets assigned in plain Python are those of the function that DDP's Reducer calls, and say why they were closed."""

from __future__ import annotations

import random
import sys

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn

from rankscope.train.ddp import assign_buckets, buckets
from rankscope.train.ddp.buckets import (
    Bucket,
    Buckets,
    ParameterSpec,
    _in_defined_order,
    parameter_specs,
    table_order,
)

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn")
MIB = 2**20


def layers(number: int, num_bytes: int = MIB) -> list[ParameterSpec]:
    return [ParameterSpec(f"{n}", num_bytes) for n in range(number)]


def indices(of_buckets: tuple[Bucket, ...]) -> list[list[int]]:
    return [list(bucket.indices) for bucket in of_buckets]


# ---- the function that the Reducer calls


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


def test_random_lists_are_assigned_as_torch_does() -> None:
    for case in range(300):
        rng = random.Random(case)
        tensors, sparse = random_tensors(rng)
        rows = zip(parameter_specs(tensors), sparse, strict=True)
        specs = [replace(spec, sparse=alone) for spec, alone in rows]
        order = rng.sample(range(len(specs)), len(specs))
        cap, small = rng.choice([0.001, 0.01, 1, 25, 1000]), rng.choice([1e-6, 0.001, 1])
        limits = [int(small * MIB), int(cap * MIB)]

        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, limits, sparse)
        assert assign_buckets(specs, cap, small) == theirs[::-1]

        predicted = buckets(specs, cap, ready_order=order)
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [sys.maxsize], sparse)
        assert indices(predicted.first) == theirs[::-1]
        in_order = [tensors[place] for place in order]
        theirs, caps = dist._compute_bucket_assignment_by_size(in_order, limits[1:], sparse, order)
        assert indices(predicted.rebuilt) == theirs
        assert [bucket.cap_bytes or 0 for bucket in predicted.rebuilt] == caps  # 0 is a sparse one's
        assert Buckets(predicted) == tuple(map(tuple, theirs))


def test_open_buckets_come_in_the_order_of_torchs_hash_table() -> None:
    """All dtypes on two devices: more keys than slots, some of which coincide, so it is not just the last one first."""
    keys = [(dtype, device) for device in ("cpu", "meta") for dtype in DTYPES]
    num_reversed = 0
    for seed in range(200):
        sample = random.Random(seed).sample(keys, random.Random(seed).randint(1, len(keys)))
        tensors = [torch.empty(1, dtype=getattr(torch, dtype), device=device) for dtype, device in sample]
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [MIB], [], list(range(len(sample))))
        assert table_order(sample) == [sample[place] for (place,) in theirs]
        num_reversed += table_order(sample) == sample[::-1]
    assert num_reversed < 150
    unknown = [("float32", "cpu"), ("float32", "npu:0"), ("float32", "npu:1"), ("float4", "cpu")]
    assert table_order(unknown) == unknown[::-1]  # each has a slot of its own


# ---- parameters


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


# ---- why a bucket was closed


def test_a_bucket_is_closed_at_its_cap_and_a_parameter_never_split() -> None:
    specs = [ParameterSpec("small", MIB), ParameterSpec("huge", 90 * MIB), ParameterSpec("last", 2 * MIB)]
    assert buckets(specs).rebuilt == (
        Bucket((2,), 2 * MIB, MIB, "cap"),
        Bucket((1,), 90 * MIB, 25 * MIB, "cap"),
        Bucket((0,), MIB, 25 * MIB, "end"),
    )


# ---- bad input, and buckets that are not the predicted ones


def test_each_cap_is_that_of_one_bucket_and_the_last_one_of_all_others() -> None:
    rebuilt = buckets(layers(5, 30 * MIB)).rebuilt
    assert [(bucket.indices, bucket.cap_bytes) for bucket in rebuilt] == [
        ((4,), MIB),
        ((3,), 25 * MIB),
        ((2,), 25 * MIB),
        ((1,), 25 * MIB),
        ((0,), 25 * MIB),
    ]
    defined = _in_defined_order(layers(4, 2), [2, 4, 2])
    assert [(bucket.indices, bucket.cap_bytes) for bucket in defined] == [((3,), 2), ((1, 2), 4), ((0,), 2)]


def test_a_table_grows_to_the_next_prime() -> None:
    """30 keys of one slot each: after 13 keys the table has 29 slots, after 29 keys 59, and is iterated over again."""
    unknown = [("float4", f"npu:{index}") for index in range(30)]
    expected: list[tuple[str, str]] = []
    for position, key in enumerate(unknown):
        if position in (13, 29):
            expected.reverse()  # each key is inserted again in front of those before it
        expected.insert(0, key)
    assert table_order(unknown) == expected
    assert table_order(unknown[:13]) == unknown[12::-1]
