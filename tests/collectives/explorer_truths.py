"""What the explorers of `collectives` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rankscope.cluster import Link
from rankscope.collectives import closed_form, lower_bounds, simulate
from rankscope.collectives.clusters import cluster
from rankscope.collectives.explorer import schedule
from rankscope.collectives.player.explorer import plays
from rankscope.common.units import parse_bytes

Truths = list[tuple[Any, ...]]
# A node has one rank, so that all links are alike, as in closed forms.
EQUAL_LINKS = {"gpus_per_node": 1, "shared_nic": False, "gamma_ps": 0}


def allreduce(now: Any) -> Truths:
    """Closed forms, where there is one."""
    link = Link(now.inter_us / 1e6, now.inter_gb_per_s * 1e9)
    num_bytes = parse_bytes("message", now.message)
    drawn = schedule(now)
    options = {"num_segments": now.num_segments} if "segmented" in now.algorithm else {}
    try:
        seconds = closed_form("allreduce", now.algorithm, now.num_nodes, num_bytes, link, **options)
    except ValueError:
        return []
    least_s = lower_bounds("allreduce", now.num_nodes, num_bytes, link).seconds
    return [
        ("verified: # steps?", drawn.num_steps),
        ("predicted: #; lower bound on the fastest link: #", seconds, least_s),
    ]


def player(now: Any) -> Truths:
    """Messages counted one by one, and the simulation that keeps no messages."""
    truths: Truths = []
    for play in plays(now):
        built = play.schedule
        sent: Counter[int] = Counter()
        num_messages = 0
        for step in built.steps():
            num_messages += len({(src, dst) for src, dst, *_ in step.rows()})
            for src, _, _, count, _ in step.rows():
                sent[src] += count
        num_chunks = built.num_ranks if built.collective == "all_to_all" else built.num_chunks  # of a rank's buffer
        busiest = max(sent.values(), default=0) * parse_bytes("message", now.message) / num_chunks
        seconds = simulate(built, parse_bytes("message", now.message), cluster(now), detail="ranks").makespan_s
        line = f"{built.algorithm} {built.collective}: # steps?, # messages?; the busiest rank sends #; #"
        truths.append((line, built.num_steps, num_messages, busiest, seconds))
    return truths


TRUTHS = {"allreduce": (EQUAL_LINKS, allreduce), "player": ({}, player)}
