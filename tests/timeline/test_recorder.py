"""The recorder loses nothing: not between threads, not across processes, not when one is killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest

from rankscope.timeline import Recorder, recorder


def work(recording, rank, count, last_words=None):
    for item in range(count):
        with recording.for_rank(rank).span(f"lane {rank}", "work", item):
            pass
    if last_words is not None:
        last_words.send("done")
        time.sleep(600)


def test_a_span_is_the_time_spent_in_it():
    recording = Recorder(rank=3)
    before = time.perf_counter()
    with recording.span("loader", "read", item=5):
        time.sleep(0.02)
    after = time.perf_counter()
    (span,) = recording.timeline()
    assert span[:4] == (3, "loader", "read", 5)
    assert before <= span.start_s <= span.stop_s <= after
    assert span.stop_s - span.start_s >= 0.02
    with pytest.raises(RuntimeError, match="disk"), recording.span("loader", "read"):
        raise RuntimeError("disk")
    assert [span.item for span in recording.timeline()] == [5, -1]


def test_threads_lose_nothing_and_blocks_follow_on_each_other(monkeypatch):
    monkeypatch.setattr(recorder, "_BLOCK_SPANS", 1 << 10)
    recording = Recorder()
    threads = [threading.Thread(target=work, args=(recording, n, 3000)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline = recording.timeline()
    assert len(timeline) == 24_000
    for number in range(8):
        assert sorted(timeline.select(lane=f"lane {number}").item.tolist()) == list(range(3000))
    timeline.check()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of it in any process with threads
def test_processes_share_the_folder_and_the_clock(method):
    recording = Recorder()
    before = time.perf_counter()
    with recording.span("main", "start"):
        pass
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=work, args=(recording, rank, 500)) for rank in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    with recording.span("main", "stop"):
        pass
    timeline = recording.timeline()
    for rank in (1, 2):
        assert timeline.select(rank=rank, lane=f"lane {rank}").item.tolist() == list(range(500))
    assert before <= timeline.begin_s <= timeline.end_s <= time.perf_counter()
    assert [span.kind for span in timeline.select(rank=0)] == ["start", "stop"]
    first, *_, last = timeline
    assert (first.kind, last.kind) == ("start", "stop")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_process_leaves_what_it_recorded():
    recording = Recorder()
    context = multiprocessing.get_context("fork")
    for _ in range(20):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(recording, 1, 50, sender))
        process.start()
        assert receiver.recv() == "done"
        os.kill(process.pid, signal.SIGKILL)
        process.join(300)
    timeline = recording.timeline()
    assert len(timeline) == 20 * 50
    assert sorted(timeline.item.tolist()) == sorted(list(range(50)) * 20)


def test_it_can_be_read_while_it_is_written():
    """Every span brings a new name, so that a reader who took names and spans in the wrong order would miss some."""
    recording = Recorder()

    def record():
        for number in range(2000):
            with recording.span(f"lane {number}", "work", number):
                pass

    thread = threading.Thread(target=record)
    thread.start()
    while thread.is_alive():
        for span in list(recording.timeline())[-5:]:
            assert span.lane == f"lane {span.item}"
    thread.join()
    assert recording.timeline().item.tolist() == list(range(2000))


def test_a_half_written_span_is_left_out():
    recording = Recorder()
    for item in range(3):
        recording.add("a", "b", item, 0, 10)
    (path,) = recording.folder.glob("*.spans")
    with path.open("r+b") as file:
        file.seek(3 * 40 - 8)  # the last field of the second span: it is written last, and the first record is empty
        file.write(b"\0" * 8)
    assert recording.timeline().item.tolist() == [0, 2]


def test_a_label_whose_writer_was_interrupted_misleads_nobody():
    recording = Recorder()
    recording.add("a", "b", 0, 0, 10)
    (path,) = recording.folder.glob("*.labels")
    with path.open("a") as file:
        file.write('[1, "never used", "b"]\n')
    recording.add("c", "b", 1, 10, 20)
    assert [span.lane for span in recording.timeline()] == ["a", "c"]


def test_the_temporary_folder_goes_with_the_recorder_and_its_copies_and_a_named_one_stays(tmp_path):
    Recorder(folder=tmp_path / "spans").add("a", "b", 0, 0, 2_000_000_000)
    (span,) = Recorder(folder=tmp_path / "spans").timeline()
    assert (span.start_s, span.stop_s) == (0.0, 2.0)
    recording = Recorder()
    folder = recording.folder
    copy = recording.for_rank(1)
    del recording
    gc.collect()
    assert folder.exists()
    with copy.span("a", "b"):
        pass
    assert [span.rank for span in copy.timeline()] == [1]
    del copy
    assert not folder.exists(), "without the garbage collector"
