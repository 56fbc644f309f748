"""`record`: real steps of six kinds, against torch's profiler, a dispatch mode, and counting by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, optimizer
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from rankscope.ranks import RankError, Recording, in_threads, launch, record, recording
from rankscope.ranks.recorder import COLLECTIVES
from rankscope.timeline import Timeline
from rankscope.train.zero.run import zero_redundancy_class

pytestmark = pytest.mark.slow

Step = Callable[[], object]
PARAMETERS = 10 * 10 + 10  # of each of the model's two layers


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))


def training(module: nn.Module, rule: Any) -> Step:
    batches = iter(DataLoader(torch.ones(100, 10), batch_size=2))

    def step() -> None:
        rule.zero_grad()
        module(next(batches)).sum().backward()
        rule.step()

    return step


def loop() -> Step:
    tensor = torch.ones(250)
    return lambda: [dist.all_reduce(tensor) for _ in range(10)]


def ddp() -> Step:
    module = DistributedDataParallel(model())
    return training(module, Adam(module.parameters()))


def zero() -> Step:
    module = DistributedDataParallel(model())
    return training(module, zero_redundancy_class()(module.parameters(), optimizer_class=Adam))


def sharded() -> Step:
    from torch.distributed.fsdp import fully_shard

    module: Any = model()
    for part in (module[0], module[2], module):
        fully_shard(part).set_force_sum_reduction_for_comms(True)
    return training(module, Adam(module.parameters()))


def join() -> Step:
    """Rank 1 has two batches, and rank 0 has one."""
    module = DistributedDataParallel(model())

    def step() -> None:
        with Join([module]):
            for _ in range(1 + dist.get_rank()):
                module(torch.ones(2, 10)).sum().backward()

    return step


def pipeline() -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(nn.Linear(10, 10), dist.get_rank(), 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    batch = torch.ones(8, 10)
    if dist.get_rank() == 0:
        return lambda: schedule.step(batch)
    return lambda: schedule.step(target=batch)


PASSES = {"loader": 1, "forward": 1, "backward": 1, "optimizer": 1}
REDUCED_BY_GLOO = ("allreduce", "reduce_scatter")  # the profiler has the latter as an all-reduce, too
BUCKET = 2 * PARAMETERS * 4
EXPECTED: dict[Callable[[], Step], list[dict[str, int]]] = {  # the number of spans by kind, for each rank
    loop: [{"allreduce": 10}] * 2,
    ddp: [{**PASSES, "allreduce": 1}] * 2,
    zero: [{**PASSES, "allreduce": 1, "broadcast": 4}] * 2,
    sharded: [{**PASSES, "allgather": 4, "reduce_scatter": 2}] * 2,
    join: [
        {"forward": 1, "backward": 1, "allreduce": 2 + 6, "broadcast": 1},
        {"forward": 2, "backward": 2, "allreduce": 2 + 6, "broadcast": 1},
    ],
    pipeline: [{"forward": 4, "backward": 4, "send": 4, "recv": 4}] * 2,
}


class Seen(TorchDispatchMode):
    """The second method: operators and bytes of collectives as the dispatcher passes them to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        library, _, name = func._schema.name.partition("::")
        if library == "c10d":
            sizes = [sum(leaf.nbytes for leaf in tree_leaves(arg) if isinstance(leaf, torch.Tensor)) for arg in args]
            self.calls.append((COLLECTIVES[name], max(sizes)))
        return func(*args, **(kwargs or {}))


class Observed(NamedTuple):
    recording: Recording
    calls: list[tuple[str, int]]
    num_elements: int  # of all-reduces, as torch's profiler says
    is_undone: bool


def observed(make_step: Callable[[], Step]) -> Observed:
    """A recording of the third step, while `Seen` looks on, and the profile of the fourth."""
    step = make_step()
    step()
    step()
    before = replaced()
    with recording() as recorder, Seen() as seen:
        step()
    is_undone = replaced() == before
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    shapes = [event.input_shapes for event in profiler.events() if event.name == "gloo:all_reduce"]
    num_elements = sum(prod(shape) for tensors in shapes for shape in tensors)
    return Observed(recorder.result(), seen.calls, num_elements, is_undone)


def replaced() -> list[Any]:
    """All that a recording replaces or adds."""
    functions = [vars(nn.Module)["__call__"], torch.autograd.backward, torch.autograd.grad, vars(dist.Work)["wait"]]
    kernels = [torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "BackendSelect") for name in COLLECTIVES]
    return [functions, len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks), kernels]


def check_nests(timeline: Timeline) -> None:
    """Spans of a lane do not overlap, and those of an item begin inside its step, passes end there, too."""
    timeline.check()
    for span in timeline:
        (step,) = timeline.select(rank=span.rank, item=span.item, kind="step")
        assert step.start_s <= span.start_s <= step.stop_s
        assert span.lane.startswith("collectives") or span.stop_s <= step.stop_s


@pytest.mark.parametrize("make_step", EXPECTED, ids=lambda make_step: make_step.__name__)
def test_passes_and_collectives_are_those_of_the_step(make_step: Callable[[], Step]) -> None:
    for rank, (recorded, calls, num_elements, is_undone) in enumerate(launch(observed, 2, (make_step,))):
        spans = list(zip(*recorded, strict=True))
        assert Counter(span.kind for span, _ in spans) == EXPECTED[make_step][rank]
        assert [(span.kind, size) for span, size in spans if span.lane != "compute"] == calls
        reduced = [size for span, size in spans if span.kind in REDUCED_BY_GLOO]
        assert sum(reduced) - 4 * num_elements == (4 if make_step is join else 0)  # a rank's number, in 8 bytes
        assert is_undone
        recorded.timeline.check()


def slow_rank() -> Step:
    step = ddp()

    def slow() -> None:
        time.sleep(0.2 * dist.get_rank())
        step()

    return slow


def test_a_slow_rank_lets_the_others_wait_on_one_clock() -> None:
    timeline, num_bytes = record(slow_rank, 2, num_steps=3)
    check_nests(timeline)
    for item in range(3):
        early, late = (timeline.select(rank=rank, item=item) for rank in range(2))
        assert early.select(kind="allreduce").busy_s > 0.15
        assert late.select(kind="allreduce").end_s > early.select(kind="allreduce").begin_s + 0.15
        assert abs(early.begin_s - late.begin_s) < 0.1
        assert [len(timeline.select(kind=kind, item=item)) for kind in (*PASSES, "step", "allreduce")] == [2] * 6
    assert timeline.begin_s == 0
    assert num_bytes.sum() == 3 * 2 * BUCKET


def failing() -> Step:
    def fail() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            raise ArithmeticError("on purpose")

    return fail


def test_a_step_that_raises_names_its_rank_and_is_undone() -> None:
    with pytest.raises(RankError, match="on purpose") as caught:
        record(failing, 2)
    assert caught.value.rank == 1
    before = replaced()
    with pytest.raises(ZeroDivisionError), recording():
        assert replaced() != before
        with pytest.raises(RuntimeError, match="already"), recording():
            pass
        assert 1 / 0
    assert replaced() == before


def test_ranks_in_threads_and_compiled_graphs_are_as_without_it() -> None:
    compiled = torch.compile(model(), backend="eager")
    compiled(torch.ones(2, 10))
    with recording() as recorder:
        assert in_threads(2, lambda rank, group: bool(group.allreduce([torch.ones(1)]).wait())) == [True, True]
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(torch.ones(2, 10))
    assert [span.kind for span in recorder.result().timeline] == ["forward"]


def on_gpu() -> Step:
    tensor = torch.ones(1 << 24, device="cuda")
    return lambda: dist.all_reduce(tensor)


@pytest.mark.gpu
def test_nccl_ends_when_its_stream_has_done_it() -> None:
    gpus = torch.cuda.device_count() or pytest.skip("needs a GPU")
    timeline, num_bytes = record(on_gpu, gpus, backend="nccl")
    check_nests(timeline)
    assert num_bytes.max() == 4 << 24
    # the array is read and written once at least, at no more than 10 TB/s
    assert all(span.stop_s - span.start_s > 8 * 2**24 / 10e12 for span in timeline.select(kind="allreduce"))


@pytest.mark.parametrize(
    ("call", "message"), [(lambda: record(5, 2), "make_step"), (lambda: record(loop, 2, num_steps=0), "num_steps")]
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
