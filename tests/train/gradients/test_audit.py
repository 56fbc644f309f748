"""`audit_step` and `differing`: each finding and cause seen, and nothing found where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankscope.ranks import launch
from rankscope.ranks.errors import RankError
from rankscope.sampling import AuditError
from rankscope.train.gradients import Work, audit_step, differing

mse = nn.functional.mse_loss
DOUBLE = {"dtype": torch.float64}


def work(module: nn.Module | None = None, loss: Any = mse, targets: Tensor | None = None) -> Work:
    torch.manual_seed(0)
    inputs, numbers = torch.randn(8, 3, **DOUBLE), torch.randn(8, 1, **DOUBLE)
    return Work(module or nn.Linear(3, 1, **DOUBLE), inputs, numbers if targets is None else targets, loss)


# ---- steps


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


def scaled(ddp: Any, inputs: Tensor, targets: Tensor) -> None:
    (mse(ddp(inputs), targets) * 1024).backward()


# ---- modules and losses


class Noisy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + torch.rand_like(inputs))


class ByRank(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (1 + (dist.get_rank() if dist.is_initialized() else 0))


class Pair(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), inputs


class Branches(nn.Linear):
    """Uses its second layer only if an input is positive."""

    def __init__(self) -> None:
        super().__init__(3, 1, **DOUBLE)
        self.right = nn.Linear(3, 1, **DOUBLE)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs + self.right(inputs) if (inputs[:, 0] > 0).any() else outputs


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def in_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs @ targets.T, torch.arange(len(outputs)))


def spread(outputs: Any, targets: Tensor) -> Tensor:  # the whole batch's is not the mean of its parts'
    return (outputs[0] - targets).std()


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    """On a rank that has only padding, the mean is 0 / 0."""
    return ((outputs - targets).square() * (targets >= 0)).sum() / (targets >= 0).sum()


DROPPING = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5)).double()  # each rank would draw other numbers
LABELS = torch.tensor([0, 1, -100, -100, 1, 0, 1, 1])
TOKENS = work(nn.Linear(3, 2, **DOUBLE), nn.functional.cross_entropy, LABELS)
PADDED = work(loss=masked, targets=torch.tensor([1.0] * 4 + [-1.0] * 4, **DOUBLE)[:, None])
NOT_WHOLE = "not_the_whole_batch"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audited_work", "step", "kinds", "causes"),
    [
        (work(), None, [], []),
        (work(), accumulated, [], []),
        (work(DROPPING), None, [], []),
        (work(), forward_outside, ["ranks_differ"], []),
        (work(), never, ["ranks_differ"], []),
        (work(Noisy(3, 1, **DOUBLE)), None, [NOT_WHOLE], ["random numbers"]),
        (work(normed()), scaled, [NOT_WHOLE, "buffers_differ"], ["clip or scale", "BatchNorm"]),
        (work(ByRank(3, 1, **DOUBLE)), None, [NOT_WHOLE], ["torch.distributed"]),
        (work(loss=nn.MSELoss(reduction="sum")), None, [NOT_WHOLE], ["a sum?"]),
        (TOKENS, None, [NOT_WHOLE], ["mean of the ranks' losses"]),
        (work(loss=in_batch), None, [NOT_WHOLE], ["compare samples"]),
        # outputs that no experiment can compare: no cause is made up
        (work(Pair(3, 1, **DOUBLE), spread), None, [NOT_WHOLE], []),
        (PADDED, None, ["not_finite"], []),
    ],
)
def test_findings_and_their_causes(audited_work: Work, step: Any, kinds: list[str], causes: list[str]) -> None:
    before = torch.get_rng_state()
    audited = audit_step(audited_work, 2, step)
    assert [finding.kind for finding in audited.findings] == kinds
    assert len(audited.causes) == len(causes), audited.causes
    assert all(word in cause for word, cause in zip(causes, audited.causes, strict=True))
    assert audited.num_allreduces == (0 if step is never else 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert DROPPING[1].training
    audited.check(allow=kinds)
    if kinds:
        with pytest.raises(AuditError):
            audited.check()


@pytest.mark.slow
def test_how_far_gradients_are_off_and_which_buffers_differ() -> None:
    assert audit_step(work(loss=nn.MSELoss(reduction="sum")), 4).ratio == pytest.approx(1 / 4)
    assert audit_step(work(normed())).buffers == ("0.running_mean", "0.running_var")


@pytest.mark.slow
def test_a_parameter_that_one_rank_does_not_use_is_found_without_a_hang() -> None:
    one = work(Branches())
    one.inputs[:, 0] = torch.tensor([1.0] * 4 + [-1.0] * 4)
    audited = audit_step(one)
    assert [finding.kind for finding in audited.findings] == ["unused"]
    assert audited.unused == ((), ("right.weight", "right.bias"))


@pytest.mark.slow
def test_a_loss_that_is_no_tensor_is_refused_in_words() -> None:
    with pytest.raises(RankError, match=r"ValueError: loss_fn must return a tensor of one element .*, got float"):
        audit_step(work(loss=lambda outputs, targets: 3.0))


@pytest.mark.slow
def test_tensors_that_differ_are_named() -> None:
    def drifting() -> list[str]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(2))
        with torch.no_grad():
            module[0].bias += dist.get_rank() * 1e-7
        module[1].running_mean += dist.get_rank()  # type: ignore[operator]
        return differing(module)

    assert launch(drifting, 3) == [["0.bias", "1.running_mean"]] * 3
