"""Batches arrive as the loader gave them, whatever is late; a prefetcher that leaves out a precaution is caught."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from rankscope.pipeline import overlap_share, prefetched
from rankscope.pipeline.prefetch import Prefetched
from rankscope.timeline import Recorder, Timeline

from .late_cuda import COPY, LateCuda, LateEvent

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
Pair = namedtuple("Pair", ["image", "label"])


def late_prefetched(
    late: LateCuda, loader: Any, num_ahead: int = 1, recorder: Recorder | None = None
) -> Prefetched[Any]:
    return Prefetched(loader, late, num_ahead, recorder)  # type: ignore[arg-type]


def assert_same(found: Any, expected: Any) -> None:
    """The same structure, types, values and strides."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


# ---- any batch, any order

DTYPES = (torch.float32, torch.uint8, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    tensor = (torch.rand([2 * side for side in shape]) * 100).to(draw(st.sampled_from(DTYPES)))
    kind = draw(st.sampled_from(["contiguous", "every other", "transposed", "expanded", "conjugate"]))
    if kind == "contiguous":
        return tensor.clone()
    if kind == "conjugate":
        return tensor.conj()
    if kind == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if kind == "transposed":
        return tensor.permute(list(reversed(range(tensor.ndim))))
    return tensor[tuple(slice(None, None, 2) for _ in shape)]


PLAIN = st.sampled_from(["name", 7, None, 2.5, b"raw"])
BATCHES = st.recursive(
    tensors() | PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=5,
)


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


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_batches_arrive_as_they_were_whatever_the_order(data: st.DataObject) -> None:
    batches = data.draw(st.lists(BATCHES, max_size=6))
    expected = [tree_map_only(torch.Tensor, torch.clone, batch) for batch in batches]
    late = LateCuda(data.draw(st.randoms(use_true_random=True)), data.draw(st.sampled_from([0.0, 0.4, 0.8])))
    for leaf in tensors_of(batches):
        if data.draw(st.booleans()):
            late.pin(leaf)
    iterator = iter(late_prefetched(late, loaded(batches, late), data.draw(st.integers(1, 3))))
    reads, kept, num_seen = [], [], min(len(batches), data.draw(st.integers(0, 8)))
    for batch in itertools.islice(iterator, num_seen):
        reads.append((shell_of(batch), late.step(tensors_of(batch))))
        kept.append(batch if data.draw(st.booleans()) else None)
        del batch  # the device may be far from having run the step
    assert len(reads) == num_seen
    if num_seen == len(batches):
        assert next(iterator, "the end") == "the end"
    del iterator
    assert not late.num_queued(COPY)
    late.run_all()
    assert late.errors == []
    for (shell, read), wanted in zip(reads, expected, strict=False):
        assert_same([shell, read], [shell_of(wanted), tensors_of(wanted)])


def test_what_is_pinned_is_not_copied_again() -> None:
    late = LateCuda(random.Random(0))
    pinned = late.pin(torch.ones(2, 3, 4, 5))
    for batch in late_prefetched(late, [[pinned, pinned[1], torch.ones(3)]] * 5):
        late.step(batch)
    assert late.num_pinned == 5
    late.run_all()
    assert late.errors == []


@given(rng=st.randoms(use_true_random=True), num_ahead=st.integers(1, 4), num_batches=st.integers(0, 12))
@settings(max_examples=30, deadline=None)
def test_a_slow_device_is_not_filled_with_batches(rng: random.Random, num_ahead: int, num_batches: int) -> None:
    late = LateCuda(rng)  # which runs nothing before it must
    for batch in late_prefetched(late, [torch.ones(3)] * num_batches, num_ahead):
        late.step([batch])
    assert min(num_batches, num_ahead + 1) <= late.max_batches <= 2 * num_ahead + 1


# ---- the device that does things late catches a prefetcher that leaves a precaution out


def nothing(*_: object) -> None:
    pass


def same(late: LateCuda, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


PRECAUTIONS = {
    "waiting before a read": (LateCuda, "wait_for", nothing, "read before its copy had ended"),
    "waiting before letting go": (LateEvent, "synchronize", nothing, "freed before its copy had ended"),
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


def recorded(num_ahead: int, copy_s: float, step_s: float, load_s: float = 0.0, stage_s: float = 0.0) -> Timeline:
    late, recorder = LateCuda(random.Random(num_ahead), 0.2, bytes_per_s=1000 / copy_s), Recorder(rank=3)

    def loader() -> Iterator[torch.Tensor]:
        for _ in range(40):
            late.host_s += load_s
            yield late.pin(torch.zeros(1000, dtype=torch.uint8))

    late.stage_s = stage_s
    for batch in late_prefetched(late, loader(), num_ahead, recorder):
        late.step([batch], step_s)
    return recorder.timeline()


@pytest.mark.parametrize("num_ahead", [1, 2, 3])
@pytest.mark.parametrize(("copy_s", "step_s"), [(0.003, 0.003), (0.002, 0.005), (0.005, 0.002)])
def test_a_step_takes_the_longer_of_copy_and_compute(num_ahead: int, copy_s: float, step_s: float) -> None:
    timeline = recorded(num_ahead, copy_s, step_s)
    timeline.check()
    copies, steps = timeline.select(lane="copy"), timeline.select(lane="compute")
    assert len(copies) == len(steps) == 40
    assert set(timeline.rank.tolist()) == {3}
    assert steps.item.tolist() == list(range(40))
    assert (copies.stop_s - copies.start_s).tolist() == pytest.approx([copy_s] * 40)
    assert (steps.stop_s - steps.start_s).tolist() == pytest.approx([step_s] * 40)
    assert timeline.makespan_s == pytest.approx(copy_s + step_s + 39 * max(copy_s, step_s))
    assert overlap_share(timeline) == pytest.approx(1.0, abs=0.02)


def test_items_go_on_over_iterations_and_a_step_left_has_no_span() -> None:
    late, recorder = LateCuda(random.Random(0)), Recorder()
    batches = late_prefetched(late, [torch.ones(2)] * 4, recorder=recorder)
    assert len(list(batches)) == 4
    for batch in batches:
        late.step([batch])
        break
    timeline = recorder.timeline()
    assert timeline.select(lane="copy").item.tolist() == [0, 1, 2, 3, 4, 5]
    assert timeline.select(lane="compute").item.tolist() == [0, 1, 2, 3]


# ---- what holds on any device


def batches_on(where: str, loader: Any) -> Prefetched[Any]:
    on_cpu = where == "cpu"
    return prefetched(loader, "cpu") if on_cpu else late_prefetched(LateCuda(random.Random(1)), loader)


@pytest.fixture(params=["cpu", "late"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_is_the_loader_for_all_else(where: str) -> None:
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(data, batch_size=3, sampler=DistributedSampler(data, 1, 0, seed=4))
    batches = batches_on(where, loader)
    assert len(batches) == 4
    assert batches.batch_size == 3
    seen = []
    for epoch in (0, 1):
        batches.sampler.set_epoch(epoch)
        seen.append([leaf.clone() for batch in loader for leaf in batch])
        if where == "cpu":
            assert all(map(torch.equal, seen[-1], (leaf for batch in batches for leaf in batch)))
        else:
            assert [leaf.shape for batch in batches for leaf in batch] == [leaf.shape for leaf in seen[-1]]
    assert not all(map(torch.equal, *seen))
    assert list(zip(*[batches_on(where, "abc")] * 2, strict=True)) == [(one, one) for one in "abc"], "two at once"
    with pytest.raises(AttributeError, match="no_such"):
        batches.no_such  # noqa: B018
    with pytest.raises(TypeError, match="len"):
        len(batches_on(where, iter([])))


def test_an_error_of_the_loader_surfaces_and_leaves_no_cycle(where: str) -> None:
    class DiskGone(Exception):
        pass

    class Loader:
        def __iter__(self) -> Iterator[int]:
            yield from (1, 2)
            raise DiskGone

    gc.disable()
    try:
        seen, known = [], None
        try:
            for batch in batches_on(where, Loader()):
                seen.append(batch)
        except DiskGone as error:
            known = weakref.ref(error)
        assert seen == ([1, 2] if where == "cpu" else [1])
        assert known is not None
        assert known() is None
    finally:
        gc.enable()


def test_leaving_early_ends_the_loader(where: str) -> None:
    ended = []

    def loader() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            ended.append(True)

    for batch in batches_on(where, loader()):
        if batch == 3:
            break
    del batch
    gc.collect()
    assert ended == [True]


def test_a_batch_is_not_held_by_the_iterator() -> None:
    iterator = iter(late_prefetched(LateCuda(random.Random(0)), [[torch.ones(2)], [torch.ones(2)] * 2, []]))
    batch = next(iterator)
    known = weakref.ref(batch[0])
    del batch
    assert known() is None


def test_containers_that_pytree_does_not_know_are_moved_by_their_own_to_or_not_at_all() -> None:
    class Own(dict[str, Any]):
        pass

    own, nested = Own(x=torch.ones(1)), {"x": [torch.ones(1), (torch.ones(1), "a")]}
    ((found, moved),) = late_prefetched(LateCuda(random.Random(0)), [(own, nested)])
    assert found is own
    assert all(one is not other for one, other in zip(tensors_of(moved), tensors_of(nested), strict=True))


# ---- objects


class Slotted:
    __slots__ = ("data", "where")

    def __init__(self, data: Any, where: Any = None) -> None:
        self.data, self.where = data, where

    def to(self, device: Any) -> Slotted:
        return Slotted(self.data, device)


def test_an_object_and_what_is_no_plain_tensor_are_moved_their_own_way() -> None:
    graph = torch.ones(2, requires_grad=True)
    given = [Slotted(4), torch.eye(3).to_sparse(), graph, torch.nn.Parameter(torch.ones(1)), object]
    late = LateCuda(random.Random(0))
    (found,) = late_prefetched(late, [given])
    assert found[0].where == late.device
    assert all(one is other for one, other in zip(found[1:], given[1:], strict=True))


# ---- on a GPU


def busy(milliseconds: float) -> None:
    """Keep the current stream busy, about that long."""
    torch.cuda._sleep(round(milliseconds * 1.5e6))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_ahead", [1, 3])
def test_data_is_right_on_a_gpu_whatever_is_late(num_ahead: int) -> None:
    rng, sums, expected = random.Random(num_ahead), [], []

    def loader() -> Iterator[Any]:
        reused = torch.empty(1 << 22)
        for number in range(150):
            size = rng.choice([0, 1, 1000, 1 << 20, 1 << 22])
            reused[:size] = number
            matrix = torch.full((7, 5), float(number)).t()
            fresh = torch.full((size,), number)
            expected.append([float(number) * size, number * size, number * 35.0])
            yield reused[:size], fresh.pin_memory() if number % 2 else fresh, {"t": matrix}

    for batch in prefetched(loader(), "cuda", num_ahead):
        if rng.random() < 0.3:
            busy(rng.random() * 5)
        one, other, rest = batch
        assert (one.device.type, rest["t"].stride()) == ("cuda", (1, 5))
        sums.append([one.double().sum(), other.sum(), rest["t"].sum()])
        del batch, one, other, rest
    assert [[float(value) for value in row] for row in sums] == expected


@pytest.mark.gpu
@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device_on_a_gpu() -> None:
    batches = prefetched([(torch.ones(1000), torch.ones(4).pin_memory())] * 20, "cuda")
    totals = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for one, other in batches:
            busy(0.5)
            totals.append(one.sum() + other.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(total) for total in totals] == [1004.0] * 20


@pytest.mark.gpu
@on_gpu
def test_leaving_early_on_a_gpu_leaves_no_copy_under_way() -> None:
    batches = prefetched([torch.ones(1 << 26).pin_memory() for _ in range(4)], "cuda", num_ahead=2)
    first = next(iter(batches))  # and its iterator is gone
    assert batches.gpu is not None
    assert batches.gpu._copy_stream.query()
    assert float(first.sum()) == 1 << 26


@pytest.mark.gpu
@on_gpu
def test_copies_overlap_with_steps_on_a_gpu() -> None:
    recorder = Recorder()
    for batch in prefetched([torch.ones(1 << 25).pin_memory() for _ in range(20)], "cuda", recorder=recorder):
        busy(5)
        del batch
    recorder.timeline().check()
    assert overlap_share(recorder.timeline()) > 0.9
