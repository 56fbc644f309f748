"""torch's `DataLoader`, predicted without running it."""

from __future__ import annotations

import msgspec

from ..common.checks import check_field, number, of_type, optional, truth, whole
from ..sampling.permutation import SEEDS
from ..timeline import Timeline
from .cores import Cores
from .epoch import LOOP, PIN_THREAD, BatchTimes, epoch, worker_lane
from .service import Service, check, draw


class Handover(msgspec.Struct, frozen=True, eq=False):
    """The costs of a batch between its worker and the training loop. Raises ValueError if a field is not a time.

    The worker's sending thread needs `handover_s`. Receiving the batch costs the training loop `receive_s` or, if
    `pin_s` is given, the pin thread `receive_s` and `pin_s`. The training loop receives it up to `held_s` later while
    the batch's worker is busy with its next batch, because the worker must answer, and cannot while a fetch holds
    Python's interpreter lock. For the pin thread, this is not modelled. Workers start to read at `startup_s`.
    """

    handover_s: Service = 0.0
    receive_s: Service = 0.0
    pin_s: Service | None = None
    held_s: float = 0.0
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        check_field(self, "handover_s", check)
        check_field(self, "receive_s", check)
        check_field(self, "pin_s", optional, check)
        check_field(self, "held_s", number, 0)
        check_field(self, "startup_s", number, 0)


def simulate_dataloader(
    fetch_s: Service,
    step_s: Service,
    num_batches: int,
    *,
    num_workers: int,
    prefetch_factor: int = 2,
    in_order: bool = True,
    handover: Handover | None = None,
    cores: Cores | None = None,
    seed: int = 0,
) -> Timeline:
    """Simulate one epoch of a DataLoader and return its timeline. Times are given as for a `Stage`, in seconds.

    A batch occupies its worker for `fetch_s` (dataset access and collate_fn), and the training loop for `step_s`, for
    any number of workers. `handover` contains the costs in between, by default none. With 0 workers the training loop
    fetches, pins and steps in turn. If `cores` is given, fetches and steps that run at the same time share them.

    With bare times the result is the best case rather than a forecast: real sleeps end late, a batch needs some tenths
    of a millisecond to reach the training loop, and workers take tens of milliseconds to start. For batches that arrive
    every 1 to 3 ms, it was 9 % too fast in the median, and 45 % in the worst case. For a forecast, record the loader:
    `record_dataloader` measures the times, and its `profile()` has the `handover_s`, `receive_s` and `startup_s` of a
    `Handover`. `advise` predicts from all of them.

    Raises ValueError if a count is out of range or a time is negative or not finite.

    >>> for num_workers in (0, 1, 4):
    ...     timeline = simulate_dataloader(0.03, 0.01, 100, num_workers=num_workers)
    ...     print(round(timeline.makespan_s, 6))
    4.0
    3.01
    1.03
    """
    num_batches = whole("num_batches", num_batches, 1)
    num_workers = whole("num_workers", num_workers, 0)
    prefetch_factor = whole("prefetch_factor", prefetch_factor, 1)
    in_order = truth("in_order", in_order)
    seed = whole("seed", seed, *SEEDS)
    handover = Handover() if handover is None else of_type("handover", handover, Handover)
    cores = Cores() if cores is None else of_type("cores", cores, Cores)

    def times(name: str, service: Service, stream: int) -> list[float]:
        """Return a time per batch; `stream` is different for each kind of times, so that they are independent."""
        rank = 0
        times_s: list[float] = draw(name, service, num_batches, seed, rank, stream).tolist()
        return times_s

    work = BatchTimes(
        fetch=times("fetch_s", fetch_s, 0),
        step=times("step_s", step_s, 1),
        handover=times("handover_s", handover.handover_s, 2),
        receive=times("receive_s", handover.receive_s, 3),
        pin=None if handover.pin_s is None else times("pin_s", handover.pin_s, 4),
        held_s=handover.held_s,
        startup_s=handover.startup_s,
    )
    spans = epoch(work, num_workers, prefetch_factor, in_order, cores)
    lanes = [*map(worker_lane, range(num_workers)), PIN_THREAD, LOOP]
    return Timeline.of(spans).named(lanes if num_workers else [LOOP], ())
