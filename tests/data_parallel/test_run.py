"""A step of DataParallel that ran: gradients against one device, copies against the model, memory that is apart."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

from rankscope.cluster import Link
from rankscope.data_parallel import StepCosts, StepSizes, dissect
from rankscope.data_parallel.model import Message
from rankscope.data_parallel.run import DataParallelError
from rankscope.timeline.timeline import TimelineError

from ..small import CROSS, batch, mlp


class Tied(nn.Module):
    """A weight that two layers share, an embedding, a frozen parameter, a buffer, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5, dtype=torch.float64)
        self.last = nn.Linear(5, 7, bias=False, dtype=torch.float64)
        self.last.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.ones(5, dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("scale", torch.full((5,), 0.5, dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last((self.embedding(tokens) * self.frozen * self.scale).mean(dim=1))
        return outputs


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_those_of_one_device(num_devices: int, dtype: torch.dtype) -> None:
    module = mlp(dtype)
    step = dissect(module, *batch(16, dtype), CROSS, num_devices)
    step.check()
    CROSS(module(batch(16, dtype)[0]), batch(16, dtype)[1]).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(step.gradients[name], parameter.grad)
    assert step.loss == pytest.approx(step.single_loss)
    if dtype is torch.float64:
        assert step.difference < 1e-14


def test_tied_frozen_and_unused_parameters_and_buffers() -> None:
    generator = torch.Generator().manual_seed(2)
    tokens, targets = (torch.randint(0, 7, size, generator=generator) for size in ((9, 3), (9,)))
    step = dissect(Tied(), tokens, targets, CROSS, 4)
    step.check()
    assert step.sizes == StepSizes(9, 3 * 8, 7 * 8, parameter_bytes=(35 + 3) * 8, frozen_bytes=40, buffer_bytes=40)
    assert step.gradients["unused"].tolist() == [0, 0, 0]
    assert set(step.gradients) == {"embedding.weight", "unused"}


def test_each_device_has_memory_and_a_thread_of_its_own() -> None:
    seen: list[tuple[int, int, int]] = []
    together = threading.Barrier(4)

    class Watched(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is not threading.main_thread():  # where the single device is
                seen.append((self.weight.data_ptr(), inputs.data_ptr(), threading.get_ident()))
                together.wait(60)
            return super().forward(inputs)

    module = Watched(6, 4, dtype=torch.float64)
    own = module.weight.data_ptr()
    dissect(module, *batch(8), CROSS, 4).check()
    weights, chunks, threads = (set(column) for column in zip(*seen, strict=True))
    assert len(weights) == len(chunks) == len(threads) == 4
    assert own not in weights


def test_the_module_and_torch_are_left_as_they_were() -> None:
    module, threads = mlp(), torch.get_num_threads()
    before = copy.deepcopy(module.state_dict())
    dissect(module, *batch(8), CROSS, 2)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all((before[name] == value).all() for name, value in module.state_dict().items())
    assert torch.get_num_threads() == threads


def test_running_statistics_see_device_0_only() -> None:
    """Of what replicas write into their buffers, only device 0's stays; and gradients are not those of one device."""
    seen: list[nn.BatchNorm1d] = []

    class Kept(nn.BatchNorm1d):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs)
            if len(inputs) == 2:
                seen.append(self)
            return outputs

    inputs, targets = batch(8)
    step = dissect(nn.Sequential(Kept(6), nn.Linear(6, 4)).double(), inputs, targets, CROSS, 4)
    seen_means = [one.running_mean for one in seen if one.running_mean is not None]
    assert len({mean.data_ptr() for mean in seen_means}) == len(seen) == 4
    means = [mean / 0.1 for mean in seen_means]  # 0.1 is the momentum
    for chunk in inputs.chunk(4):
        assert any(torch.allclose(mean, chunk.mean(dim=0)) for mean in means)
    with pytest.raises(DataParallelError, match="gradients differ by .* does the module look at the other samples"):
        step.check()


def test_the_timeline_is_in_order_and_has_each_message_on_both_its_ends() -> None:
    step = dissect(mlp(), *batch(9), CROSS, 4)
    step.timeline.check()
    assert step.timeline.begin_s == 0
    for device in (1, 2):
        link = step.timeline.select(rank=device, lane="link")
        kinds = [span.kind for span in sorted(link, key=lambda span: span.start_s)]
        assert kinds == ["scatter", "broadcast", "gather", "scatter", "reduce"]
        at_home = step.timeline.select(rank=0, lane="link", item=device)
        assert at_home.start_s.tolist() == link.start_s.tolist()
    assert len(step.timeline) == 2 * len(step.messages) + 2 * 3 + 1  # 9 samples: 3 of 4 devices


def test_with_costs_each_piece_takes_as_long_as_predicted_at_least() -> None:
    costs = StepCosts(Link(1e-3, 1e6), 1e-3, 2e-3, 5e-4)
    step = dissect(mlp(), *batch(16), CROSS, 4, costs)
    step.check()
    executed, predicted = (
        sorted((s.rank, s.lane, s.start_s, s.kind, s.item, s.stop_s - s.start_s) for s in spans)
        for spans in (step.timeline, step.predicted())
    )
    assert len(executed) == len(predicted)
    for ours, model in zip(executed, predicted, strict=True):
        assert (ours[:2], ours[3:5]) == (model[:2], model[3:5])
        assert ours[5] >= model[5] - 1e-6
    assert step.timeline.makespan_s >= step.predicted().makespan_s


def test_what_is_wrong_is_caught() -> None:
    step = dissect(mlp(), *batch(8), CROSS, 4)
    extra = Message("reduce", "gradients", 3, 0, 9)
    wrong = {
        "gradients differ by 1 of the largest": {"gradients": {n: 2 * one for n, one in step.gradients.items()}},
        "gradients differ by nan": {"gradients": {n: one * float("nan") for n, one in step.gradients.items()}},
        "message None moved where the model has Message.*'reduce'.*src=3": {"messages": step.messages[:-1]},
        "message Message.*num_bytes=9\\) moved where the model has None": {"messages": (*step.messages, extra)},
    }
    for message, changed in wrong.items():
        with pytest.raises(DataParallelError, match=message):
            evolve(step, **changed).check()
    twice = step.timeline.concat([step.timeline, step.timeline])
    with pytest.raises(TimelineError):
        evolve(step, timeline=twice.shifted(1.0)).check()
    with pytest.raises(ValueError, match="costs must be a StepCosts, got None"):
        step.predicted()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": 3}, "module must be a Module, got 3"),
        ({"module": nn.Tanh()}, "module must have a parameter that gets a gradient, got Tanh"),
        ({"inputs": [1, 2]}, r"inputs must be a Tensor, got \[1, 2\]"),
        ({"inputs": torch.zeros(0, 6)}, "inputs must have a row for each sample, and at least one"),
        ({"targets": torch.zeros(7)}, "targets must have the 8 samples of the inputs, got 7"),
        ({"devices": 0}, "devices must be a whole number from 1 to 64, got 0"),
        ({"devices": "cuda"}, "devices must be a whole number from 1 to 64, got 'cuda'"),
        ({"devices": ["cpu", "cpu"]}, r"devices must be a number of virtual ones, or CUDA devices by number, got \["),
        ({"loss_fn": "mse"}, "loss_fn must be a function of outputs and targets, got 'mse'"),
        ({"devices": ["cuda:0"], "costs": StepCosts(Link(0, 1), 0, 0)}, "costs must be None on GPUs"),
        ({"devices": ["cuda:0", "cuda:99"]}, r"devices must be of the \d+ GPUs that torch finds, got \["),
        ({"costs": Link(0, 1)}, "costs must be a StepCosts, got Link"),
        ({"module": nn.Sequential(nn.Linear(6, 4), nn.Flatten(0)).double()}, "a row for each of its 2 samples"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    inputs, targets = batch(8)
    given = {"module": mlp(), "inputs": inputs, "targets": targets, "loss_fn": CROSS, "devices": 4, "costs": None}
    with pytest.raises(ValueError, match=message):
        dissect(**{**given, **changes})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpus_give_the_gradients_of_one_and_torchs_own_class_the_same() -> None:
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = gpus if len(gpus) > 1 else gpus * 3  # torch's functions take one GPU several times, too
    step = dissect(mlp(), *batch(16), CROSS, devices)
    step.check()
    kinds = [span.kind for span in step.timeline.select(rank=1, lane="link")]
    assert kinds == ["scatter", "broadcast", "gather", "scatter", "reduce"]
    if len(gpus) > 1:
        inputs, targets = (one.to(gpus[0]) for one in batch(16))
        wrapped = nn.DataParallel(mlp().to(gpus[0]))
        CROSS(wrapped(inputs), targets).backward()
        for name, parameter in wrapped.module.named_parameters():
            torch.testing.assert_close(step.gradients[name], parameter.grad)
