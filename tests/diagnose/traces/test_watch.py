"""Training loops on real ranks, watched: nothing of theirs changes, and the late one is named."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from rankscope.diagnose import diagnose, watch
from rankscope.diagnose.traces import live as watching
from rankscope.ranks import RankError, launch
from tests.processes import NOT_HANGING_S

pytestmark = pytest.mark.slow

_DELAY_S = 0.1
watching._CLOSE_S = NOT_HANGING_S  # on a busy machine the last line may take longer than a training script should wait


class Net(nn.Module):
    def __init__(self, late: Callable[[str], None] = lambda phase: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 3)
        self.norm = nn.BatchNorm1d(64)
        self.late = late

    def forward(self, inputs: Tensor) -> Tensor:
        self.late("forward")
        hidden = self.norm(torch.tanh(self.first(inputs)))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.late("backward"))
        output: Tensor = self.second(hidden)
        return output


def batches(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return list(torch.randn(number, 8, 16, generator=generator))


def in_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    return launch(fn, num_ranks, args, timeout_s=120)


def silent(line: str) -> None:
    """Report nothing."""


def gradients(watched: bool, hook: Any, options: dict[str, Any]) -> list[float]:
    """All gradients of ranks with unequal numbers of steps; the watch opens after the first step."""
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.002, broadcast_buffers=False, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer, numbers = torch.optim.SGD(model.parameters(), 0.1), []

    def step(inputs: Tensor) -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        for parameter in model.parameters():
            numbers.extend(parameter.grad.flatten().tolist())  # type: ignore[union-attr]
        optimizer.step()

    first, *others = batches(4 + dist.get_rank())
    step(first)
    with watch(model, others, report=silent) if watched else nullcontext() as opened, model.join():
        for inputs in opened.loader if opened else others:
            step(inputs)
    return numbers


def all_settings() -> list[bool]:
    settings: list[Any] = [(None, {}), (None, {"gradient_as_bucket_view": True}), (fp16_compress_hook, {})]
    return [gradients(True, *each) == gradients(False, *each) for each in settings]


def test_gradients_are_those_of_ddp_to_the_bit_also_under_join() -> None:
    assert in_ranks(all_settings, 2) == [[True] * 3] * 2


def late_job(causes: list[str], num_steps: int) -> list[Any]:
    """The culprits by the traces of each job, its calls and the lines; rank 1 is late."""
    torch.set_num_threads(1)
    return [_late(cause, num_steps) for cause in causes]


def _late(cause: str, num_steps: int) -> Any:
    def late(phase: str) -> None:
        if phase == cause and dist.get_rank() == 1:
            time.sleep(_DELAY_S)

    def loader() -> Iterator[Tensor]:
        for inputs in batches(num_steps):
            late("loader")
            yield inputs

    lines: list[str] = []
    model = DistributedDataParallel(Net(late), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: late("optimizer"))
    before = [vars(dist.Work)["wait"], torch.autograd.backward, nn.Module.__call__]
    with watch(model, loader(), every=8, report=lines.append) as watched:
        for inputs in watched.loader:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())  # as of a metric: others wait here for a late optimizer
    assert [vars(dist.Work)["wait"], torch.autograd.backward, nn.Module.__call__] == before
    diagnosis = diagnose(watched.traces)
    return diagnosis.culprits, {call.name: call.num_calls for call in diagnosis.calls}, lines


def test_the_late_rank_and_its_cause_are_named_as_the_job_runs_and_by_its_traces() -> None:
    causes = ["loader", "forward", "backward", "optimizer"]
    by_rank = in_ranks(late_job, 3, causes, 26)
    for cause, (culprits, names, lines) in zip(causes, by_rank[0], strict=True):
        assert [culprit.cost_s > _DELAY_S / 2 for culprit in culprits if tuple(culprit[:2]) == (1, cause)] == [True]
        assert any(f": rank 1 is late, because of its {cause}: " in line for line in lines)
        assert [line.partition(": ")[0] for line in lines] == ["steps 1 to 8", "steps 9 to 16", "steps 17 to 24"]
        assert names["allreduce in backward"] >= 2
    assert all(lines == [] for job in by_rank[1:] for _, _, lines in job)  # only the first rank speaks


def one_rank() -> tuple[list[str], Any]:
    """Micro-batches under no_sync, of which two are one step."""
    lines: list[str] = []
    model = DistributedDataParallel(Net(), broadcast_buffers=False)
    with watch(model, batches(10), every=2, report=lines.append) as watched:
        assert len(watched.loader) == 10
        with pytest.raises(RuntimeError, match="only after"):
            _ = watched.traces
        with pytest.raises(RuntimeError, match="already being recorded"), watch(model, []):
            pass
        for place, inputs in enumerate(watched.loader):
            with nullcontext() if place % 2 else model.no_sync():
                model(inputs).mean().backward()
    for inputs in watched.loader:  # goes on, unwatched
        model(inputs).mean().backward()
    (trace,) = watched.traces
    return lines, trace


def test_micro_batches_belong_to_the_step_that_reduces_their_gradients() -> None:
    ((lines, trace),) = in_ranks(one_rank, 1)
    assert [line.partition(",")[0] for line in lines] == ["steps 1 to 2: balanced", "steps 3 to 4: balanced"]
    counts = {kind: len(trace.timeline.select(kind=kind)) for kind in ("step", "loader", "forward", "backward")}
    assert counts == {"step": 5, "loader": 10, "forward": 10, "backward": 10}
    assert sum(call.kind == "allreduce" for call in trace.calls) == 5


def dies() -> None:
    model = DistributedDataParallel(Net())
    with watch(model, batches(9), every=2, report=silent) as watched:
        for place, inputs in enumerate(watched.loader):
            if dist.get_rank() == 1 and place == 5:
                os._exit(3)
            model(inputs).mean().backward()


def test_a_rank_that_dies_leaves_nobody_in_the_watch() -> None:
    with pytest.raises(RankError, match="rank 1"):
        in_ranks(dies, 2)


def raising() -> tuple[int, str]:
    """The number of steps trained, and what stands on stderr."""

    def report(line: str) -> None:
        raise KeyError("the user's own")

    model = DistributedDataParallel(Net())
    errors = io.StringIO()
    number = 0
    with contextlib.redirect_stderr(errors), watch(model, batches(12), every=3, report=report) as watched:
        for inputs in watched.loader:
            model(inputs).mean().backward()
            number += 1
    return number, errors.getvalue()


def test_an_error_in_the_report_is_one_line_and_all_ranks_train_on() -> None:
    first, second = in_ranks(raising, 2)
    assert first[0] == second[0] == 12
    assert first[1].startswith("rankscope.watch: rank 0: no more lines, KeyError")
    assert (first[1].count("\n"), second[1]) == (1, "")


def of_two_attempts() -> list[str]:
    """A store that outlives the ranks of an attempt still has their windows and traces."""
    lines: list[str] = []
    for attempt in ("0", "1"):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = attempt
        watching._num_watches.clear()
        model = DistributedDataParallel(Net())
        dist.barrier()
        number = 3 + 2 * int(attempt)
        with watch(model, batches(number), every=2, report=lines.append) as watched:
            for inputs in watched.loader:
                model(inputs).mean().backward()
        assert [len(trace.timeline.select(kind="step")) for trace in watched.traces] == [number] * 2
    return [line.partition(":")[0] for line in lines]


def test_a_watch_reads_nothing_of_an_earlier_attempt() -> None:
    assert in_ranks(of_two_attempts, 2)[0] == ["steps 1 to 2", "steps 1 to 2", "steps 3 to 4"]
