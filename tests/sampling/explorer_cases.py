"""The explorers of `sampling`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from tests.explorers.cases import Case

CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "unequal_lengths": Case("unequal_lengths", start={"sampler": "balanced", "size": 500, "window": 1}),
}
