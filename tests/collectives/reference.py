"""The port model again, as a plain event queue in exact fractions: what `simulate` is compared with.

Each step is played instant by instant, with every waiting message looked at each time. Nothing is rounded, so what is
ready at the same time is known to be, and goes in the order of the step.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from rankscope.cluster import Cluster
from rankscope.collectives import Schedule

Told = list[tuple[int, int, int, Fraction, Fraction, Fraction]]


def reference(schedule: Schedule, num_bytes: float, cluster: Cluster) -> tuple[float, Told]:
    """When all is over, and (step, src, dst, start, end, added) of each message in its order."""
    sizes = [Fraction(size) for size in schedule.chunk_bytes(num_bytes).tolist()]
    ended = [Fraction()] * cluster.num_ranks  # when a rank's messages of earlier steps were over
    added = [[Fraction()] * cluster.num_ranks for _ in range(schedule.lag)]
    cards: dict[tuple[str, int], Fraction] = defaultdict(Fraction)  # when each is free
    told: Told = []
    for number, step in enumerate(schedule.steps()):
        messages: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
        for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True):
            here = sum(sizes[chunk : chunk + count], Fraction())
            sent, to_add = messages.get((src, dst), (Fraction(), Fraction()))
            messages[src, dst] = sent + here, to_add + here * reduce
        enter = [max(a, b) for a, b in zip(ended, added[0], strict=True)]
        adder = list(added[-1])
        played = _play(messages, enter, adder, cards, cluster)
        ended = list(enter)
        for (src, dst), (start, end, done) in played.items():
            ended[src], ended[dst] = max(ended[src], end), max(ended[dst], end)
            told.append((number, src, dst, start, end, done))
        added = [*added[1:], adder]
    return float(max([*ended, *added[-1]])), told


def _play(messages, enter, adder, cards, cluster):  # type: ignore[no-untyped-def]
    start, gone, end, done = {}, {}, {}, {}
    later = sorted({enter[rank] for pair in messages for rank in pair})  # instants at which something may happen
    while later:
        now, *later = later
        changed = True
        while changed:  # what takes no time has more follow at this instant
            known = len(start), len(end), len(done)
            for pair in messages:
                if pair in end and end[pair] == now and pair not in done:
                    adding = messages[pair][1] * Fraction(cluster.gamma_s_per_byte)
                    done[pair] = end[pair]
                    if adding:
                        done[pair] = adder[pair[1]] = max(now, adder[pair[1]]) + adding
            waiting = [pair for pair in messages if pair not in start]
            for pair in [pair for pair in waiting if _may_start(pair, messages, end, done, enter, now, cluster)]:
                alpha, wire, leaves, enters = _link(cluster, pair, messages)
                start[pair] = now
                if cluster.shared_nic and leaves != enters:
                    gone[pair] = cards["out", leaves] = max(now, cards["out", leaves]) + wire
                else:
                    end[pair] = now + alpha + wire
            changed = known != (len(start), len(end), len(done))
            if not changed:
                for pair in messages:
                    if pair in gone and gone[pair] == now and pair not in end:
                        alpha, wire, _, node = _link(cluster, pair, messages)
                        cards["in", node] = max(now, cards["in", node] + wire)
                        end[pair], changed = cards["in", node] + alpha, True
        later = sorted({time for times in (start, gone, end, done) for time in times.values() if time > now} | {*later})
    return {pair: (start[pair], end[pair], done[pair]) for pair in messages}


def _may_start(pair, messages, end, done, enter, now, cluster):  # type: ignore[no-untyped-def]
    """Both ranks are there, and so few before it at either are not over that there is a port for it."""
    before = list(messages)[: list(messages).index(pair)]
    for place, over in ((0, end), (1, done)):
        rank = pair[place]
        mine = [other for other in before if other[place] == rank]
        unfinished = sum(not (other in over and over[other] <= now) for other in mine)
        if enter[rank] > now or unfinished >= (cluster.ports or 10**9):
            return False
    return True


def _link(cluster, pair, messages):  # type: ignore[no-untyped-def]
    leaves, enters = (rank // cluster.gpus_per_node for rank in pair)
    link = cluster.overrides.get(pair, cluster.intra if leaves == enters else cluster.inter)
    return Fraction(link.alpha_s), messages[pair][0] * Fraction(link.beta_s_per_byte), leaves, enters
