"""Training loops on real ranks, watched: nothing of theirs changes, and the late one is named."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from rankscope.diagnose import diagnose, patches, watch
from rankscope.diagnose import live as watching
from rankscope.diagnose.live import Watched, WatchedCall, WatchedStep, _TimeOrigin
from rankscope.ranks import RankError, launch

pytestmark = pytest.mark.slow

_DELAY_S = 0.06


class Net(nn.Module):
    """Two layers, and an embedding whose gradient may be sparse."""

    def __init__(
        self, sparse: bool = False, norm: bool = False, late: Callable[[str], None] = lambda phase: None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16, sparse=sparse)
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 3)
        self.norm = nn.BatchNorm1d(64) if norm else nn.Identity()
        self.late = late

    def forward(self, tokens: Tensor) -> Tensor:
        self.late("forward")
        hidden = self.norm(torch.tanh(self.first(self.words(tokens))))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.late("backward"))
        output: Tensor = self.second(hidden)
        return output


def batches(number: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (8,), generator=generator) for _ in range(number)]


def in_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    return launch(fn, num_ranks, args, timeout_s=120)


# ---- what a watch may not change


def gradients(watched: bool, options: dict[str, Any], sparse: bool, hook: Any = None) -> list[list[float]]:
    """All gradients of three steps on this rank; the watch opens after the first step, and closes before the last."""
    model = DistributedDataParallel(Net(sparse), bucket_cap_mb=0.002, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer, numbers = torch.optim.SGD(model.parameters(), 0.1), []

    def step(tokens: Tensor) -> None:
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        with_gradients = [parameter for parameter in model.parameters() if parameter.grad is not None]
        for parameter in with_gradients:
            numbers.extend(parameter.grad.to_dense().flatten().tolist())
        optimizer.step()

    first, *middle, last = batches(4, dist.get_rank())
    step(first)
    with watch(model, middle) if watched else nullcontext() as opened:
        for tokens in opened.loader if opened else middle:
            step(tokens)
    step(last)
    return numbers


def both_ways(*args: Any) -> bool:
    return gradients(True, *args) == gradients(False, *args)


def all_settings() -> list[bool]:
    views = {"gradient_as_bucket_view": True}
    return [
        both_ways({}, False),
        both_ways(views, False),
        both_ways({}, True),
        both_ways({}, False, fp16_compress_hook),
    ]


def test_gradients_are_those_of_ddp_to_the_bit_also_where_a_third_is_rounded() -> None:
    assert in_ranks(all_settings, 3) == [[True] * 4] * 3


def traces_left(model: Any) -> list[int]:
    """What a watch has to take back: hooks, and methods that are not torch's own."""
    hooks = [model._forward_pre_hooks, model._forward_hooks, model.module._forward_pre_hooks]
    hooks += [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]  # type: ignore[list-item]
    methods = [getattr(dist.ProcessGroup, name) for name in patches.KINDS] + [torch.optim.Optimizer.zero_grad]
    return [len(registry) for registry in hooks] + [
        sum("live" in str(getattr(registry, "__code__", "")) for registry in methods)
    ]


def _fail(model: DistributedDataParallel) -> None:
    with watch(model, batches(4)) as watched:
        for _ in watched.loader:
            raise KeyError("the user's own")


def open_and_close() -> dict[str, Any]:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counts: dict[str, Any] = {"before": traces_left(model)}
    with watch(model, batches(4), keep=2) as watched:
        counts["open"] = traces_left(model)
        for tokens in watched.loader:
            model(tokens).mean().backward()
            optimizer.step()
    counts["after"], counts["steps"] = traces_left(model), len(watched.trace.timeline.select(kind="step"))
    with pytest.raises(KeyError, match="the user's own"):
        _fail(model)
    counts["after an error"] = traces_left(model)
    for tokens in watched.loader:  # goes on, unwatched
        model(tokens).mean().backward()
    counts["later"] = len(watched.trace.timeline.select(kind="step"))
    counts["hooks"] = len(model._comm_hooks)
    return counts


def test_nothing_is_left_behind_also_after_an_error() -> None:
    for counts in in_ranks(open_and_close, 2):
        assert counts["open"] != counts["before"]
        assert counts["before"] == counts["after"] == counts["after an error"] == [0] * 6
        assert (counts["steps"], counts["later"], counts["hooks"]) == (2, 2, 0)


# ---- what it sees


def late_job(causes: list[str], num_steps: int) -> list[tuple[list[Any], list[str]]]:
    """The culprits by the traces of each job, and the lines, on rank 0; rank 1 is late."""
    torch.set_num_threads(1)
    return [_late(cause, num_steps) for cause in causes]


def _late(cause: str, num_steps: int) -> tuple[list[Any], list[str]]:
    def late(phase: str) -> None:
        if phase == cause and dist.get_rank() == 1:
            time.sleep(_DELAY_S)

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            late("optimizer")
            super().step(closure)

    def loader() -> Iterator[Tensor]:
        for tokens in batches(num_steps):
            late("loader")
            yield tokens

    lines: list[str] = []
    model = DistributedDataParallel(Net(norm=True, late=late))
    optimizer = Slow(model.parameters(), 0.1)
    with watch(model, loader(), every=8, report=lines.append) as watched:
        for tokens in watched.loader:
            optimizer.zero_grad()
            loss = model(tokens).square().mean()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())  # as of a metric: others wait here for a late optimizer
    assert len(watched.timeline) == len(watched.trace.timeline)
    return diagnose(watched.traces).culprits, lines


def test_the_late_rank_and_its_cause_are_named_as_the_job_runs_and_by_its_traces() -> None:
    causes = ["loader", "forward", "backward", "optimizer"]
    by_rank = in_ranks(late_job, 3, causes, 26)
    for cause, (culprits, lines) in zip(causes, by_rank[0], strict=True):
        assert tuple(culprits[0][:2]) == (1, cause)
        assert culprits[0].cost_s > _DELAY_S / 2
        assert lines[0].startswith(f"steps 1 to 8: rank 1 is late, because of its {cause}: ")
        assert lines[1].startswith("steps 9 to 16: rank 1 is late")
    assert all(lines == [] for job in by_rank[1:] for _, lines in job)  # only the first rank speaks


def one_rank() -> tuple[list[str], Any]:
    """Micro-batches under no_sync, of which two are one step."""
    lines: list[str] = []
    model = DistributedDataParallel(Net())
    with watch(model, batches(10), every=2, report=lines.append) as watched:
        assert len(watched.loader) == 10
        with pytest.raises(RuntimeError, match="only after the `with` block ends"):
            _ = watched.traces
        for place, tokens in enumerate(watched.loader):
            with nullcontext() if place % 2 else model.no_sync():
                model(tokens).mean().backward()
    (trace,) = watched.traces
    return lines, trace


def test_micro_batches_belong_to_the_step_that_reduces_their_gradients() -> None:
    ((lines, trace),) = in_ranks(one_rank, 1)
    assert [line.partition(",")[0] for line in lines] == ["steps 1 to 2: balanced", "steps 3 to 4: balanced"]
    counts = {kind: len(trace.timeline.select(kind=kind)) for kind in ("step", "loader", "forward", "backward")}
    assert counts == {"step": 5, "loader": 10, "forward": 10, "backward": 10}
    parameters = sum(parameter.nbytes for parameter in Net().parameters())
    assert (trace.source, trace.calls.num_bytes.tolist()) == ("watch", [parameters] * 5)
    steps = trace.timeline.select(lane="main", kind="step")
    assert (steps.item == np.arange(5)).all()
    assert (trace.calls.launch_s <= trace.calls.stop_s).all()


def calls_of(hook: Any, **options: Any) -> list[list[int]]:
    """The bytes of each step's collectives, which follow each other; rank 1 is late in backward."""
    model = DistributedDataParallel(
        Net(late=lambda phase: time.sleep(_DELAY_S * (phase == "backward" and dist.get_rank() == 1))),
        bucket_cap_mb=0.002,
        **options,
    )
    if hook == "built-in":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    elif hook is not None:
        model.register_comm_hook(None, hook)
    with watch(model, batches(5)) as watched:
        for tokens in watched.loader:
            model(tokens).square().mean().backward()
    trace = watched.trace
    backward, calls = trace.timeline.select(kind="backward"), trace.calls
    step = np.searchsorted(backward.start_s, calls.launch_s) - 1
    waited_s = [float((calls.stop_s - calls.launch_s)[step == number].max()) for number in range(5)]
    assert (calls.launch_s <= backward.stop_s[step] + (0 if hook == allreduce_hook else 0.01)).all()
    assert (min(waited_s[1:]) > _DELAY_S / 2) == (dist.get_rank() == 0)
    names = [bucket.name for bucket in diagnose(watched.traces).buckets]
    buckets = [f"DDP bucket {place}" for place in range(2)]
    assert names == (buckets if hook == allreduce_hook else ["DDP buckets, together"])
    return [calls.num_bytes[step == number].tolist() for number in range(5)]


def test_the_wait_for_ddps_allreduces_is_one_call_and_with_torchs_hook_each_bucket_is_one() -> None:
    total = sum(parameter.nbytes for parameter in Net().parameters())
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        for sizes in in_ranks(partial(calls_of, **options), 2, None):
            assert sizes == [[total]] * 5
    assert in_ranks(calls_of, 2, "built-in") == [[[total]] * 5] * 2
    for sizes in in_ranks(calls_of, 2, allreduce_hook):
        assert [sum(step) for step in sizes] == [total] * 5
        assert all(len(step) > 1 for step in sizes[1:])


def diagnosed(late: Callable[[str], None], backwards: int = 1) -> tuple[list[str], list[tuple[int, str]]]:
    """The names of the calls, and the culprits, of five steps with so many backward passes."""
    model = DistributedDataParallel(Net(late=late))
    with watch(model, batches(5), report=lambda line: None) as watched:
        for tokens in watched.loader:
            for _ in range(backwards):
                model(tokens).square().mean().backward()
    diagnosis = diagnose(watched.traces)
    names = [bucket.name for bucket in diagnosis.buckets]
    return names, [(culprit.rank, culprit.cause) for culprit in diagnosis.culprits]


def two_backwards() -> list[str]:
    return diagnosed(lambda phase: None, backwards=2)[0]


def test_each_backward_of_a_step_has_a_call_for_all_its_buckets() -> None:
    names = ["DDP buckets of backward 0, together", "DDP buckets of backward 1, together"]
    assert in_ranks(two_backwards, 2) == [names] * 2


def sums_in_backward() -> tuple[list[str], list[tuple[int, str]]]:
    """An allreduce of the model's own, for which rank 1 is late."""

    def late(phase: str) -> None:
        if phase == "backward":
            time.sleep(_DELAY_S * dist.get_rank())
            dist.all_reduce(torch.ones(1))

    return diagnosed(late)


def test_an_allreduce_of_the_model_in_backward_is_no_bucket_and_hides_no_late_rank() -> None:
    for names, culprits in in_ranks(sums_in_backward, 2):
        assert names == ["allreduce 0 in backward", "DDP buckets, together"]
        assert culprits == [(1, "backward")]


# ---- ranks that differ, and ranks that die


def unequal() -> list[int]:
    model = DistributedDataParallel(Net())
    with watch(model, batches(4 + 3 * dist.get_rank()), every=2, report=lambda line: None) as watched, model.join():
        for tokens in watched.loader:
            model(tokens).mean().backward()
    return [len(trace.timeline.select(kind="step")) for trace in watched.traces]


def test_ranks_with_different_numbers_of_steps_end() -> None:
    assert in_ranks(unequal, 2) == [[4, 7], [4, 7]]


def dies() -> None:
    model = DistributedDataParallel(Net())
    with watch(model, batches(9), every=2, report=lambda line: None) as watched:
        for place, tokens in enumerate(watched.loader):
            if dist.get_rank() == 1 and place == 5:
                os._exit(3)
            model(tokens).mean().backward()


def test_a_rank_that_dies_leaves_nobody_in_the_watch() -> None:
    with pytest.raises(RankError, match="rank 1"):
        in_ranks(dies, 2)


def missing() -> list[int]:
    watching._WAIT_S = 0.2
    model = DistributedDataParallel(Net())
    watched = watch(model, batches(3))
    if dist.get_rank() == 0:
        with watched:
            pass
        with pytest.warns(UserWarning, match=r"no traces of ranks \[1\]"):
            return [trace.rank for trace in watched.traces]
    with pytest.raises(RuntimeError, match="available only after the `with` block ends"):
        _ = watched.traces  # of a watch that was never entered
    return []


def test_traces_come_without_those_of_ranks_that_have_not_left_their_watch() -> None:
    assert in_ranks(missing, 2)[0] == [0]


def of_two_groups() -> tuple[list[list[int]], list[list[str]]]:
    """For a watch of ranks 0 and 1, and then for one of all ranks: the ranks whose traces come, and the lines."""
    watching._WAIT_S = 20.0
    pair = dist.new_group([0, 1])
    all_ranks = []
    all_lines = []
    for group in (pair, dist.group.WORLD):
        if dist.get_rank() not in dist.get_process_group_ranks(group):
            continue
        model = DistributedDataParallel(Net(), process_group=group)
        lines: list[str] = []
        with watch(model, batches(4), every=2, report=lines.append) as watched:
            for tokens in watched.loader:
                model(tokens).mean().backward()
        all_ranks.append([trace.rank for trace in watched.traces])
        all_lines.append(lines)
    return all_ranks, all_lines


# ---- on a GPU stamps are events


class Event:
    def __init__(self, at_ms: float, past: bool = True) -> None:
        self.at_ms, self.past = at_ms, past

    def query(self) -> bool:
        return self.past

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


def test_a_step_is_taken_once_the_gpu_has_reached_its_events_on_all_streams() -> None:
    begin, phase, launch = late = [Event(at_ms, past=False) for at_ms in (11, 12, 13)]
    stamps = [("forward", True, phase), ("forward", False, Event(14))]
    calls = [WatchedCall("0", "allreduce", 8, launch, Event(99, past=False))]
    watched: Any = SimpleNamespace(
        _is_cuda=True,
        _ended=deque([WatchedStep(4, begin, "1 2", Event(17), "3 4", stamps, calls)]),
        _origin=_TimeOrigin(Event(10), 500),
        _last_steps=list[WatchedStep](),
        _window=list[WatchedStep](),
    )
    for event in late:
        Watched._take_ended(watched)
        assert watched._window == []
        event.past = True
    Watched._take_ended(watched)
    (taken,) = watched._window
    assert (taken.begin, taken.end) == (1_000_500, 7_000_500)
    assert taken.stamps == [("forward", True, 2_000_500), ("forward", False, 4_000_500)]
    assert (taken.calls[0].launch, taken.calls[0].stop) == (3_000_500, None)
