"""DDP's steps that were measured over bucket caps, and predicted: python -m tests.benchmarks.ddp_prediction.

The sweeps are those of notebooks/profiles/ddp_steps.json, which names the commit after which the program left that
measured them. The allreduce alone and the contention were measured first, once for all modules and caps, then each
module's step without allreduces and with them at each cap, in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankscope.train.ddp import Contention

from ._ddp_sweeps import CapSweep, load_sweeps

RECORDED = Path(__file__).parents[2] / "notebooks" / "profiles" / "ddp_steps.json"


def print_table(sweeps: Sequence[CapSweep]) -> None:
    """Print a row a cap, in milliseconds; then, for each number of ranks and network, how far predictions are off."""
    print("ranks, network                  module        cap  measured  predicted    error    free")
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for sweep in sweeps:
        where = f"{sweep.num_ranks}, {sweep.network}"
        errors = sweep.predicted_s() / sweep.measured_s - 1
        free = sweep.predicted_s(Contention()) / sweep.measured_s - 1
        groups.setdefault(f"{where}: {sweep.contention}", []).append(np.abs(errors))
        for row, (cap, _) in enumerate(sweep.measured):
            times = f"{sweep.measured_s[row] * 1e3:10.1f}{sweep.predicted_s()[row] * 1e3:11.1f}"
            print(f"{where:32}{sweep.name:12}{cap or 'None':>5}{times}{errors[row]:+9.1%}{free[row]:+8.1%}")
    for where, off in groups.items():
        print(f"{where}; off by {np.median(off):.1%} (median), {np.max(off):.1%} (worst)")


if __name__ == "__main__":
    print_table(load_sweeps(RECORDED))
