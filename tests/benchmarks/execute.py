"""What `execute` takes next to an older checkout's: python -m tests.benchmarks.execute CHECKOUT [--rounds 20]

CHECKOUT is another checkout of this repository, for instance one made with `git worktree add`. Both libraries are
loaded in the same processes, the older one under another name, and use the same Gloo group. They take turns, so that
other load moves both. The ratio is new / old of neighbouring rounds: the median, and the range of the middle half.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.common.units import bytes_words
from rankscope.ranks import launch

ALGORITHMS = [
    ("allreduce", "ring"),
    ("allreduce", "halving_doubling"),
    ("allreduce", "double_binary_tree"),
    ("allgather", "ring"),
    ("all_to_all", "pairwise"),
]
NUM_RANKS = 4
SIZES = {2**10: 40, 2**16: 20, 2**20: 5, 2**22: 2, 2**24: 1}  # bytes of the whole buffer: calls in a round


class Compared(NamedTuple):
    """Seconds of a call in each round, by the slowest rank."""

    new_s: list[float]
    old_s: list[float]


def older(checkout: str) -> Any:
    """Return the `collectives` of another checkout, which imports its own modules only."""
    folder = Path(checkout, "lib", "rankscope")
    spec = importlib.util.spec_from_file_location(
        "rankscope_before", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["rankscope_before"] = package
    spec.loader.exec_module(package)
    return importlib.import_module("rankscope_before.collectives")


def race(checkout: str, rounds: int) -> dict[tuple[str, str, int], Compared]:
    """On one rank: let both take turns at everything."""
    import torch
    import torch.distributed as dist

    import rankscope.collectives

    sides = (rankscope.collectives, older(checkout))

    def seconds(call: Callable[[], object], num_calls: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        own_s = torch.tensor((time.perf_counter() - start) / num_calls, dtype=torch.float64)
        dist.all_reduce(own_s, dist.ReduceOp.MAX)
        return float(own_s)

    results = {}
    for num_bytes, num_calls in SIZES.items():
        num_elements = num_bytes // 4
        for collective, name in ALGORITHMS:
            tensor = torch.zeros(num_elements // NUM_RANKS if collective == "allgather" else num_elements)
            calls = []
            for side in sides:
                schedule = side.build(collective, name, NUM_RANKS)
                calls.append(lambda side=side, schedule=schedule, tensor=tensor: side.execute(schedule, tensor))
                seconds(calls[-1], 3)
            taken: tuple[list[float], list[float]] = ([], [])
            for number in range(rounds):
                for place in (0, 1) if number % 2 else (1, 0):
                    taken[place].append(seconds(calls[place], num_calls))
            results[collective, name, num_bytes] = Compared(*taken)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    results = launch(race, NUM_RANKS, args=(options.checkout, options.rounds), timeout_s=3000)[0]
    print(f"{f'on {NUM_RANKS} ranks, ms a call':<34}{'size':>10}{'new':>10}{'old':>10}{'ratio':>8}   middle half")
    for (collective, name, num_bytes), (new_s, old_s) in results.items():
        ratios = [new / old for new, old in zip(new_s, old_s, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        size = bytes_words(num_bytes)
        both = f"{1e3 * statistics.median(new_s):>10.3f}{1e3 * statistics.median(old_s):>10.3f}"
        print(f"{collective + ' by ' + name:<34}{size:>10}{both}{middle:>8.2f}   {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
