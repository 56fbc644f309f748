"""`record`: real steps of six kinds, against a dispatch mode of torch and counting by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from rankscope.ranks import RankError, in_threads, launch, record, recording
from rankscope.ranks.recorder import KIND_OF_OPERATOR
from rankscope.train.zero.run import zero_redundancy_class

pytestmark = pytest.mark.slow

Step = Callable[[], object]


# ---- what is recorded


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))


def training(module: nn.Module, make_optimizer: Callable[..., Any] = Adam) -> Step:
    rule = make_optimizer(module.parameters())
    batches = iter(DataLoader(torch.ones(100, 10), batch_size=2))

    def step() -> None:
        module(next(batches)).sum().backward()
        rule.step()

    return step


def loop() -> Step:
    tensor = torch.ones(250)
    return lambda: [dist.all_reduce(tensor) for _ in range(10)]


def ddp() -> Step:
    return training(DistributedDataParallel(model()))


def zero() -> Step:
    return training(DistributedDataParallel(model()), partial(zero_redundancy_class(), optimizer_class=Adam))


def sharded() -> Step:
    from torch.distributed.fsdp import fully_shard

    module: Any = model()
    for part in (module[0], module[2], module):
        fully_shard(part).set_force_sum_reduction_for_comms(True)
    return training(module)


def join() -> Step:
    module = DistributedDataParallel(model())

    def step() -> None:
        with Join([module]):
            for _ in range(1 + dist.get_rank()):  # rank 0 has one batch less
                module(torch.ones(2, 10)).sum().backward()

    return step


def pipeline() -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(nn.Linear(10, 10), dist.get_rank(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    batch = torch.ones(8, 10)
    args = [batch][dist.get_rank() :]
    return lambda: schedule.step(*args, target=batch)


PASSES = {"loader": 1, "forward": 1, "backward": 1, "optimizer": 1}
EXPECTED = {  # the number of spans by kind on rank 0
    loop: {"allreduce": 10},
    ddp: {**PASSES, "allreduce": 1},
    zero: {**PASSES, "allreduce": 1, "broadcast": 4},
    sharded: {**PASSES, "allgather": 4, "reduce_scatter": 2},
    join: {"forward": 1, "backward": 1, "allreduce": 8, "broadcast": 1},
    pipeline: {"forward": 4, "backward": 4, "send": 4, "recv": 4},
}


class Seen(TorchDispatchMode):
    """The second method: kinds and bytes of collectives as the dispatcher passes them to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        library, _, name = func._schema.name.partition("::")
        if library == "c10d":
            sizes = [sum(leaf.nbytes for leaf in tree_leaves(arg) if isinstance(leaf, torch.Tensor)) for arg in args]
            self.calls.append((KIND_OF_OPERATOR[name], max(sizes)))
        return func(*args, **(kwargs or {}))


def observed(make_step: Callable[[], Step]) -> Any:
    """A recording of the third step, and what `Seen` saw of it."""
    step = make_step()
    step()
    step()
    with recording() as recorder, Seen() as seen:
        step()
    return recorder.result(), seen.calls


@pytest.mark.parametrize("make_step", EXPECTED)
def test_passes_and_collectives_are_those_of_the_step(make_step: Callable[[], Step]) -> None:
    by_rank = launch(observed, 2, (make_step,))
    assert Counter(span.kind for span in by_rank[0][0].timeline) == EXPECTED[make_step]
    for recorded, calls in by_rank:
        recorded.timeline.check()
        spans = zip(*recorded, strict=True)
        assert [(span.kind, size) for span, size in spans if span.lane != "compute"] == calls


def slow() -> Step:
    step = ddp()
    return lambda: [time.sleep(0.5 * dist.get_rank()), step()]


def test_a_slow_rank_lets_the_other_wait_on_one_clock_and_spans_are_inside_their_steps() -> None:
    timeline, num_bytes = record(slow, 2, num_steps=3)
    timeline.check()
    assert timeline.begin_s == 0
    assert num_bytes.sum() == 3 * 2 * 4 * 220  # of the two layers of 10 · 10 + 10 float32
    for span in timeline:
        (step,) = timeline.select(rank=span.rank, item=span.item, kind="step")
        assert step.start_s <= span.start_s
        assert span.kind == "allreduce" or span.stop_s <= step.stop_s
    waited, slow_one = (timeline.select(rank=rank, kind="allreduce") for rank in range(2))
    assert np.median(slow_one.start_s - waited.start_s) > 0
    assert min(waited.stop_s - slow_one.start_s) > 0


# ---- what is left of it


def failing() -> Step:
    return lambda: 1 // (1 - dist.get_rank())


def replaced() -> list[Any]:
    """All that a recording replaces or adds."""
    functions = [vars(nn.Module)["__call__"], torch.autograd.backward, vars(dist.Work)["wait"]]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")
    return [functions, len(optimizer._global_optimizer_post_hooks), has_kernel]


def test_a_step_that_raises_names_its_rank_and_leaves_nothing() -> None:
    with pytest.raises(RankError, match="ZeroDivision") as caught:
        record(failing, 2)
    assert caught.value.rank == 1
    before = replaced()
    with pytest.raises(RuntimeError, match="already"), recording(), recording():  # the inner one raises
        pass
    assert replaced() == before


def test_a_step_of_an_optimizer_has_one_span_unless_it_raises() -> None:
    """Also where it calls the model, and after one that has raised."""
    module = model()
    rule = SGD(module.parameters(), lr=0.1)

    def closure() -> Any:
        rule.zero_grad()
        loss = module(torch.ones(2, 10)).sum()
        loss.backward()
        return loss

    with recording() as recorder:
        with pytest.raises(ZeroDivisionError):
            rule.step(lambda: 1 // 0)
        rule.step(closure)
        module(torch.ones(2, 10))
    assert [span.kind for span in recorder.result().timeline] == ["optimizer", "forward"]


def test_ranks_in_threads_and_compiled_graphs_are_as_without_it() -> None:
    compiled = torch.compile(model(), backend="eager")
    compiled(torch.ones(2, 10))
    with recording() as recorder, torch._dynamo.config.patch(error_on_recompile=True):
        assert in_threads(2, lambda rank, group: bool(group.allreduce([torch.ones(1)]).wait())) == [True, True]
        compiled(torch.ones(2, 10))
    assert [span.kind for span in recorder.result().timeline] == ["forward"]


def on_gpu() -> Step:
    tensor = torch.ones(1000, device="cuda")
    return lambda: [torch.cuda._sleep(10**8), dist.all_reduce(tensor)]


@pytest.mark.gpu
def test_nccl_is_recorded_when_the_stream_gets_there() -> None:
    gpus = torch.cuda.device_count() or pytest.skip("needs a GPU")
    timeline, _ = record(on_gpu, gpus, backend="nccl")
    waited_s = timeline.select(kind="allreduce").start_s - timeline.select(kind="step").start_s
    assert min(waited_s) > 0.01  # 10**8 cycles of the GPU, which it takes no time to ask for
