"""What machines take: our terms for NVLink within a node, and otherwise NCCL's own estimate after a launch."""

from __future__ import annotations

import math

from .constants import SPLIT, Terms
from .tuner import Tuner

_SIMPLE_CHUNK_BYTES = 1 << 21  # of a channel: two slices
_NVLS_CHUNK_BYTES = 131072
_SHORT_NVLS = ((64, 65536), (8, 32768), (2, 16384))  # below so many rounds, chunks of at most so many bytes


def terms_us(
    tuner: Tuner, collective: str, algorithm: str, protocol: str, num_bytes: int, channels: int
) -> dict[str, float]:
    """Return the named terms of the time, in µs; their sum is the time."""
    terms = tuner.terms or tuner.generation.terms
    by_name = {"launch": terms.launch_us}
    is_on_nvlink = tuner.is_on_nvlink and tuner.num_nodes == 1
    if algorithm == "nvls":
        by_name |= _nvls_us(tuner, terms, num_bytes, channels)
    elif algorithm == "ring" and is_on_nvlink and collective in ("allreduce", *SPLIT):
        piece_bytes = num_bytes / tuner.num_ranks / channels  # what a rank sends on a channel in a step
        by_name |= _ring_us(tuner, terms, collective, protocol, piece_bytes)
    else:  # No measurement shows better terms than NCCL's own. Our launch replaces its base latency.
        latency_us = tuner.latency_us(collective, algorithm, protocol)
        by_name["hops"] = latency_us - tuner.hop_us("base", algorithm, protocol)
        by_name["bytes"] = tuner.expected_us(collective, algorithm, protocol, num_bytes) - latency_us
    return by_name


def _ring_us(tuner: Tuner, terms: Terms, collective: str, protocol: str, piece_bytes: float) -> dict[str, float]:
    """Return the terms of a ring. In each step, a rank sends a piece of the buffer on each channel."""
    steps = tuner.num_steps(collective)
    graph = tuner.graph("ring")
    wire = tuner.facts.links_gb_per_s
    if protocol == "simple":  # large buffers reach what NCCL itself expects of the paths
        wire = graph.num_channels * graph.intra
    # LL sends 4 bytes of data with 4 bytes of flag.
    data_share = {"ll": 0.5, "ll128": terms.ll128_share, "simple": 1.0}[protocol]
    step_us = piece_bytes / (data_share * 1000 * wire / tuner.num_channels)
    ends = {}  # what follows the last step
    if protocol == "ll":
        hops_us = steps * terms.hop_us
        ends["tail"] = terms.ll_tail * step_us
    elif protocol == "ll128":  # without a tail: the few sizes at which NCCL uses it on public curves show none
        hops_us = terms.ll128_launch_us + steps * terms.ll128_hop_us
    else:
        # Simple sends a piece chunk by chunk, each in two slices. A chunk takes as long as both slices at the
        # bandwidth, or as one slice and a hop, whichever is longer. The 4-norm is their maximum with a soft corner.
        num_chunks = math.ceil(piece_bytes / _SIMPLE_CHUNK_BYTES)
        chunk_us = step_us / num_chunks
        longer_us = (chunk_us**4 + (chunk_us / 2 + terms.simple_hop_us) ** 4) ** 0.25
        hops_us = terms.simple_launch_us + num_chunks * steps * (longer_us - chunk_us)
        ends["tail"] = terms.simple_tail * step_us * min(1, _SIMPLE_CHUNK_BYTES / piece_bytes)
    if collective == "allgather":
        ends["copy"] = terms.copy * step_us
    return {"hops": hops_us, "bytes": steps * step_us, **ends}


def _nvls_us(tuner: Tuner, terms: Terms, num_bytes: int, channels: int) -> dict[str, float]:
    """Return the terms of NVLS. In each round, every GPU sends a chunk on each channel."""
    streams = channels * tuner.gpus_per_node
    chunk_bytes = _NVLS_CHUNK_BYTES
    for num_rounds, most_bytes in _SHORT_NVLS:
        if num_bytes < num_rounds * streams * chunk_bytes:
            chunk_bytes = min(chunk_bytes, most_bytes)
    rounds = num_bytes / (streams * chunk_bytes) + 2  # two to fill and drain the pipeline
    bytes_per_us = 1000 * tuner.facts.links_gb_per_s * tuner.generation.nvls_efficiency
    return {
        "hops": rounds * terms.nvls_hop * terms.hop_us,
        "bytes": rounds * streams * chunk_bytes / bytes_per_us,
    }
