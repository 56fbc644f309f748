"""`launch`: what ranks return, how they fail, what they print, and what surrounds them."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rankscope.ranks import RankError, launch
from rankscope.timeline import Recorder
from tests.processes import children, server_pid, soon

from . import functions

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nobody_is_left(tmp_path_factory, monkeypatch):
    """After each test only the server is there, and no folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    yield
    assert soon(lambda: not children(server_pid()))
    gc.collect()  # an interrupted launch deletes its folder once nothing refers to it any more
    assert not list(Path(tempfile.gettempdir()).iterdir())


# ---- results


def test_results_come_by_rank():
    assert launch(functions.total, 4, args=(10,)) == [46] * 4
    assert launch(functions.rank, 3) == [0, 1, 2]
    assert launch(functions.total, 1) == [0]


def test_functions_go_by_value():
    factor = 3
    assert launch(lambda x: factor * x + functions.rank(), 2, [4]) == [12, 13]


def test_large_results():
    array = launch(lambda: np.ones(12_500_000), 1)[0]
    assert array.sum() == 12_500_000


def test_spans_of_all_ranks_lie_on_one_axis():
    recorder = Recorder()
    before_s = time.perf_counter()
    launch(functions.record, 3, (recorder,))
    spans = list(recorder.timeline())
    assert sorted((span.rank, span.item) for span in spans) == [(r, i) for r in range(3) for i in range(2)]
    assert all(before_s < span.start_s < span.stop_s < time.perf_counter() for span in spans)
    first = [span for span in spans if span.item == 0]
    assert max(s.start_s for s in first) < min(s.stop_s for s in first), "ranks that wait for each other overlap"


def test_launches_from_several_threads():
    found: dict[int, list[int]] = {}

    def work(base: int) -> None:
        found[base] = launch(functions.total, 2, (base,))

    threads = [threading.Thread(target=work, args=(base,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {base: [2 * base + 1] * 2 for base in range(4)}


# ---- failures


def test_a_rank_that_raises_is_named_also_where_others_fail_of_it():
    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'lost'") as caught:
        launch(functions.lose, 3)
    assert caught.value.rank == 1
    assert 'raise KeyError("lost")' in str(caught.value)
    assert "rank.py" not in str(caught.value)


def test_it_is_named_also_where_it_leaves_the_group_before():
    def fail():
        import torch.distributed as dist

        functions.barrier()
        if functions.rank() == 1:
            dist.destroy_process_group()
            time.sleep(0.3)
            raise KeyError("lost")
        functions.barrier()

    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'lost'"):
        launch(fail, 3)


@pytest.mark.parametrize("which", [0, 2])
def test_a_killed_rank_is_named(which):
    with pytest.raises(RankError, match=f"rank {which} .* was killed by SIGKILL before it returned") as caught:
        launch(functions.signalled, 3, (which, signal.SIGKILL), timeout_s=10_000)
    assert caught.value.rank == which


def test_a_rank_that_leaves_is_named():
    with pytest.raises(RankError, match="rank 1 .* ended with exit code 3 before it returned"):
        launch(lambda: os._exit(3) if functions.rank() else functions.barrier(), 2)
    with pytest.raises(RankError, match="rank 0 failed: SystemExit: 4"):
        launch(sys.exit, 1, (4,))


def error_at_timeout(fn, args, match):
    """The error of two ranks that hang, by a timeout that lets them get to where they do: a busy machine needs more."""
    for timeout_s in (1, 10, 100):
        with pytest.raises(RankError, match=f"have not returned after {timeout_s} s") as caught:
            launch(fn, 2, args, timeout_s=timeout_s)
        if re.search(match, str(caught.value)):
            return caught.value
    raise AssertionError(f"{match!r} is not in {caught.value}")


def test_a_stopped_rank_is_named_at_the_timeout():
    error = error_at_timeout(functions.signalled, (1, signal.SIGSTOP), "(?s)^ranks 0, 1 .*rank 1 is stopped")
    assert error.rank == 1


def test_stuck_ranks_tell_where_they_stand():
    def stuck():
        if functions.rank():
            functions.barrier()
        time.sleep(10_000)

    error = error_at_timeout(stuck, (), r"(?s)rank 0 stands at.*time\.sleep\(10_000\).*rank 1 .*in barrier")
    assert error.rank is None  # either may wait for the other


def test_the_only_rank_that_has_not_returned_is_the_errors():
    error = error_at_timeout(lambda: time.sleep(10_000 * functions.rank()), (), "^ranks 1 have")
    assert error.rank == 1


def test_an_error_whose_str_raises_keeps_its_traceback():
    with pytest.raises(RankError, match=r"(?s)rank 0 failed: Speechless.*raise Speechless") as caught:
        launch(functions.fail_speechless, 1)
    assert caught.value.rank == 0


def test_a_result_that_cannot_be_unpickled_is_an_error_of_its_rank():
    with pytest.raises(RankError, match="rank 1 .*OSError: no such device") as caught:
        launch(lambda: functions.OfTheRank() if functions.rank() else 0, 2)
    assert caught.value.rank == 1


def test_what_cannot_be_sent_is_an_error():
    with pytest.raises(ValueError, match="cannot be sent to another process: TypeError"):
        launch(functions.total, 2, (threading.Lock(),))
    with pytest.raises(RankError, match="rank 0 failed: TypeError"):
        launch(threading.Lock, 1)


# ---- what ranks print


def test_printed_lines_come_by_rank_at_the_end(capsys):
    launch(functions.say, 2)
    out, err = capsys.readouterr()
    lines = [f"[rank {r}] {line}" for r in range(2) for line in (f"line of {r}", "second line", "no end")]
    assert out.splitlines() == lines
    assert err.splitlines() == [f"[rank {r}] warning of {r}" for r in range(2)]


def test_what_was_printed_before_a_failure_is_shown(capsys):
    def say_and_fail():
        print("about to fail")
        functions.lose()

    with pytest.raises(RankError, match="rank 1 failed"):
        launch(say_and_fail, 2)
    assert capsys.readouterr().out == "[rank 0] about to fail\n[rank 1] about to fail\n"


# ---- surroundings


def test_ranks_take_on_the_callers_surroundings(monkeypatch, tmp_path):
    (tmp_path / "made_here.py").write_text("value = 5")
    monkeypatch.setenv("RANKSCOPE_TEST", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def look():
        import made_here

        return made_here.value, np.random.random()

    for each in launch(functions.surroundings, 2):
        assert each["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
        assert (each["setting"], each["omp"]) == ("seen", os.environ.get("OMP_NUM_THREADS"))
        assert (each["folder"], each["argv"]) == (str(tmp_path), sys.argv)
        assert each["path"] == [entry or os.getcwd() for entry in sys.path]
    (first, one), (second, other) = launch(look, 2)
    assert (first, second) == (5, 5)
    assert one != other, "ranks draw different numbers"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_nothing_listens_but_on_loopback():
    addresses = {address for each in launch(functions.listening, 3) for address in each}
    assert addresses, "ranks do listen to each other"
    assert addresses <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_a_ddp_module_that_outlives_its_group_does_not_hang():
    assert launch(functions.train, 2) == [48.0, 48.0]


def test_workers_of_a_data_loader_in_a_rank_are_forked():
    assert launch(functions.load, 2) == [(45, "fork")] * 2  # another start would import torch again, for seconds


@pytest.mark.gpu
def test_nccl_has_a_gpu_for_each_rank():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gpus = torch.cuda.device_count()

    def total():
        tensor = torch.ones(4, device="cuda") * functions.rank()
        torch.distributed.all_reduce(tensor)
        return tensor.device.index, tensor.sum().item()

    expected = 4.0 * sum(range(gpus))
    assert launch(total, gpus, backend="nccl") == [(rank, expected) for rank in range(gpus)]
