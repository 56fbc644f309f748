"""Small files that ask for much: time and memory grow in proportion to the file, or the file is refused."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rankscope.box import read_log
from rankscope.common.storage import (
    FREE_UNPACKED_BYTES,
    MOST_UNPACKED_RATIO,
    StorageError,
    most_unpacked_bytes,
    unpacked,
)
from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose import join as matching
from rankscope.diagnose.join import join
from rankscope.diagnose.kineto_events import EventColumns
from rankscope.diagnose.kineto_trace import _around, _within
from rankscope.diagnose.savings import what_if
from rankscope.diagnose.trace import Calls, Trace
from rankscope.timeline import Span, Timeline

from . import bombs
from .growth import ACTIONS, ENDED, Cost, Meter

PACKED_MB = 60
MOST_PACKED_BYTES = 320 << 20  # of memory, for any file of a quarter of a megabyte
NUM_EVENTS = 2000


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter() as meter:
        yield meter


# ---- four times the file


class HostileFile(NamedTuple):
    """A file or a folder that asks for much, and what is done with it."""

    action: str  # one of `growth.ACTIONS`
    write: Callable[[Path, int], object]  # it makes what lies at a path, of a size
    size: int  # of the smaller one; the larger one is four times as large
    most_bytes: int | None = None  # of memory that the larger one may take


def of_dump(make: Callable[[int], bytes]) -> Callable[[Path, int], object]:
    return lambda path, size: path.write_bytes(make(size))


def of_folder(make: Callable[[int], dict[str, bytes]]) -> Callable[[Path, int], object]:
    def write(folder: Path, size: int) -> None:
        folder.mkdir()
        for file, raw in make(size).items():
            (folder / file).write_bytes(raw)

    return write


def of_traces(name: str) -> Callable[[Path, int], object]:
    def write(folder: Path, num_events: int) -> None:
        folder.mkdir()
        bombs.traces(folder, name, num_events)

    return write


def of_gzip(content: tuple[bytes, bytes, bytes]) -> Callable[[Path, int], object]:
    return lambda path, num_mb: path.write_bytes(bombs.packed(*content, num_mb))


DUMP_SIZES = {
    **dict.fromkeys([*bombs.PICKLES, *bombs.JSON, *bombs.DUMPS], 200),
    "shared sizes": 150,
    "shared tensors": 500,
    "large rank": 10,
    "groups in a row": 50,
    "pairs that differ": 25,
}
HOSTILE_FILES = {
    **{
        f"dump, {name}": HostileFile("hang", of_dump(make), DUMP_SIZES[name])
        for name, make in (bombs.PICKLES | bombs.JSON).items()
    },
    **{f"dumps, {name}": HostileFile("hang", of_folder(make), DUMP_SIZES[name]) for name, make in bombs.DUMPS.items()},
    **{f"traces, {name}": HostileFile("traces", of_traces(name), NUM_EVENTS) for name in bombs.EVENTS},
    **{
        f"packed {action}, {name}": HostileFile(action, of_gzip(content), PACKED_MB, MOST_PACKED_BYTES)
        for action, contents in (
            ("trace", bombs.PACKED_TRACES),
            ("timeline", bombs.PACKED_TRACES),
            ("log", bombs.PACKED_LOGS),
        )
        for name, content in contents.items()
    },
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_four_times_the_file_costs_about_four_times_as_much(name: str, meter: Meter, tmp_path: Path) -> None:
    hostile = HOSTILE_FILES[name]
    suffix = ".json.gz" if hostile.action in ("trace", "timeline", "log") else ""
    paths = [tmp_path / f"rank{place}{suffix}" for place in range(2)]
    for path, factor in zip(paths, (1, 4), strict=True):
        hostile.write(path, factor * hostile.size)
    if hostile.most_bytes is not None:
        cost = meter.cost(hostile.action, paths[1])
        assert cost.num_bytes <= hostile.most_bytes, cost
    problem = meter.growth_problem(hostile.action, *paths)
    assert not problem, (
        f"{problem}. {name!r} of HOSTILE_FILES must cost time and memory in proportion to its size, or be refused: "
        "bound what the reader makes of it before it is made."
    )


def test_every_hostile_file_has_a_cost() -> None:
    """A name that stood in two tables would be measured once."""
    tables = (bombs.PICKLES, bombs.JSON, bombs.DUMPS, bombs.EVENTS, bombs.PACKED_TRACES, bombs.PACKED_TRACES)
    assert len(HOSTILE_FILES) == sum(map(len, (*tables, bombs.PACKED_LOGS)))
    assert {hostile.action for hostile in HOSTILE_FILES.values()} == set(ACTIONS)


@pytest.mark.parametrize(
    ("small", "large", "problem"),
    [
        (Cost(1.0, 64 << 20, ""), Cost(4.1, 256 << 20, ""), False),
        (Cost(1.0, 64 << 20, ""), Cost(16.0, 256 << 20, ""), True),
        (Cost(1.0, 64 << 20, ""), Cost(4.0, 1024 << 20, ""), True),
        (Cost(0.001, 1 << 10, ""), Cost(0.1, 1 << 20, ""), False),  # too little to say anything
        (Cost(1.0, 64 << 20, ""), Cost(4.0, 256 << 20, f"{ENDED} 9"), True),
    ],
)
def test_work_and_memory_out_of_proportion_are_found(
    small: Cost, large: Cost, problem: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {"small": small, "large": large}
    monkeypatch.setattr(Meter, "cost", lambda self, action, path: costs[path.name])
    assert bool(Meter().growth_problem("log", Path("small"), Path("large"))) is problem


# ---- gzip


def test_a_file_may_unpack_to_a_multiple_of_its_size_and_to_some_megabytes_in_any_case() -> None:
    most = 1 << 40
    assert most_unpacked_bytes(1, most) == FREE_UNPACKED_BYTES
    assert most_unpacked_bytes(1 << 30, most) == MOST_UNPACKED_RATIO << 30
    assert most_unpacked_bytes(1 << 30, 1 << 26) == 1 << 26
    assert len(unpacked(gzip.compress(bytes(FREE_UNPACKED_BYTES)), most)) == FREE_UNPACKED_BYTES
    with pytest.raises(ValueError, match=f"it has more than {FREE_UNPACKED_BYTES} bytes unpacked"):
        unpacked(gzip.compress(bytes(FREE_UNPACKED_BYTES + 1)), most)


def test_a_log_has_lines_and_values_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"algbw   busbw\n" + b"\n" * (1 << 22))
    with pytest.raises(StorageError, match=r"a\.log: it has more than 4194304 lines$"):
        read_log(path)
    path.write_bytes(b'{"bus_bw":[' + b"[]," * (1 << 21) + b"0]}")
    with pytest.raises(StorageError, match=r"a\.log: it has more than 4194304 values$"):
        read_log(path)
    devices = [{"hostname": "a", "device_info": "b"}] * 1000
    content = {"bus_bw": 0, "results": [], "config": {"nthreads": 4096, "ngpus": 4096, "devices": devices}}
    path.write_text(json.dumps(content))
    with pytest.raises(StorageError, match="the number of ranks must be a whole number from 0 to 1048576"):
        read_log(path)


# ---- much of one thing in a trace


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [
        ("kernels", "MOST_EVENTS", "it has more than 99 events of steps, GPUs and collectives: profile fewer steps"),
        ("threads", "_MOST_THREADS", "it has more than 99 threads and streams"),
        ("steps", "_MOST_KINDS", "its events have more than 99 different steps and categories"),
        ("categories", "_MOST_KINDS", "its events have more than 99 different steps and categories"),
        ("open events", "_MOST_OPEN", "more than 99 of its events begin and do not end"),
    ],
)
def test_a_trace_has_so_much_of_a_thing_at_most(
    name: str, limit: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"rankscope.diagnose.kineto_events.{limit}", 99)
    bombs.traces(tmp_path, name, 200)
    with pytest.raises(StorageError, match=f"rank0.json: not a usable trace: {said}$"):
        read_traces(tmp_path)


def test_of_many_ranges_the_later_ones_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.diagnose.kineto_events._MOST_RANGES", 50)
    bombs.traces(tmp_path, "ranges", 200)
    trace = read_traces(tmp_path)[0]
    ranges = [kind for kind in trace.timeline.kinds if kind.startswith("range: ")]
    assert len(ranges) < 52
    assert len(trace.timeline.select(kind="range: others")) > 140
    assert len(trace.timeline.select(kind=ranges)) == 200


def test_a_timeline_has_events_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.timeline.timeline._MOST_EVENTS", 99)
    bombs.traces(tmp_path, "kernels", 200)
    with pytest.raises(StorageError, match="rank0.json: not a usable trace: it has more than 99 events$"):
        Timeline.from_chrome_trace(tmp_path / "rank0.json")


def test_millions_of_empty_events_are_refused(tmp_path: Path) -> None:
    """The time and the memory that they take are those of events, and a packed file of 40 kB has ten million."""
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(bombs.packed(*bombs.PACKED_TRACES["empty events"], 30))
    for read in (read_traces, Timeline.from_chrome_trace):
        with pytest.raises(StorageError, match=r"it has more than 11\d{5} events in \d{7} bytes$"):
            read(path)


def test_what_stands_around_the_events_has_values_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.timeline.events._MOST_FIELD_VALUES", 99)
    event = {"ph": "X", "cat": "kernel", "name": "k", "tid": 7, "ts": 1, "dur": 5}
    contents: list[dict[str, Any]] = [
        {"x": [0] * 100, "traceEvents": [event]},
        {"traceEvents": [event], "x": [0] * 100},
    ]
    for content in contents:
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps(content))
        with pytest.raises(StorageError, match="rank0.json: not a usable trace: it has more than 99 values$"):
            read_traces(path)


def test_what_if_refuses_a_step_with_too_many_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bombs.traces(tmp_path, "kernels", 1)
    traces = read_traces(tmp_path)
    diagnosis = diagnose(traces)
    whole = what_if(traces, diagnosis)
    module = sys.modules[what_if.__module__]
    monkeypatch.setattr(module, "_MOST_PAIRS_OF_STEPS", 2 * 4)  # two steps of 4 pairs
    assert what_if(traces, diagnosis).answers[0].what == whole.answers[0].what  # from the last two steps alone
    monkeypatch.setattr(module, "_MOST_PAIRS", 1)
    with pytest.raises(ValueError, match="a step must have at most 1 pairs of gradients and allreduces, and has 4$"):
        what_if(traces, diagnosis)


def test_spans_around_events_are_those_of_their_threads() -> None:
    """As with a loop over the threads, which took 3.6 s for 20,000 of them."""
    chance = np.random.default_rng(29)
    for _ in range(200):
        num_spans, num_inner = chance.integers(0, 30, 2)
        start_s = np.sort(chance.integers(0, 20, num_spans).astype(float))
        spans = events(chance.integers(0, 4, num_spans), start_s, start_s + chance.integers(0, 4, num_spans))
        at_s = chance.choice([*np.arange(20.0), np.nan], num_inner)
        inner = events(chance.integers(-1, 4, num_inner), at_s, at_s)
        expected = np.full(num_inner, -1)
        for thread in range(-1, 4):
            mine, asked = np.flatnonzero(spans.thread == thread), np.flatnonzero(inner.thread == thread)
            row, inside = _within(inner.start_s[asked], spans.take(mine))
            expected[asked[inside]] = mine[row[inside]]
        assert _around(spans, inner).tolist() == expected.tolist()


def events(thread: Any, start_s: Any, stop_s: Any) -> EventColumns:
    places = np.arange(thread.size)
    return EventColumns(places, thread, start_s, stop_s, places, places)


# ---- many groups and steps


def trace_of(rank: int, num_groups: int, num_steps: int) -> Trace:
    """A rank whose calls each are the only one of their group in their step."""
    number = np.arange(max(num_groups, num_steps))
    at_s = number % num_steps + 0.1
    order = np.argsort(at_s, kind="stable")
    zeros = np.zeros(number.size, int)
    names = tuple(map(str, range(num_groups)))
    calls = Calls(
        number[order] % num_groups, zeros, zeros + 4, at_s[order], at_s[order], at_s[order], names, ("allreduce",)
    )
    steps = Timeline.of(Span(rank, "main", "step", step, float(step), step + 0.9) for step in range(num_steps))
    return Trace(rank, steps, calls, group_ranks=dict.fromkeys(names, (0, 1)))


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Return a list to which each call of a function appends the function's name."""
    calls = list[str]()
    function = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        calls.append(name)
        return function(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_join_looks_at_groups_only_in_steps_that_have_calls_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 groups in 1,000 steps took 24 s for a thousand calls."""
    calls = count_calls(monkeypatch, matching, "_matched")
    joined = join([trace_of(rank, 300, 300) for rank in range(2)])
    assert (len(joined.calls), joined.problems) == (300, ())
    assert len(calls) == 300


def test_calls_that_alternate_are_compared_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib alone takes the cube of their number: 38 s for 2,000 calls, in which it searches a thousand times."""
    searches = count_calls(monkeypatch, SequenceMatcher, "find_longest_match")
    small, large = matching._CallSignature("allreduce", 1), matching._CallSignature("allreduce", 2)
    blocks = matching._compared([small, large] * 1000, [large, small, small] * 666)
    assert 0 < len(searches) < 20
    assert [block for block in blocks if block.is_equal]  # the longest pieces are found
    assert (blocks[-1].usual_end, blocks[-1].actual_end) == (2000, 1998)
