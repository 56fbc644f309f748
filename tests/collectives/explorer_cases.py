"""The explorers of `collectives`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from tests.explorers.cases import Case

CASES = {
    "player": Case("player", start={"num_nodes": 2, "shared_nic": True, "algorithm": "recursive_doubling"}),
}
