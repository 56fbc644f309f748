"""Traces of an FSDP job on Gloo with known times, written without rankscope's replay: ranks in plain loops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.diagnose import read_traces
from rankscope.diagnose.trace import Trace
from tests.diagnose.test_trace import EVALUATE, event, sized

COPY_US = 40.0


class ShardedMaker:
    """Ranks with a group per layer; layer l computes for ``forward_us[rank][l]`` in forward, twice that in backward.

    Gathers take `alpha_us` and `per_byte_us` times their bytes after the last rank has arrived, and so do reductions.
    `now_us` are clocks that all start at 0; those in the traces differ by milliseconds.
    """

    def __init__(
        self, forward_us: Sequence[Sequence[float]], num_bytes: Sequence[int], alpha_us: float, per_byte_us: float
    ) -> None:
        self.forward_us = forward_us
        self.num_bytes = num_bytes
        self.alpha_us = alpha_us
        self.per_byte_us = per_byte_us
        self.ranks = range(len(forward_us))
        self.now_us = [0.0 for _ in self.ranks]
        self.events: list[list[dict[str, Any]]] = [[] for _ in self.ranks]
        self.ends_us: list[float] = []  # of the last reduction of each step

    def work(self, rank: int, length_us: float, name: str) -> None:
        self.add(rank, event(name, self.now_us[rank], length_us, "cpu_op"))
        self.now_us[rank] += length_us

    def add(self, rank: int, made: dict[str, Any]) -> None:
        self.events[rank].append({**made, "ts": made["ts"] + 3000 * rank})

    def part(self, label: str, layer: int, operator: str, work: str) -> None:
        """A range with own work, a collective, and own work."""
        launch_us = [now_us + COPY_US for now_us in self.now_us]
        end_us = max(launch_us) + self.alpha_us + self.per_byte_us * self.num_bytes[layer]
        elements = self.num_bytes[layer] // 4
        for rank in self.ranks:
            begin_us = self.now_us[rank]
            self.add(rank, event(f"FSDP::{label} (layers.{layer})", begin_us, end_us + COPY_US - begin_us))
            self.add(rank, sized(operator, launch_us[rank], 5, elements))
            self.add(
                rank, sized(work, launch_us[rank] + 1, end_us - launch_us[rank] - 1, elements, "user_annotation", 8)
            )
            self.now_us[rank] = end_us + COPY_US

    def gather(self, layer: int) -> None:
        self.part("all_gather", layer, "c10d::_allgather_base_", "gloo:all_gather")

    def copy_out(self, layer: int) -> None:
        self.marked("all_gather_copy_out", layer, COPY_US)

    def marked(self, label: str, layer: int, length_us: float) -> None:
        for rank in self.ranks:
            self.add(rank, event(f"FSDP::{label} (layers.{layer})", self.now_us[rank], length_us))
            self.now_us[rank] += length_us

    def compute(self, layer: int, times: float, name: str) -> None:
        for rank in self.ranks:
            self.work(rank, times * self.forward_us[rank][layer], name)

    def step(self, number: int, reshard: bool) -> None:
        begin_us = list(self.now_us)
        for rank in self.ranks:
            self.work(rank, 900, "aten::host")
        last = len(self.num_bytes) - 1
        for layer in range(last + 1):
            self.marked("pre_forward", layer, 3)
            self.gather(layer)
            self.copy_out(layer)
            self.compute(layer, 1.0, "aten::linear")
            self.marked("post_forward", layer, 5)
        backward_us = list(self.now_us)
        for layer in range(last, -1, -1):
            self.marked("pre_backward", layer, 3)
            if reshard and layer == last:
                self.gather(layer)
            if reshard:
                self.copy_out(layer)
            if reshard and layer > 0:
                self.gather(layer - 1)
            self.compute(layer, 2.0, "aten::mm")
            self.marked("post_backward_accumulate", layer, 2)
            self.part("post_backward_reduce", layer, "c10d::_reduce_scatter_base_", "gloo:all_reduce")
        self.ends_us.append(max(self.now_us) - COPY_US)
        for rank in self.ranks:
            length_us = self.now_us[rank] - backward_us[rank]
            self.add(rank, event(f"{EVALUATE}AddmmBackward0", backward_us[rank], length_us, "cpu_op"))
            self.work(rank, 300, "aten::add_")
            self.add(rank, event(f"ProfilerStep#{number}", begin_us[rank], self.now_us[rank] - begin_us[rank]))
            self.now_us[rank] += 10

    def traces(self, folder: Path) -> tuple[Trace, ...]:
        folder.mkdir(exist_ok=True)
        for rank, events in enumerate(self.events):
            info = {"backend": "gloo", "rank": rank, "world_size": len(self.ranks)}
            info["pg_config"] = [{"pg_name": "0", "ranks": [*self.ranks]}]
            (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        return read_traces(folder)

    @property
    def step_s(self) -> float:
        """The time from the end of one step's reductions to the end of the next step's."""
        return (self.ends_us[-1] - self.ends_us[-2]) / 1e6
