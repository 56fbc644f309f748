"""What `train` refuses: one table of calls, each with a word of its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.cluster import Link
from rankscope.networks import CostTable
from rankscope.sampling import assign
from rankscope.train import data_parallel, ddp, fsdp, pipeline_parallel, uneven, zero
from rankscope.train.data_parallel import StepCosts, StepSizes
from rankscope.train.ddp import Contention, Gradient, LocalStep
from rankscope.train.fsdp import ModuleStep, ShardedLayer, ShardedParameter
from rankscope.train.fsdp.step import StepEvent
from rankscope.train.gradients import Work
from rankscope.train.pipeline_parallel import PipelineSchedule, build

from ..small import CROSS, Tied, batch, mlp
from .fsdp.models import Residual, Tokens

LINK = Link(1e-3, 1e6)
LOCAL = LocalStep.modelled([4, 8], 0.2)
LAYERS = ModuleStep.of_layers([ShardedLayer("0", [4]), ShardedLayer("1", [4])])
EPOCH = assign(12, 2).with_loader(3)
LINEAR = nn.Linear(2, 2)
SCALED = nn.Linear(2, 2)
SCALED.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
PLAN = build("gpipe", 2, 2)


def proportional(num_bytes: Any) -> Any:
    return num_bytes / 1e9


def no_loss(module: nn.Module, rank: int, number: int) -> Any:
    return None


def mean(module: nn.Module, rank: int = 0, number: int = 0) -> Any:
    return module(torch.ones(2, 2)).mean()


def predicted(**options: Any) -> fsdp.PredictedStep:
    return fsdp.predict(LAYERS, options.pop("cost", proportional), **{"num_ranks": 2, **options})


def advised(**options: Any) -> fsdp.FSDPRecommendation:
    return fsdp.recommend(LINEAR, **{"num_ranks": 2, "memory_bytes": 1e9, "cost": proportional, **options})


def mixed_dtypes() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())


def pipeline(text: str) -> PipelineSchedule:
    return PipelineSchedule.from_text(text)


REFUSED: list[tuple[Callable[[], object], str]] = [
    # ddp
    (lambda: Gradient("a", -1), "num_bytes"),
    (lambda: ddp.buckets(nn.ReLU(), mean), "requires a gradient"),
    (lambda: ddp.buckets([3], mean), "module"),  # type: ignore[arg-type]
    (lambda: ddp.buckets(LINEAR, mean, -1), "bucket_cap_mb"),
    (lambda: ddp.buckets(LINEAR, lambda module: None), "NoneType"),  # type: ignore[arg-type,return-value]
    (lambda: ddp.buckets(nn.Linear(2, 2, device="meta"), mean), "meta"),
    (lambda: replace(LOCAL, ready_s=[0.1]), "2 times"),
    (lambda: replace(LOCAL, ready_s=[0.1, 0.3]), "backward"),
    (lambda: replace(LOCAL, forward_s=math.inf), "forward_s"),
    (lambda: LocalStep.modelled([1.5], 1.0), "num_bytes"),  # type: ignore[list-item]
    (lambda: Contention(1.0, 0.9), "communication"),
    (lambda: ddp.simulate(LOCAL, proportional, buckets=[[0]]), "2 gradients"),
    (lambda: ddp.simulate(LOCAL, proportional, buckets=[[0, 1], []]), "2 gradients"),
    (lambda: ddp.simulate(LOCAL, proportional, buckets=[[0, 1]], bucket_cap_mb=25), "bucket_cap_mb"),
    (lambda: ddp.simulate(LOCAL, proportional, bucket_cap_mb=-1), "bucket_cap_mb"),
    (lambda: ddp.simulate(LOCAL, proportional, accumulation=0), "accumulation"),
    (lambda: ddp.simulate(LOCAL, lambda num_bytes: -num_bytes), "cost"),
    (lambda: ddp.simulate(LOCAL, 3.0), "cost"),  # type: ignore[arg-type]
    (lambda: ddp.recommend(LOCAL, proportional, caps_mb=[-1]), "caps_mb"),
    (lambda: ddp.cost(LINK), "num_ranks"),
    (lambda: ddp.cost(3), "machine"),  # type: ignore[arg-type]
    (lambda: ddp.architecture_step("VGG", 1, 1e12), "VGG"),
    (lambda: CostTable((1,), (1,)), "rising"),
    (lambda: CostTable((1, 2), (1, -1)), "seconds"),
    (lambda: ddp.measure(LINEAR, mean, num_ranks=0), "num_ranks"),
    (lambda: ddp.measure(LINEAR, 3), "loss"),  # type: ignore[arg-type]
    (lambda: ddp.measure(LINEAR, mean, num_steps=0), "num_steps"),
    # fsdp
    (lambda: fsdp.collectives(nn.ReLU(), mean, num_ranks=2), "parameters"),
    (lambda: fsdp.collectives(LINEAR, 3, num_ranks=2), "loss"),  # type: ignore[arg-type]
    (lambda: fsdp.collectives(LINEAR, no_loss, num_ranks=2), "NoneType"),
    (lambda: fsdp.collectives(SCALED, mean, num_ranks=2), "scalar"),
    (lambda: predicted(num_ranks=1), "num_ranks"),
    (lambda: predicted(wrap="0"), "wrap"),
    (lambda: predicted(wrap=["fc"]), "fc"),
    (lambda: predicted(num_ranks=6, num_replicas=4), "num_replicas"),
    (lambda: predicted(num_ranks=4, num_replicas=4), "shards"),
    (lambda: predicted(num_ranks=4, num_replicas=2), "allreduce"),
    (lambda: predicted(num_ranks=4, reshard_after_forward=3), "reshard_after_forward"),
    (lambda: predicted(prefetch=-1), "prefetch"),
    (lambda: predicted(param_dtype="int8"), "param_dtype"),
    (lambda: predicted(optimizer="lion"), "lion"),
    (lambda: predicted(cost=lambda num_bytes: -1.0), "allgather"),
    (lambda: fsdp.run(Tokens([Residual(12)], 12), mean, wrap=["blocks"]), "forward"),
    (lambda: fsdp.run(Tied(), mean, wrap=["embed"]), "one group"),
    (lambda: fsdp.run(mixed_dtypes(), mean), "one dtype"),
    (lambda: fsdp.run(nn.Linear(2, 2, device="meta"), mean), "CPU"),
    (lambda: fsdp.run(LINEAR, mean, iterations=0), "iterations"),
    (lambda: fsdp.measure_costs(2, widths=[64]), "widths"),
    (lambda: fsdp.FSDPCosts.of_link(LINK, 6, num_replicas=4), "num_replicas"),
    (lambda: advised(), "loss"),
    (lambda: advised(step=LAYERS, memory_bytes=0), "memory_bytes"),
    (lambda: fsdp.recommend(nn.ModuleList([LINEAR]), num_ranks=2, memory_bytes=1, cost=proportional), "forward"),
    (lambda: ModuleStep.of_layers([ShardedLayer("0", [1])] * 2), "names that differ"),
    (lambda: ModuleStep.of_layers([ShardedLayer("a", [1]), ShardedLayer("a.b", [1])]), "names that differ"),
    (lambda: ModuleStep.of_layers([ShardedLayer(name, [1]) for name in ("a.0", "b", "a.1")]), "follow one another"),
    (lambda: ModuleStep.of_layers([ShardedLayer("0", []), ShardedLayer("1", [1])]), "first layer"),
    (lambda: ModuleStep((ShardedParameter("w", (1,)),), ("",), (StepEvent("gradient", "x"),)), "gradient"),
    (lambda: ModuleStep((ShardedParameter("w", (1,)),), ("",), (StepEvent("enter", "x"),)), "modules"),
    # zero
    (lambda: zero.memory(1000, 0, 1), "num_ranks"),
    (lambda: zero.memory(1000, 2, 4), "stage"),
    (lambda: zero.memory("7B", 2, 1), "7B"),
    (lambda: zero.memory(SCALED, 2, "fully_shard"), "dimension"),
    (lambda: zero.memory(1000, 2, "zero_redundancy_optimizer"), "module"),
    (lambda: zero.memory(1000, 2, 3, largest_layer=1001), "largest_layer"),
    (lambda: zero.memory(LINEAR, 2, 3, largest_layer=3), "largest_layer"),
    (lambda: zero.memory(1000, 2, 2, buckets=True), "buckets"),
    (lambda: zero.traffic(LINEAR, 2, "ddp", "mixed"), "mixed"),
    (lambda: zero.partition([3, -1], 2), "sizes"),
    (lambda: zero.measure(lambda: LINEAR, torch.ones(1), 2, []), "ways"),
    # uneven
    (lambda: uneven.simulate([], "join"), "num_batches"),
    (lambda: uneven.simulate([1, 2], "wait"), "handling"),
    (lambda: uneven.simulate([0, 2], "pad"), "padded"),
    (lambda: uneven.predict(replace(EPOCH, loader=None), "join"), "loader"),
    (lambda: uneven.files_epoch([3, -1], 2, 1), "file_sizes"),
    (lambda: uneven.measure(mlp(), *batch(9), EPOCH, CROSS), "12 samples"),
    (lambda: uneven.measure(nn.Linear(1, 1, bias=False), *batch(12), EPOCH, CROSS), "8 bytes of parameters"),
    # pipeline_parallel
    (lambda: build("gpipe", 0, 4), "num_ranks"),
    (lambda: build("one_f_one_b", 4, 8, 2), "num_chunks"),
    (lambda: build("interleaved_1f1b", 4, 9, 2), "multiple of 2"),
    (lambda: pipeline_parallel.simulate(PLAN, 1, [1]), "backward_s"),
    (lambda: pipeline_parallel.simulated_bubble(PLAN, 0, 0), "take time"),
    (lambda: pipeline_parallel.measure([PLAN, build("gpipe", 3, 3)]), "2 and 3"),
    (lambda: pipeline_parallel.measure([build("one_f_one_b", 4, 3)]), "at least 4"),
    (lambda: PipelineSchedule("a", 2, 1, 1, ((),)), "2 rows"),
    (lambda: pipeline(""), "empty"),
    (lambda: pipeline("mine"), "line 1"),
    (lambda: pipeline("mine ranks=2 microbatches=1 chunks=1\n0: 0F0"), "2 lines"),
    (lambda: pipeline("mine ranks=1 microbatches=1 chunks=1\n1: 0F0"), "line 2"),
    (lambda: pipeline("mine ranks=1 microbatches=1 chunks=1\n0: 0F0 0W0"), "0W0"),
    (lambda: pipeline("mine ranks=2 microbatches=1 chunks=1\n0: 1F0\n1: 0F0"), "no stage 1"),
    (lambda: pipeline("mine ranks=1 microbatches=1 chunks=1\n0: 0F1"), "microbatch"),
    # data_parallel, gradients
    (lambda: StepSizes(0, 1, 1, 1), "batch_size"),
    (lambda: StepCosts(LINK, -1, 1), "forward_s"),
    (lambda: data_parallel.traffic(StepSizes(4, 1, 1, 1), 4, "fsdp"), "fsdp"),
    (lambda: Work(nn.Tanh(), *batch(12), CROSS), "gradient"),
    (lambda: Work(mlp(), batch(12)[0], batch(11)[1], CROSS), "12 samples"),
]


@pytest.mark.parametrize(("call", "word"), REFUSED)
def test_what_cannot_be_is_one_clear_error(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match="reshard"):
        fsdp.run(LINEAR, mean, reshard=True)
