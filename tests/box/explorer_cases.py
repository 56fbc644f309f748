"""The explorers of `box`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from rankscope.box import Profile

from ..explorers.cases import Case
from .made import as_predicted, collective, links, point, profile

NATIVE_S = 0.005
SIZES = [2**power for power in (12, 16, 20, 24, 28)]


def profiles() -> dict[str, Profile]:
    """One with measured allreduces, a fifth quicker than predicted, and Gloo's own; one with another link."""
    one = as_predicted(profile(links()), ["ring", "flat", "segmented_ring"], share=0.8, noise=0.0)
    one = collective(one, {"native": lambda size: NATIVE_S}, noise=0.0)
    return {"one": one, "two": profile(links(seconds=lambda size: 1e-3 + size / 1e8))}


def gpu() -> Profile:
    """Copies to the GPU at 8 GB/s, twice as fast from pinned memory, and pinning at 4 GB/s."""
    rates = {"pageable": 8e9, "pinned": 16e9, "pinned_non_blocking": 16e9}
    copies = [
        point("transfer", size, size / rate, direction="h2d", method=method, pieces=1, both=False)
        for method, rate in rates.items()
        for size in SIZES
    ]
    pins = [point("pin", size, size / 4e9, cached=True) for size in SIZES]
    return profile([*copies, *pins], topology="GPU0: PCIe 4 x16")


def six_ranks() -> Profile:
    """The backend's own allreduce over six ranks, from 1 KiB to 32 MiB."""
    sizes = [2**power for power in range(10, 26, 3)]
    points = [point("allreduce", size, 1e-4 + size / 1e9, algorithm="native") for size in sizes]
    return profile(points, num_ranks=6, ranks_per_node=[6])


CASES = {
    "machine": Case("machine", (profiles(),), {"message": "4 KiB"}),
    "transfers": Case("transfers", start={"method": "pinned"}),
    "transfers of a profile": Case("transfers", (gpu(),), {"method": "pinned"}),
    "boxes": Case("boxes"),
    "boxes of yours": Case("boxes", ({"mine": Profile.load("bank:dgx_h100_8")},)),
    "nccl": Case("nccl", start={"num_nodes": 4, "collective": "allgather"}),
    "ddp of yours": Case("ddp", ({"mine": six_ranks()},), {"cap": "8 MiB"}),
}
