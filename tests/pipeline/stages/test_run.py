"""`run` with real threads and processes: what it computes, how close to `simulate` it is, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from itertools import count

import numpy as np
import pytest

from rankscope.pipeline import Lognormal, Pipeline, Stage, StageError, run, simulate
from tests.pipeline.stages.simpy_reference import reference
from tests.processes import NOT_HANGING_S, alive, gone, soon
from tests.ranks.functions import Speechless

run_module = import_module("rankscope.pipeline.stages.run")  # the package has the function under this name
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def double(value):
    return value * 2


def fail_at_seven(value):
    if value == 7:
        raise KeyError("seven")
    return value


def start_another(value):
    """Leave a process behind, which holds all that its parent held."""
    if child := os.fork():
        return child
    time.sleep(600)


# ---- what it computes


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_every_item_passes_every_stage_once(processes, ordered):
    arrays = [np.full(100, float(number)) for number in range(60)]
    seen, one = [], 1
    path = Pipeline(
        [
            Stage("double", fn=double, num_workers=3, ordered=ordered, processes=processes),
            Stage("add", fn=lambda array: array + one, num_workers=2, capacity=1, ordered=ordered),
            Stage("keep", fn=lambda array: seen.append(float(array[0]))),
        ]
    )
    timeline = run(path, arrays)
    timeline.check()
    expected = [number * 2.0 + 1 for number in range(60)]
    assert sorted(seen) == expected
    assert seen == expected or not ordered
    for stage in path.stages:
        assert sorted(timeline.select(kind=stage.name).item.tolist()) == list(range(60))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_stage_collects_batches_as_the_model_and_simpy_say(ordered):
    batches = []
    read = Stage("read", 0.001, num_workers=2, ordered=ordered)
    collate = Stage("collate", 0.002, fn=tuple, num_workers=2, capacity=1, batch_size=4)
    path = Pipeline([read, collate, Stage("train", 0.001, fn=batches.append)])
    expected = simulate(path, 10)
    ran = run(path, range(10))
    assert sorted(number for batch in batches for number in batch) == list(range(10))
    assert batches == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)] or not ordered
    passages = {(0, span.kind, span.item) for span in ran.work()}
    assert passages == {(0, span.kind, span.item) for span in expected.work()} == reference(path, 10).keys()
    assert path.bounds_per_s() == {"read": 2000, "collate": 4000, "train": 4000}


# ---- how close the prediction is


@pytest.mark.parametrize("ordered", [False, True])
def test_a_run_takes_about_as_long_as_predicted_and_never_less(ordered):
    path = Pipeline(
        [
            Stage("read", Lognormal(0.012, 0.5), num_workers=2, ordered=ordered),
            Stage("decode", Lognormal(0.020, 0.8), num_workers=4, ordered=ordered),
            Stage("train", 0.024, batch_size=4),
        ]
    )
    expected = simulate(path, 60, seed=9)
    for _ in range(20):  # until no other work on this machine delays it
        ratio = run(path, range(60), seed=9).makespan_s / expected.makespan_s
        if ratio < 1.1:
            break
    assert 0.99 < ratio < 1.1
    slower = simulate(path.changed("train", service_s=0.048), 60, seed=9)
    assert slower.makespan_s > 1.2 * expected.makespan_s  # which the bounds above would tell apart


# ---- how it ends


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(("num_workers", "ordered"), [(3, True), (3, False)])
def test_an_error_names_stage_and_item_and_stops_everything(processes, num_workers, ordered):
    before, seen = threading.active_count(), []
    path = Pipeline(
        [
            Stage("read", fn=double, num_workers=2),
            Stage("halve", fn=lambda x: x // 2),
            Stage("check", fn=fail_at_seven, num_workers=num_workers, ordered=ordered, processes=processes),
            Stage("train", fn=seen.append),
        ]
    )
    with pytest.raises(StageError, match="seven") as caught:
        run(path, count())  # which ends only because everything is stopped
    error = caught.value
    assert (error.stage, error.item) == ("check", 7)
    assert isinstance(error.__cause__, KeyError)
    assert not processes or "fail_at_seven" in error.__cause__.__notes__[0], "the traceback of the process"
    assert 7 not in seen
    assert threading.active_count() <= before


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_whose_str_raises_stops_the_run_too(processes):
    def fail(value):
        raise Speechless

    with pytest.raises(StageError, match="stage 'fail' failed on item 0") as caught:
        run(Pipeline([Stage("fail", fn=fail, processes=processes)]), range(3))
    assert isinstance(caught.value.__cause__, Speechless)


def test_an_error_of_the_items_surfaces():
    with pytest.raises(StageError, match="ZeroDivisionError") as caught:
        run(Pipeline([Stage("a", fn=double, num_workers=2), Stage("b", fn=double)]), (1 // n for n in (1, 0)))
    assert (caught.value.stage, caught.value.item) == ("items", None)


def test_what_a_worker_has_started_ends_with_it():
    children = []
    run(Pipeline([Stage("leave", fn=start_another, processes=True), Stage("keep", fn=children.append)]), range(2))
    assert len(children) == 2
    assert gone(children)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_hangs_or_dies_is_named_with_its_item(number, ordered, monkeypatch):
    """No wait that only the deadline for threads ends: it would take longer than this test may."""
    monkeypatch.setattr(run_module, "_GRACE_S", 1000.0)

    def halt(value):
        if value == 5:
            os.kill(os.getpid(), number)

    stage = Stage("halt", fn=halt, num_workers=2, ordered=ordered, processes=True)
    for timeout_s in (1, 10, 100):  # on a busy machine an item before may take more than a second
        with pytest.raises(StageError, match=f"{timeout_s} s|SIGKILL") as caught:
            run(Pipeline([stage, Stage("next", fn=repr)]), range(1000), timeout_s=timeout_s)
        if caught.value.item == 5:
            break
    assert (caught.value.stage, caught.value.item) == ("halt", 5)


SCRIPT = """
import os, sys, time
from rankscope.pipeline import Pipeline, Stage, run

def work(value):
    if sys.argv[1] == "long":
        tell(os.getpid())
    time.sleep(600 if sys.argv[1] == "long" else 0.05)
    return os.getpid()

def tell(pid):
    print(f"{pid}\\n", end="", flush=True)  # in one piece: others write there, too

path = Pipeline([Stage("work", fn=work, num_workers=3, processes=True), Stage("tell", fn=tell)])
try:
    run(path, range(100_000))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "items"),
    [(signal.SIGINT, "short"), (signal.SIGINT, "long"), (signal.SIGKILL, "long"), (signal.SIGTERM, "short")],
)
def test_ctrl_c_and_a_kill_leave_nothing_running(tmp_path, ending, items):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, items]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        pids = set()
        while len(pids) < 3:
            pids.add(int(process.stdout.readline()))
        if ending == signal.SIGINT:
            os.killpg(process.pid, ending)  # as a terminal does
        else:
            process.send_signal(ending)
        assert soon(lambda: not any(map(alive, pids))), "far less than a long item takes"
        rest = process.stdout.read()
        process.wait(NOT_HANGING_S)
    assert ("interrupted" in rest) == (ending == signal.SIGINT)
