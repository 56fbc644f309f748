"""What the explorer of `collectives` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rankscope.cluster import Cluster
from rankscope.collectives import ALGORITHMS, Schedule, closed_form, lower_bounds, simulate
from rankscope.collectives.player.explorer import cluster, ranking
from rankscope.common.units import parse_bytes

Truths = list[tuple[Any, ...]]
# A node has one rank, so that all links are alike: then the ranking comes from closed forms, and this from simulations.
EQUAL_LINKS = {"gpus_per_node": 1, "shared_nic": False}


def seconds_of(collective: str, name: str, num_bytes: float, on: Cluster) -> float:
    """The least time of an algorithm: simulated, or for segments all closed forms; infinite if it does not exist."""
    record = ALGORITHMS[collective][name]
    times = []
    for options in record.tries(on):
        try:
            if record.segments:
                form = (collective, name, on.num_ranks, num_bytes, on.fastest_link, on.gamma_s_per_byte)
                times.append(closed_form(*form, **options))
            else:
                times.append(simulate(record(on.num_ranks, **options), num_bytes, on).makespan_s)
        except ValueError:
            continue
    return min(times, default=float("inf"))


def counted(schedule: Schedule, num_bytes: float) -> tuple[int, int, float]:
    """The steps, the messages and what the busiest rank sends, counted transfer by transfer."""
    sent: Counter[int] = Counter()
    num_messages = 0
    for step in schedule.steps():
        num_messages += len({(src, dst) for src, dst, *_ in step.rows()})
        for src, _, _, count, _ in step.rows():
            sent[src] += count
    num_chunks = (
        schedule.num_ranks if schedule.collective == "all_to_all" else schedule.num_chunks
    )  # of a rank's buffer
    return schedule.num_steps, num_messages, max(sent.values(), default=0) * num_bytes / num_chunks


def player(now: Any) -> Truths:
    """The two that race: the chosen algorithm, and the fastest of all others."""
    on = cluster(now)
    num_bytes = parse_bytes("message", now.message)
    runners, _ = ranking(now)
    collective, chosen = runners[0].schedule.collective, runners[0].schedule.algorithm
    times = {name: seconds_of(collective, name, num_bytes, on) for name in ALGORITHMS[collective]}
    own_s = times.pop(chosen)
    other_s = min(times.values())
    fastest = [name for name in times if times[name] <= other_s * (1 + 1e-6) + 1e-15]
    least_s = lower_bounds(num_bytes, on, collective).seconds
    pair = sorted([(own_s, chosen), (other_s, f"(?:{'|'.join(fastest)})")])
    is_tie = pair[1][0] - pair[0][0] <= 1e-9 * pair[1][0]
    names = [r"\w+" if is_tie else name for _, name in pair]
    truths: Truths = [
        (f"^{names[0]} takes #, {names[1]} #\n", pair[0][0], pair[1][0]),
        ("lower bound on the fastest link: #", least_s),
    ]
    for runner, seconds in zip(runners[:2], (own_s, other_s), strict=True):
        num_steps, num_messages, sent_bytes = counted(runner.schedule, num_bytes)
        line = f"{runner.name}: #; .*, # from the busiest rank; verified in at most 4 segments: # steps?, # messages?"
        truths.append((line, seconds, sent_bytes, num_steps, num_messages))
        if "segments" not in runner.effort:
            truths.append((f"{runner.name}: [^;]*; # steps?,", num_steps))
    return truths


TRUTHS = {"player": (EQUAL_LINKS, player)}
