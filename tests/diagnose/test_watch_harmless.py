"""Watching never delays, changes or ends a training job, whatever fails: the store, the report, or the watch itself."""

from __future__ import annotations

import contextlib
import io
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import quantiles
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from rankscope.diagnose import exchange, patches, watch
from rankscope.diagnose.exchange import BoundedStore, StoreExchange
from rankscope.ranks import launch

from ..processes import NOT_HANGING_S, soon
from . import store_job
from .store_job import Settings

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """Two layers with a batch norm between them, so that DDP broadcasts buffers, and a Python operation of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(inputs)))
        outputs: Tensor = self.second(hidden)
        return outputs


def batches(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(8, 16, generator=generator) for _ in range(number)]


def train(model: Any, loader: Any) -> int:
    """Train on all batches of a loader; return their number."""
    number = 0
    for inputs in loader:
        model(inputs).square().mean().backward()
        number += 1
    return number


def in_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    return launch(fn, num_ranks, args, timeout_s=120)


# ---- a store that does not answer


def test_a_stopped_store_delays_no_step_and_is_told_in_one_line() -> None:
    """The server of the store is stopped while the watch is open, until all ranks have ended."""
    result = store_job.run(Settings(num_steps=150, every=20, stop_at=25, answer_s=0.3))
    assert result.exit_codes == [0, 0], result.errors
    assert len(result.lines) == 1
    assert result.lines[0].startswith("rankscope.watch: rank 0: no more lines, the store of the process group has not ")
    for said in result.said:
        unwatched_s, watched_s = said["unwatched_s"], said["watched_s"]
        assert len(unwatched_s) == len(watched_s) == 150
        assert quantiles(watched_s)[0] < 3 * quantiles(unwatched_s)[0]  # on a machine that others load


# ---- several watches, and one twice


def methods() -> dict[str, Any]:
    """What a watch replaces, as the classes themselves have it."""
    names = [(dist.ProcessGroup, name) for name in dir(dist.ProcessGroup)]
    names += [(torch.optim.Optimizer, "zero_grad"), (patches.OptimizedModule, "__call__")]
    names += [(DistributedDataParallel, "__call__"), (DistributedDataParallel, "_sync_buffers")]
    return {f"{owner.__name__}.{name}": vars(owner).get(name) for owner, name in names}


def open_in_turn() -> list[bool]:
    """Close two watches in the order in which they were opened, and use the group after each."""
    before = methods()
    models = [DistributedDataParallel(Net()) for _ in range(2)]
    watches = [watch(model, batches(6), report=lambda line: None) for model in models]
    for watched in watches:
        watched.__enter__()
    for inputs, _ in zip(watches[0].loader, watches[1].loader, strict=True):
        for model in models:
            model(inputs).mean().backward()
        dist.all_reduce(torch.ones(1))
    watches[0].__exit__(None)
    open_one = methods() != before
    models[1](batches(1)[0]).mean().backward()
    watches[1].__exit__(None)
    calls = [watched.trace.calls for watched in watches]
    kinds = [sorted(call.kinds) for call in calls]
    forwards = [len(watched.trace.timeline.select(kind="forward")) for watched in watches]
    return [open_one, methods() == before, kinds[0] == kinds[1] == ["allreduce", "broadcast"], forwards == [6, 6]]


def test_watches_that_are_closed_in_the_order_of_opening_leave_torch_as_it_was() -> None:
    assert in_ranks(open_in_turn, 2) == [[True] * 4] * 2


def replaced_by_others() -> list[bool]:
    """Somebody replaces a method while a watch is open: theirs stays, and the next watch sees each collective once."""
    original = vars(dist.ProcessGroup)["allreduce"]
    model = DistributedDataParallel(Net())
    asked = list[int]()
    with watch(model, batches(3), report=lambda line: None) as watched:
        ours = dist.ProcessGroup.allreduce

        def theirs(group: Any, *args: Any) -> Any:
            asked.append(1)
            return ours(group, *args)

        dist.ProcessGroup.allreduce = theirs  # type: ignore[method-assign]
        train(model, watched.loader)
    stays = dist.ProcessGroup.allreduce is theirs
    value = torch.ones(1)
    dist.all_reduce(value)
    with watch(model, batches(3), report=lambda line: None) as again:
        for inputs in again.loader:
            model(inputs).mean().backward()
            dist.all_reduce(torch.ones(1))
    calls = again.trace.calls
    allreduces = [calls.kinds[kind] for kind in calls.kind].count("allreduce")
    dist.ProcessGroup.allreduce = original  # type: ignore[method-assign]
    return [stays, asked == [1] * 4, float(value) == 2.0, allreduces == 3 + 3]  # of DDP, and of Python


def test_what_somebody_else_replaced_meanwhile_stays() -> None:
    assert in_ranks(replaced_by_others, 2) == [[True] * 4] * 2


# ---- errors in the report, and in the watch


def raising(kind: str) -> tuple[int, str, list[str]]:
    """The number of steps trained, what stands on stderr, and what was reported."""
    lines = list[str]()
    stays = threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        if kind == "raises":
            raise KeyError("the user's own")
        if kind == "exits":
            raise SystemExit("the user's own")
        stays.wait(NOT_HANGING_S)

    model = DistributedDataParallel(Net())
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        with watch(model, batches(12), every=3, report=report) as watched:
            number = train(model, watched.loader)
            if dist.get_rank() == 0:
                assert soon(lambda: lines and (kind == "hangs" or errors.getvalue()))
        number += train(model, batches(2))
    said = [*lines]  # before the report that hangs goes on, and further lines come
    stays.set()
    return number, errors.getvalue(), said


@pytest.mark.parametrize("kind", ["raises", "exits", "hangs"])
def test_an_error_in_the_report_is_one_line_and_all_ranks_train_on(kind: str) -> None:
    (number, errors, lines), (other_number, other_errors, other_lines) = in_ranks(raising, 2, kind)
    assert number == other_number == 14
    assert len(lines) == 1
    error = {"raises": "KeyError", "exits": "SystemExit"}.get(kind)
    if error is None:
        assert errors == ""
    else:
        assert errors.count("\n") == 1
        assert errors.startswith(f"rankscope.watch: rank 0: no more lines, report raised {error}: ")
    assert (other_errors, other_lines) == ("", [])


def an_error_of_the_users() -> list[str]:
    """Theirs are theirs: in the loader, in the model and in the body of the loop."""

    def loader() -> Iterator[Tensor]:
        yield from batches(1)
        raise OSError("the disk")

    model = DistributedDataParallel(Net())
    names = list[str]()
    for kind in ("loader", "model", "body"):
        try:
            with watch(model, loader() if kind == "loader" else batches(2), report=lambda line: None) as watched:
                for inputs in watched.loader:
                    if kind == "body":
                        raise LookupError("the user's own")
                    model(inputs[:, :3] if kind == "model" else inputs).mean().backward()
        except Exception as error:
            names.append(type(error).__name__)
    return [*names, str(not patches._watcher_list.watchers)]


def test_errors_of_the_training_job_stay_its_own() -> None:
    assert in_ranks(an_error_of_the_users, 1) == [["OSError", "RuntimeError", "LookupError", "True"]]


def joined(watched: bool, options: dict[str, bool]) -> list[list[float]]:
    """All gradients of ranks with unequal numbers of steps."""
    model = DistributedDataParallel(Net(), broadcast_buffers=False)
    loader = batches(3 + dist.get_rank())
    gradients = list[list[float]]()
    with watch(model, loader, report=lambda line: None) if watched else nullcontext() as opened, model.join(**options):
        for inputs in opened.loader if opened is not None else loader:
            model.zero_grad()
            model(inputs).square().mean().backward()
            gradients += [
                parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None
            ]
    return gradients


def joined_both_ways() -> list[bool]:
    settings = [{}, {"divide_by_initial_world_size": False}]
    return [joined(True, options) == joined(False, options) for options in settings]


def test_gradients_under_join_are_the_same_however_it_divides() -> None:
    assert in_ranks(joined_both_ways, 2) == [[True, True]] * 2


# ---- torch.compile


def compiled(way: str, num_warm: int, watched: bool) -> tuple[Any, ...]:
    """Graph breaks, graphs and operations in them, recompilations, and losses of a compiled model."""
    torch._dynamo.reset()
    counters.clear()
    sizes = list[int]()

    def backend(graph: Any, inputs: Any) -> Any:
        sizes.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    model: Any = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    call = model
    if way == "torch.compile(ddp)":
        call = torch.compile(model, backend=backend)
    elif way == "ddp.compile()":
        model.compile(backend=backend)
    elif way == "DDP(torch.compile(module))":
        model.module = torch.compile(model.module, backend=backend)

    def step(inputs: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = call(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if way == "torch.compile(step)":
        step = torch.compile(step, backend=backend)
    loader = batches(4)
    losses = [float(step(inputs)) for inputs in loader[:1] * num_warm]
    phases = None
    with watch(model, loader, report=lambda line: None) if watched else nullcontext() as opened:
        for inputs in opened.loader if opened is not None else loader:
            losses.append(float(step(inputs)))
    if opened is not None:
        kinds = ("step", "forward", "backward", "optimizer", "zero_grad")
        phases = [len(opened.trace.timeline.select(kind=kind)) for kind in kinds]
    losses += [float(step(inputs)) for inputs in loader[:1]]
    return sum(counters["graph_break"].values()), sizes, losses, phases


def compiled_both_ways(way: str, num_warm: int) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compiled(way, num_warm, False), compiled(way, num_warm, True)


WAYS = ["torch.compile(ddp)", "ddp.compile()", "DDP(torch.compile(module))", "torch.compile(step)"]


@pytest.mark.oracle
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_warm", [0, 2])
def test_a_watch_adds_no_graph_break(way: str, num_warm: int) -> None:
    ((plain, watched),) = in_ranks(compiled_both_ways, 1, way, num_warm)
    breaks, sizes, losses, _ = plain
    watched_breaks, watched_sizes, watched_losses, phases = watched
    assert watched_breaks <= breaks
    assert watched_sizes == sizes
    assert watched_losses == losses
    assert phases == [4] * 5


# ---- the last window


def last_window(num_steps: int, every: int) -> list[str]:
    exchange.CLOSE_S = NOT_HANGING_S  # for the others' numbers, on a busy machine
    lines = list[str]()
    model = DistributedDataParallel(Net())
    with watch(model, batches(num_steps), every, report=lines.append) as watched:
        for inputs in watched.loader:
            model(inputs).mean().backward()
            time.sleep(0.01)
    return [line.partition(":")[0] for line in lines]


def test_the_last_shorter_window_is_reported_when_the_watch_closes() -> None:
    assert in_ranks(last_window, 2, 14, 5) == [["steps 1 to 5", "steps 6 to 10", "steps 11 to 13"], []]
    assert in_ranks(last_window, 1, 4, 50) == [["steps 1 to 3"]]
    assert in_ranks(last_window, 1, 11, 5) == [["steps 1 to 5", "steps 6 to 10"]]
    assert in_ranks(last_window, 1, 12, 5) == [["steps 1 to 5", "steps 6 to 10"]]  # one step alone says little


def test_a_job_that_fails_does_not_wait_for_the_numbers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CLOSE_S", NOT_HANGING_S)
    store = BoundedStore(dist.HashStore())
    first = StoreExchange(store, 0, [0, 1], lambda steps: np.zeros((2, 3)), lambda both: "line", print)
    first.start()
    first.post([])
    begin_s = time.monotonic()
    first.close(last_lines=False)
    assert time.monotonic() - begin_s < NOT_HANGING_S
    assert not first._thread.is_alive()
