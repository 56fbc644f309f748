"""`advise`: the bottleneck of a DataLoader, and the epoch times to expect with other settings.

Predictions are those of `dataloader_model`. It uses the recorded times of all batches, one after the other, so the
predictions depend on their whole distribution and not only on their mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from ..common.checks import check_field, each, whole
from ..common.units import percent_words
from ..common.words import count_of
from ..timeline import Timeline
from .cores import Cores
from .loader_model import Handover, simulate_dataloader
from .service import Seconds, check_times

PARTS = ("reading", "collating", "hand-over", "pinning", "training step", "worker start-up", "CPU cores")
# The columns of a `LoaderProfile`; a recording has them in this order.
COLUMNS = ("read_s", "collate_s", "cpu_s", "receive_s", "pin_s", "wait_s", "step_s", "step_cpu_s", "handover_s")
_CLEAR_GAIN = 1.05  # predictions are off by a few percent, so a smaller gain may be none
_GAIN_WORTH_THE_ORDER = 1.10  # a smaller gain does not justify batches in an order that differs from run to run
_FEW_BATCHES = 20  # predictions from fewer are rough
_NEAR_CPU_BOUND = 1.25  # an epoch up to this factor above the bound of the cores is limited by them
_MOST_ERROR = 0.1  # of the prediction for the recorded settings; a larger one gets a note
_SHARE_OF_BEST_GAIN = 0.9  # if faster cores gain this share of the best gain, the cores are the bottleneck
_LEAST_MOST_WORKERS = 8  # tried by default on a machine with few cores
# A batch is received in about the shortest recorded time, unless its worker cannot answer because a fetch holds the
# interpreter lock. Times up to this multiple of the shortest count as those of receiving alone.
_RECEIVE_ALONE = 2
_HELD_QUANTILE = 0.9  # of the additional times: `Handover.held_s` is the most that usually occurs
_USUAL_NUM_WORKERS = (0, *(2**power for power in range(16)))
_FASTER = 2  # by this factor a part is made faster to see whether it is the bottleneck


class LoaderSettings(msgspec.Struct, frozen=True):
    """The settings of a DataLoader; `pin_memory` is true only if there is an accelerator to pin for."""

    num_workers: int
    prefetch_factor: int = 2
    in_order: bool = True
    pin_memory: bool = False
    persistent_workers: bool = False

    def __str__(self) -> str:
        pinned = ", pinned" if self.pin_memory else ""
        if not self.num_workers:
            return f"no workers{pinned}"
        order = "in order" if self.in_order else "in_order=False"
        return f"{count_of(self.num_workers, 'worker')}, prefetch_factor {self.prefetch_factor}, {order}{pinned}"


class PinningCosts(msgspec.Struct, frozen=True):
    """Seconds to copy one batch to the accelerator, as it is and from pinned memory, and to pin it (also a copy)."""

    pageable_copy_s: float
    pin_s: float
    pinned_copy_s: float


class LoaderProfile(msgspec.Struct, frozen=True, eq=False):
    """The measured times of a loader and its training loop: columns with a time per batch, in seconds.

    `read_s` is the dataset access, `collate_s` the collate_fn, and `cpu_s` the CPU time of both and of sending the
    batch. `receive_s` is the time in which the training loop takes the batch in, or the pin thread, which then pins for
    `pin_s`. `wait_s` is the training loop's wait for the batch, `step_s` its step, `step_cpu_s` the CPU time of the
    step. If the system reports waits for a core, the times do not include them. `handover_s` contains the seconds from
    the end of the fetch to the arrival, for those batches for which the loop was waiting. Making a worker takes
    `startup_each_s`; workers begin to read `startup_s` after the last one was made. `num_batches` is that of an epoch.

    Raises ValueError for no batch, columns of different lengths, and times that are negative or not finite.
    """

    settings: LoaderSettings
    num_batches: int
    num_cores: int
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
        for name in COLUMNS:
            check_field(self, name, check_times)
        # `handover_s` has a time only for those batches for which the loop was waiting.
        sizes = {name: getattr(self, name).size for name in COLUMNS if name != "handover_s"}
        if len(set(sizes.values())) != 1 or self.read_s.size == 0:
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
        """The lower bound on the seconds of an epoch that these cores impose on any loader."""
        return float(self.cpu_s.mean() + self.step_cpu_s.mean()) * self.num_batches / self.num_cores


class Recorded(Protocol):
    """An object with a profile: a `RecordedLoader`."""

    def profile(self) -> LoaderProfile: ...


class SettingsForecast(msgspec.Struct, frozen=True):
    """Settings, the predicted seconds of an epoch with them, and the speedup over the recorded settings."""

    settings: LoaderSettings
    predicted_s: float
    speedup: float


class Advice(msgspec.Struct, frozen=True):
    """The result of `advise`; ``str()`` is the report.

    `bottleneck` is one of `PARTS`: the one that would shorten the epoch most if it were twice as fast;
    `bottleneck_next` is the same with the settings of `best`. `waiting_share` and `recorded_s` are measured. `current`
    is the prediction for the recorded settings, and shows how accurate predictions are. `rows` are all settings that
    were tried, fastest first.
    """

    bottleneck: str
    bottleneck_next: str
    waiting_share: float
    recorded_s: float
    current: SettingsForecast
    best: SettingsForecast
    rows: tuple[SettingsForecast, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        predicted = _seconds(self.current.predicted_s)
        recommended = "nothing: no other settings are clearly faster"
        if self.best is not self.current:
            time = _seconds(self.best.predicted_s)
            gain = f"{self.best.speedup:.2f} times as fast as the recorded settings (both predicted)"
            next_bottleneck = f"The bottleneck is then {self.bottleneck_next}."
            if self.bottleneck_next == self.bottleneck:
                next_bottleneck = f"The bottleneck is still {self.bottleneck}."
            settings = str(self.best.settings)
            if self.best.settings.persistent_workers and not self.current.settings.persistent_workers:
                settings += ", persistent_workers=True"
            recommended = f"{settings}: {time}, {gain}. {next_bottleneck}"
        waiting = percent_words(self.waiting_share)
        lines = [
            f"bottleneck: {self.bottleneck}; the training loop waits for {waiting} of the epoch",
            f"  recorded: {self.current.settings}: {_seconds(self.recorded_s)} (predicted {predicted})",
            f"  recommended: {recommended}",
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def advise(
    recorded: Recorded | LoaderProfile,
    *,
    num_workers: Iterable[int] | None = None,
    prefetch_factors: Iterable[int] = (1, 2, 4),
    num_batches: int | None = None,
) -> Advice:
    """Name the bottleneck of a recorded loader, and predict an epoch of `num_batches` with other settings.

    By default, `num_batches` is that of the longest recorded epoch. If you recorded part of an epoch, pass
    ``num_batches=len(loader)``. `advise` tries these `num_workers` (by default 0, 1, 2, 4, … up to 8 or twice the
    cores) and `prefetch_factors`, with and without in_order, with and without pinning if both are known, with
    persistent_workers if making workers takes time, and the recorded settings. Of the settings within 5 % of the
    fastest, it recommends the recorded ones if they are among them, else those with the fewest workers. It recommends
    in_order=False only if that gains more than 10 %. Persistent workers are predicted as they are after the first
    epoch, in which they start.

    Raises ValueError if `recorded` has no profile, nothing has been recorded, or a count is out of range.
    """
    if isinstance(recorded, LoaderProfile):
        profile = recorded
    elif hasattr(recorded, "profile"):
        profile = recorded.profile()
    else:
        raise ValueError(f"advise takes a recorded loader or its profile, got a {type(recorded).__name__}")
    if num_batches is not None:
        profile = replace(profile, num_batches=num_batches)
    if num_workers is None:
        most_workers = max(_LEAST_MOST_WORKERS, 2 * profile.num_cores)
        num_workers = [number for number in _USUAL_NUM_WORKERS if number <= most_workers]
    candidates = _candidates(
        profile,
        each("num_workers", num_workers, whole, 0),
        each("prefetch_factors", prefetch_factors, whole, 1),
    )
    current_s = simulate_profile(profile, profile.settings).makespan_s
    current = SettingsForecast(profile.settings, current_s, 1.0)
    forecasts = [current]
    for settings in candidates:
        if settings != _normal(profile.settings):  # which `current` has already
            predicted_s = simulate_profile(profile, settings).makespan_s
            speedup = 1.0  # of an epoch that takes no time
            if predicted_s > 0:
                speedup = current_s / predicted_s
            forecasts.append(SettingsForecast(settings, predicted_s, speedup))
    rows = tuple(sorted(forecasts, key=lambda row: row.predicted_s))
    best = _best(rows, current)
    return Advice(
        bottleneck=_bottleneck(profile, current.settings),
        bottleneck_next=_bottleneck(profile, best.settings),
        waiting_share=profile.waiting_share,
        recorded_s=profile.epoch_s,
        current=current,
        best=best,
        rows=rows,
        notes=tuple(_notes(profile, current, best)),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _candidates(
    profile: LoaderProfile, num_workers: Iterable[int], prefetch_factors: Iterable[int]
) -> list[LoaderSettings]:
    """Return the different settings to try, in a fixed order."""
    pins = [profile.settings.pin_memory]
    if profile.accelerator and profile.pinning is not None:
        pins = [False, True]
    persistent = [profile.settings.persistent_workers]
    if profile.startup_s + profile.startup_each_s > 0:
        persistent = [profile.settings.persistent_workers, True]
    candidates = []
    for workers, factor, in_order, pin, persist in product(
        num_workers, prefetch_factors, (True, False), pins, persistent
    ):
        candidates.append(_normal(LoaderSettings(workers, factor, in_order, pin, persist)))
    return list(dict.fromkeys(candidates))  # each once


def _normal(settings: LoaderSettings) -> LoaderSettings:
    """Return the same settings, with defaults for those that have no effect."""
    if settings.num_workers:
        return settings
    return LoaderSettings(0, pin_memory=settings.pin_memory)


def _best(rows: tuple[SettingsForecast, ...], current: SettingsForecast) -> SettingsForecast:
    """Return the recorded settings if they are near the fastest, else the settings near it with the fewest workers.

    `rows` are sorted, the fastest first.
    """
    # A loader that is not in order already may stay so; otherwise in_order=False must gain more than other settings.
    # `current` is one of the rows, and is allowed in either case.
    allowed = [row for row in rows if row.settings.in_order or not current.settings.in_order]
    if allowed[0].predicted_s > rows[0].predicted_s * _GAIN_WORTH_THE_ORDER:
        allowed = list(rows)
    near_fastest = [row for row in allowed if row.predicted_s <= allowed[0].predicted_s * _CLEAR_GAIN]
    if current in near_fastest:
        return current

    def effort(row: SettingsForecast) -> tuple[bool, int, bool, bool, int, bool, float]:
        """Return a key that is smaller for settings to be preferred. An earlier entry decides before a later one.

        Of settings that are about as fast, those that ask for less are better: an order that is kept, fewer processes,
        no change of persistent_workers and of the prefetch_factor, or else fewer batches read ahead, and no pin thread.
        """
        settings = row.settings
        return (
            not settings.in_order,
            settings.num_workers,
            settings.persistent_workers != current.settings.persistent_workers,
            settings.prefetch_factor != current.settings.prefetch_factor,
            settings.prefetch_factor,
            settings.pin_memory,
            row.predicted_s,
        )

    return min(near_fastest, key=effort)


def _bottleneck(profile: LoaderProfile, settings: LoaderSettings) -> str:
    """Return the part that shortens the epoch most if it is twice as fast; the cores, if they gain about as much.

    If cores are short, less work of any kind relieves them, so the largest part may gain a little more than they do.
    """
    epoch_s = {part: simulate_profile(profile, settings, faster=part).makespan_s for part in PARTS}
    base_s = simulate_profile(profile, settings).makespan_s
    best_gain_s = base_s - min(epoch_s.values())
    gain_of_cores_s = base_s - epoch_s["CPU cores"]
    if gain_of_cores_s > 0 and gain_of_cores_s >= _SHARE_OF_BEST_GAIN * best_gain_s:
        return "CPU cores"
    return min(PARTS, key=lambda part: epoch_s[part])


def _notes(profile: LoaderProfile, current: SettingsForecast, best: SettingsForecast) -> Iterator[str]:
    """Yield what a reader of the advice should know about its limits."""
    if not profile.accelerator:
        yield "no accelerator found, so pin_memory would not help"
    elif profile.pinning is None:
        yield "the cost and gain of pinning could not be measured"
    if profile.read_s.size < _FEW_BATCHES:
        yield f"batches recorded: {profile.read_s.size}; predictions from so few are rough"
    if not profile.settings.num_workers:
        yield "recorded without workers, so their start-up and hand-over are unknown, and predicted to take no time"
    if best.predicted_s < _NEAR_CPU_BOUND * profile.cpu_bound_s:
        cores = count_of(profile.num_cores, "core")
        cpu_work = f"CPU work alone takes {_seconds(profile.cpu_bound_s)} on {cores}"
        yield f"{cpu_work}, so more workers cannot go below that"
    if best.settings.persistent_workers and not current.settings.persistent_workers:
        startup_s = profile.startup_s + profile.startup_each_s * best.settings.num_workers
        yield f"persistent_workers=True saves the start-up of {_seconds(startup_s)} in every epoch after the first"
    if current.settings.in_order and not best.settings.in_order:
        yield "in_order=False hands batches over in an order that differs from run to run"
    if profile.epoch_s:
        error = current.predicted_s / profile.epoch_s - 1
        if abs(error) > _MOST_ERROR:
            off = f"the prediction for the recorded settings is off by {percent_words(error, signed=True)}"
            yield f"{off}; record more batches, on a quiet machine"


# ---- the time of an epoch


def simulate_profile(profile: LoaderProfile, settings: LoaderSettings, faster: str | None = None) -> Timeline:
    """Return the timeline of an epoch with other settings; `faster` is one of `PARTS`, which is made twice as fast.

    Batches have the times that were recorded last. If the epoch has more batches, these times are repeated. A loader
    with persistent_workers is past its first epoch. Raises ValueError if `pin_memory` differs from that of the
    recording, in either direction, and the profile has no costs of pinning.
    """

    def factor(part: str) -> int:
        return _FASTER if part == faster else 1

    def column(part: str, values: Seconds) -> Seconds:
        """Return a time for each batch of this epoch: the last ones, repeated if they are too few."""
        return np.resize(values[-profile.num_batches :], profile.num_batches) / factor(part)

    pinning = _pinned(profile, settings)
    handover_s: float | Seconds = 0.0
    if profile.handover_s.size:
        handover_s = column("hand-over", profile.handover_s)
    startup_s = 0.0
    if not settings.persistent_workers:
        startup_s = profile.startup_s + profile.startup_each_s * settings.num_workers
    unhindered_s = np.minimum(profile.receive_s, _RECEIVE_ALONE * profile.receive_s.min())
    held_s = float(np.quantile(profile.receive_s - unhindered_s, _HELD_QUANTILE))
    return simulate_dataloader(
        fetch_s=column("reading", profile.read_s) + column("collating", profile.collate_s),
        step_s=column("training step", pinning.step_s),
        num_batches=profile.num_batches,
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        in_order=settings.in_order,
        handover=Handover(
            handover_s=handover_s,
            receive_s=column("hand-over", unhindered_s),
            pin_s=None if pinning.pin_s is None else column("pinning", pinning.pin_s),
            held_s=held_s / factor("hand-over"),
            startup_s=startup_s / factor("worker start-up"),
        ),
        cores=Cores(
            profile.num_cores * factor("CPU cores"),
            fetch_cpu=_share(profile.cpu_s, profile.read_s + profile.collate_s),
            step_cpu=_share(profile.step_cpu_s, profile.step_s),
        ),
    )


def _share(cpu_s: Seconds, wall_s: Seconds) -> float:
    """Return the average number of cores that were busy, or 0 if the work took no time."""
    return float(cpu_s.sum() / wall_s.sum()) if wall_s.sum() else 0.0


class _Pinned(NamedTuple):
    """The times to pin each batch, or None without pinning, and those of the steps, which include the copies."""

    pin_s: Seconds | None
    step_s: Seconds


def _pinned(profile: LoaderProfile, settings: LoaderSettings) -> _Pinned:
    """Return the recorded times, or those with or without pinning if the settings differ from the recorded ones.

    Without pinning, the copy in each step takes longer, and the pin thread has no work.
    """
    was_pinned = profile.settings.pin_memory
    if settings.pin_memory == was_pinned:
        return _Pinned(profile.pin_s if was_pinned else None, profile.step_s)
    costs = profile.pinning
    if costs is None:
        raise ValueError("pin_memory must be as recorded where no costs of pinning were measured, got another")
    gain_s = costs.pageable_copy_s - costs.pinned_copy_s  # of each copy in a step
    if was_pinned:
        # A driver copies pageable memory by way of pinned memory, so a gain below 0 is noise.
        return _Pinned(None, profile.step_s + max(gain_s, 0.0))
    # Here a gain below 0 stays, although it may be noise, too: it makes the steps longer, so pinning seems no better.
    return _Pinned(np.full_like(profile.step_s, costs.pin_s), np.maximum(profile.step_s - gain_s, 0.0))
