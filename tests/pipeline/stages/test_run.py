"""`run` with real threads: what it computes, how close to `simulate` it is, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from itertools import count

import numpy as np
import pytest

from rankscope.pipeline import Lognormal, Pipeline, Stage, StageError, run, simulate
from tests.pipeline.stages.simpy_reference import reference
from tests.processes import NOT_HANGING_S
from tests.ranks.functions import Speechless

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing"),
]


def double(value):
    return value * 2


def fail_at_seven(value):
    if value == 7:
        raise KeyError("seven")
    return value


# ---- what it computes


@pytest.mark.parametrize("ordered", [False, True])
def test_every_item_passes_every_stage_once(ordered):
    arrays = [np.full(100, float(number)) for number in range(60)]
    seen, one = [], 1
    path = Pipeline(
        [
            Stage("double", fn=double, num_workers=3, ordered=ordered),
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


@pytest.mark.parametrize(("num_workers", "ordered"), [(3, True), (3, False)])
def test_an_error_names_stage_and_item_and_stops_everything(num_workers, ordered):
    before, seen = threading.active_count(), []
    path = Pipeline(
        [
            Stage("read", fn=double, num_workers=2),
            Stage("halve", fn=lambda x: x // 2),
            Stage("check", fn=fail_at_seven, num_workers=num_workers, ordered=ordered),
            Stage("train", fn=seen.append),
        ]
    )
    with pytest.raises(StageError, match="seven") as caught:
        run(path, count())  # which ends only because everything is stopped
    error = caught.value
    assert (error.stage, error.item) == ("check", 7)
    assert isinstance(error.__cause__, KeyError)
    assert 7 not in seen
    assert threading.active_count() <= before


def test_an_error_whose_str_raises_stops_the_run_too():
    def fail(value):
        raise Speechless

    with pytest.raises(StageError, match="stage 'fail' failed on item 0") as caught:
        run(Pipeline([Stage("fail", fn=fail)]), range(3))
    assert isinstance(caught.value.__cause__, Speechless)


def test_an_error_of_the_items_surfaces():
    with pytest.raises(StageError, match="ZeroDivisionError") as caught:
        run(Pipeline([Stage("a", fn=double, num_workers=2), Stage("b", fn=double)]), (1 // n for n in (1, 0)))
    assert (caught.value.stage, caught.value.item) == ("items", None)


SCRIPT = """
import os, sys, time
from rankscope.pipeline import Pipeline, Stage, run

def work(value):
    os.write(1, b"working\\n")  # in one piece, unlike print from three threads
    time.sleep(600 if sys.argv[1] == "long" else 0.05)

try:
    run(Pipeline([Stage("work", fn=work, num_workers=3)]), range(100_000))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("items", ["short", "long"])
def test_ctrl_c_ends_a_run(tmp_path, items):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script, items], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        process.wait(NOT_HANGING_S)
    assert rest.endswith("interrupted\n")
