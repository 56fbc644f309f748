"""The explorers of the core, for the battery in `test_every_explorer`."""

from __future__ import annotations

from .cases import Case

CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "unequal_lengths": Case("unequal_lengths", start={"sampler": "balanced", "size": 500, "window": 1}),
    "pipeline": Case("pipeline"),
    "parts": Case("parts", start={"queue_size": 1}),
    "player": Case("player", start={"num_nodes": 2, "shared_nic": True, "algorithm": "recursive_doubling"}),
    "allreduce": Case("allreduce", start={"algorithm": "double_binary_tree", "num_nodes": 4}),
}
