"""Steps recorded twice: each of the profiler's ranges lies in a span of ours, and what is tampered with is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rankscope.timeline import Span, Timeline
from rankscope.transfer import prefetched

from ..tools.recorded_steps import (
    CLOCK,
    PHASES,
    PREFIX,
    DisagreementError,
    RecordedSteps,
    read_steps,
    record_steps,
)

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


def test_each_phase_of_each_step_is_there_twice_and_the_two_agree(recorded: RecordedSteps) -> None:
    for timeline in (recorded.ours, recorded.profiler):
        timeline.check()
        phases = [(span.item, span.kind) for span in timeline.take(np.argsort(timeline.start_s, kind="stable"))]
        assert phases == [(item, kind) for item in range(4) for kind in PHASES]
        assert [span.lane for span in timeline] == [span.kind for span in timeline]
    theirs = {(span.kind, span.item): span for span in recorded.profiler}
    off_s = recorded.clock_s + 1e-4
    for span in recorded.ours:
        inner = theirs[span.kind, span.item]
        assert span.start_s - off_s <= inner.start_s <= inner.stop_s <= span.stop_s + off_s
    agreement = recorded.agreement()
    agreement.check()
    assert [(phase.kind, phase.num_ours, phase.num_profiler) for phase in agreement.phases] == [
        (kind, 4, 4) for kind in PHASES
    ]
    assert all(0 < phase.coverage <= 1 + 1e-3 for phase in agreement.phases if phase.reach_s == 0)


def test_it_trains_as_a_plain_loop_does() -> None:
    mine, plain = parts(), parts()
    batches = list(loader())
    record_steps(batches, **mine)
    for inputs, targets in batches:
        plain["loss"](plain["module"](inputs), targets).backward()
        plain["optimizer"].step()
        plain["optimizer"].zero_grad()
    for own, plain_one in zip(mine["module"].parameters(), plain["module"].parameters(), strict=True):
        assert torch.equal(own, plain_one)
        assert own.grad is None


def test_prefetched_batches_are_not_copied_again_and_workers_end(leaves_nothing: None) -> None:
    recorded = record_steps(prefetched(loader(num_workers=2), HOST), **parts(), num_batches=2)
    recorded.agreement().check()
    assert [phase.kind for phase in recorded.agreement().phases] == [kind for kind in PHASES if kind != "copy"]


# ---- what is wrong is found, in four steps that were written by hand: each range lies 0.25 s inside of its span


def spans_of(inside_s: float) -> Timeline:
    begins = [(kind, item, 5.0 * item + place) for item in range(4) for place, kind in enumerate(PHASES)]
    return Timeline.of([Span(0, kind, kind, item, at + inside_s, at + 1 - inside_s) for kind, item, at in begins])


OURS, THEIRS = spans_of(0.0), spans_of(0.25)


def check(ours: Timeline, theirs: Timeline, *limits: float) -> None:
    RecordedSteps(ours, theirs, 1e-6).agreement().check(*limits)


def changed(timeline: Timeline, kind: str, item: int, **columns: float) -> Timeline:
    rows = list(timeline)
    place = [(span.kind, span.item) for span in rows].index((kind, item))
    rows[place] = rows[place]._replace(**columns)  # type: ignore[arg-type]
    return Timeline.of(rows)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("at_s", [0.0, 100.0])
def test_a_range_that_is_shifted_is_found(kind: str, at_s: float) -> None:
    moved = changed(THEIRS, kind, 2, start_s=at_s, stop_s=at_s + 0.5)
    with pytest.raises(DisagreementError, match=f"^{kind}: "):
        check(OURS, moved)


def test_what_fits_is_let_through() -> None:
    check(OURS, THEIRS, 0.0)
    check(THEIRS, OURS, 0.25)


def test_figures_by_hand() -> None:
    ours = [Span(0, "load", "load", item, begin, begin + 2.0) for item, begin in enumerate([0.0, 3.0, 6.0])]
    theirs = [
        Span(0, "load", "load", 0, 0.5, 1.5),
        Span(0, "load", "load", 1, 2.75, 4.75),  # a quarter too early
        Span(0, "load", "load", 2, 6.25, 7.25),
    ]
    recorded = RecordedSteps(Timeline.of(ours), Timeline.of(theirs), 0.2)
    (phase,) = recorded.agreement().phases
    assert phase.reach_s == 0.25
    assert phase.coverage == pytest.approx(4 / 6)
    recorded.agreement().check(tolerance_s=0.05)
    with pytest.raises(DisagreementError, match="load: .* 250 ms"):
        recorded.agreement().check(tolerance_s=0.04)


# ---- the profiler's trace


def trace_of(path: Path, events: list[dict[str, Any]], **fields: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **fields}))
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
    with pytest.raises(RuntimeError, match="2 of 1"):
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
    kinds = [(span.lane, span.kind) for span in timeline]
    copies = [("GPU stream 20", kind) for kind in names.values()]
    assert kinds == [*copies, ("GPU stream 7", "kernel"), ("GPU stream 7", "memset")]


def test_work_between_spans_goes_to_those_of_its_sort() -> None:
    ours = [Span(0, "GPU", "forward", 0, 0.0, 10.0), Span(0, "GPU copies", "copy", 1, 2.0, 4.0)]
    theirs = [
        Span(0, "GPU stream 7", "kernel", -1, 2.5, 3.5),  # beside the copy, and in the forward pass
        Span(0, "GPU stream 20", "h2d", -1, 2.5, 3.75),
        Span(0, "GPU stream 7", "h2d", -1, 6.0, 7.0),  # by the forward pass itself: no copy is near
    ]
    forward, copy = RecordedSteps(Timeline.of(ours), Timeline.of(theirs), 0.0).agreement().phases
    assert (forward.reach_s, forward.coverage) == (0.0, 0.2)
    assert (copy.reach_s, copy.coverage) == (0.0, 0.625)


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
        recorded.agreement().check()
        kernels = recorded.profiler.select(kind="kernel")
        assert len(kernels) >= 8 * 4
