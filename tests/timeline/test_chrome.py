"""Traces: our own come back whole, torch.profiler's are read, damaged ones give one clear error."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rankscope.timeline import Span, Timeline


def some_spans(seed=0, count=200):
    draw = np.random.default_rng(seed)
    words = ["read", "gpu", 'a "quoted" lane', "µ"]
    for _ in range(count):
        start = float(draw.uniform(0, 1e5))
        rank, item = int(draw.integers(4)), int(draw.integers(-1, 10))
        lane, kind = map(str, draw.choice(words, 2))
        length = float(draw.choice([0.0, 1e-9, draw.exponential()]))
        yield Span(rank, lane, kind, item, start, start + length)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_our_own_trace_comes_back(tmp_path, name):
    timeline = Timeline.of(some_spans(count=2000))
    assert list(Timeline.from_chrome_trace(timeline.to_chrome_trace(tmp_path / name))) == list(timeline)
    assert list(Timeline.from_chrome_trace(Timeline.of([]).to_chrome_trace(tmp_path / "empty.json"))) == []


def test_our_own_trace_keeps_the_order_of_lanes_and_kinds_and_those_without_spans(tmp_path):
    timeline = Timeline.of(some_spans()).named(["idle", "µ", "gpu"], ["none", "gpu"])
    again = Timeline.from_chrome_trace(timeline.to_chrome_trace(tmp_path / "run.json"))
    assert (again.lanes, again.kinds) == (timeline.lanes, timeline.kinds)
    assert again.rank_lanes() == timeline.rank_lanes()
    assert list(again) == list(timeline)
    older = json.loads((tmp_path / "run.json").read_text())
    del older["otherData"]["lanes"], older["otherData"]["kinds"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert list(Timeline.from_chrome_trace(tmp_path / "older.json")) == list(timeline)


def test_the_trace_is_what_viewers_read(tmp_path):
    path = Timeline.of([Span(3, "gpu", "step", 7, 1.0, 1.5)]).to_chrome_trace(tmp_path / "run.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["name"], e["pid"]): e["args"] for e in events if e["ph"] == "M"}
    assert names["process_name", 3] == {"name": "rank 3"}
    assert names["thread_name", 3] == {"name": "gpu"}
    (span,) = [e for e in events if e["ph"] == "X"]
    assert (span["name"], span["cat"], span["ts"], span["dur"]) == ("step 7", "step", 1e6, 5e5)


def test_a_trace_of_torch_profiler(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as recorded, record_function("my step"):
        torch.randn(64, 64) @ torch.randn(64, 64)
    recorded.export_chrome_trace(str(tmp_path / "torch.json"))
    timeline = Timeline.from_chrome_trace(tmp_path / "torch.json", kind="name")
    events = json.loads((tmp_path / "torch.json").read_text())["traceEvents"]
    assert len(timeline) == sum(event["ph"] == "X" for event in events)
    assert timeline.begin_s == 0
    (step,) = timeline.select(kind="my step")
    (product,) = timeline.select(kind="aten::mm")
    assert step.start_s <= product.start_s <= product.stop_s <= step.stop_s
    ours = {event.name: event.time_range.elapsed_us() for event in recorded.events()}
    assert (product.stop_s - product.start_s) * 1e6 == pytest.approx(ours["aten::mm"], abs=0.01)
    assert "cpu_op" in Timeline.from_chrome_trace(tmp_path / "torch.json").kinds


def test_begin_and_end_pairs_and_the_bare_list(tmp_path):
    events = [
        {"ph": "B", "name": "outer", "cat": "c", "pid": 1, "tid": 1, "ts": 1000},
        {"ph": "B", "name": "inner", "cat": "c", "pid": 1, "tid": 1, "ts": 1200},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 1500},
        {"ph": "i", "name": "an instant", "pid": 1, "tid": 1, "ts": 1500},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2000},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2500},
    ]
    (tmp_path / "list.json").write_text(json.dumps(events))
    spans = list(Timeline.from_chrome_trace(tmp_path / "list.json", kind="name"))
    assert [(s.kind, s.start_s, s.stop_s) for s in spans] == [
        ("inner", pytest.approx(0.0002), pytest.approx(0.0005)),
        ("outer", 0.0, 0.001),
    ]


def test_the_rank_that_the_profiler_names(tmp_path):
    trace = {"distributedInfo": {"rank": 3}, "traceEvents": [{"ph": "X", "name": "a", "ts": 1.7e15, "dur": 2}]}
    (tmp_path / "three.json").write_text(json.dumps(trace))
    (span,) = Timeline.from_chrome_trace(tmp_path / "three.json")
    assert span == Span(3, "process 0, 0", "a", -1, 0.0, 2e-6)


def test_nccl_kernels_are_called_by_their_collective(tmp_path):
    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_ReduceScatter_RING", "ncclDevKernel_Reduce", "gemm"]
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": n, "dur": 1} for n, name in enumerate(names)]
    (tmp_path / "gpu.json").write_text(json.dumps(events))
    timeline = Timeline.from_chrome_trace(tmp_path / "gpu.json")
    assert [span.kind for span in timeline] == ["allreduce", "reduce_scatter", "reduce", "kernel"]
    assert [span.kind for span in Timeline.from_chrome_trace(tmp_path / "gpu.json", kind="name")] == names


def test_threads_of_one_name_keep_lanes_of_their_own(tmp_path):
    events = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "python"}} for pid in (0, 1)]
    events += [{"ph": "M", "name": "thread_name", "pid": pid, "tid": 7, "args": {"name": "stream 7"}} for pid in (0, 1)]
    events += [{"ph": "X", "name": "a", "pid": pid, "tid": 7, "ts": 0, "dur": 5} for pid in (0, 1)]
    (tmp_path / "two.json").write_text(json.dumps(events))
    timeline = Timeline.from_chrome_trace(tmp_path / "two.json")
    assert timeline.rank_lanes() == [(0, "python, stream 7 (0/7)"), (0, "python, stream 7 (1/7)")]
    timeline.check()


def test_a_damaged_trace_is_one_clear_error(tmp_path):
    whole = Timeline.of(some_spans(count=20)).to_chrome_trace(tmp_path / "run.json").read_bytes()
    packed = gzip.compress(whole)
    newer = whole.replace(b'"version": 1', b'"version": 2')
    nameless = json.dumps({"traceEvents": [{"ph": "M", "name": "thread_name", "pid": 0}]}).encode()
    backwards = json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": -5}]).encode()
    damaged = [b"", whole[:-20], packed[:-20], packed[:60], b"[1, 2]", b'{"events": []}', b"null", newer, nameless]
    deep = b"[" * 100_000
    huge = json.dumps({"distributedInfo": {"rank": 1e999}, "traceEvents": []}).encode()
    for content in [*damaged, backwards, deep, huge, b"\x1f\x8b" + b"0" * 50, b"\xff\xfe\x00"]:
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.json is no readable trace"):
            Timeline.from_chrome_trace(tmp_path / "run.json")
    with pytest.raises(ValueError, match="kind must be one of 'category', 'name', got 'size'"):
        Timeline.from_chrome_trace(tmp_path / "run.json", kind="size")
    with pytest.raises(FileNotFoundError):
        Timeline.from_chrome_trace(tmp_path / "nowhere.json")
