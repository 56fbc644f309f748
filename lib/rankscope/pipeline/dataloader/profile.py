"""`LoaderProfile`: the measured times of a DataLoader, and the time of an epoch with other settings."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from ...timeline import Span
from ..service import Seconds
from .cores import Cores
from .model import BatchTimes, epoch

PARTS = ("reading", "collating", "hand-over", "pinning", "training step", "worker start-up", "CPU cores")
# The columns of a `LoaderProfile`; a recording has them in this order.
COLUMNS = (
    "read_s", "collate_s", "cpu_s", "receive_s", "pin_s", "wait_s", "step_s", "step_cpu_s", "handover_s", "total_s"
)  # fmt: skip
# A batch is received in about the shortest recorded time, unless its worker cannot answer because a fetch holds the
# interpreter lock. Times up to this multiple of the shortest count as those of receiving alone.
_RECEIVE_ALONE = 2
_HELD_QUANTILE = 0.9  # of the additional times: `BatchTimes.held_s` is the most that usually occurs
_FASTER = 2  # by this factor a part is made faster to see whether it is the bottleneck


class LoaderSettings(msgspec.Struct, frozen=True):
    """The settings of a DataLoader; `pin_memory` is true only if there is an accelerator to pin for."""

    num_workers: int
    prefetch_factor: int = 2
    in_order: bool = True
    pin_memory: bool = False
    persistent_workers: bool = False

    def __str__(self) -> str:
        """Return the arguments of a DataLoader, without those that are its defaults."""
        defaults = LoaderSettings(self.num_workers)
        arguments = [f"num_workers={self.num_workers}"]
        for name, value in asdict(self).items():
            if value != getattr(defaults, name):
                arguments.append(f"{name}={value}")
        return ", ".join(arguments)


class LoaderProfile(msgspec.Struct, frozen=True, eq=False):
    """The measured times of a loader and its training loop: columns with a time per batch, in seconds.

    `read_s` is the dataset access, `collate_s` the collate_fn, and `cpu_s` the CPU time of both and of sending the
    batch. `receive_s` is the time in which the training loop takes the batch in, or the pin thread, which then pins for
    `pin_s`. `wait_s` is the training loop's wait for the batch, `step_s` its step, `step_cpu_s` the CPU time of the
    step. `handover_s` is the time from the end of the fetch to the arrival, or below 0 for batches for which the loop
    was not waiting. `total_s` is that of a wait and its step. If the system reports waits for a core, only `wait_s` and
    `total_s` include them. Making a worker takes
    `startup_each_s`; workers begin to read `startup_s` after the last one was made. `num_batches` is that of an epoch.
    """

    settings: LoaderSettings
    num_batches: int
    num_cores: int
    read_s: Seconds
    collate_s: Seconds
    cpu_s: Seconds
    receive_s: Seconds
    pin_s: Seconds
    wait_s: Seconds
    step_s: Seconds
    step_cpu_s: Seconds
    handover_s: Seconds
    total_s: Seconds
    startup_s: float = 0.0
    startup_each_s: float = 0.0

    @property
    def waiting_share(self) -> float:
        """The share of the recorded time in which the training loop waited for its batch."""
        return float(self.wait_s.sum() / self.total_s.sum())

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch of `num_batches`, as recorded last."""
        return float(self.total_s[-self.num_batches :].mean()) * self.num_batches

    @property
    def reproduced_s(self) -> float:
        """The prediction for the epoch that was recorded last. If it is the first, persistent workers start in it."""
        settings = self.settings
        if self.total_s.size <= self.num_batches:
            settings = replace(settings, persistent_workers=False)
        return predicted_s(self, settings)

    @property
    def fetch_cpu(self) -> float:
        """The average number of cores that a worker keeps busy while it fetches."""
        return _share(self.cpu_s, self.read_s + self.collate_s)


def predicted_s(profile: LoaderProfile, settings: LoaderSettings, faster: str | None = None) -> float:
    """Return the seconds of a `predicted_epoch`."""
    return predicted_epoch(profile, settings, faster)[-1].stop_s


def predicted_epoch(profile: LoaderProfile, settings: LoaderSettings, faster: str | None = None) -> list[Span]:
    """Return the spans of an epoch with other settings; `faster` is one of `PARTS`, which is made twice as fast.

    Batches have the times that were recorded last. If the epoch has more batches, these times are repeated. A loader
    with persistent_workers is past its first epoch. `pin_memory` must be that of the recording.
    """

    def factor(part: str) -> int:
        return _FASTER if part == faster else 1

    def column(part: str, values_s: Seconds) -> Seconds:
        """Return a time for each batch of this epoch: the last ones, repeated if they are too few."""
        return np.resize(values_s[-profile.num_batches :], profile.num_batches) / factor(part)

    alone_s = np.minimum(profile.receive_s, _RECEIVE_ALONE * profile.receive_s.min())
    held_s = float(np.quantile(profile.receive_s - alone_s, _HELD_QUANTILE))
    handover_s = profile.handover_s[profile.handover_s >= 0]  # of those batches for which the loop was waiting
    if not handover_s.size:
        handover_s = np.zeros(1)
    startup_s = 0.0  # that of persistent workers has passed long ago
    if not settings.persistent_workers:
        startup_s = profile.startup_s + profile.startup_each_s * settings.num_workers
    fetch_s = column("reading", profile.read_s) + column("collating", profile.collate_s)
    work = BatchTimes(
        fetch=fetch_s.tolist(),
        step=column("training step", profile.step_s).tolist(),
        handover=column("hand-over", handover_s).tolist(),
        receive=column("hand-over", alone_s).tolist(),
        pin=column("pinning", profile.pin_s).tolist() if settings.pin_memory else None,
        held_s=held_s / factor("hand-over"),
        startup_s=startup_s / factor("worker start-up"),
    )
    cores = Cores(
        profile.num_cores * factor("CPU cores"),
        fetch_cpu=profile.fetch_cpu,
        step_cpu=_share(profile.step_cpu_s, profile.step_s),
    )
    return epoch(work, settings.num_workers, settings.prefetch_factor, settings.in_order, cores)


def _share(cpu_s: Seconds, wall_s: Seconds) -> float:
    """Return the average number of cores that were busy, or 0 if the work took no time."""
    return float(cpu_s.sum() / wall_s.sum()) if wall_s.sum() else 0.0
