"""The port model again, a message at a time in plain Python: what `simulate` is compared with."""

from __future__ import annotations

from collections import defaultdict

from rankscope.cluster import Cluster
from rankscope.collectives import Schedule


def reference(schedule: Schedule, num_bytes: float, cluster: Cluster) -> tuple[float, list[tuple]]:
    """When all is over, and (step, src, dst, start, end, added) of each message in its order."""
    sizes, gpus = schedule.chunk_bytes(num_bytes), cluster.gpus_per_node
    ended = [0.0] * cluster.num_ranks  # when a rank's messages of earlier steps were over
    added = [[0.0] * cluster.num_ranks for _ in range(schedule.lag)]
    out, into = defaultdict(float), defaultdict(float)  # network cards
    told = []
    for number, step in enumerate(schedule.steps()):
        messages: dict[tuple[int, int], list[float]] = {}
        for src, dst, chunk, count, reduce in zip(*(column.tolist() for column in step), strict=True):
            here = float(sum(sizes[chunk : chunk + count]))
            both = messages.setdefault((src, dst), [0.0, 0.0])
            both[0] += here
            both[1] += here if reduce else 0.0
        enter = [max(a, b) for a, b in zip(ended, added[0], strict=True)]
        adder = list(added[-1])
        sent, received = defaultdict(list), defaultdict(list)
        level: list[list[tuple]] = []
        depth: dict[tuple[int, int], int] = {}
        ports = cluster.ports or 10**9
        for pair in messages:  # who waits for whom
            src, dst = pair
            before = [q[-ports] for q in (sent[src], received[dst]) if len(q) >= ports]
            depth[pair] = max((depth[b] + 1 for b in before), default=0)
            sent[src].append(pair)
            received[dst].append(pair)
            while len(level) <= depth[pair]:
                level.append([])
            level[depth[pair]].append(pair)
        start, end, done = {}, {}, {}
        for pairs in level:
            for src, dst in pairs:
                waits = [enter[src], enter[dst]]
                place = sent[src].index((src, dst))
                if place >= ports:
                    waits.append(end[sent[src][place - ports]])
                place = received[dst].index((src, dst))
                if place >= ports:
                    waits.append(done[received[dst][place - ports]])
                start[src, dst] = max(waits)
                link = cluster.intra if src // gpus == dst // gpus else cluster.inter
                link = cluster.overrides.get((src, dst), link)
                end[src, dst] = start[src, dst] + link.alpha_s + messages[src, dst][0] * link.beta_s_per_byte
            if cluster.shared_nic:
                away = [pair for pair in pairs if pair[0] // gpus != pair[1] // gpus]
                gone = {}
                for src, dst in sorted(away, key=lambda pair: start[pair]):
                    link = cluster.overrides.get((src, dst), cluster.inter)
                    wire = messages[src, dst][0] * link.beta_s_per_byte
                    gone[src, dst] = out[src // gpus] = max(start[src, dst], out[src // gpus]) + wire
                for src, dst in sorted(away, key=lambda pair: gone[pair]):
                    link = cluster.overrides.get((src, dst), cluster.inter)
                    wire = messages[src, dst][0] * link.beta_s_per_byte
                    into[dst // gpus] = max(gone[src, dst], into[dst // gpus] + wire)
                    end[src, dst] = into[dst // gpus] + link.alpha_s
            for src, dst in sorted(pairs, key=lambda pair: end[pair]):
                adding = messages[src, dst][1] * cluster.gamma_s_per_byte
                done[src, dst] = max(end[src, dst], adder[dst]) + adding if adding else end[src, dst]
                adder[dst] = max(adder[dst], done[src, dst]) if adding else adder[dst]
        ended = list(enter)
        for src, dst in messages:
            ended[src] = max(ended[src], end[src, dst])
            ended[dst] = max(ended[dst], end[src, dst])
            told.append((number, src, dst, start[src, dst], end[src, dst], done[src, dst]))
        added = [*added[1:], adder]
    return max([*ended, *added[-1]]), told
