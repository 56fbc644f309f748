"""Every explorer with what it is opened with, and what tests take of a panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from rankscope import explorers
from rankscope.explorers.explorer import Explorer, Setting, Steps, explorer_of
from rankscope.explorers.panel import Panel
from rankscope.machine import Profile
from rankscope.values.frozen import ReadOnly

from ..machine.made import as_predicted, collective, links, point, profile

NATIVE_S, SIZES = 0.005, [2**power for power in (12, 20, 28)]


class Case(NamedTuple):
    """An explorer's name, its inputs, and settings at which every control changes what is shown."""

    name: str
    inputs: tuple[Any, ...] = ()
    start: Mapping[str, Any] = ReadOnly()

    def open(self, **settings: Any) -> Panel:
        return getattr(explorers, self.name)(*self.inputs, **settings)

    def made(self) -> Explorer:
        return explorer_of(getattr(explorers, self.name), *self.inputs)


def profiles() -> dict[str, Profile]:
    """One with measured allreduces, a fifth quicker than predicted, and Gloo's own; one with another link."""
    one = as_predicted(profile(links()), ["ring", "flat", "segmented_ring"], share=0.8, noise=0.0)
    one = collective(one, {"native": lambda size: NATIVE_S}, noise=0.0)
    return {"one": one, "two": profile(links(seconds=lambda size: 1e-3 + size / 1e8))}


def gpu() -> Profile:
    """Copies to the GPU at 8 GB/s, twice as fast from pinned memory, and pinning at 4 GB/s."""
    rates = {"pageable": 8e9, "pinned": 16e9, "pinned_non_blocking": 16e9}
    copies = [
        point("transfer", size, size / rate, direction="h2d", method=method, pieces=1, both=False)
        for method, rate in rates.items()
        for size in SIZES
    ]
    pins = [point("pin", size, size / 4e9, cached=True) for size in SIZES]
    return profile([*copies, *pins], topology="GPU0: PCIe 4 x16")


def six_ranks() -> Profile:
    """The backend's own allreduce over six ranks, from 1 KiB to 32 MiB."""
    sizes = [2**power for power in range(10, 26, 3)]
    points = [point("allreduce", size, 1e-4 + size / 1e9, algorithm="native") for size in sizes]
    return profile(points, num_ranks=6, ranks_per_node=[6])


MODULE = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "pipeline": Case("pipeline"),
    "parts": Case("parts", start={"queue_size": 1}),
    "player": Case("player", start={"num_nodes": 2, "shared_nic": True, "algorithm": "recursive_doubling"}),
    "allreduce": Case("allreduce", start={"algorithm": "double_binary_tree", "num_nodes": 4}),
    "machine": Case("machine", (profiles(),), {"algorithm": "segmented_ring"}),
    "transfers": Case("transfers", start={"method": "pinned"}),
    "transfers of a profile": Case("transfers", (gpu(),), {"method": "pinned"}),
    "ddp": Case("ddp", start={"cap": "8 MiB"}),
    "ddp by hand": Case("ddp", start={"cap": "8 MiB", "network": "latency and bandwidth"}),
    "ddp of yours": Case("ddp", ({"mine": six_ranks()},), {"cap": "8 MiB"}),
    "zero": Case("zero", start={"stage": 3}),
    "zero of a module": Case("zero", (MODULE,), {"stage": 3, "model": "1.5 B"}),
    "uneven": Case("uneven", start={"handling": "join"}),
    "boxes": Case("boxes"),
    "boxes of yours": Case("boxes", ({"mine": Profile.load("bank:dgx_h100_8")},)),
    "nccl": Case("nccl", start={"num_nodes": 4, "collective": "allgather"}),
    "pipeline_parallel": Case("pipeline_parallel", start={"schedule": "interleaved_1f1b", "link": "1 GB/s, 50 µs"}),
    "data_parallel": Case("data_parallel"),
}


def controls(box: Panel) -> dict[str, Any]:
    """A panel's controls, by the names of their settings."""
    return dict(box.controls)


def shown(box: Panel) -> tuple[str, str]:
    """A panel's pictures and its report, as HTML."""
    return box.pictures.value, box.report.value


def others(setting: Setting, now: Any) -> list[Any]:
    """Values to set a control to: all of a list, both sides of a switch, the ends of a slider and one between."""
    found = setting.values
    if isinstance(setting.choices, range | Steps):
        found = (found[0], found[-1], found[len(found) // 3])
    return [value for value in found if value != now]


def report(explorer: Explorer, **settings: Any) -> list[str]:
    """The lines of its report."""
    return explorer.report(explorer.at(**settings))


def svg(explorer: Explorer, picture: str = "picture", **settings: Any) -> str:
    """One of its pictures."""
    return explorer.svg(picture, explorer.at(**settings))
