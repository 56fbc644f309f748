"""Is a keyed order as random as torch's? python -m tests.benchmarks.shuffle_quality [--seeds 200] [--orders 100]

For each size and test: p-values of KeyedPermutation and of torch.randperm, both against exactly uniform orders; see
tests/sampling/shuffle_quality.py. `spread` tests whether the results of the seeds are spread as those of uniform
orders, `together` all orders of all seeds as one set. Three times as many seeds are counted for uniform orders.
torch.randperm is left out where it would have to make orders of more than a million.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from scipy import stats

from tests.sampling.shuffle_quality import quality, sets_of_orders

SIZES = (500, 4097, 5000, 65_537, 1_000_003, 10**12)
MOST_OF_TORCH = 100_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--orders", type=int, default=100, help="per seed")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    p_values = {"keyed": [], "torch": []}
    for size in options.sizes:
        uniform = sets_of_orders("uniform", size, 3 * options.seeds, options.orders)
        columns = {"keyed": quality(sets_of_orders("keyed", size, options.seeds, options.orders), uniform)}
        if size <= MOST_OF_TORCH:
            columns["torch"] = quality(sets_of_orders("torch", size, options.seeds, options.orders), uniform)
        heads = "".join(f"{kind + ', spread':>16}{'together':>10}" for kind in columns)
        print(f"\n{size:,} samples{'':<{max(20 - len(f'{size:,} samples'), 1)}}{heads}", flush=True)
        for name in columns["keyed"]:
            cells = "".join(f"{tests[name].spread:>16.4f}{tests[name].together:>10.4f}" for tests in columns.values())
            print(f"{name:<20}{cells}", flush=True)
        for kind, tests in columns.items():
            p_values[kind] += [value for test in tests.values() for value in test]
    for kind, values in p_values.items():
        if values:
            uniformity = stats.kstest(values, "uniform").pvalue
            expected = 1 - 0.5 ** (1 / len(values))
            lowest = f"lowest of {len(values)} p-values {np.min(values):.4f}, about {expected:.4f} expected"
            print(f"\n{kind}: {lowest}; p-value of their being uniform {uniformity:.3f}")


if __name__ == "__main__":
    sys.exit(main())
