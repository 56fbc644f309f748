"""What `train` refuses: one table of calls, each with a word of its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.cluster import Link
from rankscope.networks import CostTable
from rankscope.sampling import assign
from rankscope.train import ddp, fsdp, pipeline_parallel, uneven, zero
from rankscope.train.data_parallel import StepCosts, StepSizes
from rankscope.train.ddp import Contention, LocalStep
from rankscope.train.fake_group import fake_group
from rankscope.train.gradients import Work, audit_step
from rankscope.train.pipeline_parallel import PipelineSchedule, build
from tests.small import CROSS, batch, mlp

LINK = Link(1e-3, 1e6)
LOCAL = LocalStep.modelled([4, 8], 0.2)
EPOCH = assign(12, 2).with_loader(3)
LINEAR = nn.Linear(2, 2)
SCALED = nn.Linear(2, 2)
SCALED.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
PLAN = build("GPipe", 2, 2)


def proportional(num_bytes: Any) -> Any:
    return num_bytes / 1e9


def mean(module: nn.Module, rank: int = 0, number: int = 0) -> Any:
    return module(torch.ones(2, 2)).mean()


def observed(module: nn.Module = LINEAR, **options: Any) -> fsdp.Step:
    return fsdp.observe(module, mean, **{"num_ranks": 2, **options})


def pipeline(text: str) -> PipelineSchedule:
    return PipelineSchedule.from_text(text)


REFUSED: list[tuple[Callable[[], object], str]] = [
    # ddp
    (lambda: ddp.buckets(nn.ReLU(), mean), "requires a gradient"),
    (lambda: ddp.buckets(LINEAR, mean, -1), "bucket_cap_mb"),
    (lambda: ddp.buckets(LINEAR, lambda module: None), "NoneType"),  # type: ignore[arg-type,return-value]
    (lambda: ddp.buckets(nn.Linear(2, 2, device="meta"), mean), "meta"),
    (lambda: replace(LOCAL, ready_s=[0.1]), "2 times"),
    (lambda: replace(LOCAL, ready_s=[0.1, 0.3]), "backward"),
    (lambda: LocalStep.modelled([1.5], 1.0), "num_bytes"),  # type: ignore[list-item]
    (lambda: Contention(1.0, 0.9), "communication"),
    (lambda: ddp.simulate(LOCAL, proportional, buckets=[[0]]), "2 gradients"),
    (lambda: ddp.simulate(LOCAL, proportional, buckets=[[0, 1]], bucket_cap_mb=25), "bucket_cap_mb"),
    (lambda: ddp.simulate(LOCAL, proportional, bucket_cap_mb=-1), "bucket_cap_mb"),
    (lambda: ddp.simulate(LOCAL, proportional, accumulation=0), "accumulation"),
    (lambda: ddp.simulate(LOCAL, lambda num_bytes: -num_bytes), "cost"),
    (lambda: ddp.simulate(LOCAL, proportional, contention=2.0), "contention"),  # type: ignore[arg-type]
    (lambda: ddp.buckets(LINEAR, lambda module: mean(module.module)), "DDP reduced nothing"),  # type: ignore[arg-type]
    (lambda: ddp.recommend(LOCAL, proportional, caps_mb=[-1]), "caps_mb"),
    (lambda: ddp.cost(3), "machine"),  # type: ignore[arg-type]
    (lambda: CostTable((1, 2), (1, -1)), "seconds"),
    (lambda: ddp.measure(LINEAR, mean, num_ranks=0), "num_ranks"),
    (lambda: ddp.measure(LINEAR, mean, num_steps=0), "num_steps"),
    # fsdp
    (lambda: observed(num_ranks=0), "num_ranks"),
    (lambda: observed(wrap="0"), "wrap"),
    (lambda: observed(wrap=["fc"]), "fc"),
    (lambda: observed(num_ranks=6, num_replicas=4), "num_replicas"),
    (lambda: observed(num_ranks=4, reshard_after_forward=3), "reshard_after_forward"),
    (lambda: fsdp.cost(proportional, flops_per_s=0, bytes_per_s=1), "flops_per_s"),
    (lambda: fsdp.cost(3, flops_per_s=1, bytes_per_s=1), "shards"),  # type: ignore[arg-type]
    (lambda: observed().timeline(3), "cost"),  # type: ignore[arg-type]
    # zero
    (lambda: zero.memory(1000, 0, 1), "num_ranks"),
    (lambda: zero.memory(1000, 2, "fully_shard"), "zero_redundancy_optimizer"),
    (lambda: zero.memory(1000, 2, 1, optimizer="lion"), "optimizer"),
    (lambda: zero.memory("7B", 2, 1), "7B"),
    (lambda: zero.memory(1000, 2, 3, largest_layer=-1), "largest_layer"),
    (lambda: zero.memory(LINEAR, 2, "zero_redundancy_optimizer", rank=2), "rank"),
    (lambda: zero.memory(1000, 2, "zero_redundancy_optimizer"), "tensors of a module"),
    (lambda: zero.partition([3, -1], 2), "sizes"),
    (lambda: zero.measure(lambda: LINEAR, torch.ones(1), 2, "fsdp"), "way"),
    # uneven
    (lambda: uneven.simulate([], "join"), "num_batches"),
    (lambda: uneven.simulate([1, 2], "wait"), "handling"),
    (lambda: uneven.simulate([0, 2], "pad"), "padded"),
    (lambda: uneven.predict(replace(EPOCH, loader=None), "join"), "loader"),
    (lambda: uneven.measure(mlp(), *batch(12), EPOCH, CROSS, "hang"), "handling"),
    (lambda: uneven.measure(mlp(), *batch(9), EPOCH, CROSS), "12 samples"),
    (lambda: uneven.measure(nn.Linear(1, 1, bias=False), *batch(12), EPOCH, CROSS), "8 bytes of parameters"),
    # pipeline_parallel
    (lambda: build("GPipe", 0, 4), "num_ranks"),
    (lambda: build("1F1B", 4, 8, 2), "num_chunks=2"),
    (lambda: build("Interleaved1F1B", 4, 9), "num_microbatches=9"),
    (lambda: build("DualPipeV", 2, 3), "at least as many microbatches as stages"),
    (lambda: pipeline_parallel.simulate(PLAN, 0, 1), "forward_s"),
    (lambda: pipeline_parallel.simulate(PLAN, 1, 1, weights_share=2), "weights_share"),
    (lambda: pipeline_parallel.measure(pipeline("mine\n0: 0F0 0B0"), 1, 1), "mine"),
    (lambda: pipeline(""), "name and a line"),
    (lambda: pipeline("mine\n1: 0F0"), "line 2"),
    (lambda: pipeline("mine\n0: 0F0 0X0"), "line 2"),
    # data_parallel, gradients
    (lambda: StepSizes(0, 1, 1, 1), "batch_size"),
    (lambda: StepCosts(LINK, -1, 1), "forward_s"),
    (lambda: Work(nn.Tanh(), *batch(12), CROSS), "gradient"),
    (lambda: Work(mlp(), batch(12)[0], batch(11)[1], CROSS), "12 and 11"),
    (lambda: audit_step(Work(mlp(), *batch(12), CROSS), 5), "inputs"),
    (lambda: audit_step(Work(mlp(), *batch(12), CROSS), 2, 3), "step"),  # type: ignore[arg-type]
    (lambda: audit_step(None), "work"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "word"), REFUSED)
def test_what_cannot_be_is_one_clear_error(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match="reshard"):
        fsdp.run(LINEAR, mean, reshard=True)


def test_a_process_with_a_process_group_cannot_observe() -> None:
    with fake_group(2), pytest.raises(RuntimeError, match="process group already"):
        observed()
