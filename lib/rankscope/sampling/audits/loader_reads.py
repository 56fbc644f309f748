"""What one DataLoader returns in some epochs, and what in that would change a training without an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator

import msgspec

from ...common.words import count_of
from .findings import Finding, some
from .probe import Numbers, ProbedBatch

_GLOBAL_GENERATORS = ("NumPy", "random", "torch")


class LoaderReads(msgspec.Struct, frozen=True, eq=False):
    """What the loader of one rank returns.

    `epochs` are its batches in each epoch. `dataset` counts the names of its dataset's rows; it is None if the dataset
    does not say how many there are. `made_wrong` is what is wrong with how the loader is put together, and
    `wrong_length` with its ``len()``.
    """

    epochs: tuple[tuple[ProbedBatch, ...], ...]
    dataset: Counter[Hashable] | None
    num_workers: int
    is_iterable: bool
    drop_last: bool
    made_wrong: tuple[Finding, ...]
    wrong_length: str

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of samples in each batch of the first epoch."""
        return tuple(len(batch.rows) for batch in self.epochs[0])

    @property
    def draws(self) -> dict[tuple[int, int], Numbers]:
        """The first numbers that each worker draws in an epoch, by (epoch, worker), with the names of generators."""
        draws: dict[tuple[int, int], Numbers] = {}
        for epoch, batches in enumerate(self.epochs):
            for batch in batches:
                if batch.worker is not None:
                    draws.setdefault((epoch, batch.worker), batch.numbers)
        return draws

    def rows(self, epoch: int) -> list[Hashable]:
        """Return the names of the rows of an epoch, in the order of reading."""
        return [row for batch in self.epochs[epoch] for row in batch.rows]

    def found(self, read_before: Counter[Hashable], is_whole: bool) -> Iterator[Finding]:
        """Yield everything that concerns this loader alone."""
        empty = [epoch for epoch, batches in enumerate(self.epochs) if not batches]
        if empty and not (read_before and empty == [0]):  # nothing may be left of an epoch that is resumed
            yield Finding("nothing_read", f"the loader returns no batches in epoch {empty[-1]}")
        yield from self.made_wrong
        yield from self._found_in_sizes()
        if self.dataset is not None and self.is_iterable and self.num_workers:
            yield from self._found_in_workers(self.dataset, read_before, is_whole)
        yield from self._found_in_numbers()

    def _found_in_sizes(self) -> Iterator[Finding]:
        sizes = self.batch_sizes
        short = [batch for batch, size in enumerate(sizes) if size < max(sizes)]
        last = len(sizes) - 1
        if last in short:
            yield Finding("short_last_batch", self._short(last, f"the last of {len(sizes)} batches"))
        # Each worker of an iterable dataset may end with a short batch. Other datasets have one in the middle only if
        # their own batch sampler makes batches of different sizes.
        if self.is_iterable and short and short[0] < last:
            yield Finding("short_batch", self._short(short[0], f"batch {short[0]} of {len(sizes)}"))

    def _short(self, batch: int, which: str) -> str:
        """Return what is wrong with a batch that is smaller than others; `which` are words for it."""
        size = self.batch_sizes[batch]
        largest = max(self.batch_sizes)
        effect = "a mean over it is not defined"
        if size > 0:
            effect = f"a mean over batches counts each {largest / size:.3g} times"
        return f"{which} has {count_of(size, 'sample')}, others {largest}: {effect}"

    def _found_in_workers(
        self, expected: Counter[Hashable], read_before: Counter[Hashable], is_whole: bool
    ) -> Iterator[Finding]:
        """Compare the rows of all workers with those of the dataset without workers."""
        rows = Counter(self.rows(0))
        reads = f"{count_of(self.num_workers, 'worker')} give {rows.total()} samples of {expected.total()}"
        of_workers = [0] * self.num_workers
        for batch in self.epochs[0]:
            of_workers[batch.worker or 0] += len(batch.rows)
        of_whole = expected.total()
        most_dropped = 0  # without a fault
        if self.drop_last:
            batch_size = max(self.batch_sizes, default=1)
            of_whole -= of_whole % batch_size
            most_dropped = self.num_workers * (batch_size - 1)
        if rows - expected and self.num_workers > 1 and set(of_workers) == {of_whole}:
            yield Finding("read_by_each_worker", f"{reads}: each reads all of them; ask get_worker_info()")
        elif rows - expected:
            problem = "some are read more than once, or do not exist without workers"
            yield Finding("read_too_often", f"{reads}: {problem}{named(rows - expected)}")
        lost = expected - rows - read_before
        if lost.total() > most_dropped and not is_whole:
            yield Finding("lost_rows", f"{reads}: {lost.total()} of them are read by no worker{named(lost)}")
        idle = [worker for worker, num_rows in enumerate(of_workers) if num_rows == 0]
        if idle and rows:
            yield Finding("idle_workers", f"{len(idle)} of {self.num_workers} workers yield nothing: {some(idle)}")

    def _found_in_numbers(self) -> Iterator[Finding]:
        by_generator: dict[str, dict[tuple[int, int], float]] = {}
        for epoch_and_worker, numbers in self.draws.items():
            for name, number in numbers:
                by_generator.setdefault(name, {})[epoch_and_worker] = number
        for name, number_of in by_generator.items():
            in_first_epoch = [number for (epoch, _), number in number_of.items() if epoch == 0]
            if len(set(in_first_epoch)) < len(in_first_epoch):
                is_global = name in _GLOBAL_GENERATORS
                hint = "see worker_init_fn" if is_global else "right only if they divide one order among themselves"
                yield Finding("same_random", f"workers draw the same numbers from {name}: {hint}")
            # A worker that got no batch in the first epoch has no number there.
            if any(epoch > 0 and number_of.get((0, worker)) == number for (epoch, worker), number in number_of.items()):
                problem = f"a worker draws the same numbers from {name} in every epoch"
                yield Finding("repeated_random", f"{problem}: see worker_init_fn")


def named(rows: Collection[Hashable]) -> str:
    """Return some of the rows in words; nothing if they have no names."""
    if None in rows:
        return ""
    return f": {some([repr(row) for row in rows])}"
