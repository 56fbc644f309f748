"""The explorers of `sampling`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from functools import partial

from torch.utils.data import DistributedSampler

from tests.explorers.cases import Case

from .own_samplers import Counting, in_batches, windows

CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "samplers of yours": Case("samplers", ([in_batches, Counting],), {"epoch": 2}),
    "samplers of torch and yours": Case("samplers", ([DistributedSampler, partial(windows, window=3)],)),
    "unequal_lengths": Case("unequal_lengths", start={"sampler": "balanced", "size": 500, "window": 1}),
}
