"""`advise`: the bottleneck of a DataLoader, and the epoch times to expect with other settings.

Predictions are those of `epoch`. It uses the recorded times of all batches, one after the other, so the
predictions depend on their whole distribution and not only on their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ...common.checks import each, of_type, whole
from ...common.units import percent_words
from .profile import PARTS, LoaderProfile, LoaderSettings, predicted_s

if TYPE_CHECKING:
    from .measured import RecordedLoader

_CLEAR_GAIN = 1.05  # predictions are off by a few percent, so a smaller gain may be none
_LARGEST_ERROR = 0.1  # of the prediction for the recorded epoch; promises for other settings are little better
_GAIN_WORTH_THE_ORDER = 1.10  # a smaller gain does not justify batches in an order that differs from run to run
_SHARE_OF_BEST_GAIN = 0.9  # if faster cores gain this share of the best gain, the cores are the bottleneck
_LEAST_MOST_WORKERS = 8  # tried by default on a machine with few cores, if fetches wait
_LEAST_CPU = 0.01  # of a fetch, in cores; less cannot be measured
_UNSHARED = 0.5  # of the cores that the system counts: of more that are busy, some may be one core's hardware threads
_USUAL_NUM_WORKERS = (0, *(2**power for power in range(16)))


class SettingsForecast(msgspec.Struct, frozen=True):
    """Settings, the predicted seconds of an epoch with them, and the speedup over the recorded settings."""

    settings: LoaderSettings
    predicted_s: float
    speedup: float


class Advice(msgspec.Struct, frozen=True):
    """The result of `advise`; ``str()`` is the report.

    `bottleneck` is one of `PARTS`: the one that would shorten the epoch most if it were twice as fast.
    `bottleneck_next` is the same with the settings of `best`. `waiting_share` and `recorded_s`, of the last epoch as
    far as it was recorded, are measured. `reproduced_s` is the prediction for that epoch; if it is off by more than
    10 %, the bottleneck is "unknown". `current` is the prediction for the recorded settings, and `rows` are all
    settings that were tried, fastest first. If `doubt` is not empty, it says why `advise` cannot tell which settings
    are faster; then `best` is `current`.
    """

    bottleneck: str
    bottleneck_next: str
    waiting_share: float
    recorded_s: float
    reproduced_s: float
    current: SettingsForecast
    best: SettingsForecast
    rows: tuple[SettingsForecast, ...]
    notes: tuple[str, ...]
    doubt: str

    def __str__(self) -> str:
        recommended = "nothing: no other settings are clearly faster"
        if self.best is not self.current:
            time = _seconds(self.best.predicted_s)
            if self.best.settings.persistent_workers:
                time += " in each epoch after the first"
            gain = f"{self.best.speedup:.2f} times as fast as the recorded settings (both predicted)"
            recommended = f"{self.best.settings}: {time}, {gain}. The bottleneck is then {self.bottleneck_next}."
        waiting = percent_words(self.waiting_share)
        times = f"{_seconds(self.recorded_s)} (predicted {_seconds(self.reproduced_s)})"
        lines = [
            f"bottleneck: {self.bottleneck}; the training loop waits for {waiting} of the epoch",
            f"  recorded: {self.current.settings}: {times}",
        ]
        if self.doubt:
            lines.insert(0, f"cannot tell which settings are faster: {self.doubt}")
        else:
            lines.append(f"  recommended: {recommended}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def advise(
    recorded: RecordedLoader | LoaderProfile,
    *,
    num_workers: Iterable[int] | None = None,
    prefetch_factors: Iterable[int] = (1, 2, 4),
    num_batches: int | None = None,
) -> Advice:
    """Name the bottleneck of a recorded loader, and predict an epoch of `num_batches` with other settings.

    By default, `num_batches` is that of the longest recorded epoch. If you recorded part of an epoch, pass
    ``num_batches=len(loader)``. `advise` tries these `num_workers` and `prefetch_factors`, with and without in_order,
    with persistent_workers if making workers takes time, and the recorded settings. By default, `num_workers` are the
    recorded number and 0, 1, 2, 4, … up to 8, twice the cores or twice the recorded number, but no more than the cores
    can serve, by the measured CPU time of a fetch.

    Of the settings within 5 % of the fastest, it recommends the recorded ones if they are among them, else those with
    the fewest workers. It recommends in_order=False only if that gains more than 10 %. Persistent workers are predicted
    as they are after the first epoch, in which they start. It recommends nothing if the prediction for the recorded
    epoch is off by more than 10 %, if workers seem faster, but none were recorded, or if more workers than were
    recorded would keep more than half of the cores busy.

    Raises ValueError if `recorded` has no profile, nothing has been recorded, or a count is out of range.
    """
    profile = recorded.profile() if hasattr(recorded, "profile") else of_type("recorded", recorded, LoaderProfile)
    recorded_s = profile.epoch_s
    reproduced_s = profile.reproduced_s
    if num_batches is not None:
        profile = replace(profile, num_batches=whole("num_batches", num_batches, 1))
    if num_workers is None:
        most_wanted = max(_LEAST_MOST_WORKERS, 2 * profile.num_cores, 2 * profile.settings.num_workers)
        most_workers = min(most_wanted, _most_served(profile))
        num_workers = [number for number in _USUAL_NUM_WORKERS if number <= most_workers]
        num_workers.append(profile.settings.num_workers)
    num_workers = each("num_workers", num_workers, whole, 0)
    prefetch_factors = each("prefetch_factors", prefetch_factors, whole, 1)
    current = SettingsForecast(profile.settings, predicted_s(profile, profile.settings), 1.0)
    forecasts = [current]
    for settings in _candidates(profile, num_workers, prefetch_factors):
        epoch_s = predicted_s(profile, settings)
        forecasts.append(SettingsForecast(settings, epoch_s, current.predicted_s / epoch_s))
    rows = tuple(sorted(forecasts, key=lambda row: row.predicted_s))
    best = best_of(rows, current)
    bottleneck = _bottleneck(profile, current.settings)
    doubt = ""
    if abs(reproduced_s - recorded_s) > _LARGEST_ERROR * recorded_s:
        bottleneck = "unknown"
        doubt = (
            f"the recorded epoch took {_seconds(recorded_s)}, but {_seconds(reproduced_s)} is predicted for it. "
            "Record again while nothing else uses the machine."
        )
    elif best.settings.num_workers and not profile.settings.num_workers:
        doubt = (
            "the start-up and the hand-over of workers are unknown, because there were none. "
            "Record again with num_workers=1."
        )
    elif _is_crowded(profile, best.settings.num_workers):
        doubt = (
            f"num_workers={best.settings.num_workers} would keep more than half of the {profile.num_cores} cores busy, "
            "and how much workers then slow each other down is unknown. Record again with them."
        )
    if doubt:
        best = current
    return Advice(
        bottleneck=bottleneck,
        bottleneck_next=_bottleneck(profile, best.settings),
        waiting_share=profile.waiting_share,
        recorded_s=recorded_s,
        reproduced_s=reproduced_s,
        current=current,
        best=best,
        rows=rows,
        notes=tuple(_notes(profile, best)),
        doubt=doubt,
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _most_served(profile: LoaderProfile) -> int:
    """Return how many workers keep all cores busy; more have no core to compute on."""
    return math.ceil(profile.num_cores / max(profile.fetch_cpu, _LEAST_CPU))


def _is_crowded(profile: LoaderProfile, num_workers: int) -> bool:
    """Return whether more workers than were recorded would compute on so many cores that some may share one."""
    most_busy = _UNSHARED * profile.num_cores
    return num_workers > profile.settings.num_workers and num_workers * profile.fetch_cpu > most_busy


def _candidates(
    profile: LoaderProfile, num_workers: Iterable[int], prefetch_factors: Iterable[int]
) -> list[LoaderSettings]:
    """Return the different settings to try besides the recorded ones, in a fixed order."""
    pin_memory = profile.settings.pin_memory
    persistent = {profile.settings.persistent_workers}
    if profile.startup_s + profile.startup_each_s:
        persistent.add(True)
    different: dict[LoaderSettings, None] = {}
    for choice in product(num_workers, prefetch_factors, (True, False), [pin_memory], sorted(persistent)):
        settings = LoaderSettings(*choice)
        if not settings.num_workers:  # the others have no effect
            settings = LoaderSettings(0, pin_memory=pin_memory)
        different[settings] = None
    different.pop(profile.settings, None)
    return list(different)


def best_of(rows: tuple[SettingsForecast, ...], current: SettingsForecast) -> SettingsForecast:
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

    def effort(row: SettingsForecast) -> tuple[bool, int, bool, bool, int, float]:
        """Return a key that is smaller for settings to be preferred. An earlier entry decides before a later one.

        Of settings that are about as fast, those that ask for less are better: an order that is kept, fewer processes,
        no change of persistent_workers and of the prefetch_factor, or else fewer batches read ahead.
        """
        settings = row.settings
        return (
            not settings.in_order,
            settings.num_workers,
            settings.persistent_workers != current.settings.persistent_workers,
            settings.prefetch_factor != current.settings.prefetch_factor,
            settings.prefetch_factor,
            row.predicted_s,
        )

    return min(near_fastest, key=effort)


def _bottleneck(profile: LoaderProfile, settings: LoaderSettings) -> str:
    """Return the part that shortens the epoch most if it is twice as fast; the cores, if they gain about as much.

    If cores are short, less work of any kind relieves them, so the largest part may gain a little more than they do.
    """
    base_s = predicted_s(profile, settings)
    gains_s = {part: base_s - predicted_s(profile, settings, faster=part) for part in PARTS}
    if 0 < gains_s["CPU cores"] >= _SHARE_OF_BEST_GAIN * max(gains_s.values()):
        return "CPU cores"
    return max(PARTS, key=lambda part: gains_s[part])


def _notes(profile: LoaderProfile, best: SettingsForecast) -> Iterator[str]:
    """Yield what a reader of the advice should know about its limits."""
    computing = percent_words(min(profile.fetch_cpu, 1.0))
    served = f"{profile.num_cores} cores serve up to {_most_served(profile)} workers"
    yield f"fetching a batch computes for {computing} of its time and waits for the rest, so {served}"
    if profile.settings.in_order and not best.settings.in_order:
        yield "with in_order=False, the order of batches differs from run to run, so training is not reproducible"
