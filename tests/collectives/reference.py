"""The port model again, as a plain event queue in exact fractions: what `simulate` is compared with.

Each step is played instant by instant, with every waiting message looked at each time. Nothing is rounded, so what is
ready at the same time is known to be, and goes in the order of the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import NamedTuple

from rankscope.cluster import Cluster
from rankscope.collectives import Schedule


class Message(NamedTuple):
    """All that one rank sends another in a step, and when it starts, ends and has been added to what is there."""

    step: int
    src: int
    dst: int
    start_s: Fraction
    end_s: Fraction
    added_s: Fraction


def reference(schedule: Schedule, num_bytes: float, cluster: Cluster) -> tuple[float, list[Message]]:
    """Return when all is over, and each message in its order."""
    sizes = [Fraction(size) for size in schedule.chunk_bytes(num_bytes).tolist()]
    ended = [Fraction()] * cluster.num_ranks  # when a rank's messages of earlier steps were over
    added = [[Fraction()] * cluster.num_ranks for _ in range(schedule.lag)]
    cards: dict[tuple[str, int], Fraction] = defaultdict(Fraction)  # when each is free
    all_messages: list[Message] = []
    for number, step in enumerate(schedule.steps()):
        messages: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
        for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True):
            here = sum(sizes[chunk : chunk + count], Fraction())
            sent, to_add = messages.get((src, dst), (Fraction(), Fraction()))
            messages[src, dst] = sent + here, to_add + here * reduce
        enter = [max(a, b) for a, b in zip(ended, added[0], strict=True)]
        adder = list(added[-1])
        rows = [
            (src, dst, (reduce, dst if reduce else src, chunk, count), sum(sizes[chunk : chunk + count], Fraction()))
            for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True)
        ]
        if cluster.switch_adds and all(len({rank // cluster.gpus_per_node for rank in pair}) == 1 for pair in messages):
            others = {(dst, run) if not run[0] else (src, run) for src, dst, run, _ in rows}
            merged = {run for run, ranks in Counter(run for _, run in others).items() if ranks > 1}
        else:
            merged = set()
        if merged:
            played = _in_switch(rows, merged, enter, adder, cluster)
        else:
            played = _play(messages, enter, adder, cards, cluster)
        ended = list(enter)
        for (src, dst), (start, end, done) in played.items():
            ended[src], ended[dst] = max(ended[src], end), max(ended[dst], end)
            all_messages.append(Message(number, src, dst, start, end, done))
        added = [*added[1:], adder]
    return float(max([*ended, *added[-1]])), all_messages


def _in_switch(rows, merged, enter, adder, cluster):  # type: ignore[no-untyped-def]
    """A step in which the switch adds or copies the runs `merged`: what crosses each link is counted one by one."""
    out, into = defaultdict(Fraction), defaultdict(Fraction)
    for src, dst, run, size in rows:
        if run not in merged:
            out[src] += size
            into[dst] += size
        elif run[0]:
            out[src] += size
        else:
            into[dst] += size
    for run in merged:  # once at the rank that takes the sum or gives the copies, and its own share the other way
        size = next(size for _, _, other, size in rows if other == run)
        out[run[1]] += size
        into[run[1]] += size
    start = {(src, dst): max(enter[src], enter[dst]) for src, dst, _, _ in rows}
    end, to_add = {}, dict.fromkeys(start, Fraction())
    for src, dst, run, size in rows:
        to_add[src, dst] += size * (run[0] and run not in merged)
    for pair in start:
        mine = {run for src, dst, run, _ in rows if (src, dst) == pair and run in merged}
        last = max([start[pair], *(start[src, dst] for src, dst, run, _ in rows if run in mine)])
        wire = max(out[pair[0]], into[pair[1]]) * Fraction(cluster.intra.beta_s_per_byte)
        end[pair] = last + Fraction(cluster.intra.alpha_s) + wire
    done = dict(end)
    for pair in sorted(start, key=lambda pair: end[pair]):
        if to_add[pair] and cluster.gamma_s_per_byte:
            adding = to_add[pair] * Fraction(cluster.gamma_s_per_byte)
            done[pair] = adder[pair[1]] = max(end[pair], adder[pair[1]]) + adding
    return {pair: (start[pair], end[pair], done[pair]) for pair in start}


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
    link = cluster.intra if leaves == enters else cluster.inter
    return Fraction(link.alpha_s), messages[pair][0] * Fraction(link.beta_s_per_byte), leaves, enters
