"""Values pass between processes unchanged, in memory that is used again and given up when nobody looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.ranks.shared import SharedMemoryEnd


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[SharedMemoryEnd, SharedMemoryEnd]]:
    gc.collect()
    gc.freeze()  # what is here already, after other tests, is not looked through below
    yield SharedMemoryEnd(tmp_path / "e", 0), SharedMemoryEnd(tmp_path / "e", 1)
    gc.collect()
    assert not list(tmp_path.iterdir()), "mapped files must have no name"


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


VALUES = [
    None,
    b"bytes",
    {"x": np.arange(12.0).reshape(3, 4), "labels": ["a", 3]},
    [np.arange(10)[::3], np.asfortranarray(np.ones((3, 2))), np.empty((0, 3)), np.array(5), np.array(["a", "b"])],
    (torch.arange(6, dtype=torch.bfloat16).view(2, 3), torch.empty(0, 4), torch.tensor(3), torch.tensor([True, False])),
    [torch.arange(10)[::2], torch.ones(2, 3).t(), torch.tensor([1 + 2j]).conj(), torch.ones(2, requires_grad=True)],
    np.array([{"an": "object"}, None], dtype=object),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_as_it_was(ends, value):
    here, there = ends
    assert same(value, there.unpack(here.pack(value)))


def test_the_comparison_sees_a_difference():
    for one, other in [(np.arange(3), np.arange(3.0)), (torch.ones(2), torch.zeros(2)), ([1], (1,)), ({"a": 1}, {})]:
        assert not same(one, other)


def test_memory_is_used_again_when_nobody_looks_and_not_before(ends):
    here, there = ends
    first = there.unpack(here.pack(np.zeros(1000)))
    kept = [there.unpack(here.pack(np.full(1000, float(number)))) for number in range(1, 4)]
    here.unpack(there.pack("nothing is given back"))
    assert len(here._ours) == 4
    view, tensor = kept[0][10:20], torch.from_numpy(kept[1])
    del kept
    for number in range(20):
        there.unpack(here.pack(np.full(1000, 100.0 + number)))
        here.unpack(there.pack(None))
    assert len(here._ours) == 5, "two are free, and no more were needed"
    assert (first == 0).all()
    assert (view == 1).all()
    assert (tensor == 2).all()


def test_what_arrives_may_be_written_to(ends):
    here, there = ends
    original = np.zeros(5)
    arrived = there.unpack(here.pack(original))
    arrived += 1
    assert (original == 0).all()
    assert (arrived == 1).all()
