"""The explorers of `box`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from rankscope.box import Profile
from tests.explorers.cases import Case

from .made import point, profile


def six_ranks() -> Profile:
    """The backend's own allreduce over six ranks, from 1 KiB to 32 MiB."""
    sizes = [2**power for power in range(10, 26, 3)]
    points = [point("allreduce", size, 1e-4 + size / 1e9, algorithm="native") for size in sizes]
    return profile(points, num_ranks=6, ranks_per_node=[6])


CASES = {
    "transfers": Case("transfers", start={"method": "pinned"}),
    "box of yours": Case("box", (six_ranks(),)),
    "ddp of yours": Case("ddp", ({"mine": six_ranks()},), {"cap": "8 MiB"}),
}
