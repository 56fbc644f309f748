"""Samplers against torch's own, in the same run: python tests/benchmarks/samplers.py [--quick]

Every figure is taken in a fresh process (so that peak memory is its own), ours and torch's in turn, and the median of
the repetitions is shown; `ratio` is torch's figure over ours. Absolute times depend on the machine, ratios much less.
--quick leaves out 10**8 samples.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import zlib
from collections import deque
from itertools import islice

import numpy as np

REPEATS = 3
SAMPLED_RANKS = 8


def sampler(kind, size, num_ranks, rank, shuffle=True):
    if kind == "ours":
        from rankscope.sampling import DistributedSampler

        return DistributedSampler(size, num_ranks, rank, shuffle)
    from torch.utils.data import DistributedSampler

    return DistributedSampler(range(size), num_ranks, rank, shuffle)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_rank(kind, size, num_ranks, shuffle):
    """Seconds to the first index and to the last, extra peak memory, and a checksum of the order (second pass)."""
    made = sampler(kind, size, num_ranks, 3, shuffle)
    before = peak_bytes()
    start = time.perf_counter()
    indices = iter(made)
    next(indices)
    first = time.perf_counter() - start
    deque(indices, maxlen=0)
    total = time.perf_counter() - start
    extra = peak_bytes() - before
    checksum, again = 0, iter(made)
    while chunk := list(islice(again, 100_000)):
        checksum = zlib.crc32(np.array(chunk), checksum)
    return {"first_s": first, "total_s": total, "extra_bytes": extra, "checksum": checksum}


def all_ranks(kind, size, num_ranks):
    """Seconds for the indices of every rank; torch's are those of eight ranks, times num_ranks / 8."""
    if kind == "ours":
        from rankscope.sampling import assign

        start = time.perf_counter()
        ranks = assign(size, num_ranks).ranks
        return {"total_s": time.perf_counter() - start, "checksum": zlib.crc32(np.ascontiguousarray(ranks[0], "i8"))}
    start = time.perf_counter()
    lists = [list(sampler(kind, size, num_ranks, rank)) for rank in range(SAMPLED_RANKS)]
    seconds = (time.perf_counter() - start) * num_ranks / SAMPLED_RANKS
    return {"total_s": seconds, "checksum": zlib.crc32(np.array(lists[0]))}


def audit_epoch(kind, size, num_ranks):
    """Seconds to audit an epoch; the peer is np.unique on all indices, which only finds duplicates and losses."""
    from rankscope.sampling import assign, audit

    assignment = assign(size, num_ranks)
    start = time.perf_counter()
    if kind == "ours":
        duplicates = audit(assignment).duplicates
    else:
        _, counts = np.unique(np.concatenate(assignment.ranks), return_counts=True)
        duplicates = int((counts - 1).sum())
    return {"total_s": time.perf_counter() - start, "checksum": duplicates}


def explorer_picture(kind, size, num_ranks):
    """Seconds from parameters to the picture, SVG string against matplotlib PNG, after a first one."""
    import io

    from rankscope.explorers.core.samplers import samplers
    from rankscope.figures import assignment as paint
    from rankscope.sampling import assign

    def by_matplotlib(seed):
        paint(assign(size, num_ranks, seed=seed).with_loader(4)).figure.savefig(io.BytesIO(), format="png")

    explorer = samplers()

    def as_svg(seed):
        explorer.shown(explorer.at(size=size, num_ranks=num_ranks, seed=seed))

    draw = as_svg if kind == "ours" else by_matplotlib
    draw(0)
    start = time.perf_counter()
    for seed in range(1, 6):
        draw(seed)
    return {"total_s": (time.perf_counter() - start) / 5, "checksum": 0}


MEASURES = {f.__name__: f for f in (one_rank, all_ranks, audit_epoch, explorer_picture)}


def measure(name, *arguments, repeats):
    """Run a measure in fresh processes, ours and the peer's in turn; return both medians."""
    runs = {"ours": [], "peer": []}
    for _ in range(repeats):
        for kind in runs:
            command = [sys.executable, __file__, "--child", json.dumps([name, kind, *arguments])]
            runs[kind].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    checksums = {run["checksum"] for both in runs.values() for run in both}
    if len(checksums) != 1:
        raise SystemExit(f"{name}{arguments}: ours and the peer differ in content")
    return [
        {key: statistics.median(run[key] for run in both) for key in both[0]} for both in (runs["ours"], runs["peer"])
    ]


def show(what, ours, peer, bar, unit="s"):
    scale, digits = {"s": (1, 3), "ms": (1e3, 1), "MiB": (2**-20, 1)}[unit]
    ratio = f"{peer / ours:8.1f}" if ours else "     inf"
    print(f"{what:<58}{ours * scale:>11.{digits}f}{peer * scale:>12.{digits}f} {unit:<4}{ratio}   {bar}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out 10**8 samples")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, *arguments = json.loads(options.child)
        print(json.dumps(MEASURES[name](*arguments)))
        return
    print(f"{'':<58}{'rankscope':>11}{'peer':>12} unit    ratio   bar")
    for num_ranks, bar in ((64, "≥ 80"), (1024, "≥ 500")):
        ours, peer = measure("all_ranks", 10**7, num_ranks, repeats=REPEATS)
        show(f"all ranks' indices, 10^7 samples, W={num_ranks}", ours["total_s"], peer["total_s"], bar)
    for power in (7,) if options.quick else (7, 8):
        ours, peer = measure("one_rank", 10**power, 8, True, repeats=REPEATS)
        where = f"one rank, 10^{power} samples, W=8"
        show(f"{where}: whole epoch", ours["total_s"], peer["total_s"], "≥ 1" if power == 7 else "≥ 3")
        show(f"{where}: first index", ours["first_s"], peer["first_s"], "≥ 5")
        show(f"{where}: extra peak memory", ours["extra_bytes"], peer["extra_bytes"], "≥ 8", "MiB")
    ours, peer = measure("one_rank", 10**7, 8, False, repeats=1)
    show("one rank, unshuffled, 10^7: extra peak memory", ours["extra_bytes"], peer["extra_bytes"], "O(1)", "MiB")
    ours, peer = measure("audit_epoch", 10**7, 64, repeats=REPEATS)
    show("audit of 10^7 indices (peer: np.unique)", ours["total_s"], peer["total_s"], "< 2 s")
    ours, peer = measure("explorer_picture", 1024, 16, repeats=1)
    show("explorer's picture, 16 x 64 (peer: matplotlib PNG)", ours["total_s"], peer["total_s"], "< 20 ms", "ms")


if __name__ == "__main__":
    main()
