"""Measure a profile on an emulated network: python -m tests.tools.emulate 100Mbit/s,5ms (root, Linux).

There is one rank per host. The profiles `emulated_100mbit_5ms_*_ranks.json` of the notebooks are measured so.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from rankscope.box import Profile, Protocol, measure
from rankscope.box.options import parse_sizes
from rankscope.provenance import command_words
from tests.tools.emulate import emulated

BITS = {"k": 1e3, "M": 1e6, "G": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_network(text: str) -> tuple[float, float]:
    """Return the bytes/s and the latency in seconds of the network that a string describes."""
    number = r"(\d+(?:\.\d+)?) ?"
    match = re.fullmatch(rf"{number}([kMG])bit/s(?:, ?{number}(us|ms|s))?", text.strip())
    if match is None:
        raise ValueError(f"network must be a rate and a latency, as in 100Mbit/s,5ms, or a rate alone, got {text!r}")
    latency_s = float(match[3]) * SECONDS[match[4]] if match[3] else 0.0
    return float(match[1]) * BITS[match[2]] / 8, latency_s


def main(words: list[str]) -> Profile:
    """Measure links, memory and allreduces, and store the profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", help="as in 100Mbit/s,5ms")
    parser.add_argument("-o", "--output", type=Path, default=Path("emulated.json"))
    parser.add_argument("--num-ranks", type=int, default=4)
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("1KiB:4MiB"))
    parser.add_argument("--algorithms", nargs="+", help="default: all")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--budget", type=float, default=0.4, help="seconds per point")
    options = parser.parse_args(words)
    protocol = Protocol(
        sizes=options.sizes,
        algorithms=options.algorithms,
        iterations=options.iterations,
        budget_s=options.budget,
        real_time=True,
        thorough=True,
        transfers=False,
    )
    bytes_per_s, latency_s = parse_network(options.network)
    command = command_words(["python", "-m", "tests.tools.emulate", *words])
    with emulated(options.num_ranks, bytes_per_s, latency_s) as network:

        def launch(fn: Any, num_ranks: int, args: Any, backend: str, timeout_s: float) -> list[Any]:
            return network.launch(fn, args, timeout_s, num_ranks // network.num_hosts)

        about = {"name": options.output.stem, "command": command, "network": str(network), "launch_ranks": launch}
        return measure(options.output, protocol, num_ranks=options.num_ranks, backend="gloo", **about)


if __name__ == "__main__":
    main(sys.argv[1:])
