"""Samplers at scale against peers, in the same run: python -m tests.benchmarks.samplers_at_scale [--quick] [--steps]

Peers: torch.randperm, numpy's permutation, torchdata's StatefulDistributedSampler, and, if they are installed, Grain's
index_shuffle and mosaicml-streaming's py1e. Rates are from CPU time of one core, the median of several repetitions,
ours and the peer's in turn; `ratio` is ours over the peer's rate. --quick takes a tenth of the samples.

--steps trains on 2 and 4 real ranks instead, each with one thread, and prints the wall time of the steps next to their
prediction, which is made from steps that were measured in the same rounds (`rankscope.course.step_times`). All steps
are run in several rounds, in turn, and the median of each counts; the noise is half the range of the rounds. With more
ranks than cores, the prediction is made of steps in which 1, 2, … ranks compute at once, and the costs alone say
nothing about the gain. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
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

from ..peers import HOW, importable, streaming_modules

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
    with importable():
        spec = importlib.util.find_spec("grain")
    if spec is None or not spec.submodule_search_locations:
        return f"Grain is not installed: {HOW}"
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
    """Return mosaicml-streaming's py1e, or the reason why it is missing."""
    with streaming_modules("shuffle/py1e") as modules:
        if modules is None:
            return f"mosaicml-streaming is not installed: {HOW}"
        return modules[0].get_shuffle_py1e


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
    """Return wall times of constructing a sampler and reading its first index, at random ranks and positions."""
    draw = np.random.default_rng(1)
    times_ms = []
    for rank in draw.integers(0, 1024, 1001).tolist():
        state = KeyedSampler(TRILLION, 1024, rank).state_after(int(draw.integers(0, TRILLION // 1024)))
        start = time.perf_counter()
        sampler = KeyedSampler(TRILLION, 1024, rank)
        sampler.load_state_dict(state)
        next(iter(sampler))
        times_ms.append((time.perf_counter() - start) * 1e3)
    return np.array(times_ms)


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
    times_ms = first_index_ms()
    for words, value in [
        ("median", np.median(times_ms)),
        ("99 % below", np.percentile(times_ms, 99)),
        ("longest", times_ms.max()),
    ]:
        show(f"KeyedSampler at 10^12: first index at 1,001 random places, {words}", f"{value:.2f}", "ms", "< 1")
    show("KeyedSampler at 10^12: peak memory of an epoch", f"{peak_bytes() / 2**20:.2f}", "MiB", "< 0.5 MiB + 1 MB")
    lengths = lognormal_lengths(size)
    seconds = cpu_seconds(lambda: BalancedSampler(lengths, 64, 0, batch_size=8).all_ranks())
    show(f"BalancedSampler: order of {size:.0e} samples, 64 ranks x 8", f"{seconds:.2f}", "s", "< 5 for 1e7")
    sampler = BalancedSampler(lengths, 64, 0, max_tokens=int(lengths.max()))
    seconds = cpu_seconds(sampler.all_ranks)
    show(f"BalancedSampler: order of {size:.0e} samples, 64 ranks, max_tokens", f"{seconds:.2f}", "s", "< 5 for 1e7")
    sampler = BalancedSampler(lengths, 64, 0, max_tokens=int(lengths.max()))
    seconds = cpu_seconds(lambda: len(sampler))
    show(f"BalancedSampler: number of its steps, {size:.0e} samples, max_tokens", f"{seconds:.2f}", "s", "")
    few = lengths[: 64 * 8 * 200 + 65]  # whose last step has two samples on each rank
    balanced = epoch_work(assign(few.size, 64, sampler="balanced", lengths=few, batch_size=8), few)
    at_random = epoch_work(assign(few.size, 64).with_loader(8), few)
    ratios = {"random order (peer)": at_random.ratios, "BalancedSampler": balanced.ratios}
    for name, values in ratios.items():
        cost = f"cost per step, highest over mean, {name}: mean of steps"
        show(cost, f"{values.mean():.4f}", "", "≤ 1.05" if name == "BalancedSampler" else "")
        show(cost.replace("mean of steps", "worst step"), f"{values.max():.4f}", "", "")


# ---- real steps


def real_steps(num_ranks, num_steps=20, num_rounds=7):
    """Print step times on real ranks in random and in balanced order, and those that their measured parts predict."""
    batch_size = 8
    lengths = lognormal_lengths(num_ranks * batch_size * num_steps, median=100)
    texts = [" ".join(map(str, range(length))) for length in lengths]
    orders = {
        "random order": assign(lengths.size, num_ranks).with_loader(batch_size),
        "BalancedSampler": assign(lengths.size, num_ranks, sampler="balanced", lengths=lengths, batch_size=batch_size),
    }
    times = step_times(texts, orders, num_rounds=num_rounds, timeout_s=1200)
    num_cores = len(os.sched_getaffinity(0))
    print(f"\n{times}")
    are_shared = num_ranks > num_cores
    ranks = f"{num_ranks} ranks"
    if are_shared:
        ranks += f" on {num_cores} cores"
    bar = "" if are_shared else "within 5 %"
    for name in orders:
        timed = times.orders[name]
        show(f"{ranks}, {name}: predicted", f"{times.predicted_s(name).sum():.3f}", "s", "")
        show(f"{ranks}, {name}: measured", f"{timed.seconds.sum():.3f}", f"s ±{timed.spread:.1%}", "")
        show(f"{ranks}, {name}: measured over predicted", f"{times.difference(name):+.1%}", "", bar)
    names = ("BalancedSampler", "random order")
    show(f"{ranks}: gain over random order, predicted", f"{times.predicted_gain(*names):.3f}", "times", "")
    gains = times.gains_of_rounds(*names)
    noise = f"{gains.min():.3f} to {gains.max():.3f} in {gains.size} rounds"
    show(f"{ranks}: gain over random order, measured", f"{times.gain(*names):.3f}", "times", noise)
    if not are_shared:
        highest = [epoch_work(order, lengths).step_costs.max(axis=1).sum() for order in orders.values()]
        show(f"{ranks}: gain over random order by costs alone", f"{highest[0] / highest[1]:.3f}", "times", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--steps", action="store_true", help="real steps on 2 and 4 ranks instead")
    options = parser.parse_args()
    if options.steps:
        for num_ranks in (2, 4):
            real_steps(num_ranks)
        return
    table(10**6 if options.quick else 10**7)


if __name__ == "__main__":
    sys.exit(main())
