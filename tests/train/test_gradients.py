"""Each effect on real ranks, against torch in this process; and each check, given something wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

from rankscope.train.gradients import DemoError, Work, equal_training, values_of

from ..small import CROSS, batch, mlp

pytestmark = pytest.mark.slow


def work(size: int = 12, loss_fn: Any = CROSS, dtype: torch.dtype = torch.float64) -> Work:
    return Work(mlp(dtype), *batch(size, dtype), loss_fn)


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return CROSS(outputs, targets, reduction="sum")


def gradient(module: nn.Module, loss: torch.Tensor) -> np.ndarray[Any, Any]:
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return np.concatenate([tensor.numpy().ravel() for tensor in gradients])


# ---- DDP and one process


@pytest.mark.parametrize(("num_ranks", "dtype"), [(2, torch.float64), (3, torch.float32)])
def test_ddp_trains_as_one_process_does(num_ranks: int, dtype: torch.dtype) -> None:
    trained = equal_training(work(dtype=dtype), num_ranks, num_steps=4, learning_rate=0.2)
    trained.check()
    module, (inputs, targets) = mlp(dtype), batch(12, dtype)
    velocity = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for _ in range(4):  # the oracle: momentum by hand
        gradients = torch.autograd.grad(CROSS(module(inputs), targets), list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient, speed in zip(module.parameters(), gradients, velocity, strict=True):
                parameter.sub_(0.2 * speed.mul_(0.9).add_(gradient))
    by_hand = np.concatenate([p.detach().double().numpy().ravel() for p in module.parameters()])
    for rank in trained.ranks:
        np.testing.assert_allclose(rank, by_hand, rtol=0, atol=1e-14 if dtype is torch.float64 else 1e-5)
    off = trained.ranks[1].copy()
    off[3] = np.nextafter(off[3], 9)
    with pytest.raises(DemoError, match="ranks have come to different parameters"):
        evolve(trained, ranks=(trained.ranks[0], off)).check()
    diverged = np.full_like(off, np.nan)
    with pytest.raises(DemoError, match="after 4 steps, parameters are infinite or not numbers"):
        evolve(trained, ranks=(diverged, diverged)).check()
    with pytest.raises(DemoError, match="after 4 steps, parameters are infinite or not numbers"):
        evolve(trained, single=np.full_like(off, np.inf)).check()
    with pytest.raises(DemoError, match="4 steps of training changed the parameters by only 0 of"):
        evolve(trained, start=trained.single).check()


def test_a_summed_loss_gives_an_nth_and_a_mean_does_not() -> None:
    training = equal_training(work(loss_fn=summed), num_ranks=3, num_steps=1)
    training.check(share=1 / 3)
    assert training.ratio == pytest.approx(1 / 3)
    (inputs, targets), module = batch(12), mlp()
    by_hand = values_of(mlp()) - 0.1 / 3 * gradient(module, summed(module(inputs), targets))
    np.testing.assert_allclose(training.ranks[0], by_hand, rtol=0, atol=1e-14)
    with pytest.raises(DemoError, match="after 1 steps the ranks' change differs from 1 × one process's change by 0"):
        training.check()


# ---- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equal_training(work(11)), "inputs must be a multiple of 2 samples, got 11"),
        (lambda: equal_training(work(), 1), "num_ranks must be a whole number from 2 to 64"),
        (lambda: equal_training(work(), 2, 0), "num_steps must be a whole number of at least 1"),
        (lambda: equal_training(work(), learning_rate=0), "learning_rate must be a finite number above 0, got 0"),
        (lambda: equal_training(mlp()), "work must be a Work, got Sequential"),  # type: ignore[arg-type]
        (lambda: Work(nn.Tanh(), *batch(12), CROSS), "module must have a parameter that gets a gradient"),
        (lambda: Work(3, *batch(12), CROSS), "module must be a Module, got 3"),  # type: ignore[arg-type]
        (lambda: Work(mlp(), torch.tensor(1.0), batch(12)[1], CROSS), "inputs must have a row for each sample"),
        (lambda: Work(mlp(), batch(12)[0], batch(11)[1], CROSS), "targets must have the 12 samples"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
