"""Batches arrive as the loader gave them, whatever is late; a prefetcher that leaves out a precaution is caught."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from rankscope.pipeline import prefetched
from rankscope.pipeline.transfers.run import Prefetched

from .late_cuda import LateCuda

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
Pair = namedtuple("Pair", ["image", "label"])


def late_prefetched(late: LateCuda, loader: Any) -> Prefetched[Any]:
    return Prefetched(loader, late)  # type: ignore[arg-type]


# ---- any batch, any order


def random_batch(draw: random.Random) -> Any:
    """Tensors of all kinds of strides and types in containers of all kinds, and what is no tensor."""
    dtype = draw.choice([torch.float32, torch.uint8, torch.bool, torch.bfloat16, torch.complex64])
    tensor = (torch.rand([draw.randint(0, 4), 6, 4]) * 100).to(dtype)
    tensors = [tensor, tensor.mT, tensor[:, ::2], tensor.unsqueeze(0).expand(3, *tensor.shape), tensor.conj()]
    one, other = draw.choices(tensors, k=2)
    containers = [one, [one, "name"], (one, [other]), Pair(one, None), {"a": one, "b": (other, 7)}, OrderedDict(c=one)]
    return draw.choice([*containers, [], 2.5])


def tensors_of(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def shell_of(batch: Any) -> Any:
    """The batch without its tensors."""
    return tree_map_only(torch.Tensor, lambda _: None, batch)


def loaded(batches: list[Any], late: LateCuda) -> Iterator[Any]:
    """Gives each batch, and then scribbles over what is not pinned in it: loaders may use their memory again."""
    for batch in batches:
        yield batch
        for leaf in tensors_of(batch):
            if not late.knows(leaf):
                leaf.untyped_storage().fill_(0)


@pytest.mark.parametrize("seed", range(100))
def test_batches_arrive_as_they_were_whatever_the_order(seed: int) -> None:
    draw = random.Random(seed)
    batches = [random_batch(draw) for _ in range(draw.randint(0, 6))]
    expected = [tree_map_only(torch.Tensor, torch.clone, batch) for batch in batches]
    late = LateCuda(draw, draw.choice([0.0, 0.4, 0.8]))
    for leaf in tensors_of(batches):
        if draw.random() < 0.5:
            late.pin(leaf)
    iterator = iter(late_prefetched(late, loaded(batches, late)))
    reads, kept = [], []
    for batch in itertools.islice(iterator, draw.randint(0, 8)):
        reads.append((shell_of(batch), late.step(tensors_of(batch))))
        kept.append(draw.choice([batch, None]))
        del batch  # the device may be far from having run the step
    del iterator
    late.run_all()
    assert late.errors == []
    for (shell, read), wanted in zip(reads, expected, strict=False):
        assert (type(shell), repr(shell)) == (type(shell_of(wanted)), repr(shell_of(wanted)))
        for one, other in zip(read, tensors_of(wanted), strict=True):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())
            assert torch.equal(one, other)


# ---- the device that does things late catches a prefetcher that leaves a precaution out


def nothing(*_: object) -> None:
    pass


def same(late: LateCuda, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


PRECAUTIONS = {
    "waiting before a read": (LateCuda, "wait_for", nothing, "read before its copy had ended"),
    "recording on the stream": (LateCuda, "hand_over", nothing, "freed while a step uses it"),
    "pinning": (LateCuda, "pinned", same, "not pinned"),
    "nothing": (LateCuda, "device", "cpu", ""),
}


@pytest.mark.parametrize("without", PRECAUTIONS)
def test_a_precaution_left_out_is_caught(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    owner, name, instead, message = PRECAUTIONS[without]
    monkeypatch.setattr(owner, name, instead, raising=False)
    errors = []
    for seed in range(20):
        rng = random.Random(seed)
        late = LateCuda(rng, rng.choice([0.0, 0.3, 0.6]))
        for number, batch in enumerate(late_prefetched(late, [torch.full((4,), float(n)) for n in range(6)])):
            late.step([batch])
            del batch
            if number == 4:
                break
        late.run_all()
        errors += late.errors
    assert any(message in error for error in errors) if message else not errors


# ---- time, on the late device's clock


@pytest.mark.parametrize(("copy_s", "step_s"), [(0.003, 0.003), (0.002, 0.005), (0.005, 0.002)])
def test_a_step_takes_the_longer_of_copy_and_compute(copy_s: float, step_s: float) -> None:
    late = LateCuda(random.Random(1), 0.2, bytes_per_s=1000 / copy_s)
    loader = [late.pin(torch.zeros(1000, dtype=torch.uint8)) for _ in range(40)]
    for batch in late_prefetched(late, loader):
        late.step([batch], step_s)
    late.run_until(late.mark())
    assert late.host_s == pytest.approx(copy_s + step_s + 39 * max(copy_s, step_s))


# ---- on a GPU


def busy(milliseconds: float) -> None:
    """Keep the current stream busy, about that long."""
    torch.cuda._sleep(round(milliseconds * 1.5e6))


@pytest.mark.gpu
@on_gpu
def test_data_is_right_on_a_gpu_whatever_is_late() -> None:
    rng, sums, expected = random.Random(1), [], []

    def loader() -> Iterator[Any]:
        reused = torch.empty(1 << 22)
        for number in range(150):
            size = rng.choice([0, 1, 1000, 1 << 20, 1 << 22])
            reused[:size] = number
            fresh = torch.full((size,), number)
            expected.append([float(number) * size, number * size])
            yield reused[:size], fresh.pin_memory() if number % 2 else fresh

    for batch in prefetched(loader(), "cuda"):
        if rng.random() < 0.3:
            busy(rng.random() * 5)
        sums.append([part.double().sum() for part in batch])
        del batch
    assert [[float(value) for value in row] for row in sums] == expected


@pytest.mark.gpu
@on_gpu
def test_a_batch_outlives_its_iteration_on_a_gpu() -> None:
    batches = prefetched([torch.ones(1 << 25).pin_memory() for _ in range(20)], "cuda")
    for batch in batches:
        busy(5)
        del batch
    first = next(iter(batches))  # and its iterator is gone
    assert float(first.sum()) == 1 << 25
