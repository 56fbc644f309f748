"""`run` with real threads and processes: what it computes, how close to `simulate` it is, and how it ends."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from itertools import count

import numpy as np
import pytest
import torch

from rankscope.pipeline import Lognormal, Pipeline, Stage, StageError, run, simulate
from rankscope.pipeline import processes as processes_module
from rankscope.sampling import Assignment, assign
from rankscope.timeline import Recorder

from ..distributions import Exponential
from ..processes import NOT_HANGING_S, alive, gone, soon
from .virtual_time import VirtualTime, run_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


# ---- functions of stages; at module level, so that any process can import them


def double(value):
    return value * 2


def fail_at_seven(value):
    if value == 7:
        raise KeyError("seven")
    return value


def die_at_five(value):
    if value == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def slowly(value):
    time.sleep(0.05)
    return os.getpid()


def start_another(value):
    """Leave a process behind, which holds all that its parent held."""
    if child := os.fork():
        return child
    time.sleep(600)


def interrupt(value=None):
    os.kill(os.getpid(), signal.SIGINT)


def num_threads(value):
    return torch.get_num_threads()


# ---- what it computes


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_every_item_passes_every_stage_once(processes, ordered):
    arrays = [np.full(100, float(number)) for number in range(60)]
    seen = []
    path = Pipeline(
        [
            Stage("double", fn=double, num_workers=3, ordered=ordered, processes=processes),
            Stage("add", fn=lambda array: array + 1, num_workers=2, capacity=1, ordered=ordered),
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
    lanes = [lane for stage in path.stages for lane in stage.lanes()]
    assert [lane for _, lane in timeline.rank_lanes()] == [lane for lane in lanes if len(timeline.select(lane=lane))]


def test_functions_go_by_value_and_ctrl_c_is_not_for_them():
    seen, factor = [], 2
    here = Stage("here", fn=lambda value: (interrupt(), factor * value)[1], num_workers=2, processes=True)
    run(Pipeline([here, Stage("keep", fn=seen.append)]), range(3))
    assert seen == [0, 2, 4]


def test_items_may_have_no_end_in_sight_and_are_taken_as_they_are_needed():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    most = []
    path = Pipeline([Stage("pass", fn=double, capacity=2), Stage("look", fn=lambda x: most.append(taken[-1] - x // 2))])
    run(path, items())
    assert max(most) <= 5, "what the queue, the two workers and a hand-over hold"


def test_a_recorder_gets_the_spans_and_keeps_those_of_other_runs():
    recorder = Recorder(rank=3)
    path = Pipeline([Stage("a", fn=double)])
    first, second = run(path, range(3), recorder=recorder), run(path, range(4), recorder=recorder)
    assert (len(first), len(second), len(recorder.timeline())) == (3, 4, 7)
    assert set(second.rank.tolist()) == {3}
    assert second.begin_s < 1.0


def test_stages_get_the_indices_or_the_batches_of_an_assignment():
    seen = []
    path = Pipeline([Stage("read", fn=lambda item: item, num_workers=2), Stage("train", fn=seen.append)])
    recorder = Recorder(rank=7)
    assignment = assign(12, 3, seed=1)
    timeline = run(path, assignment, recorder=recorder)
    assert sorted(seen) == list(range(12))
    assert {type(item) for item in seen} == {int}
    for rank, indices in enumerate(assignment.ranks):
        assert timeline.select(rank=rank, kind="train").item.tolist() == indices.tolist()
    assert len(recorder.timeline()) == len(timeline)
    assert [stage.service_s.size for stage in path.measured(timeline).stages] == [12, 12]
    seen.clear()
    batches = assign(12, 3, seed=1).with_loader(3)
    timeline = run(path, batches)
    assert sorted(batch.tolist() for batch in seen) == sorted(b.tolist() for r in range(3) for b in batches.batches(r))
    assert timeline.select(rank=2, kind="train").item.tolist() == [0, 1]


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_on_one_rank_stops_those_that_wait_for_it(processes):
    path = Pipeline([Stage("check", fn=fail_at_seven, processes=processes), Stage("train", fn=double)])
    with pytest.raises(StageError, match="rank 1") as caught:
        run(path, assign(1000, 2, shuffle=False))
    assert (caught.value.stage, caught.value.item) == ("check", 7)


def test_items_that_end_once_are_not_asked_again():
    left, ends = [1, 2, 3], []

    class Items:
        def __iter__(self):
            return self

        def __next__(self):
            if left:
                return left.pop()
            ends.append(True)
            raise StopIteration

    assert len(run(Pipeline([Stage("double", fn=double, num_workers=3)]), Items()).select(kind="double")) == 3
    assert ends == [True]


def test_torch_has_one_thread_in_a_worker_process():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        path = Pipeline([Stage("count", fn=num_threads, processes=True), Stage("keep", fn=seen.append)])
        run(path, range(2))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


# ---- how close the prediction is


PATHS = {
    "in order": [
        Stage("read", Lognormal(0.006, 0.5), num_workers=2),
        Stage("decode", Lognormal(0.010, 0.8), num_workers=4),
        Stage("train", 0.003),
    ],
    "as done": [
        Stage("read", Lognormal(0.006, 0.5), num_workers=2, ordered=False),
        Stage("decode", Lognormal(0.010, 0.8), num_workers=4, ordered=False),
        Stage("train", 0.003),
    ],
    "one after the other": [Stage("read", Exponential(0.005), capacity=1), Stage("train", Exponential(0.005))],
}


def spans_of(timeline):
    """Which item was where from when to when, to the microsecond; any worker of a stage may have it."""
    rows = ((span.rank, span.kind, span.item, round(span.start_s, 6), round(span.stop_s, 6)) for span in timeline)
    return sorted(rows)


@pytest.mark.parametrize("name", PATHS)
def test_a_run_takes_the_times_that_were_predicted(monkeypatch, name):
    """Span for span where waking up takes no time. By a real clock within 2 %, as the benchmark shows."""
    path = Pipeline(PATHS[name])
    VirtualTime(monkeypatch, sum(stage.num_workers for stage in path.stages))
    executed = run(path, range(150), seed=9)
    executed.check()
    assert spans_of(executed) == spans_of(simulate(path, 150, seed=9))
    for other in (simulate(path, 150, seed=8), simulate(path.changed("train", service_s=0.012), 150, seed=9)):
        assert spans_of(executed) != spans_of(other)


@pytest.mark.parametrize(
    "assignment",
    [
        assign(30, 4, seed=2),
        assign(101, 3).with_loader(4),
        assign(101, 3, drop_last=True).with_loader(4, drop_last=True),
        Assignment(20, [[3, 1, 4, 1, 5], [], [9, 2], [6]]),
        Assignment(20, [[7, 8, 9]]),
    ],
)
def test_a_run_of_an_assignment_takes_the_times_that_were_predicted(monkeypatch, assignment):
    """All ranks at once, in lock-step, those that run out of items early too; span for span."""
    decode = Stage("decode", Lognormal(0.010, 0.8), num_workers=2)
    path = Pipeline([decode, Stage("copy", 0.002, capacity=1), Stage("train", Exponential(0.006))])
    VirtualTime(monkeypatch, 4 * assignment.num_ranks)
    executed = run(path, assignment, seed=9)
    executed.check()
    assert spans_of(executed) == spans_of(simulate(path, assignment, seed=9))
    assert spans_of(executed) != spans_of(simulate(path, assignment, seed=8))


def test_workers_sleep_for_all_of_the_times_that_were_drawn():
    """By a real clock: what one sleeps too long is taken off the next, so that only the last lateness is left."""
    path = Pipeline(PATHS["as done"])
    executed, predicted = run(path, range(50), seed=9), simulate(path, 50, seed=9)
    executed.check()
    for stage in path.stages:
        spans = predicted.select(kind=stage.name)
        drawn_s = dict(zip(spans.item.tolist(), (spans.stop_s - spans.start_s).tolist(), strict=True))
        for lane in stage.lanes():
            slept = executed.select(lane=lane, kind=stage.name)
            assert slept.busy_s >= sum(drawn_s[item] for item in slept.item.tolist()) - 1e-6


# ---- how it ends


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(("num_workers", "ordered"), [(1, True), (3, True), (3, False)])
def test_an_error_names_stage_and_item_and_stops_everything(processes, num_workers, ordered):
    before = threading.active_count()
    seen = []
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
    assert (caught.value.stage, caught.value.item) == ("check", 7)
    assert isinstance(caught.value.__cause__, KeyError)
    assert not processes or "fail_at_seven" in str(caught.value.__cause__.__cause__), "the traceback of the process"
    assert 7 not in seen
    assert threading.active_count() <= before


def test_a_stage_error_can_be_pickled():
    error = StageError("stage 'check' failed on item 7", "check", 7)
    error.add_note("why")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), copied.args, copied.stage, copied.item) == (StageError, error.args, "check", 7)
    assert copied.__notes__ == ["why"]


def test_an_error_of_the_items_surfaces():
    def items():
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(StageError, match="the disk is gone") as caught:
        run(Pipeline([Stage("a", fn=double, num_workers=2), Stage("b", fn=double)]), items())
    assert isinstance(caught.value.__cause__, OSError)


def test_items_that_are_a_generator_are_closed_after_an_error_which_is_part_of_no_cycle():
    closed = []

    def items():
        try:
            yield from range(100)
        finally:
            closed.append(True)

    gc.disable()
    try:
        with pytest.raises(StageError) as caught:
            run(Pipeline([Stage("a", fn=fail_at_seven), Stage("b", fn=double)]), items())
        assert closed == [True]
        known = weakref.ref(caught.value)
        del caught
        assert known() is None
    finally:
        gc.enable()


def test_an_error_of_closing_the_items_is_not_lost():
    def items():
        try:
            yield from range(100)
        finally:
            raise OSError("the disk is gone")

    gc.disable()
    try:
        with pytest.raises(StageError, match="seven") as caught:
            run(Pipeline([Stage("a", fn=fail_at_seven)]), items())
        assert "the disk is gone" in caught.value.__notes__[0]
        known = weakref.ref(caught.value)
        del caught
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_failure_of_the_recorder_is_told_as_that(tmp_path, ordered):
    recorder = Recorder(folder=tmp_path / "spans")
    shutil.rmtree(tmp_path / "spans")
    with pytest.raises(StageError, match="FileNotFoundError") as caught:
        run(Pipeline([Stage("a", fn=double, num_workers=2, ordered=ordered)]), range(9), recorder=recorder)
    assert caught.value.stage == "recorder"
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_what_a_worker_has_started_ends_with_it():
    children = []
    run(Pipeline([Stage("leave", fn=start_another, processes=True), Stage("keep", fn=children.append)]), range(2))
    assert len(children) == 2
    assert gone(children)


def test_a_worker_that_hangs_is_named_with_its_item():
    def hang(value):
        if value == 1:
            time.sleep(600)
        if value == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    for items in ([0, 1], [0, 2]):
        with pytest.raises(StageError, match="1 s") as caught:
            run(Pipeline([Stage("slow", fn=hang, processes=True)]), items, timeout_s=1)
        assert (caught.value.stage, caught.value.item) == ("slow", 1)


class TwoWords(Exception):
    """An error that pickle cannot load, as many are."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_an_error_that_cannot_be_unpickled_keeps_its_text():
    def fail(value):
        raise TwoWords("this", "that")

    with pytest.raises(StageError, match="TwoWords: this and that"):
        run(Pipeline([Stage("fail", fn=fail, processes=True)]), [0])


def test_more_bytes_than_the_shared_memory_has_are_an_error(monkeypatch):
    monkeypatch.setattr(processes_module, "_ROOM_BYTES", 1 << 12)
    path = Pipeline([Stage("pass", fn=lambda value: value, processes=True)])
    with pytest.raises(StageError, match="at most 4096 bytes"):
        run(path, [np.zeros(1 << 13)])


def test_arrays_and_what_else_there_is_arrive_as_they_were():
    array = np.arange(6.0).reshape(2, 3)
    values = [array, array.T, np.zeros(0), torch.arange(3), {"a": array, "b": "text"}, None]
    seen = []
    run(Pipeline([Stage("pass", fn=lambda value: value, processes=True), Stage("keep", fn=seen.append)]), values)
    seen[0] += 1  # what arrives may be written to
    assert [repr(value) for value in seen] == [repr(value) for value in [array + 1, *values[1:]]]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_killed_worker_is_named_at_once_each_time(ordered, monkeypatch):
    """No wait that only a deadline ends: each would take longer than this test may."""
    monkeypatch.setattr(run_module, "_GRACE_S", 1000.0)
    path = Pipeline(
        [Stage("die", fn=die_at_five, num_workers=2, ordered=ordered, processes=True), Stage("b", fn=double)]
    )
    for _ in range(5):
        with pytest.raises(StageError, match="'die'") as caught:
            run(path, range(1000))
        assert (caught.value.stage, caught.value.item) == ("die", 5)


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
    process = subprocess.Popen(
        [sys.executable, script, items], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    with process:
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


def test_ctrl_c_pressed_twice_leaves_nothing_either():
    """The second time while the threads, one of which is in a fn, have their time to end."""

    def hold(value):
        for delay_s in (0.0, 0.3):
            time.sleep(delay_s)
            interrupt()
        time.sleep(1.0)

    path = Pipeline([Stage("work", fn=slowly, num_workers=2, processes=True), Stage("hold", fn=hold)])
    with pytest.raises(KeyboardInterrupt):
        run(path, range(9))
