"""`LoaderProfile`: what a recorded DataLoader and its training loop cost, and the epoch it would give otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from ..timeline import Timeline
from ..values.checks import count_of, number, of_type, one_of, truth, whole
from .dataloader_twin import simulate_dataloader
from .service import Seconds, check_times

PARTS = ("reading", "collating", "hand-over", "pinning", "training step", "worker start-up", "CPU cores")


@dataclass(frozen=True)
class LoaderSettings:
    """What a DataLoader was made with; `pin_memory` is true only where there is an accelerator to pin for.

    Raises ValueError for fewer than 0 workers and a prefetch_factor below 1.
    """

    num_workers: int
    prefetch_factor: int = 2
    in_order: bool = True
    pin_memory: bool = False
    persistent_workers: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_workers", whole("num_workers", self.num_workers, 0))
        object.__setattr__(self, "prefetch_factor", whole("prefetch_factor", self.prefetch_factor, 1))
        for name in ("in_order", "pin_memory", "persistent_workers"):
            object.__setattr__(self, name, truth(name, getattr(self, name)))

    def __str__(self) -> str:
        pinned = ", pinned" if self.pin_memory else ""
        if not self.num_workers:
            return f"no workers{pinned}"
        order = "in order" if self.in_order else "in_order=False"
        return f"{count_of(self.num_workers, 'worker')}, prefetch_factor {self.prefetch_factor}, {order}{pinned}"


@dataclass(frozen=True)
class PinningCosts:
    """Seconds to copy one batch to the accelerator, as it is and from pinned memory, and to pin it (a copy, too).

    Raises ValueError for times that are negative or not finite.
    """

    pageable_copy_s: float
    pin_s: float
    pinned_copy_s: float

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, number(spec.name, getattr(self, spec.name), 0))


@dataclass(frozen=True, eq=False)
class LoaderProfile:
    """What a loader and its training loop cost, measured: a time a batch in each of the columns, in seconds.

    `read_s` is the dataset access and `collate_s` the collate_fn, `cpu_s` the CPU time of both and of sending the
    batch. `receive_s` is what taking it in costs the training loop, or the pin thread, which then pins for `pin_s`.
    `wait_s` is the training loop's wait for the batch, `step_s` its step, `step_cpu_s` the CPU time of that. Times are
    without waits for a core, where the system tells them. `handover_s` holds, for as many batches as show it, the
    seconds from the end of the fetch to the arrival at a loop that waited. Workers, of which each takes
    `startup_each_s` to make, first read `startup_s` after the last was made. `num_batches` is an epoch's.

    Raises ValueError for no batch, columns of different lengths, and times that are negative or not finite.
    """

    settings: LoaderSettings
    num_batches: int
    num_cores: int
    batch_bytes: int
    accelerator: bool
    read_s: Seconds
    collate_s: Seconds
    cpu_s: Seconds
    receive_s: Seconds
    pin_s: Seconds
    wait_s: Seconds
    step_s: Seconds
    step_cpu_s: Seconds
    handover_s: Seconds
    startup_s: float = 0.0
    startup_each_s: float = 0.0
    pinning: PinningCosts | None = None

    def __post_init__(self) -> None:
        for name, least in (("num_batches", 1), ("num_cores", 1), ("batch_bytes", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        of_type("settings", self.settings, LoaderSettings)
        if self.pinning is not None:
            of_type("pinning", self.pinning, PinningCosts)
        columns = [spec.name for spec in fields(self) if spec.type == "Seconds"]
        for name in columns:
            object.__setattr__(self, name, check_times(name, getattr(self, name)))
        sizes = {name: getattr(self, name).size for name in columns if name != "handover_s"}
        if len(set(sizes.values())) != 1 or not self.read_s.size:
            raise ValueError(f"a profile must have at least one batch and a time of each in every column, got {sizes}")

    @property
    def waiting_share(self) -> float:
        """The share of the recorded time in which the training loop waited for its batch."""
        spent_s = float(self.wait_s.sum() + self.step_s.sum())
        return float(self.wait_s.sum()) / spent_s if spent_s else 0.0

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch of `num_batches`, as recorded."""
        return float(self.wait_s.mean() + self.step_s.mean()) * self.num_batches

    @property
    def cpu_bound_s(self) -> float:
        """The least seconds of an epoch that these cores allow, however it is loaded."""
        return float(self.cpu_s.mean() + self.step_cpu_s.mean()) * self.num_batches / self.num_cores


class BatchCosts(NamedTuple):
    """A batch whose step has ended, in nanoseconds; `handover` is -1 where no one waited for the batch."""

    number: int
    epoch: int
    wait: int
    step: int
    step_cpu: int
    read: int
    collate: int
    cpu: int
    handover: int
    receive: int
    pin: int


def profile_columns(batches: Iterable[BatchCosts]) -> dict[str, Seconds]:
    """Return the columns of a `LoaderProfile`, batches in the order that they were dealt in."""
    rows = sorted(batches)
    columns = {f"{name}_s": np.array([getattr(row, name) for row in rows]) / 1e9 for name in BatchCosts._fields[2:]}
    return columns | {"handover_s": columns["handover_s"][columns["handover_s"] >= 0]}


def simulate_profile(profile: LoaderProfile, settings: LoaderSettings, faster: str | None = None) -> Timeline:
    """Return the timeline of an epoch with other settings, and with one of `PARTS` twice as fast where it is named.

    Batches take the times that were recorded last, again from the first of these where the epoch is longer. A loader
    with persistent_workers is past its first epoch. Raises ValueError for a part that is none, and for pinning where
    neither the recording nor `pinning` tells what it costs.
    """
    if faster is not None:
        one_of("faster", faster, PARTS)
    count = profile.num_batches

    def column(part: str, values: Seconds) -> Seconds:
        return np.resize(values[-count:], count) / (2 if part == faster else 1)

    fetch_s = column("reading", profile.read_s) + column("collating", profile.collate_s)
    pin_s, step_s = _pinned(profile, settings)
    startup_s = profile.startup_s + profile.startup_each_s * settings.num_workers
    started = 0.0 if settings.persistent_workers else 0.5 if faster == "worker start-up" else 1.0
    quick_s = np.minimum(profile.receive_s, 2 * profile.receive_s.min())  # without a lock in the way
    return simulate_dataloader(
        fetch_s,
        column("training step", step_s),
        count,
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        in_order=settings.in_order,
        handover_s=column("hand-over", profile.handover_s) if profile.handover_s.size else 0.0,
        receive_s=column("hand-over", quick_s),
        held_s=float(np.quantile(profile.receive_s - quick_s, 0.9)) / (2 if faster == "hand-over" else 1),
        pin_s=None if pin_s is None else column("pinning", pin_s),
        startup_s=startup_s * started,
        num_cores=profile.num_cores * (2 if faster == "CPU cores" else 1),
        fetch_cpu=_share(profile.cpu_s, profile.read_s + profile.collate_s),
        step_cpu=_share(profile.step_cpu_s, profile.step_s),
    )


def _share(cpu_s: Seconds, wall_s: Seconds) -> float:
    return float(cpu_s.sum() / wall_s.sum()) if wall_s.sum() else 0.0


def _pinned(profile: LoaderProfile, settings: LoaderSettings) -> tuple[Seconds | None, Seconds]:
    """The times to pin, None where nothing is pinned, and those of the step with the copy it then has."""
    was, costs = profile.settings.pin_memory, profile.pinning
    if settings.pin_memory == was:
        return (profile.pin_s if was else None), profile.step_s
    if costs is None:
        raise ValueError("pin_memory must be as recorded where no costs of pinning were measured, got another")
    gained_s = costs.pageable_copy_s - costs.pinned_copy_s
    if was:
        return None, profile.step_s + max(gained_s, 0.0)
    return np.full_like(profile.step_s, costs.pin_s), np.maximum(profile.step_s - gained_s, 0.0)
