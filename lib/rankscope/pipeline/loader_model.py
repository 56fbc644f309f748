"""torch's `DataLoader`, predicted without running it."""

from __future__ import annotations

from ..common.checks import truth, whole
from ..sampling.permutation import SEEDS
from ..timeline import Timeline
from .cores import Cores
from .epoch import LOOP, BatchTimes, epoch, worker_lane
from .service import Service, draw

# Different, so that drawn times of fetches and of steps are independent.
_FETCH_STREAM = 0
_STEP_STREAM = 1


def simulate_dataloader(
    fetch_s: Service,
    step_s: Service,
    num_batches: int,
    *,
    num_workers: int,
    prefetch_factor: int = 2,
    in_order: bool = True,
    seed: int = 0,
) -> Timeline:
    """Simulate one epoch of a DataLoader and return its timeline. Times are given as for a `Stage`, in seconds.

    A batch occupies its worker for `fetch_s` (dataset access and collate_fn), and the training loop for `step_s`, for
    any number of workers. With 0 workers the training loop fetches and steps in turn.

    The result is the best case rather than a forecast: real sleeps end late, a batch needs some tenths of a millisecond
    to reach the training loop, workers take tens of milliseconds to start, and cores may be short. For batches that
    arrive every 1 to 3 ms, it was 9 % too fast in the median, and 45 % in the worst case. For a forecast, record the
    loader by `record_dataloader`, and ask `advise`.

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
    rank = 0
    fetch = draw("fetch_s", fetch_s, num_batches, seed, rank, _FETCH_STREAM).tolist()
    step = draw("step_s", step_s, num_batches, seed, rank, _STEP_STREAM).tolist()
    nothing_s = [0.0] * num_batches
    spans = epoch(BatchTimes(fetch, step, nothing_s, nothing_s), num_workers, prefetch_factor, in_order, Cores())
    return Timeline.of(spans).named([*map(worker_lane, range(num_workers)), LOOP], ())
