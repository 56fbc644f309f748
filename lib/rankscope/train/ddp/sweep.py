"""`CapSweep`: steps measured at several bucket caps, their predictions by the model, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ...common.files import PathLike, read_json
from .cost import CostTable, Seconds
from .observed import Iterations
from .step import Contention, LocalStep, simulate


class MeasuredCap(Iterations, msgspec.Struct, frozen=True):
    """The seconds of each step at one cap (None is DDP's default), which of them were clean, and the buckets."""

    bucket_cap_mb: float | None
    buckets: tuple[tuple[int, ...], ...]
    step_s: tuple[float, ...]
    clean: tuple[bool, ...]


class CapSweep(msgspec.Struct, frozen=True, eq=False):
    """The measured steps of one module at several caps on some ranks, and the model's input to predict them.

    None of that was fitted to these steps: `local` is the step without allreduces, `cost` the allreduce by itself, and
    `contention` was fitted to another module. `provenance` is as a Profile's.
    """

    name: str
    provenance: Mapping[str, Any]
    local: LocalStep
    cost: CostTable
    contention: Contention
    measured: tuple[MeasuredCap, ...]

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def network(self) -> str:
        return str(self.provenance["network"])

    @property
    def caps_mb(self) -> tuple[float | None, ...]:
        return tuple(cap.bucket_cap_mb for cap in self.measured)

    @property
    def measured_s(self) -> Seconds:
        """The median step at each cap."""
        return np.array([cap.median_s for cap in self.measured])

    def predicted_s(self, contention: Contention | None = None) -> Seconds:
        """Return the predicted step at each cap, with DDP's observed buckets, by default with the sweep's contention.

        >>> load_sweeps("notebooks/profiles/ddp_steps.json")[0].predicted_s().shape  # doctest: +SKIP
        (5,)
        """
        if contention is None:
            contention = self.contention
        predicted_s = []
        for cap in self.measured:
            step = simulate(self.local, self.cost, buckets=cap.buckets, contention=contention)
            predicted_s.append(step.makespan_s)
        return np.array(predicted_s)


class CapSweeps(msgspec.Struct, frozen=True, eq=False, tag_field="format", tag="rankscope cap sweeps"):
    """The content of a file: sweeps, and the torch, date and command of the last one."""

    torch: str
    date: str
    command: str
    sweeps: tuple[CapSweep, ...]


def load_sweeps(path: PathLike) -> list[CapSweep]:
    """Read the sweeps of a file such as notebooks/profiles/ddp_steps.json, one per module and number of ranks.

    Raises FileError, a one-line ValueError that names the file, if it is not such a file; OSError if it cannot be
    opened.
    """
    return list(read_json(path, CapSweeps).sweeps)
