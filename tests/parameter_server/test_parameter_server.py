"""A parameter server on real processes against DDP, allreduce and one process; its model against closed forms."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

from rankscope.cluster import Link
from rankscope.gradients import Work, values_of
from rankscope.machine.emulate import Network, emulated
from rankscope.parameter_server import measure_calls, port_bytes, simulate, train
from rankscope.parameter_server.model import HOW, ServerRun
from rankscope.parameter_server.run import batches_of
from rankscope.ranks import RankError, launch

from ..machine.networks import needs_network
from ..processes import soon
from ..small import CROSS, batch, mlp

pytestmark = pytest.mark.slow

WORK = Work(mlp(), *batch(40), CROSS)
SETTING: dict[str, Any] = {"num_batches": 12, "batch_size": 4, "learning_rate": 0.2, "seed": 3}
PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "other_ways.json"


def trained(how: str, num_workers: int = 1, work: Work = WORK, **options: Any) -> ServerRun:
    return train(work, how, num_workers, **{**SETTING, **options})


# ---- the model


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_a_synchronous_step_in_closed_form(num_workers: int) -> None:
    """Pulls pass the port one after the other; pushes do so too, each while the next worker still computes."""
    link, port_s = Link(0.25, 64.0), 1.0
    times_s = [
        simulate("synchronous", num_workers, steps * num_workers, 64, link, 2.0, 0.5).timeline.makespan_s
        for steps in (1, 2, 3)
    ]
    step_s = (num_workers + 1) * port_s + link.alpha_s + 2.0 + 0.5
    assert np.diff(times_s).tolist() == [step_s, step_s]


def test_an_asynchronous_server_gives_what_its_port_can_and_no_more() -> None:
    """With many workers gradients come as quickly as the port takes them; with one, as it can ask."""
    link = Link(0.0, 100.0)
    alone = simulate("asynchronous", 1, 50, 100, link, 3.0)
    assert (alone.timeline.makespan_s, set(alone.staleness)) == (50 * 5.0, {0})
    many = simulate("asynchronous", 16, 480, 100, link, 3.0).timeline
    ends_s = np.sort(many.select(rank=0, kind="optimizer").stop_s)
    assert np.diff(ends_s).min() >= 1.0
    assert np.median(np.diff(ends_s)) == 1.0


@pytest.mark.parametrize("compute_s", [2.5, [1.0, 1.5, 7.25]])
def test_how_far_behind_a_gradient_is_by_who_pushed_in_between(compute_s: Any) -> None:
    """The second method: where calls take no time, a worker pulls where it has pushed last."""
    run = simulate("asynchronous", 3, 60, 100, Link(0.0, float("inf")), compute_s)
    last = dict.fromkeys((1, 2, 3), -1)
    for place, (worker, behind) in enumerate(zip(run.pushed_by, run.staleness, strict=True)):
        pulled = last[worker] + 1
        ties = sum(one == worker for one in run.pushed_by[pulled:place])
        assert place - pulled - ties >= behind >= place - pulled - 2  # those that push at the same instant
        last[worker] = place
    assert len(run.staleness) == 60


def test_lanes_of_the_model_are_in_order_and_bytes_add_up() -> None:
    for how in HOW:
        run = simulate(how, 4, np.array(40), 1000, Link(1e-3, 1e6), [0.01, 0.02, 0.0, 0.005], 1e-3)
        run.timeline.check()
        assert (run.num_batches, type(run.num_batches)) == (40, int)
        assert run.received_bytes + run.sent_bytes == (how != "allreduce") * 10 * port_bytes("synchronous", 1000, 4)
    assert run.compute_s() == pytest.approx((0.01, 0.02, 0.0, 0.005))
    ring_s = 2 * 3 * (1e-3 + 250 / 1e6)
    assert run.timeline.makespan_s == pytest.approx(10 * (0.02 + ring_s + 1e-3))
    assert port_bytes("allreduce", 1000, 4) == 2 * 1500


FROZEN = Work(mlp(), *batch(40), CROSS)
FROZEN.module[2].weight.requires_grad_(False)

LINK = Link(0, 1)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: train(WORK, "lazy"), "how must be one of 'synchronous', 'asynchronous', 'allreduce', 'hogwild', 'alone'"),
    (lambda: train(WORK, "hogwild", network="lan"), "network must be None with 'hogwild', .*, got lan"),
    (lambda: train(WORK, "hogwild", learning_rate=-1), "learning_rate must be a finite number above 0, got -1"),
    (lambda: train(WORK, num_workers=0), "num_workers must be a whole number from 1 to 255, got 0"),
    (lambda: train(mlp()), "work must be a Work"),
    (lambda: train(FROZEN), "must have parameters that all get a gradient, got 2.weight without"),
    (lambda: train(WORK, num_workers=3), "a multiple of the 3 workers, got 20"),
    (lambda: train(WORK, batch_size=0), "batch_size must be a whole number from 1 to 40, got 0"),
    (lambda: train(WORK, learning_rate=0), "learning_rate must be a finite number above 0, got 0"),
    (lambda: train(WORK, compute_s=[1.0]), "one for each of 2 workers, got"),
    (lambda: train(WORK, timeout_s=0), "timeout_s must be a finite number above 0"),
    (lambda: simulate("allreduce", 2, 2, -1, LINK, 1), "parameter_bytes must be a whole"),
    (lambda: simulate("allreduce", 2, 2, 1, 3, 1), "link must be a Link, got 3"),
    (lambda: port_bytes("alone", 1, 1), "how must be one of 'synchronous', 'asynchronous', 'allreduce', got 'alone'"),
    (lambda: measure_calls([0]), "num_bytes must be a whole number from 1"),
    (lambda: measure_calls([1, 2, 3]), "num_bytes must be 5 or more different whole numbers, got"),
    (lambda: measure_calls(network="lan"), "network must be an emulated one with hosts for 2 ranks"),
    (lambda: train(WORK, "alone", 3, num_batches=4), "num_batches must be a multiple of the 3 workers, got 4"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_wrong_input_is_one_clear_error(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


# ---- real processes


def ddp_parameters(work: Work, rows: np.ndarray[Any, Any], learning_rate: float) -> Any:
    """What DDP makes of the same batches; in a rank."""
    ddp = DistributedDataParallel(work.module)
    optimizer = torch.optim.SGD(ddp.parameters(), learning_rate)
    for row in rows[dist.get_rank() :: dist.get_world_size()]:
        optimizer.zero_grad()
        work.loss_fn(ddp(work.inputs[row]), work.targets[row]).backward()
        optimizer.step()
    return values_of(ddp.module)


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_synchronous_server_ddp_allreduce_and_one_process_train_alike(num_workers: int) -> None:
    alone = trained("alone", num_workers).parameters
    assert np.abs(alone - values_of(WORK.module)).max() > 0.05
    runs = {how: trained(how, num_workers) for how in ("synchronous", "allreduce")}
    rows = batches_of(40, 12, 4, seed=3)
    ddp = launch(ddp_parameters, num_workers, (WORK, rows, 0.2))[0]
    for found in (ddp, *(run.parameters for run in runs.values())):
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-14)
    run = runs["synchronous"]
    steps = 12 // num_workers
    assert run.parameter_bytes == 92 * 8
    assert run.received_bytes + run.sent_bytes == steps * port_bytes("synchronous", 92 * 8, num_workers)
    assert set(run.staleness) == {0}
    for step in range(steps):
        assert sorted(run.pushed_by[step * num_workers : (step + 1) * num_workers]) == [*range(1, num_workers + 1)]
    for one in runs.values():
        one.timeline.check()
        assert sum(span.kind == "compute" for span in one.timeline) == 12


def test_an_asynchronous_server_uses_each_batch_once_and_counts_who_is_behind() -> None:
    run = trained("asynchronous", 3, compute_s=[0.001, 0.001, 0.01])
    assert (len(run.staleness), run.received_bytes, run.sent_bytes) == (12, 12 * 92 * 8, 12 * 92 * 8)
    assert all(0 <= behind <= place for place, behind in enumerate(run.staleness))
    updates = run.timeline.select(rank=0, kind="optimizer")
    assert sorted(updates.item.tolist()) == list(range(12))
    run.timeline.check()


@pytest.mark.parametrize("how", ["asynchronous", "hogwild"])
def test_one_worker_is_plain_sgd(how: str) -> None:
    run = trained(how)
    assert set(run.staleness) <= {0}
    np.testing.assert_array_equal(run.parameters, trained("alone").parameters)


def test_processes_without_a_lock_train_the_same_parameters() -> None:
    """A loss with a constant gradient: as long as nothing is lost, order does not matter; what is lost is missing."""
    inputs = torch.arange(48, dtype=torch.float64).reshape(8, 6)
    work = Work(torch.nn.Linear(6, 1, dtype=torch.float64), inputs, torch.zeros(8), lambda out, _: out.mean())
    alone, run = trained("alone", 1, work).parameters, trained("hogwild", 3, work)
    assert sorted(run.timeline.item.tolist()) == list(range(12))
    assert set(run.timeline.rank.tolist()) == {0, 1, 2}
    run.timeline.check()
    assert (run.parameters <= values_of(work.module)).all()  # each step goes down, by any process
    assert (run.parameters >= alone - 1e-9).all()  # and no step counts twice


def test_batches_are_whole_epochs_one_after_another() -> None:
    rows = batches_of(10, 5, 4, seed=1).ravel()
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()


def card_bytes() -> list[int]:
    """The bytes that this host's card has received and sent, as the kernel counts them."""
    rows = [line.replace(":", " ").split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return next([int(row[1]), int(row[9])] for row in rows if row[0] == Network.device)


@needs_network
def test_the_counted_bytes_are_those_on_the_wire(tmp_path: Path) -> None:
    place = tmp_path / "port.json"

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen = json.loads(place.read_text()) if place.exists() else []
        place.write_text(json.dumps([*seen, rpc.rpc_sync("server", card_bytes)]))
        return CROSS(outputs, targets)

    wide = Work(torch.nn.Linear(6, 10_000, dtype=torch.float64), WORK.inputs, WORK.targets, loss)  # 560 kB
    with emulated(2, 125e6) as network:
        run = trained("asynchronous", 1, wide, network=network)
    moved = np.array(json.loads(place.read_text()))
    calls = run.parameter_bytes * (len(moved) - 1)  # from one gradient to the next: a push in, a pull out
    for ratio in (moved[-1] - moved[0]) / calls:
        assert 1.0 <= ratio <= 1.3


# ---- what goes wrong


def with_loss(loss: Callable[..., torch.Tensor]) -> Work:
    return Work(WORK.module, WORK.inputs, WORK.targets, loss)


def ended(error: RankError) -> bool:
    """Whether the process that an error names has ended, or is about to."""
    pid = re.findall(r"pid (\d+)", str(error))[0]
    return soon(lambda: not os.path.exists(f"/proc/{pid}/cwd"))


@pytest.mark.parametrize("how", ["synchronous", "allreduce", "hogwild"])
def test_a_killed_worker_is_named(how: str) -> None:
    last = 2 if how.endswith("synchronous") else 1

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return CROSS(outputs, targets)

    with pytest.raises(RankError, match=r"^worker 2: rank \d .*was killed by SIGKILL") as caught:
        trained(how, 2, with_loss(loss))
    assert caught.value.rank == last
    assert ended(caught.value)


def test_a_killed_server_is_named() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        os.kill(rpc.rpc_sync("server", os.getpid), signal.SIGKILL)
        return CROSS(outputs, targets)

    with pytest.raises(RankError, match=r"^the server: rank 0 .*was killed by SIGKILL") as caught:
        trained("asynchronous", 2, with_loss(loss))
    assert ended(caught.value)


def test_a_worker_that_hangs_ends_with_the_time_given() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            signal.pause()
        return CROSS(outputs, targets)

    with pytest.raises(RankError, match=r"not returned after 4 s"):
        trained("synchronous", 2, with_loss(loss), timeout_s=4)


def listening() -> list[str]:
    """The addresses on which this process listens, as the kernel has them."""
    links = [f"/proc/self/fd/{one}" for one in os.listdir("/proc/self/fd")]
    own = {os.readlink(one)[8:-1] for one in links if os.path.islink(one) and os.readlink(one).startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in own]


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="there is no /proc/net/tcp")
def test_nobody_listens_beyond_loopback(tmp_path: Path) -> None:
    place = tmp_path / "listening.json"

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not place.exists():
            place.write_text(json.dumps([listening(), rpc.rpc_sync("server", listening)]))
        return CROSS(outputs, targets)

    trained("asynchronous", 1, with_loss(loss))
    for addresses in json.loads(place.read_text()):
        assert set(addresses) == {"0100007F"}  # 127.0.0.1, its bytes from the last to the first


# ---- what was recorded


def test_recorded_servers_take_what_is_predicted() -> None:
    rows = json.loads(PROFILE.read_text())["servers"]
    assert {(row["how"], row["num_workers"]) for row in rows} >= {("synchronous", 8), ("asynchronous", 8)}
    off = {}
    for row in rows:
        setting = (row["how"], row["num_workers"], row["num_batches"], row["parameter_bytes"])
        twin = simulate(*setting, Link(**row["link"]), row["compute_s"])
        off[row["how"], row["num_workers"]] = twin.timeline.makespan_s / row["executed_s"] - 1
        assert (twin.received_bytes, twin.sent_bytes) == (row["received_bytes"], row["sent_bytes"])
        if row["how"] == "asynchronous":
            behind = np.array(row["behind"]) @ np.arange(len(row["behind"])) / row["num_batches"]
            assert abs(behind - np.mean(twin.staleness)) < 0.35
    with_server = [abs(error) for (how, _), error in off.items() if how != "allreduce"]
    assert np.median(with_server) <= 0.07
    assert max(with_server) <= 0.12
    assert max(abs(off["allreduce", num_workers]) for num_workers in (2, 4, 8)) <= 0.25
