"""The explorers of `sampling`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from torch.utils.data import DistributedSampler

from tests.explorers.cases import Case

from .own_samplers import Counting, in_batches

CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "samplers of yours": Case("samplers", ([in_batches, Counting, DistributedSampler],), {"epoch": 2}),
    "unequal_lengths": Case("unequal_lengths", start={"sampler": "balanced", "size": 500, "window": 1}),
}
