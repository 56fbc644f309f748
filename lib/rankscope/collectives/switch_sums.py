"""A step over a switch that adds (`Cluster.switch_adds`), which merges messages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..cluster import Cluster
from .messages import Bytes, Messages, Seconds
from .steps import Step


def switch_sums(
    cluster: Cluster, each: Messages, step: Step, row_bytes: Bytes, start_s: Seconds
) -> tuple[Seconds, Seconds] | None:
    """Return when each message ends, and how long its receiver adds; None if the switch has nothing to merge.

    The switch adds what several ranks send into the same run of chunks of one rank, and copies a run that one rank
    sends to several. That one rank is the hub of a transfer. Transfers with the same hub, direction and run are a
    group, which is sent once the last of its messages may start. It merges nothing in a step in which a message leaves
    its node.
    """
    if not np.array_equal(cluster.node(each.src), cluster.node(each.dst)):
        return None
    groups: dict[tuple[int, bool, int, int], list[int]] = defaultdict(list)  # of transfers
    for row, (src, dst, chunk, count, reduce) in enumerate(step.rows()):
        groups[dst if reduce else src, reduce, chunk, count].append(row)

    link_bytes = np.zeros((2, cluster.num_ranks))  # over each rank's link to the switch, outwards and inwards
    np.add.at(link_bytes[0], step.src, row_bytes)
    np.add.at(link_bytes[1], step.dst, row_bytes)
    is_merged = np.zeros(step.src.size, dtype=bool)
    sent_s = start_s.copy()
    for (hub, reduce, _, _), rows in groups.items():
        others = step.src if reduce else step.dst
        if len(set(others[rows].tolist())) > 1:
            is_merged[rows] = True
            # A merged group crosses the hub's link once. The hub takes part in it as the others do: its own share of a
            # sum goes out to the switch, and its own copy of what it sends comes back.
            link_bytes[int(reduce), hub] -= row_bytes[rows[1:]].sum()
            link_bytes[1 - int(reduce), hub] += row_bytes[rows[0]]
            messages = each.of_row[rows]
            sent_s[messages] = np.maximum(sent_s[messages], start_s[messages].max())
    if not is_merged.any():
        return None
    crossing = np.maximum(link_bytes[0, each.src], link_bytes[1, each.dst])
    added = np.bincount(each.of_row, row_bytes * (step.reduce & ~is_merged), each.src.size)
    _, beta_s_per_byte = cluster.costs(each.src, each.dst)
    return sent_s + each.alpha_s + crossing * beta_s_per_byte, np.asarray(added * cluster.gamma_s_per_byte, dtype=float)
