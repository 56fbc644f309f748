"""A step over a switch that adds (`Cluster.switch_adds`), which merges messages."""

from __future__ import annotations

import numpy as np

from ..cluster import Cluster
from .messages import Bytes, Messages, Seconds
from .steps import Step, number_among_equal


def switch_sums(
    cluster: Cluster, each: Messages, step: Step, row_bytes: Bytes, start_s: Seconds
) -> tuple[Seconds, Seconds] | None:
    """Return when each message ends, and how long its receiver adds; None if the switch has nothing to merge.

    It merges nothing in a step in which a message leaves its node.

    The switch adds what several ranks send into the same run of chunks of one rank, and copies a run that one rank
    sends to several. That one rank is the hub of a transfer, and the other one its rim. Transfers with the same hub,
    direction and run are a group, which is sent once the last of its messages may start.
    """
    if not np.array_equal(cluster.node(each.src), cluster.node(each.dst)):
        return None
    hub = np.where(step.reduce, step.dst, step.src)
    rim = np.where(step.reduce, step.src, step.dst)
    runs = np.stack([hub, step.reduce, step.chunk, step.num_chunks])
    _, group = np.unique(runs, axis=1, return_inverse=True)
    group = group.reshape(-1)  # numpy 2.0 returns a table of one row
    group_and_rim = np.unique(group * cluster.num_ranks + rim)
    num_rims = np.bincount(group_and_rim // cluster.num_ranks)
    is_merged = num_rims[group] > 1
    if not is_merged.any():
        return None

    link_bytes = np.zeros((2, cluster.num_ranks))  # over each rank's link to the switch, outwards and inwards
    inwards_at_hub = step.reduce.astype(int)
    is_first = number_among_equal(group) == 0
    np.add.at(link_bytes, (1 - inwards_at_hub, rim), row_bytes)
    once = is_first | ~is_merged  # a merged group crosses the hub's link once
    np.add.at(link_bytes, (inwards_at_hub[once], hub[once]), row_bytes[once])
    # The hub takes part in a merged group as each rim does: its own share of a sum goes out to the switch, and its own
    # copy of what it sends comes back.
    own = is_first & is_merged
    np.add.at(link_bytes, (1 - inwards_at_hub[own], hub[own]), row_bytes[own])

    message = each.of_row[is_merged]
    group_start_s = np.zeros(num_rims.size)
    np.maximum.at(group_start_s, group[is_merged], start_s[message])
    sent_s = start_s.copy()
    np.maximum.at(sent_s, message, group_start_s[group[is_merged]])
    crossing = np.maximum(link_bytes[0, each.src], link_bytes[1, each.dst])
    added = np.bincount(each.of_row, row_bytes * (step.reduce & ~is_merged), each.src.size)
    _, beta_s_per_byte = cluster.costs(each.src, each.dst)
    return sent_s + each.alpha_s + crossing * beta_s_per_byte, np.asarray(added * cluster.gamma_s_per_byte, dtype=float)
