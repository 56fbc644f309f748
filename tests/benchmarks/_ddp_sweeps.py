"""Steps measured at several bucket caps, their predictions, and their file, notebooks/profiles/ddp_steps.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from notebooks.helpers import Sweep
from rankscope.common.files import PathLike, read_json
from rankscope.networks import Seconds
from rankscope.train.ddp import Contention, simulate


class CapSweep(Sweep, eq=False):
    """The measured steps of one module at several caps on some ranks, and the model's input to predict them.

    None of that was fitted to these steps: `local` is the step without allreduces, `cost` the allreduce by itself, and
    `contention` was fitted to another module. `measured` has the cap (None is DDP's default) and the seconds of steps.
    """

    @property
    def measured_s(self) -> Seconds:
        """The median step at each cap."""
        return np.array([np.median(step_s) for _, step_s in self.measured])

    def predicted_s(self, contention: Contention | None = None) -> Seconds:
        """Return the predicted step at each cap, by default with the sweep's contention."""
        used = contention or self.contention
        caps_mb = [cap_mb for cap_mb, _ in self.measured]
        steps = [simulate(self.local, self.cost, bucket_cap_mb=cap_mb, contention=used) for cap_mb in caps_mb]
        return np.array([step.makespan_s for step in steps])


class CapSweeps(msgspec.Struct, frozen=True, eq=False):
    """The content of a file: sweeps, and where and when they were measured."""

    provenance: Mapping[str, Any]
    sweeps: tuple[CapSweep, ...]


def load_sweeps(path: PathLike) -> list[CapSweep]:
    return list(read_json(path, CapSweeps).sweeps)
