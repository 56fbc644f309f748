"""Whom `audit` and `audit_loader` accuse: right loaders by kind, and planted faults: python -m tests.benchmarks.audits

5,000 right ones, and 40 of each kind of wrong ones, of random sizes. Each kind's row has how many were tried, and how
many were accused or found. A few of each are a test.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    get_worker_info,
)
from torch.utils.data import DistributedSampler as TorchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from rankscope.sampling import (
    Assignment,
    BalancedSampler,
    DistributedSampler,
    KeyedSampler,
    WeightedSampler,
    assign,
    audit,
    audit_loader,
)

NUM_RIGHT, NUM_WRONG = 5000, 40
WITH_WORKERS = 50  # times as slow, so tried so many times less often


class Case:
    """Random numbers of ranks, batches and samples, such that each rank gets the same number of whole batches."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.num_ranks = draw.randint(2, 6)
        self.batch_size = draw.randint(2, 4)
        self.size = self.num_ranks * self.batch_size * draw.randint(2, 8)
        self.seed = draw.randint(0, 1000)
        self.ranks = range(self.num_ranks)
        self.rank = draw.randrange(self.num_ranks)

    def of_ranks(self, sampler: Callable[[int], Any], size: int | None = None, **options: Any) -> list[Any]:
        options = {"batch_size": self.batch_size} | options
        return [DataLoader(range(size or self.size), sampler=sampler(rank), **options) for rank in self.ranks]

    def torch(self, rank: int, **options: Any) -> Sampler[int]:
        return TorchSampler(range(self.size), self.num_ranks, rank, **{"seed": self.seed} | options)

    def keyed(self, rank: int, num_ranks: int | None = None) -> KeyedSampler:
        return KeyedSampler(self.size, num_ranks or self.num_ranks, rank, seed=self.seed)

    def lengths(self) -> Any:
        return np.random.default_rng(self.seed).integers(1, 50, self.size)

    def stream(self, rank: int, num_workers: int = 0, **options: Any) -> Any:
        rows = [f"row {row}" for row in range(rank, self.size, self.num_ranks)]
        return forked(Stream(rows, **options), self.batch_size, num_workers)


class Stream(IterableDataset[str]):
    def __init__(self, rows: list[str], split: bool = True, later: int | None = None, skipped: int = 0) -> None:
        self.rows, self.split, self.later, self.skipped = rows, split, later, skipped

    def __iter__(self) -> Any:
        rows = self.rows
        if self.later is not None:
            self.rows = rows[self.later :]
        worker = get_worker_info()
        if worker is None or not self.split:
            return iter(rows)
        return iter(rows[worker.id + self.skipped :: worker.num_workers])


class WithLength(Sampler[int]):
    def __init__(self, indices: Any, length: int) -> None:
        self.indices, self.length = indices, length

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.length


class NoLength:
    def __getitem__(self, index: Any) -> Any:
        return index


def forked(dataset: Any, batch_size: int, num_workers: int, **options: Any) -> Any:
    if num_workers:
        options |= {"num_workers": num_workers, "multiprocessing_context": "fork"}
    return DataLoader(dataset, batch_size=batch_size, **options)


def same_seed(worker: int) -> None:
    np.random.seed(0)


def stopped_and_resumed(case: Case) -> Any:
    stopped = StatefulDataLoader(range(case.size), batch_size=case.batch_size, sampler=case.keyed(0, 1))
    batches = iter(stopped)
    before = [next(batches) for _ in range(case.draw.randint(1, 3))]
    loader = StatefulDataLoader(range(case.size), batch_size=case.batch_size, sampler=case.keyed(0, 1))
    loader.load_state_dict(stopped.state_dict())
    return audit_loader(loader, size=case.size, read_before=before)


def resumed_on_one_rank(case: Case) -> Any:
    trained = case.draw.randint(1, 3)
    before = [index for rank in case.ranks for index in itertools.islice(case.keyed(rank), trained)]
    sampler = case.keyed(0, 1)
    sampler.load_state_dict(case.keyed(0).state_after(trained))
    return audit_loader(DataLoader(range(case.size), sampler=sampler), size=case.size, read_before=before)


def parts(case: Case) -> list[Any]:
    share = case.size // case.num_ranks
    return [Subset(range(case.size), range(rank * share, rank * share + share)) for rank in case.ranks]


def epochs(case: Case, **options: Any) -> list[Assignment]:
    return [assign(case.size, case.num_ranks, seed=case.seed, epoch=epoch, **options) for epoch in range(3)]


def balanced(case: Case, rank: int, **options: Any) -> Any:
    sampler = BalancedSampler(case.lengths(), case.num_ranks, rank, **options)
    return DataLoader(range(case.size), batch_sampler=sampler)


RIGHT: dict[str, Callable[[Case], Any]] = {
    "one loader, shuffled or not": lambda c: audit_loader(
        DataLoader(range(c.size), batch_size=c.batch_size, shuffle=c.draw.random() < 0.5)
    ),
    "torch's sampler": lambda c: audit_loader(c.of_ranks(c.torch)),
    "KeyedSampler": lambda c: audit_loader(c.of_ranks(c.keyed)),
    "BalancedSampler": lambda c: audit_loader([balanced(c, rank, batch_size=c.batch_size) for rank in c.ranks]),
    "WeightedSampler": lambda c: audit_loader(
        c.of_ranks(lambda rank: WeightedSampler([1, 2, 9, 1] * c.size, c.num_ranks, rank), size=4 * c.size)
    ),
    "draws with replacement": lambda c: audit_loader(
        c.of_ranks(lambda rank: RandomSampler(range(c.size), replacement=True))
    ),
    "resumed on one rank": resumed_on_one_rank,
    "resumed StatefulDataLoader": stopped_and_resumed,
    "streams of rows by key": lambda c: audit_loader([c.stream(rank) for rank in c.ranks], key=hash, size=c.size),
    "split by hand, with a key": lambda c: audit_loader(
        [DataLoader(part, batch_size=c.batch_size) for part in parts(c)], key=int
    ),
    "a dataset made anew on each rank": lambda c: audit_loader(
        [DataLoader(Subset(list(range(c.size)), [*range(c.size)]), c.batch_size, sampler=c.torch(r)) for r in c.ranks]
    ),
    "a dataset without a length": lambda c: audit_loader(DataLoader(NoLength(), sampler=range(c.size))),
    "indices with sizes": lambda c: audit_loader(DataLoader(NoLength(), sampler=[(i, 32) for i in range(c.size)])),
    "batches of any size": lambda c: audit_loader(
        DataLoader(range(c.size), batch_sampler=[range(c.batch_size), range(c.batch_size, c.size)])
    ),
    "audit: torch, with set_epoch": lambda c: audit(epochs(c)),
    "audit: in order": lambda c: audit(epochs(c, shuffle=False)),
    "audit: keyed": lambda c: audit(epochs(c, sampler="keyed")),
    "audit: balanced": lambda c: audit(epochs(c, sampler="balanced", lengths=c.lengths(), batch_size=c.batch_size)),
    "audit: collected samplers": lambda c: audit(Assignment.collect(map(c.torch, c.ranks), c.size)),
}
RIGHT_WITH_WORKERS: dict[str, Callable[[Case], Any]] = {
    "one loader with workers": lambda c: audit_loader(forked(range(c.size), c.batch_size, 2)),
    "streams that workers divide": lambda c: audit_loader(c.stream(0, 2), key=str),
}
# What each rank reads: both audits find it.
WRONG_SAMPLERS: dict[tuple[str, str], Callable[[Case, int], Any]] = {
    ("counted from one", "out_of_range"): lambda c, rank: range(rank + 1, c.size + 1, c.num_ranks),
    ("what counting from one hides", "dropped"): lambda c, rank: range(rank + 1, c.size + 1, c.num_ranks),
    ("-1, which is the last one", "out_of_range"): lambda c, rank: range(rank - 1, c.size - 1, c.num_ranks),
    ("len()", "wrong_length"): lambda c, rank: WithLength(c.torch(rank), c.size),
    ("a rank twice", "duplicates"): lambda c, rank: c.torch(max(rank - 1, 0)),
    ("what another rank twice hides", "dropped"): lambda c, rank: c.torch(max(rank - 1, 0)),
    ("each rank shuffles all", "duplicates"): lambda c, rank: RandomSampler(range(c.size)),
    ("the seed depends on the rank", "dropped"): lambda c, rank: c.torch(rank, seed=rank),
    ("padding", "duplicates"): lambda c, rank: TorchSampler(range(c.size - 1), c.num_ranks, rank),
    ("too many ranks", "dropped"): lambda c, rank: TorchSampler(range(c.size), c.num_ranks + 5, rank),
    ("fewer samples on a rank", "unbalanced"): lambda c, rank: [*c.torch(rank)][rank * c.batch_size :],
}
WRONG: dict[tuple[str, str], Callable[[Case], Any]] = {
    ("audit: set_epoch forgotten", "repeated_order"): lambda c: audit([epochs(c)[0], epochs(c)[0]]),
    ("audit: drop_last", "dropped"): lambda c: audit(assign(c.size + 1, c.num_ranks, drop_last=True)),
    ("audit: libtorch's tail", "never_seen"): lambda c: audit(
        assign(c.size + 1, c.num_ranks, sampler="libtorch_random", drop_last=True, epoch=epoch) for epoch in range(2)
    ),
    ("audit: fewer samples than ranks", "nothing_read"): lambda c: audit(assign(1, c.num_ranks, drop_last=True)),
    ("audit: unequal work", "unequal_cost"): lambda c: audit(epochs(c)[0], lengths=2 ** (np.arange(c.size) % 9)),
    ("audit: padding to the longest", "padding_waste"): lambda c: audit(
        epochs(c)[0].with_loader(c.batch_size), lengths=2 ** (np.arange(c.size) % 9)
    ),
    ("more rows than size", "beyond_size"): lambda c: audit_loader(DataLoader(range(c.size)), size=c.size - 1),
    ("a rank is missing", "dropped"): lambda c: audit_loader(c.of_ranks(c.torch)[1:], size=c.size),
    ("a state that was not loaded", "duplicates"): lambda c: audit_loader(c.of_ranks(c.keyed), read_before=[0, 1]),
    ("a state of another count", "dropped"): lambda c: audit_loader(
        c.of_ranks(lambda rank: [*c.keyed(rank)][2:]), read_before=[*c.keyed(0)][:2], epochs=1
    ),
    ("read before: rows of another type", "out_of_range"): lambda c: audit_loader(
        c.of_ranks(c.keyed), read_before=["0", "1"]
    ),
    ("later epochs have only the rest", "dropped"): lambda c: audit_loader(
        [c.stream(rank, later=c.batch_size) for rank in c.ranks], size=c.size
    ),
    ("a sampler that ends for good", "nothing_read"): lambda c: audit_loader(
        DataLoader(range(c.size), sampler=iter(range(c.size)))
    ),
    ("streams that are not divided", "duplicates"): lambda c: audit_loader([c.stream(0) for _ in c.ranks]),
    ("divided twice", "sharded_twice"): lambda c: audit_loader(
        c.of_ranks(lambda rank: DistributedSampler(c.torch(rank), c.num_ranks, rank))
    ),
    ("grouped twice", "grouped_twice"): lambda c: audit_loader(
        DataLoader(range(c.size), batch_size=2, sampler=BalancedSampler(c.lengths(), 1, 0))
    ),
    ("a short batch on the last rank", "short_last_batch"): lambda c: audit_loader(
        c.of_ranks(lambda rank: [*c.torch(rank)][rank == c.num_ranks - 1 :])
    ),
}
WRONG_WITH_WORKERS: dict[tuple[str, str], Callable[[Case], Any]] = {
    ("each worker reads all", "read_by_each_worker"): lambda c: audit_loader(c.stream(0, 2, split=False), key=str),
    ("workers lose a row", "lost_rows"): lambda c: audit_loader(c.stream(0, 2, skipped=1), key=str),
    ("a worker without rows", "idle_workers"): lambda c: audit_loader(forked(Stream(["a", "b"]), 1, 3), key=str),
    ("workers with one seed", "same_random"): lambda c: audit_loader(
        forked(range(c.size), c.batch_size, 2, worker_init_fn=same_seed)
    ),
}


def num_accused(make: Callable[[Case], Any], num_cases: int) -> int:
    """Return how many right loaders have a finding; workers may have a short batch each."""
    cases = map(Case, map(random.Random, range(num_cases)))
    return sum(1 for case in cases if set(kinds(make(case))) - {"short_last_batch", "short_batch"})


def num_found(make: Callable[[Case], Any], kind: str, num_cases: int) -> int:
    """Return how many wrong loaders have a finding of this kind."""
    cases = map(Case, map(random.Random, range(num_cases)))
    return sum(1 for case in cases if kind in kinds(make(case)))


def kinds(report: Any) -> list[str]:
    return [finding.kind for finding in report.findings]


def wrong() -> dict[tuple[str, str], Callable[[Case], Any]]:
    """Return all faults, those of samplers for each audit."""
    faults = dict(WRONG)
    for (name, kind), sampler in WRONG_SAMPLERS.items():
        faults[name, kind] = lambda c, sampler=sampler: audit_loader(c.of_ranks(partial(sampler, c)))
        faults[f"audit: {name}", kind] = lambda c, sampler=sampler: audit(
            Assignment.collect((sampler(c, rank) for rank in c.ranks), c.size)
        )
    return faults


def main() -> None:
    warnings.simplefilter("ignore")
    each = -(-NUM_RIGHT // len(RIGHT))
    print(f"{'right':40}{'tried':>8}{'accused':>10}")
    for cases, num_cases in ((RIGHT, each), (RIGHT_WITH_WORKERS, each // WITH_WORKERS)):
        for name, make in cases.items():
            print(f"{name:40}{num_cases:8}{num_accused(make, num_cases):10}", flush=True)
    print(f"\n{'wrong':40}{'tried':>8}{'found':>10}  kind")
    for faults, num_cases in ((wrong(), NUM_WRONG), (WRONG_WITH_WORKERS, 4)):
        for (name, kind), make in faults.items():
            print(f"{name:40}{num_cases:8}{num_found(make, kind, num_cases):10}  {kind}", flush=True)


if __name__ == "__main__":
    main()
