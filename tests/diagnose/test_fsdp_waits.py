"""The waits of FSDP on Gloo: its collectives block the CPU within forward and backward, and are not own time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose.own_times import own_times
from rankscope.diagnose.trace import PHASES, Trace
from tests.diagnose.test_trace import EVALUATE, event, sized

RANKS = 4
STEPS = 10
GATHER_US = 500.0  # of every collective, once the last rank is there


class FsdpMaker:
    """Makes traces of ranks that gather, compute and reduce as FSDP2 does on Gloo in torch 2.13.

    The events and their nesting are those of a recorded job of `tests.diagnose.jobs` with ``is_sharded``.
    """

    def __init__(self) -> None:
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
        self.now_us = [0.0] * RANKS

    def work(self, rank: int, length_us: float, name: str) -> None:
        self.events[rank].append(event(name, self.now_us[rank], length_us, "cpu_op"))
        self.now_us[rank] += length_us

    def call(self, outer: str, operator: str, work: str) -> None:
        """Let all ranks call a collective, which blocks them until it ends everywhere."""
        end_us = max(self.now_us) + GATHER_US
        for rank, begin_us in enumerate(self.now_us):
            stop_us = end_us + 20
            self.events[rank] += [
                event(outer, begin_us, stop_us - begin_us),
                sized(operator, begin_us + 5, 5, 64),
                sized(work, begin_us + 8, end_us - begin_us - 8, 64, "user_annotation", 8),
            ]
            self.now_us[rank] = stop_us

    def step(self, number: int, forward_us: Sequence[float], backward_us: Sequence[float]) -> None:
        begin_us = list(self.now_us)
        self.call("FSDP::pre_forward (layers.0)", "c10d::_allgather_base_", "gloo:all_gather")
        for rank in range(RANKS):
            self.work(rank, forward_us[rank], "aten::linear")
            self.events[rank].append(event("FSDP::post_forward (layers.0)", self.now_us[rank], 5))
            self.now_us[rank] += 5
        backward_begin_us = list(self.now_us)
        self.call("FSDP::all_gather (layers.0)", "c10d::_allgather_base_", "gloo:all_gather")
        for rank in range(RANKS):
            length_us = self.now_us[rank] - backward_begin_us[rank] + backward_us[rank]
            self.events[rank].append(event(f"{EVALUATE}AddmmBackward0", backward_begin_us[rank], length_us, "cpu_op"))
            self.now_us[rank] = backward_begin_us[rank] + length_us
        self.call("FSDP::root_post_backward_callback", "c10d::_reduce_scatter_base_", "gloo:all_reduce")
        for rank in range(RANKS):
            self.work(rank, 300, "aten::add_")
            length_us = self.now_us[rank] - begin_us[rank]
            self.events[rank].append(event(f"ProfilerStep#{number}", begin_us[rank], length_us))
            self.now_us[rank] += 10

    def traces(self, folder: Path) -> tuple[Trace, ...]:
        folder.mkdir(exist_ok=True)
        for rank, events in enumerate(self.events):
            info = {"backend": "gloo", "rank": rank, "world_size": RANKS}
            info["pg_config"] = [{"pg_name": "0", "ranks": [*range(RANKS)]}]
            (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        return read_traces(folder)


def made(folder: Path, late: int, phase: str, late_us: float) -> tuple[Trace, ...]:
    maker = FsdpMaker()
    for number in range(STEPS):
        usual = [4000.0 + 40 * ((rank * 7 + number * 3) % 5) for rank in range(RANKS)]
        forward_us = [us + late_us * (rank == late and phase == "forward") for rank, us in enumerate(usual)]
        backward_us = [2 * us + late_us * (rank == late and phase == "backward") for rank, us in enumerate(usual)]
        maker.step(number, forward_us, backward_us)
    return maker.traces(folder)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("late", range(RANKS))
def test_a_late_rank_and_its_phase_are_named(tmp_path: Path, late: int, phase: str) -> None:
    diagnosis = diagnose(made(tmp_path, late, phase, 20000))
    assert [culprit[:2] for culprit in diagnosis.culprits] == [(late, phase)], str(diagnosis)
    assert diagnosis.culprits[0].cost_s == pytest.approx(0.02, rel=0.05)


def test_a_balanced_job_has_no_late_rank(tmp_path: Path) -> None:
    assert diagnose(made(tmp_path, 0, "forward", 0)).culprits == []


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_waits_within_forward_and_backward_are_not_own_time(tmp_path: Path, phase: str) -> None:
    """Ranks that are not late do as much as without the late one, and wait for the rest."""
    place = PHASES.index(phase)
    calm = made(tmp_path / "calm", 0, phase, 0)
    late = made(tmp_path / "late", 2, phase, 20000)
    for rank in (0, 1, 3):
        own_s = own_times(late[rank]).phase_s[:, place]
        assert own_s == pytest.approx(own_times(calm[rank]).phase_s[:, place], abs=1e-4)
        assert own_times(late[rank]).exposed_s.min() > 0.019
    assert own_times(late[2]).phase_s[:, place].min() > 0.02
    assert own_times(late[2]).exposed_s.max() < 0.003
