"""Samplers at scale against peers, in the same run: python -m tests.benchmarks.samplers_at_scale [--quick] [--steps]

Peers: torch.randperm, numpy's permutation, torchdata's StatefulDistributedSampler, and, if they are installed, Grain's
index_shuffle and mosaicml-streaming's py1e. Rates are from CPU time of one core, the median of several repetitions,
ours and the peer's in turn; `ratio` is ours over the peer's rate. --quick takes a tenth of the samples.

--steps trains on 2, 3 and 4 real ranks instead, and prints the wall time of the steps next to their prediction, which
is made from measured parts (`rankscope.course.step_times`). Each step is run in several rounds and its shortest time
counts. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import statistics
import sys
import time
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from rankscope.course import step_times
from rankscope.sampling import BalancedSampler, KeyedSampler, assign, epoch_work

TRILLION = 10**12
REPEATS = 5


def lognormal_lengths(size, median=150):
    return np.exp(np.random.default_rng(0).normal(np.log(median), 1.0, size)).astype(np.int64) + 1


def cpu_seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def in_turn(functions, repeats=REPEATS):
    """Return the median CPU time of each function, after one call of each that is not counted."""
    for function in functions.values():
        function()
    seconds = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds[name].append(cpu_seconds(function))
    return {name: statistics.median(values) for name, values in seconds.items()}


# ---- peers


def grain_shuffle():
    """Return Grain's index_shuffle, which is a compiled module that needs nothing else of Grain, or the reason."""
    spec = importlib.util.find_spec("grain")
    if spec is None or not spec.submodule_search_locations:
        return "Grain is not installed"
    folder = Path(spec.submodule_search_locations[0]) / "_src/python/experimental/index_shuffle/python"
    path = folder / "index_shuffle_module.so"
    loader = importlib.machinery.ExtensionFileLoader("index_shuffle_module", str(path))
    try:
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
    except (ImportError, OSError) as error:
        return f"Grain's index_shuffle does not load: {error}"
    return module.index_shuffle


def streaming_shuffle():
    try:
        from streaming.base.shuffle.py1e import get_shuffle_py1e
    except ImportError as error:
        return f"mosaicml-streaming does not import: {error}"
    return get_shuffle_py1e


def run_through(iterable):
    for _ in iterable:
        pass


def rates(size):
    """Return indices per CPU second of every way to shuffle."""
    keyed = KeyedSampler(TRILLION).permutation
    start = TRILLION // 3
    counts = {"KeyedSampler at 10^12, arrays": size, "torch.randperm": size, "numpy permutation": size}
    functions = {
        "KeyedSampler at 10^12, arrays": lambda: run_through(keyed.blocks(start, start + size)),
        "torch.randperm": lambda: torch.randperm(size),
        "numpy permutation": lambda: np.random.default_rng(0).permutation(size),
    }
    one_by_one = size // 10
    counts["KeyedSampler at 10^12, integers"] = one_by_one
    functions["KeyedSampler at 10^12, integers"] = lambda: run_through(islice(KeyedSampler(TRILLION), one_by_one))
    counts["torchdata StatefulDistributedSampler, integers"] = one_by_one
    functions["torchdata StatefulDistributedSampler, integers"] = lambda: run_through(stateful(one_by_one))
    grain = grain_shuffle()
    if callable(grain):
        few = size // 10
        counts["Grain index_shuffle at 2^32 - 2, one call per index"] = few
        functions["Grain index_shuffle at 2^32 - 2, one call per index"] = lambda: [
            grain(index, max_index=2**32 - 2, seed=0, rounds=4) for index in range(few)
        ]
    else:
        print(grain)
    streaming = streaming_shuffle()
    if callable(streaming):
        shards = np.full(size // 10_000, 10_000)
        counts["mosaicml-streaming py1e"] = size
        functions["mosaicml-streaming py1e"] = lambda: streaming(shards, 1, 0, 0)
    else:
        print(streaming)
    seconds = in_turn(functions)
    return {name: counts[name] / seconds[name] for name in functions}


def stateful(size):
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    return StatefulDistributedSampler(range(size), 1, 0)


# ---- measures


def first_index_ms():
    """Return the median wall time of constructing a sampler and reading its first index, at random ranks."""
    draw = np.random.default_rng(1)
    times_ms = []
    for rank in draw.integers(0, 1024, 101).tolist():
        state = KeyedSampler(TRILLION, 1024, rank).state_after(int(draw.integers(0, TRILLION // 1024)))
        start = time.perf_counter()
        sampler = KeyedSampler(TRILLION, 1024, rank)
        sampler.load_state_dict(state)
        next(iter(sampler))
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms)


def peak_bytes():
    sampler = KeyedSampler(TRILLION, 8, 3)
    run_through(islice(sampler, 10))
    tracemalloc.start()
    run_through(islice(sampler, 300_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def show(what, value, unit, bar):
    print(f"{what:<66}{value:>12} {unit:<12} {bar}", flush=True)


def table(size):
    measured = rates(size)
    ours = measured["KeyedSampler at 10^12, arrays"]
    by_integers = measured["KeyedSampler at 10^12, integers"]
    print(f"{'':<66}{'indices/s':>12} {'ratio':<12} bar")
    for name, rate in measured.items():
        reference = by_integers if "integers" in name else ours
        bar = "≥ 50 million" if name == "KeyedSampler at 10^12, arrays" else ""
        show(name, f"{rate / 1e6:.1f} M", f"{reference / rate:.2f}", bar)
    show("KeyedSampler at 10^12: first index, any rank and position", f"{first_index_ms():.2f}", "ms", "< 1")
    show("KeyedSampler at 10^12: peak memory of an epoch", f"{peak_bytes() / 2**20:.2f}", "MiB", "< 0.5 MiB + 1 MB")
    lengths = lognormal_lengths(size)
    seconds = cpu_seconds(lambda: BalancedSampler(lengths, 64, 0, batch_size=8).all_ranks())
    show(f"BalancedSampler: order of {size:.0e} samples, 64 ranks x 8", f"{seconds:.2f}", "s", "< 5 for 1e7")
    few = lengths[: 64 * 8 * 200]
    balanced = epoch_work(assign(few.size, 64, sampler="balanced", lengths=few, batch_size=8), few)
    at_random = epoch_work(assign(few.size, 64).with_loader(8), few)
    ratios = {"random order (peer)": at_random.ratios, "BalancedSampler": balanced.ratios}
    for name, values in ratios.items():
        cost = f"cost per step, highest over mean, {name}: mean of steps"
        show(cost, f"{values.mean():.4f}", "", "≤ 1.05" if name == "BalancedSampler" else "")
        show(cost.replace("mean of steps", "worst step"), f"{values.max():.4f}", "", "")


# ---- real steps


def real_steps(num_ranks, num_steps=40):
    """Print step times on real ranks in random and in balanced order, and those that their measured parts predict."""
    batch_size = 8
    lengths = lognormal_lengths(num_ranks * batch_size * num_steps, median=40)
    texts = [" ".join(map(str, range(length))) for length in lengths]
    orders = {
        "random order": assign(lengths.size, num_ranks).with_loader(batch_size),
        "BalancedSampler": assign(lengths.size, num_ranks, sampler="balanced", lengths=lengths, batch_size=batch_size),
    }
    times = step_times(texts, orders, timeout_s=600)
    print(f"\n{times}")
    for name in orders:
        show(f"{num_ranks} ranks, {name}: measured over predicted", f"{times.difference(name):+.1%}", "", "within 5 %")
    highest = [epoch_work(order, lengths).step_costs.max(axis=1).sum() for order in orders.values()]
    gain = times.gain("BalancedSampler", "random order")
    costs = f"costs alone: {highest[0] / highest[1]:.3f}"
    show(f"{num_ranks} ranks: gain of BalancedSampler over random order", f"{gain:.3f}", "times", costs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--steps", action="store_true", help="real steps on 2, 3 and 4 ranks instead")
    options = parser.parse_args()
    if options.steps:
        for num_ranks in (2, 3, 4):
            real_steps(num_ranks)
        return
    table(10**6 if options.quick else 10**7)


if __name__ == "__main__":
    sys.exit(main())
