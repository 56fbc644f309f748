"""`advise`: what holds a DataLoader back, and what other settings of it would give, by the twin of `dataloader_twin`.

Predictions take in what was recorded of each batch, one after the other: its mean and its whole distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Protocol

from ..values.checks import count_of, several, whole
from .dataloader_profile import PARTS, LoaderProfile, LoaderSettings, simulate_profile
from .dataloader_twin import LOOP

if TYPE_CHECKING:
    import pandas as pd

_CLEAR = 1.05  # a prediction is within a few percent: less than this is no gain
_WORTH_THE_ORDER = 1.10
_FEW = 20  # batches


class Recorded(Protocol):
    """What has a profile: a `RecordedLoader`."""

    def profile(self) -> LoaderProfile: ...


@dataclass(frozen=True)
class WhatIf:
    """One setting and what the twin predicts: seconds of an epoch, how many times as fast as the recorded setting,
    the training loop's share of waiting, and the bytes of batches that are prefetched at most."""

    settings: LoaderSettings
    predicted_s: float
    speedup: float
    waiting_share: float
    prefetched_bytes: int


@dataclass(frozen=True)
class Advice:
    """What `advise` found; ``str()`` is the report.

    `bottleneck` is one of `PARTS`: the one that, were it twice as fast, would shorten the epoch most; `bottleneck_next`
    is that with the settings of `best`. `waiting_share` and `recorded_s` are measured; `current` is the prediction for
    the recorded settings, and tells how far the twin is off. `rows` are the settings tried, quickest first.
    """

    bottleneck: str
    bottleneck_next: str
    waiting_share: float
    recorded_s: float
    current: WhatIf
    best: WhatIf
    rows: tuple[WhatIf, ...]
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a row a setting, quickest first: the settings, predicted_s, speedup, waiting_share, …"""
        import pandas as pd

        rest = [spec.name for spec in fields(WhatIf)][1:]
        return pd.DataFrame([vars(row.settings) | {name: getattr(row, name) for name in rest} for row in self.rows])

    def __str__(self) -> str:
        predicted = _seconds(self.current.predicted_s)
        current = f"{self.current.settings}: {_seconds(self.recorded_s)} (predicted {predicted})"
        gain = f"{self.best.speedup:.2f} times as fast as predicted for the recorded settings"
        best = f"{self.best.settings}: {_seconds(self.best.predicted_s)}, {gain}"
        best = f"{best}; the bottleneck is then: {self.bottleneck_next}"
        if self.best is self.current:
            best = "nothing: no other settings are clearly faster"
        return "\n".join([
            f"bottleneck: {self.bottleneck}; the training loop waits for {self.waiting_share:.0%} of the epoch",
            f"  recorded: {current}",
            f"  recommended: {best}",
            *(f"  note: {note}" for note in self.notes),
        ])  # fmt: skip


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
    profile = _profile(recorded)
    if num_batches is not None:
        profile = replace(profile, num_batches=whole("num_batches", num_batches, 1))
    most = max(8, 2 * profile.num_cores)
    numbers = [number for number in (0, *(2**power for power in range(16))) if number <= most]
    numbers = numbers if num_workers is None else _counts("num_workers", num_workers, 0)
    factors = _counts("prefetch_factors", prefetch_factors, 1)
    now_s = simulate_profile(profile, profile.settings).makespan_s
    current = _what_if(profile, profile.settings, now_s)
    tried = dict.fromkeys(_settings(profile, numbers, factors))
    others = [_what_if(profile, settings, now_s) for settings in tried if settings != _normal(profile.settings)]
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


def _profile(recorded: Recorded | LoaderProfile) -> LoaderProfile:
    if isinstance(recorded, LoaderProfile):
        return recorded
    if not hasattr(recorded, "profile"):
        raise ValueError(f"advise takes a recorded loader or its profile, got a {type(recorded).__name__}")
    return recorded.profile()


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _counts(name: str, values: Iterable[int], low: int) -> list[int]:
    return [whole(name, value, low) for value in several(name, values, "whole numbers")]


def _settings(profile: LoaderProfile, numbers: Iterable[int], factors: Iterable[int]) -> Iterator[LoaderSettings]:
    pins = (False, True) if profile.accelerator and profile.pinning else (profile.settings.pin_memory,)
    for number, factor, in_order, pin in product(numbers, factors, (True, False), pins):
        yield _normal(LoaderSettings(number, factor, in_order, pin, profile.settings.persistent_workers))


def _normal(settings: LoaderSettings) -> LoaderSettings:
    """The same settings, with what has no effect as it is by default."""
    if settings.num_workers:
        return settings
    return LoaderSettings(0, pin_memory=settings.pin_memory)


def _what_if(profile: LoaderProfile, settings: LoaderSettings, now_s: float) -> WhatIf:
    timeline = simulate_profile(profile, settings)
    makespan_s, stepping_s = timeline.makespan_s, timeline.select(lane=LOOP, kind="step").busy_s
    return WhatIf(
        settings=settings,
        predicted_s=makespan_s,
        speedup=now_s / makespan_s if makespan_s else 1.0,
        waiting_share=1 - stepping_s / makespan_s if makespan_s else 0.0,
        prefetched_bytes=settings.num_workers * settings.prefetch_factor * profile.batch_bytes,
    )


def _best(rows: tuple[WhatIf, ...], current: WhatIf) -> WhatIf:
    """What asks for least beside time, of those near the quickest; the order of batches is given up for 10 % only."""
    kept = [row for row in rows if row.settings.in_order or not current.settings.in_order]
    if not kept or kept[0].predicted_s > rows[0].predicted_s * _WORTH_THE_ORDER:
        kept = list(rows)
    near = [row for row in kept if row.predicted_s <= kept[0].predicted_s * _CLEAR]

    def effort(row: WhatIf) -> tuple[bool, int, bool, int, bool, float]:
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


def _notes(profile: LoaderProfile, current: WhatIf, best: WhatIf) -> Iterator[str]:
    if not profile.accelerator:
        yield "no accelerator: pinning would change nothing"
    elif profile.pinning is None:
        yield "what pinning costs and gives is not known: measure_pinning tells, and profile() takes its figures"
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
