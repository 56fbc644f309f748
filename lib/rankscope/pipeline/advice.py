"""`advise`: what holds a DataLoader back, and what other settings of it would give.

Predictions are those of `dataloader_model`, which takes what was recorded of each batch, one after the other: their
mean and their whole distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Protocol

import attrs
import numpy as np

from ..common.checks import count_of, number, of_type, truth, whole
from ..common.frozen import checked, each, frozen, optional
from ..timeline import Timeline
from .dataloader_model import Cores, Handover, simulate_dataloader
from .service import Seconds, check_times

PARTS = ("reading", "collating", "hand-over", "pinning", "training step", "worker start-up", "CPU cores")
COLUMNS = ("read_s", "collate_s", "cpu_s", "receive_s", "pin_s", "wait_s", "step_s", "step_cpu_s", "handover_s")
_CLEAR = 1.05  # a prediction is within a few percent: less than this is no gain
_WORTH_THE_ORDER = 1.10
_FEW = 20  # batches


@frozen
class LoaderSettings:
    """What a DataLoader was made with; `pin_memory` is true only where there is an accelerator to pin for.

    Raises ValueError for fewer than 0 workers and a prefetch_factor below 1.
    """

    num_workers: int = checked(whole, 0)
    prefetch_factor: int = checked(whole, 1, default=2)
    in_order: bool = checked(truth, default=True)
    pin_memory: bool = checked(truth, default=False)
    persistent_workers: bool = checked(truth, default=False)

    def __str__(self) -> str:
        pinned = ", pinned" if self.pin_memory else ""
        if not self.num_workers:
            return f"no workers{pinned}"
        order = "in order" if self.in_order else "in_order=False"
        return f"{count_of(self.num_workers, 'worker')}, prefetch_factor {self.prefetch_factor}, {order}{pinned}"


@frozen
class PinningCosts:
    """Seconds to copy one batch to the accelerator, as it is and from pinned memory, and to pin it (a copy, too).

    Raises ValueError for times that are negative or not finite.
    """

    pageable_copy_s: float = checked(number, 0)
    pin_s: float = checked(number, 0)
    pinned_copy_s: float = checked(number, 0)


@frozen(eq=False)
class LoaderProfile:
    """What a loader and its training loop cost, measured: a time of each batch in each of the columns, in seconds.

    `read_s` is the dataset access and `collate_s` the collate_fn, `cpu_s` the CPU time of both and of sending the
    batch. `receive_s` is what taking it in costs the training loop, or the pin thread, which then pins for `pin_s`.
    `wait_s` is the training loop's wait for the batch, `step_s` its step, `step_cpu_s` the CPU time of that. Times are
    without waits for a core, where the system reports them. `handover_s` holds, for as many batches as show it, the
    seconds from the end of the fetch to the arrival at a loop that waited. Workers, of which each takes
    `startup_each_s` to make, first read `startup_s` after the last was made. `num_batches` is an epoch's.

    Raises ValueError for no batch, columns of different lengths, and times that are negative or not finite.
    """

    settings: LoaderSettings = checked(LoaderSettings)
    num_batches: int = checked(whole, 1)
    num_cores: int = checked(whole, 1)
    accelerator: bool = checked(truth)
    read_s: Seconds = checked(check_times)
    collate_s: Seconds = checked(check_times)
    cpu_s: Seconds = checked(check_times)
    receive_s: Seconds = checked(check_times)
    pin_s: Seconds = checked(check_times)
    wait_s: Seconds = checked(check_times)
    step_s: Seconds = checked(check_times)
    step_cpu_s: Seconds = checked(check_times)
    handover_s: Seconds = checked(check_times)
    startup_s: float = checked(number, 0, default=0.0)
    startup_each_s: float = checked(number, 0, default=0.0)
    pinning: PinningCosts | None = checked(optional, of_type, PinningCosts, default=None)

    def __attrs_post_init__(self) -> None:
        sizes = {name: getattr(self, name).size for name in COLUMNS if name != "handover_s"}
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


class Recorded(Protocol):
    """What has a profile: a `RecordedLoader`."""

    def profile(self) -> LoaderProfile: ...


@attrs.frozen
class SettingsForecast:
    """One setting, the seconds that an epoch is predicted to take, and how many times as fast as recorded that is."""

    settings: LoaderSettings
    predicted_s: float
    speedup: float


@attrs.frozen
class Advice:
    """What `advise` found; ``str()`` is the report.

    `bottleneck` is one of `PARTS`: the one that would shorten the epoch most if it were twice as fast;
    `bottleneck_next` is that with the settings of `best`. `waiting_share` and `recorded_s` are measured. `current` is
    the prediction for the recorded settings, and shows how far predictions are off. `rows` are the settings tried,
    fastest first.
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
        best = "nothing: no other settings are clearly faster"
        if self.best is not self.current:
            gain = f"{self.best.speedup:.2f} times as fast as predicted for the recorded settings"
            best = f"{self.best.settings}: {_seconds(self.best.predicted_s)}, {gain}; the bottleneck is then: "
            best += self.bottleneck_next
        lines = [
            f"bottleneck: {self.bottleneck}; the training loop waits for {self.waiting_share:.0%} of the epoch",
            f"  recorded: {self.current.settings}: {_seconds(self.recorded_s)} (predicted {predicted})",
            f"  recommended: {best}",
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

    By default it has as many as the longest recorded: after a part of one, pass ``num_batches=len(loader)``.
    Tried are these `num_workers` (0, 1, 2, 4, … up to 8 or twice the cores) and `prefetch_factors`, in order and not,
    pinned and not where both are known, and the recorded settings. Recommended is, of those within 5 % of the
    fastest, the recorded one if it is among them, else the one with the fewest workers. The order of the batches is
    left only for a gain of more than 10 %.

    Raises ValueError for what has no profile or no batch in it, and for counts that are too small.
    """
    if not isinstance(recorded, LoaderProfile) and not hasattr(recorded, "profile"):
        raise ValueError(f"advise takes a recorded loader or its profile, got a {type(recorded).__name__}")
    profile = recorded if isinstance(recorded, LoaderProfile) else recorded.profile()
    if num_batches is not None:
        profile = attrs.evolve(profile, num_batches=num_batches)  # type: ignore[misc]
    most = max(8, 2 * profile.num_cores)
    usual = [number for number in (0, *(2**power for power in range(16))) if number <= most]
    numbers = each("num_workers", usual if num_workers is None else num_workers, whole, 0)
    factors = each("prefetch_factors", prefetch_factors, whole, 1)
    now, persistent = profile.settings, profile.settings.persistent_workers
    pins = (False, True) if profile.accelerator and profile.pinning else (now.pin_memory,)
    tried = product(numbers, factors, (True, False), pins)
    different = dict.fromkeys(_normal(LoaderSettings(*one, persistent)) for one in tried)
    now_s = simulate_profile(profile, now).makespan_s

    def what_if(settings: LoaderSettings) -> SettingsForecast:
        predicted_s = simulate_profile(profile, settings).makespan_s
        return SettingsForecast(settings, predicted_s, now_s / predicted_s if predicted_s else 1.0)

    current = SettingsForecast(now, now_s, 1.0)
    others = [what_if(settings) for settings in different if settings != _normal(now)]
    rows = tuple(sorted((current, *others), key=lambda row: row.predicted_s))
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


def _normal(settings: LoaderSettings) -> LoaderSettings:
    """The same settings, with what has no effect as it is by default."""
    if settings.num_workers:
        return settings
    return LoaderSettings(0, pin_memory=settings.pin_memory)


def _best(rows: tuple[SettingsForecast, ...], current: SettingsForecast) -> SettingsForecast:
    """Of those near the fastest, the one with the fewest workers; the order of batches is given up for 10 % only."""
    kept = [row for row in rows if row.settings.in_order or not current.settings.in_order]
    if not kept or kept[0].predicted_s > rows[0].predicted_s * _WORTH_THE_ORDER:
        kept = list(rows)
    near = [row for row in kept if row.predicted_s <= kept[0].predicted_s * _CLEAR]

    def effort(row: SettingsForecast) -> tuple[bool, int, bool, int, bool, float]:
        new, factor = row.settings, row.settings.prefetch_factor
        factor_differs = factor != current.settings.prefetch_factor
        return not new.in_order, new.num_workers, factor_differs, factor, new.pin_memory, row.predicted_s

    return current if current in near else min(near, key=effort)


def _bottleneck(profile: LoaderProfile, settings: LoaderSettings) -> str:
    """The part that would shorten the epoch most by being twice as fast; cores, where they are as good as any."""
    taken_s = {part: simulate_profile(profile, settings, faster=part).makespan_s for part in PARTS}
    base_s, least_s = simulate_profile(profile, settings).makespan_s, min(taken_s.values())
    if base_s - taken_s["CPU cores"] >= 0.9 * (base_s - least_s) > 0:
        return "CPU cores"
    return min(PARTS, key=lambda part: taken_s[part])


def _notes(profile: LoaderProfile, current: SettingsForecast, best: SettingsForecast) -> Iterator[str]:
    if not profile.accelerator:
        yield "no accelerator: pinning would change nothing"
    elif profile.pinning is None:
        yield "what pinning costs and gives could not be measured"
    if profile.read_s.size < _FEW:
        yield f"batches recorded: {profile.read_s.size}; predictions from so few are rough"
    if not profile.settings.num_workers:
        yield "recorded without workers: their start-up and hand-over are not known, and predicted to be free"
    if profile.cpu_bound_s * 1.25 > best.predicted_s:
        cores = count_of(profile.num_cores, "core")
        busy = f"the CPU work alone keeps {cores} busy for {_seconds(profile.cpu_bound_s)}"
        yield f"{busy}: no number of workers goes below that"
    if current.settings.in_order and not best.settings.in_order:
        yield "in_order=False hands batches over in an order that differs from run to run"
    off = current.predicted_s / profile.epoch_s - 1 if profile.epoch_s else 0.0
    if abs(off) > 0.1:
        yield f"the prediction for the recorded settings is {off:+.0%} off: record more batches, on a quiet machine"


# ---- what an epoch would take


def simulate_profile(profile: LoaderProfile, settings: LoaderSettings, faster: str | None = None) -> Timeline:
    """Return the timeline of an epoch with other settings, and with one of `PARTS` twice as fast where it is named.

    Batches take the times that were recorded last, again from the first of these where the epoch is longer. A loader
    with persistent_workers is past its first epoch. Raises ValueError for pinning where neither the recording nor
    `pinning` has its costs.
    """
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
        handover=Handover(
            handover_s=column("hand-over", profile.handover_s) if profile.handover_s.size else 0.0,
            receive_s=column("hand-over", quick_s),
            pin_s=None if pin_s is None else column("pinning", pin_s),
            held_s=float(np.quantile(profile.receive_s - quick_s, 0.9)) / (2 if faster == "hand-over" else 1),
            startup_s=startup_s * started,
        ),
        cores=Cores(
            profile.num_cores * (2 if faster == "CPU cores" else 1),
            fetch_cpu=_share(profile.cpu_s, profile.read_s + profile.collate_s),
            step_cpu=_share(profile.step_cpu_s, profile.step_s),
        ),
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
