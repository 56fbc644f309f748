"""Every algorithm's steps, verification, traffic, closed form and simulated times, and the best of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, best, build, closed_form, lower_bounds, simulate, verify

from .values import Cases, attempt, end_and_busy, fields, floats, ints, plain, timeline

NUMBERS_OF_RANKS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
SIZES = (1000.0, 65536.0, 1e6, 5e7)
_IN_SWITCH = ("nvls", "nvls_tree")  # of allreduce, for a switch that adds
_SLOW, _FAST = Link(12e-6, 10e9), Link(2e-6, 250e9)
# Each algorithm is tried with each of these for 8 ranks, and refuses those that it does not have.
OPTIONS: list[dict[str, Any]] = [
    {"root": 3},
    {"num_segments": 3},
    {"num_segments": 6, "root": 3},
    {"gpus_per_node": 2},
    {"gpus_per_node": 4},
    {"gpus_per_node": 4, "num_segments": 2},
    {"shape": (2, 4)},
    {"shape": (4, 2)},
    {"shape": (2, 2, 2)},
]


def cases() -> Cases:
    all_cases: Cases = {}
    for collective in ALGORITHMS:
        names = list(ALGORITHMS[collective])
        if collective == "allreduce":
            names += _IN_SWITCH
        for algorithm in names:
            plainly: list[tuple[int, dict[str, Any]]] = [(num_ranks, {}) for num_ranks in NUMBERS_OF_RANKS]
            for num_ranks, options in [*plainly, *((8, options) for options in OPTIONS)]:
                name = f"{collective} {algorithm} {num_ranks} {options or ''}".strip()
                all_cases[name] = partial(attempt, _built, collective, algorithm, num_ranks, options)
    for name in clusters(16):
        for collective in ALGORITHMS:
            all_cases[f"best {collective} {name}"] = partial(_best, collective, name)
    return all_cases


def clusters(num_ranks: int) -> dict[str, Cluster]:
    """Return twelve clusters, by name; the first six are those on which schedules are simulated."""
    nodes = next(nodes for nodes in (4, 3, 2, 1) if num_ranks % nodes == 0)
    gpus = num_ranks // nodes
    odd_pairs = {(0, num_ranks - 1): Link(50e-6, 1e9)} if num_ranks > 1 else {}
    return {
        "uniform": Cluster.uniform(num_ranks, _SLOW),
        "adds": Cluster.uniform(num_ranks, _SLOW, gamma_s_per_byte=2e-10),
        "many ports": Cluster.uniform(num_ranks, _SLOW, gamma_s_per_byte=1e-10, ports=None),
        "nodes": Cluster(nodes, gpus, _FAST, _SLOW, 1e-11),
        "shared nic": Cluster(nodes, gpus, _FAST, _SLOW, 1e-11, 2, shared_nic=True),
        "switch": Cluster(nodes, gpus, _FAST, _SLOW, 1e-11, switch_adds=True),
        "odd pair": Cluster(nodes, gpus, _FAST, _SLOW, overrides=odd_pairs),
        "latency only": Cluster.uniform(num_ranks, Link(1e-3, 1e15)),
        "bandwidth only": Cluster.uniform(num_ranks, Link(0.0, 1e9)),
        "two ports": Cluster(nodes, gpus, _FAST, _FAST, 1e-11, 2),
        "one node with a switch": Cluster(1, num_ranks, _FAST, _SLOW, 1e-11, switch_adds=True),
        "one rank per node": Cluster(num_ranks, 1, _FAST, _SLOW, 1e-11, shared_nic=True),
    }


def _built(collective: str, algorithm: str, num_ranks: int, options: dict[str, Any]) -> dict[str, Any]:
    schedule = build(collective, algorithm, num_ranks, **options)
    rows = []
    for number, step in enumerate(schedule.steps()):
        # The order of the rows of a step says which message goes first.
        rows += [(number, *row) for row in zip(*(column.tolist() for column in step), strict=True)]
    traffic = schedule.traffic(1e6)
    forms = [attempt(_form, collective, algorithm, num_ranks, SIZES, _SLOW, gamma, **options) for gamma in (0.0, 2e-10)]
    simulated = {
        name: [attempt(_simulated, schedule, size, cluster) for size in SIZES]
        for name, cluster in list(clusters(num_ranks).items())[:6]
    }
    value = {
        "rows": ints(np.array(rows)),
        "header": plain(fields(schedule, ("num_chunks", "num_steps", "root", "ports", "lag"))),
        "verified": fields(verify(schedule), ("num_steps", "num_messages", "most_sends", "most_receives")),
        "sent_bytes": floats(traffic.sent_bytes),
        "link_bytes": floats(traffic.link_bytes.ravel()),
        "closed form": forms,
        "simulated": simulated,
    }
    if num_ranks in (6, 8):  # each message of it
        value["messages"] = timeline(simulate(schedule, 1e6, clusters(num_ranks)["shared nic"]))
    return value


def _form(*arguments: Any, **options: Any) -> Any:
    return floats(closed_form(*arguments, **options))


def _simulated(schedule: Schedule, size: float, cluster: Cluster) -> list[float]:
    return end_and_busy(simulate(schedule, size, cluster))


def _best(collective: str, name: str) -> list[Any]:
    """The algorithms from the fastest to the slowest, those of equal time by name, and the lower bounds."""
    cluster = clusters(16)[name]
    values = []
    for size in SIZES:
        chosen = best(size, cluster, collective)
        candidates = [(candidate.seconds, candidate.algorithm, candidate.options) for candidate in chosen.candidates]
        bounds = lower_bounds(
            collective, 16, size, cluster.fastest_link, cluster.gamma_s_per_byte, cluster.ports, cluster.switch_adds
        )
        values.append(
            {
                "candidates": plain(sorted(candidates, key=lambda row: (float(f"{row[0]:.9g}"), row[1]))),
                "bound_s": float(chosen.bound_s),
                "bounds": fields(bounds, ("latency_s", "bandwidth_s", "adding_s")),
            }
        )
    return values
