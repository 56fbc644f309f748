"""Samplers of 10^7 samples against torch's own, and a keyed one of 10^12: python -m tests.benchmarks.samplers

Ours and torch's take turns, three times; medians. Memory is what tracemalloc and numpy count at its peak.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable

import numpy as np
from torch.utils.data import DistributedSampler as TorchSampler

from rankscope.sampling import DistributedSampler, KeyedSampler, assign, audit

SIZE, NUM_RANKS, ROUNDS = 10**7, 64, 3
MIB = 2**20


def whole_epoch(kind: type, num_ranks: int) -> None:
    """Read all indices of one rank."""
    deque(kind(range(SIZE), num_ranks, 3), maxlen=0)


def all_ranks_of_torch() -> None:
    """Read the indices of eight ranks: an eighth of what 64 take."""
    for rank in range(NUM_RANKS // 8):
        deque(TorchSampler(range(SIZE), NUM_RANKS, rank), maxlen=0)


def seconds(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object], factor: int = 1) -> None:
    times_s = [(seconds(ours), seconds(theirs) * factor) for _ in range(ROUNDS)]
    our_s, their_s = (statistics.median(side) for side in zip(*times_s, strict=True))
    print(f"{name:44}{our_s:9.3f} s{their_s:9.3f} s{their_s / our_s:8.1f} times", flush=True)


def main() -> None:
    epoch = assign(SIZE, NUM_RANKS)

    def counted() -> object:
        return np.unique(np.concatenate(epoch.ranks), return_counts=True)

    print(f"{SIZE:,} samples{'rankscope':>38}{'peer':>11}")
    compare("one of 8 ranks", lambda: whole_epoch(DistributedSampler, 8), lambda: whole_epoch(TorchSampler, 8))
    compare("all of 64 ranks", lambda: assign(SIZE, NUM_RANKS), all_ranks_of_torch, factor=8)
    compare("audit of 64 ranks; peer: np.unique", lambda: audit(epoch), counted)
    ours, theirs = (peak_bytes(lambda kind=kind: whole_epoch(kind, 8)) for kind in (DistributedSampler, TorchSampler))
    print(f"{'memory of one of 8 ranks':44}{ours / MIB:9.0f} MiB{theirs / MIB:7.0f} MiB")
    keyed = KeyedSampler(10**12, 8, 3)
    print(f"{'first index of 10^12':44}{seconds(lambda: next(iter(keyed))):9.3f} s")


if __name__ == "__main__":
    main()
