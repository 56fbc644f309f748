"""`audit_step` and `differing`: each finding seen, and nothing found where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.ranks import launch
from rankscope.ranks.errors import RankError
from rankscope.sampling import AuditError
from rankscope.train.gradients import Work, audit_step, differing

mse = nn.functional.mse_loss


def kinds(audited: Any) -> list[str]:
    return [finding.kind for finding in audited.findings]


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
