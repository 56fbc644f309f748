"""`CapSweep`: steps measured at several bucket caps, their predictions by the model, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...common import storage
from ...common.checks import number, truth
from ...common.frozen import checked, each, frozen, optional
from ...provenance import checked_provenance
from .buckets import Buckets, buckets_of
from .cost import CostTable, Seconds
from .observed import Iterations, StoredParameter, parameters_of
from .step import Contention, LocalStep, simulate

FORMAT = "rankscope cap sweeps"
VERSION = 1


@frozen
class MeasuredCap(Iterations):
    """The seconds of each step at one cap (None is DDP's default), which of them were clean, and the buckets."""

    bucket_cap_mb: float | None = checked(optional, number, above=0)
    buckets: Buckets = checked(buckets_of)
    step_s: tuple[float, ...] = checked(each, number, above=0)
    clean: tuple[bool, ...] = checked(each, truth)


@frozen(eq=False)
class CapSweep:
    """The measured steps of one module at several caps on some ranks, and the model's input to predict them.

    None of that was fitted to these steps: `local` is the step without allreduces, `cost` the allreduce by itself, and
    `contention` was fitted to another module. `provenance` is as a Profile's.
    """

    name: str = checked(str)
    provenance: Mapping[str, Any] = checked(checked_provenance)
    local: LocalStep = checked(LocalStep)
    cost: CostTable = checked(CostTable)
    contention: Contention = checked(Contention)
    measured: tuple[MeasuredCap, ...] = checked(each, MeasuredCap)

    def __attrs_post_init__(self) -> None:
        if not self.measured:
            raise ValueError("measured is empty; it needs at least one cap")

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


class _StoredLocalStep(storage.StoredPart):
    parameters: list[StoredParameter]
    ready_s: list[float | None]
    forward_s: float
    backward_s: float
    optimizer_s: float
    unpack_s: float


class _StoredCost(storage.StoredPart, array_like=True):
    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]


class _StoredContention(storage.StoredPart, array_like=True):
    compute: float
    communication: float


class _StoredCap(storage.StoredPart, array_like=True):
    bucket_cap_mb: float | None
    buckets: list[list[int]]
    step_s: tuple[float, ...]
    clean: tuple[storage.Mark, ...]


class _StoredSweep(storage.StoredPart):
    name: str
    provenance: dict[str, Any]
    local: _StoredLocalStep
    cost: _StoredCost
    contention: _StoredContention
    measured: list[_StoredCap]


class _StoredSweeps(storage.StoredFile):
    torch: str
    date: str
    command: str
    sweeps: list[_StoredSweep]


def load_sweeps(path: storage.PathLike) -> list[CapSweep]:
    """Read the sweeps of a file such as notebooks/profiles/ddp_steps.json, one per module and number of ranks.

    Raises StorageError, a one-line ValueError that names the file, if it is not such a file or was damaged or changed;
    OSError if it cannot be opened.
    """
    return storage.load(path, FORMAT, VERSION, _StoredSweeps, _sweeps)


def _sweeps(stored: _StoredSweeps) -> list[CapSweep]:
    sweeps = []
    for index, sweep in enumerate(stored.sweeps):
        with storage.within(f"sweeps[{index}]"):
            sweeps.append(_sweep(sweep))
    return sweeps


def _sweep(stored: _StoredSweep) -> CapSweep:
    """Return a sweep of a file. Errors name the part of the file (`storage.within`)."""
    local = stored.local
    with storage.within("local"):
        step = LocalStep(
            parameters=parameters_of(local.parameters),
            ready_s=np.array(local.ready_s, float),  # None, for a gradient that never comes, becomes nan
            forward_s=local.forward_s,
            backward_s=local.backward_s,
            optimizer_s=local.optimizer_s,
            unpack_s=local.unpack_s,
        )
    with storage.within("cost"):
        cost = CostTable(stored.cost.num_bytes, stored.cost.seconds)
    with storage.within("contention"):
        contention = Contention(stored.contention.compute, stored.contention.communication)
    measured = []
    for index, cap in enumerate(stored.measured):
        with storage.within(f"measured[{index}]"):
            measured.append(_cap(cap))
    return CapSweep(
        name=stored.name,
        provenance=stored.provenance,
        local=step,
        cost=cost,
        contention=contention,
        measured=tuple(measured),
    )


def _cap(stored: _StoredCap) -> MeasuredCap:
    buckets = buckets_of("buckets", stored.buckets)
    return MeasuredCap(stored.bucket_cap_mb, buckets, stored.step_s, tuple(map(bool, stored.clean)))
