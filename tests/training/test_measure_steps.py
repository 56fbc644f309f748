"""Real DDP processes, watched: their buckets, the order of events, their gradients, and every way in which they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankscope.ddp.buckets import ddp_buckets
from rankscope.ddp.ddp_run import DDPRun, joined
from rankscope.ddp.measure_steps import measure_ddp, measure_local_step
from rankscope.machine.emulate import emulated
from rankscope.ranks import RankError

from ..machine.networks import needs_network

WIDTH = 64  # a layer's weight has 16 KiB
CAP_MB = 0.01


def stack(depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))


def square(module: nn.Module, rank: int, number: int) -> Tensor:
    out: Tensor = module(torch.ones(8, WIDTH)).square().mean()
    return out


@pytest.fixture(scope="module")
def run() -> DDPRun:
    return measure_ddp(stack(), square, bucket_cap_mb=CAP_MB, iterations=5)


# ---- what is seen


def test_the_buckets_are_those_of_ddp(run: DDPRun) -> None:
    order = np.argsort(run.steps[0].ready_s[0]).tolist()
    expected = ddp_buckets(stack(), CAP_MB, ready_order=order)
    assert len(expected.rebuilt) == 4
    for iteration, step in enumerate(run.steps):
        expected.check(step.buckets, 3 + iteration)
    assert run.parameters == expected.parameters


def test_a_bucket_is_launched_when_its_last_gradient_is_in_it_and_in_order(run: DDPRun) -> None:
    for step in run.steps:
        for rank in range(2):
            spans = step.timeline.select(rank=rank)
            begin_s = spans.select(kind="backward").start_s[0]
            ready_s = step.ready_s[rank] + begin_s
            launched_s = [spans.select(kind="allreduce", item=item).start_s[0] for item in range(len(step.buckets))]
            assert launched_s == sorted(launched_s)
            for bucket, instant_s in zip(step.buckets, launched_s, strict=True):
                assert all(ready_s[place] < instant_s for place in bucket[:-1])
                assert ready_s[list(bucket)].max() == ready_s[bucket[-1]]  # its stamp follows DDP's own hook


def test_what_ranks_do_follows_on_each_other(run: DDPRun) -> None:
    timeline = run.timeline()
    timeline.check()
    assert set(timeline.kinds) <= {"forward", "backward", "wait", "unpack", "allreduce"} | {"optimizer"}
    assert set(timeline.lanes) <= {"compute", "allreduce", "allreduce 2"}
    for rank in range(2):
        compute = timeline.select(rank=rank, lane="compute")
        assert np.array_equal(compute.start_s[1:], compute.stop_s[:-1])
        done_s = timeline.select(rank=rank, kind="allreduce").end_s
        assert done_s <= compute.select(kind="unpack").start_s[0]
        assert compute.end_s <= max(run.step_s)


def test_a_step_takes_what_the_slowest_rank_takes(run: DDPRun) -> None:
    assert len(run.step_s) == len(run.clean) == len(run.steps) == 5
    for seconds, step in zip(run.step_s, run.steps, strict=True):
        assert step.timeline.end_s <= seconds
    assert run.median_s == np.median(run.used_s)
    assert run.steps[0].timeline is run.timeline(0)
    assert run.overlapped().buckets == run.buckets
    assert run.overlapped().step_s == run.median_s


def test_no_bucket_is_launched_under_no_sync() -> None:
    run = measure_ddp(stack(), square, bucket_cap_mb=CAP_MB, iterations=3, accumulation=3)
    for step in run.steps:
        compute = step.timeline.select(rank=0, lane="compute")
        assert [span.item for span in compute if span.kind in ("forward", "backward")] == [0, 0, 1, 1, 2, 2]
        last_s = compute.select(kind="forward", item=2).stop_s[0]
        launched = step.timeline.select(rank=0, kind="allreduce")
        assert len(launched) == 4
        assert launched.begin_s > last_s


def test_a_parameter_without_a_gradient_is_told() -> None:
    module = nn.ModuleDict({"used": nn.Linear(WIDTH, 1), "unused": nn.Linear(WIDTH, 1)})
    run = measure_ddp(Chosen(module), used, find_unused_parameters=True, iterations=4, warm_up=2)
    assert np.isnan(run.ready_s).tolist() == [False, False, True, True]
    assert sorted(place for bucket in run.buckets for place in bucket) == [0, 1, 2, 3]


class Chosen(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.parts["used"](batch)
        return out


def used(module: nn.Module, rank: int, number: int) -> Tensor:
    out: Tensor = module(torch.ones(2, WIDTH)).sum()
    return out


# ---- that it is DDP


class Checked(torch.optim.Optimizer):
    """Raises unless every gradient is `expected`."""

    expected = 0.0

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            found = parameter.grad.unique().tolist()
            if found != [self.expected]:
                raise AssertionError(f"gradient {found}, expected {self.expected}")


class Averaged(Checked):
    expected = 1.5 * 2  # of ranks 0 and 1, times 1 and 2, over two micro-batches


class AveragedOnce(Checked):
    expected = 1.5


class Own(Checked):
    expected = 0.5 * 2  # rank 0's, of two ranks


def times_rank(module: nn.Module, rank: int, number: int) -> Tensor:
    assert module.training
    loss: Tensor = module(torch.ones(1, 4)).sum() * (rank + 1)
    return loss


@pytest.mark.parametrize("options", [{}, {"observe": False}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_gradients_are_averaged_as_ddp_does_it(options: dict[str, Any]) -> None:
    twice = {"accumulation": 2, "optimizer": Averaged} if "static_graph" not in options else {"optimizer": AveragedOnce}
    run = measure_ddp(nn.Linear(4, 1), times_rank, iterations=2, **twice, **options)
    if options.get("observe", True):
        assert run.local_step().parameters == run.parameters
        return
    assert run.steps == ()
    with pytest.raises(ValueError, match="nothing was observed in this run: measure it with observe=True"):
        run.timeline()


def test_a_wrong_gradient_would_have_been_seen() -> None:
    with pytest.raises(RankError, match=r"gradient \[3\.0\], expected 1\.0"):
        measure_ddp(nn.Linear(4, 1), times_rank, iterations=1, accumulation=2, optimizer=Own)


@pytest.mark.parametrize("observe", [True, False])
def test_the_local_step_communicates_nothing(observe: bool) -> None:
    options: dict[str, Any] = {"accumulation": 2, "optimizer": Own, "communicate": False, "observe": observe}
    with pytest.raises(RankError, match=r"rank 1 failed: AssertionError: gradient \[2\.0\], expected 1\.0"):
        measure_ddp(nn.Linear(4, 1), times_rank, iterations=1, **options)


def test_the_local_step_has_what_the_module_has() -> None:
    module = stack()
    local = measure_local_step(module, square, num_ranks=2, iterations=5)
    assert [spec.name for spec in local.parameters] == [name for name, _ in module.named_parameters()]
    assert {place // 2 for place in local.ready_order[:2]} == {3}  # the last layer's first
    assert np.nanmax(local.ready_s) == local.backward_s
    assert min(local.forward_s, local.unpack_s) > 0


def test_the_module_of_the_caller_stays_as_it_is() -> None:
    module = stack(1)
    before = [parameter.clone() for parameter in module.parameters()]
    measure_local_step(module, square, iterations=1, optimizer=sgd)
    assert all(map(torch.equal, before, module.parameters()))
    assert all(parameter.grad is None for parameter in module.parameters())


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


@needs_network
def test_ranks_may_be_on_an_emulated_network() -> None:
    with emulated(2, 12.5e6) as network:
        run = measure_ddp(stack(), square, iterations=2, network=network)
    assert run.provenance["network"] == "emulated: 100 Mbit/s"
    assert run.provenance["ranks_per_node"] == (1, 1)


def test_ranks_of_torchrun_all_get_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from rankscope.ddp.measure_steps import measure_ddp\n"
        "def loss(module, rank, number):\n"
        "    return module(torch.ones(1, 4)).sum()\n"
        "run = measure_ddp(torch.nn.Linear(4, 1), loss, num_ranks=None, iterations=2)\n"
        "print(f'{run.num_ranks} ranks, {run.buckets}\\n', end='', flush=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 ranks, ((1, 0),)"] * 2


# ---- how it ends


def dies(module: nn.Module, rank: int, number: int) -> Tensor:
    if rank == 1 and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(module, rank, number)


def hangs(module: nn.Module, rank: int, number: int) -> Tensor:
    if rank == 1:
        signal.pause()
    return square(module, rank, number)


def raises(module: nn.Module, rank: int, number: int) -> Tensor:
    raise KeyError("no batch")


def test_a_rank_that_dies_is_named() -> None:
    with pytest.raises(RankError) as caught:
        measure_ddp(stack(), dies)
    assert caught.value.rank == 1
    assert "SIGKILL" in str(caught.value)


def test_a_hang_is_bounded_and_named() -> None:
    begin = time.monotonic()
    with pytest.raises(RankError, match="rank"):
        measure_ddp(stack(), hangs, timeout_s=3)
    assert time.monotonic() - begin < 300  # the start of ranks on a busy machine included; a hang has no end


def test_an_error_of_the_loss_comes_through() -> None:
    with pytest.raises(RankError, match="KeyError: 'no batch'"):
        measure_ddp(stack(), raises)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"module": "model"}, "module must be a Module, got 'model'"),
        ({"module": nn.ReLU()}, "params must hold at least one that requires a gradient, got none"),
        ({"loss": 3}, "loss must be a function, got 3"),
        ({"optimizer": "sgd"}, "optimizer must be a function, got 'sgd'"),
        ({"num_ranks": 0}, "num_ranks must be a whole number from 1 to 256, got 0"),
        ({"bucket_cap_mb": -1}, "bucket_cap_mb must be a finite number above 0, got -1"),
        ({"iterations": 0}, "iterations must be a whole number from 1 to 10000, got 0"),
        ({"warm_up": 1}, "warm_up must be a whole number from 2 to 1000, got 1"),
        ({"accumulation": 0}, "accumulation must be a whole number from 1 to 10000, got 0"),
        ({"backend": "tcp"}, "backend must be one of 'gloo', 'nccl', 'mpi', got 'tcp'"),
        ({"device": "tpu"}, "device must be one of 'cpu', 'cuda', got 'tpu'"),
        ({"network": 5}, "network must be an emulated one with hosts for 2 ranks, alike, on Gloo, got 5"),
        (
            {"static_graph": True, "accumulation": 2},
            "static_graph must be False with accumulation: DDP's first backward of one must communicate",
        ),
        ({"observe": 1}, "observe must be True or False, got 1"),
        ({"timeout_s": 0}, "timeout_s must be a finite number above 0 and of at most 1000000, got 0"),
    ],
)
def test_bad_input_is_told(wrong: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"module": stack(1), "loss": square, **wrong}
    with pytest.raises(ValueError, match="must") as caught:
        measure_ddp(**given)
    assert str(caught.value) == message


# ---- its file


def test_a_run_is_stored_and_read_again(run: DDPRun, tmp_path: Path) -> None:
    path = run.save(tmp_path / "run.json")
    again = DDPRun.load(path)
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert (again.step_s, again.clean, again.buckets, again.parameters) == (
        run.step_s, run.clean, run.buckets, run.parameters,
    )  # fmt: skip
    assert list(again.timeline()) == list(run.timeline())
    assert np.array_equal(again.ready_s, run.ready_s)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "version 2 is newer than 1"),
        ("rankscope ddp run", "rankscope profile", "format must be 'rankscope ddp run', got 'rankscope profile'"),
        ('"accumulation": 1', '"accumulation": 2', "it was damaged or changed by hand"),
        ('"step_s": [', '"step_s": [-1.0, ', "step_s must be a finite number of at least 0, got -1.0"),
        ('"setting": {', '"setting": {"speed": 3, ', "setting must say"),
        ('"buckets": [[', '"buckets": [[9, ', "buckets must hold each of 8 parameters once"),
        ('"lanes": ["compute"', '"lanes": [5', "is no readable run"),
        ('"steps": [', '"steps": [3, ', r"steps\[0\] must be an object"),
    ],
)
def test_a_damaged_run_is_refused(run: DDPRun, tmp_path: Path, old: str, new: str, message: str) -> None:
    path = run.save(tmp_path / "run.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"run\.json is no readable run: .*{message}|run\.json {message}"):
        DDPRun.load(path)


def test_runs_are_joined_where_they_are_alike(run: DDPRun) -> None:
    both = joined([run, run])
    assert both.step_s == run.step_s * 2
    assert len(both.steps) == 10
    other = DDPRun(run.provenance, {**run.setting, "accumulation": 2}, run.parameters, run.step_s, run.clean)
    with pytest.raises(ValueError, match="runs must be of one module, setting and number of ranks"):
        joined([run, other])
    turned = [replace(step, buckets=step.buckets[::-1]) for step in run.steps]
    with pytest.raises(ValueError, match="runs must end with the same buckets, got"):
        joined([run, replace(run, steps=tuple(turned))])
