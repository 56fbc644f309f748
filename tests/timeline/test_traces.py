"""Chrome traces: our own come back whole, and others are one clear error."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from rankscope.common.files import FileError
from rankscope.timeline import Span, Timeline

# ---- our own traces


def some_spans(count=200):
    draw = np.random.default_rng(0)
    words = ["read", "gpu", 'a "quoted" lane', "µ"]
    for _ in range(count):
        start = float(draw.uniform(0, 1e5))
        rank, item = int(draw.integers(4)), int(draw.integers(-1, 10))
        lane, kind = map(str, draw.choice(words, 2))
        length = float(draw.choice([0.0, 1e-9, draw.exponential()]))
        yield Span(rank, lane, kind, item, start, start + length)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_our_own_trace_comes_back(tmp_path, name):
    timeline = Timeline.of(some_spans(2000)).named(["idle", "µ", "gpu"], ["none", "gpu"])
    again = Timeline.from_chrome_trace(timeline.to_chrome_trace(tmp_path / name))
    assert list(again) == list(timeline)
    assert (again.lanes, again.kinds) == (timeline.lanes, timeline.kinds)
    assert again.rank_lanes() == timeline.rank_lanes()
    assert list(Timeline.from_chrome_trace(Timeline.of([]).to_chrome_trace(tmp_path / "empty.json"))) == []


def test_the_trace_is_what_viewers_read(tmp_path):
    path = Timeline.of([Span(3, "gpu", "step", 7, 1.0, 1.5)]).to_chrome_trace(tmp_path / "run.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["name"], e["pid"]): e["args"] for e in events if e["ph"] == "M"}
    assert names["process_name", 3] == {"name": "rank 3"}
    assert names["thread_name", 3] == {"name": "gpu"}
    (span,) = [e for e in events if e["ph"] == "X"]
    assert (span["name"], span["cat"]) == ("step 7", "step")
    assert (int(span["ts"] * 1000), int(span["dur"] * 1000)) == (10**9, 5 * 10**8)


def crossing_slices(path, whole):
    """The pairs of slices of a thread that cross, in nanoseconds made `whole` as a viewer does: Perfetto drops one."""
    threads = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            start_ns, length_ns = whole(event["ts"] * 1000.0), whole(event["dur"] * 1000.0)
            threads[event["pid"], event["tid"]].append((start_ns, -length_ns))
    crossing = []
    for slices in threads.values():
        open_stops_ns = []
        for start_ns, minus_length_ns in sorted(slices):
            stop_ns = start_ns - minus_length_ns
            while open_stops_ns and open_stops_ns[-1] <= start_ns:
                open_stops_ns.pop()
            if open_stops_ns and stop_ns > open_stops_ns[-1]:
                crossing.append((start_ns, stop_ns))
            open_stops_ns.append(stop_ns)
    return crossing


@pytest.mark.parametrize("whole", [int, round])
def test_no_slices_of_the_trace_cross(tmp_path, whole):
    """Neither those of spans that run at once on a lane, nor those of spans that touch, by rounding."""
    at_once = Timeline.of(some_spans(400))
    rng = np.random.default_rng(0)
    starts_ns = 100 * (np.arange(1000) // 5) + rng.integers(0, 12, 1000)  # groups of five that may cross by nanoseconds
    stops_ns = starts_ns + rng.integers(0, 12, 1000)
    columns_ns = zip(starts_ns.tolist(), stops_ns.tolist(), strict=True)
    short = Timeline.of(Span(0, "loop", "step", -1, start * 1e-9, stop * 1e-9) for start, stop in columns_ns)
    edges = 21_497.18 + np.cumsum(np.random.default_rng(1).exponential(1e-3, 500))
    touching = Timeline.of(Span(0, "loop", "step", -1, start, stop) for start, stop in pairwise(edges.tolist()))
    for name, timeline in {"at_once": at_once, "short": short, "touching": touching}.items():
        path = timeline.to_chrome_trace(tmp_path / f"{name}.json")
        assert crossing_slices(path, whole) == []
        assert list(Timeline.from_chrome_trace(path)) == list(timeline)
        events = json.loads(path.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0}  # spans that only touch share a thread


# ---- other files


def test_a_damaged_trace_is_one_error_with_its_path(tmp_path):
    whole = Timeline.of(some_spans(20)).to_chrome_trace(tmp_path / "run.json").read_bytes()
    texts = [b"", b"[1, 2", b'{"events": []}', b"null", b"[" * 100_000, b"\xff\xfe\x00"]
    texts += [b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}']  # of another program
    damaged = [whole[:-20], whole.replace(b'"args"', b'"arms"'), gzip.compress(whole)[:-20], b"\x1f\x8b" + b"0" * 50]
    for content in texts + damaged:
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(FileError, match=r"run\.json: "):
            Timeline.from_chrome_trace(tmp_path / "run.json")
    with pytest.raises(FileNotFoundError):
        Timeline.from_chrome_trace(tmp_path / "nowhere.json")
