"""Steps recorded twice: each of the profiler's ranges lies in a span of ours, and what is tampered with is found."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch.utils.data import DataLoader, TensorDataset

from rankscope.timeline import Span, Timeline
from rankscope.transfer import agree, prefetched, record, record_steps
from rankscope.transfer.agreement import PHASES, DisagreementError, RecordedSteps
from rankscope.transfer.prefetch import Prefetched
from rankscope.transfer.record import CLOCK, PREFIX, read_steps

HOST = "cpu"
Parts = dict[str, Any]


def parts() -> Parts:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return {"module": module, "loss": torch.nn.functional.cross_entropy, "optimizer": optimizer}


def loader(num_batches: int = 4, **options: Any) -> DataLoader[Any]:
    inputs, targets = torch.randn(8 * num_batches, 32), torch.randint(0, 4, (8 * num_batches,))
    return DataLoader(TensorDataset(inputs, targets), 8, **options)


@pytest.fixture(scope="module")
def recorded() -> RecordedSteps:
    return record_steps(loader(), **parts())


# ---- real steps


def test_each_phase_of_each_step_is_there_twice_in_its_order(recorded: RecordedSteps) -> None:
    for timeline in (recorded.ours, recorded.profiler):
        timeline.check()
        order = np.argsort(timeline.start_s, kind="stable")
        found = [(span.item, span.kind) for span in timeline.take(order)]
        assert found == [(item, kind) for item in range(4) for kind in PHASES]
        assert [span.lane for span in timeline] == [span.kind for span in timeline]


def test_each_range_of_the_profilers_lies_in_our_span(recorded: RecordedSteps) -> None:
    theirs = {(span.kind, span.item): span for span in recorded.profiler}
    doubt_s = recorded.clock_s + 1e-4
    for span in recorded.ours:
        inner = theirs[span.kind, span.item]
        assert span.start_s - doubt_s <= inner.start_s <= inner.stop_s <= span.stop_s + doubt_s
    agreement = agree(recorded)
    agreement.check()
    assert [(phase.kind, phase.num_ours, phase.num_profiler) for phase in agreement.phases] == [
        (kind, 4, 4) for kind in PHASES
    ]
    assert all(0 < phase.coverage <= 1 + 1e-3 for phase in agreement.phases if phase.reach_s == 0)


def test_both_see_that_a_phase_sleeps() -> None:
    def slow(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return torch.nn.functional.cross_entropy(outputs, targets)

    found = record_steps(loader(2), **(parts() | {"loss": slow}))
    for timeline in (found.ours, found.profiler):
        forward = timeline.select(kind="forward")
        assert (forward.stop_s - forward.start_s >= 0.049).all()


def test_it_trains_as_a_plain_loop_does() -> None:
    mine, plain = parts(), parts()
    batches = list(loader())
    record_steps(batches, **mine)
    for inputs, targets in batches:
        plain["loss"](plain["module"](inputs), targets).backward()
        plain["optimizer"].step()
        plain["optimizer"].zero_grad()
    for one, other in zip(mine["module"].parameters(), plain["module"].parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is None


@pytest.mark.parametrize("num_batches", [1, 3, 4, 9])
def test_as_many_steps_as_were_asked_for_or_as_there_are(num_batches: int) -> None:
    found = record_steps(loader(), **parts(), num_batches=num_batches)
    for timeline in (found.ours, found.profiler):
        assert sorted(timeline.select(kind="load").item) == list(range(min(num_batches, 4)))
    agree(found).check()


def test_prefetched_batches_are_not_copied_again_and_workers_end(leaves_nothing: None) -> None:
    found = record_steps(prefetched(loader(num_workers=2), HOST), **parts(), num_batches=2)
    agree(found).check()
    assert [phase.kind for phase in agree(found).phases] == [kind for kind in PHASES if kind != "copy"]


def test_an_error_of_the_loss_comes_through_and_ends_the_recording() -> None:
    def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such class")

    with pytest.raises(KeyError, match="no such class"):
        record_steps(loader(), **(parts() | {"loss": wrong}))
    agree(record_steps(loader(), **parts())).check()


def test_nothing_is_said_on_stderr() -> None:
    """A notebook's stored outputs are compared with all that comes, and Kineto tells of each start and stop."""
    code = (
        "import torch; from rankscope.transfer import record_steps; m = torch.nn.Linear(4, 1);"
        "record_steps([(torch.ones(8, 4), torch.ones(8, 1))], m, torch.nn.functional.mse_loss,"
        "torch.optim.SGD(m.parameters(), lr=0.1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loader": 3}, "loader must be something that gives batches"),
        ({"loader": []}, "loader must give at least one batch, got none"),
        ({"loader": [torch.ones(2, 32)] * 2}, "a batch must be a pair of inputs and targets, got Tensor"),
        ({"loader": [(torch.ones(2, 32),)]}, "a batch must be a pair of inputs and targets, got tuple"),
        ({"module": torch.relu}, "module must be a Module"),
        ({"loss": "mse"}, "loss must be a function of outputs and targets, got 'mse'"),
        ({"optimizer": None}, "optimizer must be an Optimizer"),
        ({"num_batches": 0}, "num_batches must be a whole number of at least 1, got 0"),
        ({"device": "xpu"}, "device must be 'cpu', 'cuda'"),
        ({"module": torch.nn.Linear(2, 2, device="meta")}, "module must be on 'cpu', and its weight is on 'meta'"),
    ],
)
def test_bad_input_is_named(wrong: Parts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record_steps(**(Parts(loader=loader()) | parts() | wrong))


# ---- what is wrong is found


def changed(timeline: Timeline, place: int, **columns: float) -> Timeline:
    rows = list(timeline)
    rows[place] = rows[place]._replace(**columns)  # type: ignore[arg-type]
    return Timeline.of(rows)


def place_of(timeline: Timeline, kind: str, item: int) -> int:
    return [(span.kind, span.item) for span in timeline].index((kind, item))


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_range_that_is_shifted_is_found(recorded: RecordedSteps, kind: str, sign: int) -> None:
    far_s = sign * (recorded.ours.makespan_s + 1.0)
    place = place_of(recorded.profiler, kind, 2)
    span = recorded.profiler[place]
    moved = changed(recorded.profiler, place, start_s=span.start_s + far_s, stop_s=span.stop_s + far_s)
    with pytest.raises(DisagreementError, match=f"^{kind}: a range reaches .* out of our span$"):
        agree(evolve(recorded, profiler=moved)).check()


@pytest.mark.parametrize("which", ["ours", "profiler"])
def test_a_span_that_is_missing_or_there_twice_is_found(recorded: RecordedSteps, which: str) -> None:
    whole: Timeline = getattr(recorded, which)
    place = place_of(whole, "backward", 1)
    places = np.arange(len(whole))
    counts = {"ours": "3 and 4", "profiler": "4 and 3"}[which]
    with pytest.raises(DisagreementError, match=f"^backward: not one span and one range of 1, but {counts}"):
        agree(evolve(recorded, **Parts({which: whole.take(np.delete(places, place))}))).check()
    with pytest.raises(DisagreementError, match="^backward: not one span and one range of 1"):
        agree(evolve(recorded, **Parts({which: whole.take(np.insert(places, 0, place))}))).check()


def test_a_phase_that_only_one_of_them_has_is_found(recorded: RecordedSteps) -> None:
    ours, theirs = recorded.ours, recorded.profiler
    without = Timeline.of([span for span in theirs if span.kind != "copy"])
    for pair in ((ours, without), (without, ours)):
        with pytest.raises(DisagreementError, match="^copy: not one span and one range of 0, 1, 2, 3, but"):
            agree(RecordedSteps(*pair, recorded.clock_s)).check()


def test_clocks_that_are_apart_and_ranges_that_are_cut_short_are_found(recorded: RecordedSteps) -> None:
    with pytest.raises(DisagreementError, match="load: .*; copy: .*; forward: .*; backward: .*; optimizer: "):
        agree(evolve(recorded, profiler=recorded.profiler.shifted(100.0))).check()
    theirs = recorded.profiler
    cut = evolve(theirs, stop_s=theirs.start_s + (theirs.stop_s - theirs.start_s) / 1000)
    agree(evolve(recorded, profiler=cut)).check()
    with pytest.raises(DisagreementError, match="forward: the ranges fill .* % of our spans"):
        agree(evolve(recorded, profiler=cut)).check(least_coverage=0.5)


def test_two_steps_that_changed_places_are_found(recorded: RecordedSteps) -> None:
    theirs = recorded.profiler
    item = theirs.item.copy()
    item[theirs.item == 1], item[theirs.item == 2] = 2, 1
    with pytest.raises(DisagreementError, match="forward: a range reaches"):
        agree(evolve(recorded, profiler=evolve(theirs, item=item))).check(0.0)


def test_figures_by_hand() -> None:
    ours = [Span(0, "load", "load", item, begin, begin + 2.0) for item, begin in enumerate([0.0, 3.0, 6.0])]
    theirs = [
        Span(0, "load", "load", 0, 0.5, 1.5),
        Span(0, "load", "load", 1, 2.75, 4.75),  # a quarter too early
        Span(0, "load", "load", 2, 6.25, 7.25),
    ]
    (phase,) = agree(RecordedSteps(Timeline.of(ours), Timeline.of(theirs), 0.25)).phases
    assert (phase.later_s, phase.shorter_s, phase.reach_s) == ((0.25, 0.5), (1.0, 1.0), 0.25)
    assert phase.coverage == pytest.approx(4 / 6)
    recorded = RecordedSteps(Timeline.of(ours), Timeline.of(theirs), 0.2)
    agree(recorded).check(tolerance_s=0.05)
    with pytest.raises(DisagreementError, match="load: a range reaches 250 ms out of our span"):
        agree(recorded).check(tolerance_s=0.04)


# ---- the profiler's trace


def trace_of(path: Path, events: list[dict[str, Any]], **more: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def event(name: str, begin_us: float, dur_us: float, category: str = "user_annotation", tid: int = 1) -> dict[str, Any]:
    pid = 0 if category.startswith("gpu") or category == "kernel" else 99
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin_us, "dur": dur_us}


@pytest.mark.parametrize("origin_us", [0.0, 4435322245899.031, 1.7e15])
def test_a_traces_clock_is_set_by_what_we_know_of_its_ranges(tmp_path: Path, origin_us: float) -> None:
    events = [
        event(CLOCK, origin_us + 10.0, 2.0),
        event("aten::mm", origin_us + 31.0, 5.0, "cpu_op"),
        event(f"{PREFIX}forward", origin_us + 30.0, 20.0),
        event(CLOCK, origin_us + 90.0, 2.0),
    ]
    readings = [(99.999_999, 100.000_001, 100.000_003), (100.000_079, 100.000_081, 100.000_083)]
    timeline, doubt_s = read_steps(trace_of(tmp_path / "trace.json", events), readings)
    assert [(span.lane, span.kind, span.item) for span in timeline] == [("forward", "forward", 0)]
    assert doubt_s == pytest.approx(1e-6, abs=1e-6 if origin_us > 1e13 else 1e-9)  # microseconds have no bits to spare
    assert timeline.start_s[0] == pytest.approx(100.000_020, abs=2e-6)
    assert timeline.makespan_s == pytest.approx(20e-6, abs=1e-6)
    with pytest.raises(RuntimeError, match=r"torch.profiler recorded 2 of 1 ranges that set its clock"):
        read_steps(tmp_path / "trace.json", readings[:1])


def test_a_gpus_kernels_and_copies_are_told_apart(tmp_path: Path) -> None:
    names = {"Memcpy HtoD (Pinned -> Device)": "h2d", "Memcpy DtoH (Device -> Pageable)": "d2h", "Memcpy DtoD": "d2d"}
    events = [event(CLOCK, 0.0, 1.0), event(f"{PREFIX}forward", 5.0, 9.0, "gpu_user_annotation", 7)]
    events += [event(name, 10.0 * place, 5.0, "gpu_memcpy", 20) for place, name in enumerate(names, 1)]
    events += [event("sgemm", 50.0, 5.0, "kernel", 7), event("Memset (Device)", 60.0, 1.0, "gpu_memset", 7)]
    events += [event("cudaLaunchKernel", 49.0, 1.0, "cuda_runtime")]
    labels = {7: "stream 7 ", 20: "stream 20 "}
    events += [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}} for tid, name in labels.items()
    ]
    timeline, _ = read_steps(trace_of(tmp_path / "trace.json", events), [(0.0, 0.5e-6, 1e-6)])
    found = [(span.lane, span.kind) for span in timeline]
    copies = [("GPU stream 20", kind) for kind in names.values()]
    assert found == [*copies, ("GPU stream 7", "kernel"), ("GPU stream 7", "memset")]


def test_a_trace_cut_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": [')
    with pytest.raises(ValueError, match="trace.json: not a readable trace"):
        read_steps(tmp_path / "trace.json", [(0.0, 0.0, 0.0)])


# ---- a GPU that does at once what it is told, and a trace in which its work is on a stream


class Event:
    def __init__(self) -> None:
        self.at_ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        pass


class HostCuda:
    """Stands for `prefetch.Cuda`."""

    device = torch.device(HOST)

    def copying(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        return source.clone()

    def mark(self, timed: bool) -> Event:
        return Event()

    def wait_for(self, event: Event) -> None:
        pass

    hand_over = wait_for

    def clock(self) -> Callable[[Event], int]:
        return lambda event: event.at_ns


class Elsewhere:
    """A tensor that is not on the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def to(self, device: torch.device, non_blocking: bool) -> torch.Tensor:
        return self._tensor.clone()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the CPU does in the phases is a GPU's in the trace: clones are copies, all else kernels."""

    def read(path: str, readings: Any) -> tuple[Timeline, float]:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"]
        phases = [one for one in events if one.get("name") in {f"{PREFIX}{kind}" for kind in PHASES[2:]}]
        for one in [one for one in events if one.get("cat") == "cpu_op"]:
            place = {"ts": one["ts"], "dur": one["dur"], "ph": "X", "pid": 0}
            if one["name"] == "aten::clone":
                events.append({**place, "tid": 20, "name": "Memcpy HtoD", "cat": "gpu_memcpy"})
            elif any(phase["ts"] <= one["ts"] <= phase["ts"] + phase["dur"] for phase in phases):
                events.append({**place, "tid": 7, "name": one["name"], "cat": "kernel"})
        return read_steps(trace_of(Path(path), events), readings)

    monkeypatch.setattr(record, "read_steps", read)


GPU_PHASES = [("GPU", kind) for kind in ("forward", "backward", "optimizer")]


def test_on_a_gpu_the_phases_are_timed_there_too(on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "prefetched", lambda batches, _: through_gpu(batches))
    batches = [(Elsewhere(inputs), Elsewhere(targets)) for inputs, targets in loader()]
    found = agree(record_steps(batches, **parts()))
    found.check()
    assert [(one.lane, one.kind) for one in found.phases[5:]] == [("GPU", "copy"), *GPU_PHASES]
    assert [one.num_ours for one in found.phases] == [one.num_profiler for one in found.phases] == [4] * 9
    found = agree(record_steps(loader(), **parts()))  # on the device already: nothing is copied
    found.check()
    assert [(one.lane, one.kind) for one in found.phases[5:]] == GPU_PHASES


def through_gpu(batches: Iterable[Any]) -> Prefetched[Any]:
    return Prefetched(batches, HostCuda(), 1, None)  # type: ignore[arg-type]


def gpu_steps() -> RecordedSteps:
    return record_steps(through_gpu(loader()), **parts())


def test_a_prefetchers_copies_have_their_lane(on_gpu: None) -> None:
    recorded = gpu_steps()
    found = agree(recorded)
    found.check()
    assert [(one.lane, one.kind) for one in found.phases[4:]] == [*GPU_PHASES, ("GPU copies", "copy")]
    copies = recorded.ours.select(lane="GPU copies")
    assert sorted(copies.item) == [0, 1, 2, 3]


def test_what_a_gpu_does_outside_our_spans_is_found(on_gpu: None) -> None:
    recorded = gpu_steps()
    rows = list(recorded.profiler)
    place = next(place for place, span in enumerate(rows) if span.kind == "kernel")
    late = changed(recorded.profiler, place, stop_s=recorded.ours.end_s + 0.5, start_s=recorded.ours.end_s + 0.4)
    with pytest.raises(DisagreementError, match="optimizer on lane 'GPU': a range reaches 500 ms out of our span"):
        agree(evolve(recorded, profiler=late)).check()
    copies = Timeline.of([span for span in rows if span.kind != "h2d"])
    with pytest.raises(DisagreementError, match="copy on lane 'GPU copies': not one span and one range of 0, 1, 2, 3"):
        agree(evolve(recorded, profiler=copies)).check()
    ours = Timeline.of([span for span in recorded.ours if not span.lane.startswith("GPU")])
    with pytest.raises(DisagreementError, match="the profiler saw .* kernels and copies on the GPU, and we nothing"):
        agree(evolve(recorded, ours=ours))


def test_work_between_spans_goes_to_those_of_its_sort() -> None:
    ours = [Span(0, "GPU", "forward", 0, 0.0, 10.0), Span(0, "GPU copies", "copy", 1, 2.0, 4.0)]
    theirs = [
        Span(0, "GPU stream 7", "kernel", -1, 2.5, 3.5),  # beside the copy, and in the forward pass
        Span(0, "GPU stream 20", "h2d", -1, 2.5, 3.75),
        Span(0, "GPU stream 7", "h2d", -1, 6.0, 7.0),  # by the forward pass itself: no copy is near
    ]
    forward, copy = agree(RecordedSteps(Timeline.of(ours), Timeline.of(theirs), 0.0)).phases
    assert (forward.later_s[0], forward.shorter_s[0], forward.coverage) == (2.5, 5.5, 0.2)
    assert (copy.later_s[0], copy.shorter_s[0], copy.coverage) == (0.5, 0.75, 0.625)


@pytest.mark.gpu
def test_on_a_real_gpu_the_two_agree() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    module = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches = [(torch.randn(4096, 1024), torch.randint(0, 10, (4096,))) for _ in range(8)]
    for source in (batches, prefetched(batches, "cuda")):
        for _ in range(2):  # the first makes what later ones find
            recorded = record_steps(source, module, torch.nn.functional.cross_entropy, optimizer, "cuda")
        agree(recorded).check()
        kernels = recorded.profiler.select(kind="kernel")
        assert len(kernels) >= 8 * 4
