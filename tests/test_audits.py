"""`audit_loader`, `audit_step` and `differing`: each finding seen, and nothing found where nothing is."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, get_worker_info

from rankscope.ranks import launch
from rankscope.ranks.errors import RankError
from rankscope.sampling import AuditError, audit_loader
from rankscope.train.gradients import Work, audit_step, differing

mse = nn.functional.mse_loss


def same_seed(worker: int) -> None:
    np.random.seed(0)


def seed_by_worker(worker: int) -> None:
    np.random.seed(worker)


class Stream(IterableDataset[int]):
    def __init__(self, split: bool) -> None:
        self.split = split

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(10)[worker.id :: worker.num_workers] if worker and self.split else range(10))


def kinds(audited: Any) -> list[str]:
    return [finding.kind for finding in audited.findings]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"batch_size": 5}, []),
        ({"batch_size": 4}, ["short_last_batch"]),
        ({"batch_size": 4, "drop_last": True}, []),
        ({"batch_size": 11, "drop_last": True}, ["nothing_read"]),
        ({"batch_size": None}, []),
        ({"batch_size": 5, "num_workers": 2}, []),
        ({"batch_size": 5, "num_workers": 2, "persistent_workers": True}, []),
        ({"batch_size": 5, "num_workers": 2, "worker_init_fn": same_seed}, ["same_random", "repeated_random"]),
        ({"batch_size": 5, "num_workers": 2, "worker_init_fn": seed_by_worker}, ["repeated_random"]),
    ],
)
def test_a_loader_is_audited(options: dict[str, Any], found: list[str]) -> None:
    audited = audit_loader(DataLoader(range(10), **options))  # type: ignore[arg-type]
    assert kinds(audited) == found
    assert ("nothing found" in str(audited)) == (not found)
    audited.check(allow=found)
    if found:
        with pytest.raises(AuditError):
            audited.check()


@pytest.mark.slow
def test_so_is_a_stream() -> None:
    assert kinds(audit_loader(DataLoader(Stream(False), batch_size=5, num_workers=2))) == ["read_by_each_worker"]
    assert kinds(audit_loader(DataLoader(Stream(True), batch_size=5, num_workers=2))) == []
    assert kinds(audit_loader(DataLoader(Stream(False), batch_size=5))) == []
    dropped = audit_loader(DataLoader(Stream(False), batch_size=4, num_workers=2, drop_last=True))
    assert kinds(dropped) == ["read_by_each_worker"]


class RowsOfWorkers(IterableDataset[int]):
    """Returns as many rows in each worker as are said, and 10 in the training process."""

    def __init__(self, *num_rows: int) -> None:
        self.num_rows = num_rows

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(10 if worker is None else self.num_rows[worker.id]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_rows", "found"),
    [((6, 6), ["read_too_often"]), ((3, 7), ["short_batch", "short_last_batch"]), ((4, 6), [])],
)
def test_a_stream_that_is_split_wrongly(num_rows: tuple[int, ...], found: list[str]) -> None:
    """12 rows of 10, because shares are rounded up too far; and a worker that ends with a short batch before others."""
    assert sorted(kinds(audit_loader(DataLoader(RowsOfWorkers(*num_rows), batch_size=2, num_workers=2)))) == found


class DrawsRows(Dataset[float]):
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


def own_generator(worker: int) -> None:
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["same_random", "repeated_random"]),
        ({"persistent_workers": True}, ["same_random"]),
        ({"worker_init_fn": own_generator}, []),
    ],
)
@pytest.mark.parametrize("make", [np.random.default_rng, random.Random])
def test_a_generator_of_the_dataset_that_every_worker_copies(make: Any, options: Any, found: list[str]) -> None:
    dataset = DrawsRows(make(0))
    assert kinds(audit_loader(DataLoader(dataset, batch_size=2, num_workers=2, **options))) == found
    assert dataset[0] == DrawsRows(make(0))[0]


class StuckAfterOne(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0
        time.sleep(60)


@pytest.mark.slow
def test_a_worker_that_takes_longer_than_the_timeout_of_the_loader_ends_the_audit() -> None:
    loader = DataLoader(StuckAfterOne(), batch_size=1, num_workers=1, timeout=2)
    with pytest.raises(RuntimeError, match="timed out after 2 seconds"):
        audit_loader(loader)


class Lists(IterableDataset[list[int]]):
    """Samples that are lists, such as the tokens of a text."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1, 2], [3, 4], [5, 6]])


def test_repeats_of_a_sampler_and_samples_that_are_lists_are_not_reads_by_each_worker() -> None:
    twice = RandomSampler(range(10), replacement=True, num_samples=20)  # type: ignore[arg-type]
    assert kinds(audit_loader(DataLoader(range(10), batch_size=5, sampler=twice))) == []  # type: ignore[arg-type]
    audited = audit_loader(DataLoader(Lists(), batch_size=3))
    assert kinds(audited) == []
    assert audited.batch_sizes == (3,)


@pytest.mark.slow
def test_workers_draw_numbers_that_are_not_equal_by_chance() -> None:
    """A number of 24 bits, as in float32, would be equal for two of 64 workers in one of 8,000 audits."""
    draws = audit_loader(DataLoader(range(4), num_workers=2)).draws  # type: ignore[arg-type]
    for numbers in draws.values():
        assert all(number * 2**24 % 1 for _, number in numbers)


def test_an_empty_last_batch_is_found() -> None:
    audited = audit_loader(DataLoader(range(2), batch_sampler=[[0, 1], []]))  # type: ignore[arg-type]
    assert kinds(audited) == ["short_last_batch"]
    assert "not defined" in str(audited)


def test_a_loader_leaves_the_random_numbers_of_this_process_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    audit_loader(DataLoader(range(10), batch_size=5, generator=torch.Generator()))  # type: ignore[arg-type]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


class Draws(IterableDataset[float]):
    """Draws its samples from the generators of the process that reads it."""

    def __iter__(self) -> Iterator[float]:
        return iter([random.random(), float(np.random.random()), float(torch.rand(1))])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("has_generator", [True, False])
def test_a_loader_that_shuffles_goes_on_as_if_there_had_been_no_audit(num_workers: int, has_generator: bool) -> None:
    def order(is_audited: bool) -> list[int]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4) if has_generator else None
        loader: DataLoader[int] = DataLoader(
            range(20),  # type: ignore[arg-type]
            shuffle=True,
            generator=generator,
            num_workers=num_workers,
        )
        if is_audited:
            audit_loader(loader)
        return [int(batch) for batch in loader]

    assert order(is_audited=True) == order(is_audited=False)


class ShufflesWith(Sampler[int]):
    """Shuffles with a generator of its own, whose name is not `generator`."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.rng, torch.Generator):
            return iter(torch.randperm(20, generator=self.rng).tolist())
        order = list(range(20))
        self.rng.shuffle(order)
        return iter(order)


class DrawsFrom(IterableDataset[float]):
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __iter__(self) -> Iterator[float]:
        return iter([self.rng.random() for _ in range(20)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator().manual_seed(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.RandomState(1),
        lambda: np.random.RandomState(np.random.PCG64(1)),
        lambda: random.Random(1),
    ],
    ids=["torch", "numpy", "RandomState", "RandomState of another kind", "random"],
)
def test_the_own_generator_of_a_sampler_is_where_it_was_after_an_audit(make: Any) -> None:
    orders = []
    for is_audited in (True, False):
        sampler = ShufflesWith(make())
        if is_audited:
            audit_loader(DataLoader(range(20), sampler=sampler))  # type: ignore[arg-type]
        orders.append(list(sampler))
    assert orders[0] == orders[1]


def test_so_is_that_of_a_dataset_that_is_read() -> None:
    dataset = DrawsFrom(random.Random(1))
    audit_loader(DataLoader(dataset))
    assert list(dataset) == list(DrawsFrom(random.Random(1)))


class WithoutState(random.Random):
    def getstate(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("make", [random.SystemRandom, WithoutState])
def test_a_sampler_whose_generator_has_no_state_is_audited(make: Any) -> None:
    assert kinds(audit_loader(DataLoader(range(20), sampler=ShufflesWith(make())))) == []  # type: ignore[arg-type]


def test_a_dataset_that_is_read_for_an_audit_draws_from_generators_that_are_put_back() -> None:
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]
    audit_loader(DataLoader(Draws(), batch_size=2))
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[2])


# ---- steps


def work(module: nn.Module | None = None, loss: Any = mse) -> Work:
    torch.manual_seed(0)
    both = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    return Work(module or nn.Linear(3, 1, dtype=torch.float64), *both, loss)


def accumulated(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
    with ddp.no_sync():
        (mse(ddp(inputs[::2]), targets[::2]) / 2).backward()
    (mse(ddp(inputs[1::2]), targets[1::2]) / 2).backward()


def forward_outside(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
    first, last = (mse(ddp(inputs[part::2]), targets[part::2]) / 2 for part in range(2))
    first.backward()
    with ddp.no_sync():
        last.backward()


def never(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
    with ddp.no_sync():
        mse(ddp(inputs), targets).backward()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(3, 1, dtype=torch.float64) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        positive = inputs[:, 0] > 0
        outputs: Tensor = self.left(inputs)
        if positive.any():
            outputs = outputs.index_add(0, positive.nonzero()[:, 0], self.right(inputs[positive]))
        return outputs


@pytest.mark.slow
def test_a_step_that_equals_one_process_has_no_findings() -> None:
    dropping = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5)).double()  # each rank would draw other numbers
    for module, step, num_allreduces in ((None, None, 1), (None, accumulated, 1), (dropping, None, 1)):
        audited = audit_step(work(module), 4, step)
        audited.check()
        assert audited.num_allreduces == num_allreduces
        assert "the gradients are those of one process" in str(audited)
    assert dropping[1].training


class Turned(nn.Module):
    """Turns complex numbers by its only parameter, whose gradient is imaginary too."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.tensor(0.6 + 0.8j, dtype=torch.complex128))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs[:, :1] * (2 + 1j) * self.turn).imag


@pytest.mark.slow
def test_imaginary_parts_of_gradients_are_compared() -> None:
    def turned(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
        """Change only the imaginary part of the gradient."""
        mse(ddp(inputs), targets).backward()
        ddp.module.turn.grad.imag.mul_(2)

    audited = audit_step(work(Turned()))
    assert kinds(audited) == []
    assert audited.num_allreduces == 1
    assert kinds(audit_step(work(Turned()), 2, turned)) == ["not_the_whole_batch"]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "num_allreduces"), [(forward_outside, 1), (never, 0)])
def test_a_step_that_is_not_synchronised_is_found(step: Any, num_allreduces: int) -> None:
    audited = audit_step(work(), 2, step)
    assert kinds(audited) == ["ranks_differ"]
    assert audited.num_allreduces == num_allreduces
    assert ("DDP did not run any allreduce" in str(audited)) == (num_allreduces == 0)
    with pytest.raises(AuditError, match="Ranks have different gradients"):
        audited.check()


@pytest.mark.slow
def test_a_step_that_clips_too_early_is_told_from_a_wrong_module() -> None:
    def clipped_early(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
        with ddp.no_sync():
            (mse(ddp(inputs[:2]), targets[:2]) / 2).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        (mse(ddp(inputs[2:]), targets[2:]) / 2).backward()

    audited = audit_step(work(), 2, clipped_early)
    assert kinds(audited) == ["not_the_whole_batch"]
    (cause,) = audited.causes
    assert "clip or scale" in cause


@pytest.mark.slow
def test_a_module_that_draws_random_numbers_is_named_and_the_callers_are_left_alone() -> None:
    class Noisy(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs + torch.rand_like(inputs))

    noisy = work(Noisy(3, 1, dtype=torch.float64))
    before = torch.get_rng_state()
    (cause,) = audit_step(noisy).causes
    assert "random numbers" in cause
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_a_loss_that_is_no_tensor_is_refused_in_words() -> None:
    with pytest.raises(RankError, match=r"ValueError: loss_fn must return a tensor of one element .*, got float"):
        audit_step(work(loss=lambda outputs, targets: 3.0))


@pytest.mark.slow
def test_a_step_that_scales_its_loss_is_named_also_next_to_another_cause() -> None:
    def scaled(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
        (mse(ddp(inputs), targets) * 1024).backward()

    audited = audit_step(work(), 2, scaled)
    (cause,) = audited.causes
    assert "clip or scale" in cause
    assert audited.ratio == pytest.approx(1024)
    with_norm = work(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
    first, second = audit_step(with_norm, 2, scaled).causes
    assert first == cause
    assert "BatchNorm" in second


@pytest.mark.slow
def test_without_a_step_no_step_is_blamed() -> None:
    class ByRank(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            return super().forward(inputs) * (1 + rank)

    (cause,) = audit_step(work(ByRank(3, 1, dtype=torch.float64))).causes
    assert "torch.distributed" in cause


@pytest.mark.slow
def test_a_loss_that_compares_samples_and_outputs_of_many_widths_are_measured_as_far_as_possible() -> None:
    def in_batch(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs @ targets.T, torch.arange(len(outputs)))

    (cause,) = audit_step(work(loss=in_batch)).causes
    assert "compare samples" in cause

    class Trimmed(nn.Linear):
        """Its outputs are as wide as the batch is long."""

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).expand(-1, len(inputs))

    def of_rows(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(dim=1, keepdim=True) - targets).square().mean()

    assert kinds(audit_step(work(Trimmed(3, 1, dtype=torch.float64), of_rows))) == ["not_the_whole_batch"]


@pytest.mark.slow
def test_outputs_that_are_no_tensor_have_no_cause_that_is_made_up() -> None:
    class Pair(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            return super().forward(inputs), inputs

    def spread_of_first(outputs: Any, targets: Tensor) -> Tensor:
        return (outputs[0] - targets).std()

    audited = audit_step(work(Pair(3, 1, dtype=torch.float64), spread_of_first))
    assert kinds(audited) == ["not_the_whole_batch"]
    assert audited.causes == ()


@pytest.mark.slow
def test_a_loss_whose_parts_are_not_comparable_has_no_cause_that_is_made_up() -> None:
    def spread(outputs: Tensor, targets: Tensor) -> Tensor:  # of the whole batch is not the mean of its parts' either
        return (outputs - targets).std()

    audited = audit_step(work(loss=spread))
    assert kinds(audited) == ["not_the_whole_batch"]
    assert not any("BatchNorm" in cause or "random" in cause for cause in audited.causes)


@pytest.mark.slow
def test_a_sum_and_a_loss_over_tokens_are_found() -> None:
    audited = audit_step(work(loss=nn.MSELoss(reduction="sum")), 4)
    assert kinds(audited) == ["not_the_whole_batch"]
    assert audited.ratio == pytest.approx(1 / 4)
    assert "Is the loss a sum?" in str(audited)
    labels = torch.tensor([0, 1, -100, -100, 1, 0, 1, 1])
    tokens = Work(nn.Linear(3, 2, dtype=torch.float64), work().inputs, labels, nn.functional.cross_entropy)
    (cause,) = audit_step(tokens).causes
    assert "mean of the ranks' losses" in cause


@pytest.mark.slow
def test_gradients_that_are_no_numbers_are_found() -> None:
    """The mean over the samples of a rank that has only padding is 0 / 0, which the allreduce gives to all ranks."""

    def masked(outputs: Tensor, targets: Tensor) -> Tensor:
        is_padding = targets < 0
        return ((outputs - targets).square() * ~is_padding).sum() / (~is_padding).sum()

    targets = torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=torch.float64)[:, None]
    audited = audit_step(Work(nn.Linear(3, 1, dtype=torch.float64), work().inputs, targets, masked))
    assert kinds(audited) == ["not_finite"]
    assert "on rank 0, 1, so" in str(audited)
    infinite = Work(nn.Linear(3, 1), torch.full((8, 3), 1e30), torch.zeros(8, 1), mse)
    assert "on rank 0, 1 and in one process, so" in str(audit_step(infinite))


@pytest.mark.slow
def test_statistics_of_a_ranks_own_batch_are_found() -> None:
    audited = audit_step(work(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()))
    assert kinds(audited) == ["not_the_whole_batch", "buffers_differ"]
    assert audited.buffers == ("0.running_mean", "0.running_var")
    assert ["BatchNorm" in cause for cause in audited.causes] == [True]
    audited.check(allow=["not_the_whole_batch", "buffers_differ"])


@pytest.mark.slow
def test_a_parameter_that_one_rank_does_not_use_is_found_without_a_hang() -> None:
    one = work(Branches())
    one.inputs[:, 0] = torch.tensor([1.0] * 4 + [-1.0] * 4)
    audited = audit_step(one)
    assert kinds(audited) == ["unused"]
    assert audited.unused == ((), ("right.weight", "right.bias"))
    audited.check(allow=["unused"])


@pytest.mark.slow
def test_tensors_that_differ_are_named() -> None:
    def drifting() -> list[str]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(2))
        with torch.no_grad():
            module[0].bias += torch.distributed.get_rank() * 1e-7
        module[1].running_mean += torch.distributed.get_rank()  # type: ignore[operator]
        return differing(module)

    assert launch(drifting, 3) == [["0.bias", "1.running_mean"]] * 3


def test_bad_input_is_refused() -> None:
    for arguments, word in (((work(), 3), "inputs"), ((work(), 2, 3), "step"), ((None,), "work")):
        with pytest.raises(ValueError, match=word):
            audit_step(*arguments)  # type: ignore[arg-type]
