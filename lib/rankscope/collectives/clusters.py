"""Settings of the links of a cluster, for the explorers of collectives."""

from __future__ import annotations

from ..cluster import Cluster, Link
from ..panel.explorer import Now, Setting, Steps

_LATENCIES_US = Steps((0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100))
_RATES_GB_PER_S = Steps((1, 2, 3, 5, 10, 12, 25, 50, 100, 200, 300, 450, 600, 900))


def _has_network(now: Now) -> bool:
    return bool(now.num_nodes > 1)


def _has_links_in_nodes(now: Now) -> bool:
    return bool(now.gpus_per_node > 1)


SETTINGS = (
    Setting("inter_us", 10, _LATENCIES_US, "latency, network [µs]", _has_network),
    Setting("inter_gb_per_s", 25, _RATES_GB_PER_S, "bandwidth, network [GB/s]", _has_network),
    Setting("intra_us", 3, _LATENCIES_US, "latency, node [µs]", _has_links_in_nodes),
    Setting("intra_gb_per_s", 200, _RATES_GB_PER_S, "bandwidth, node [GB/s]", _has_links_in_nodes),
    Setting("gamma_ps", 1, Steps((0, 1, 2, 5, 10, 20, 50, 100)), "adding up [ps/byte]"),
    Setting("shared_nic", False, (), "one card per node", _has_network),
)
# Links of real machines, at the nearest values of the sliders: what NCCL's model of a ring with protocol Simple has for
# a hop, and for what a GPU and its network card carry (`LATENCY_US` and `GPUS` in `rankscope.box.nccl.constants`).
H100_LINKS = {"intra_us": 3, "inter_us": 15, "intra_gb_per_s": 300, "inter_gb_per_s": 50}  # NVLink 4, InfiniBand NDR


def cluster(now: Now) -> Cluster:
    """Return the cluster that is set."""
    intra = Link(now.intra_us / 1e6, now.intra_gb_per_s * 1e9)
    inter = Link(now.inter_us / 1e6, now.inter_gb_per_s * 1e9)
    shared = now.shared_nic and now.num_nodes > 1  # within a node no message passes the card
    return Cluster(now.num_nodes, now.gpus_per_node, intra, inter, now.gamma_ps / 1e12, shared_nic=shared)
