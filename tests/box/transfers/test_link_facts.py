"""What facts of a link predict, against packets that are counted and a pipeline played out."""

from __future__ import annotations

import pytest

from rankscope.box.pcie import PCIE, pcie_bytes_per_s
from rankscope.box.transfers.link_facts import LinkFacts
from rankscope.pipeline import Pipeline, Stage, simulate

# ---- rates


@pytest.mark.parametrize("generation", PCIE)
def test_data_are_what_packets_leave_of_a_long_transfer(generation: int) -> None:
    """Counted packet by packet: 1 MB in packets of 256 bytes, each with its header and frame."""
    frame = 8 if generation < 6 else 0
    for direction, header in (("h2d", 12), ("d2h", 16)):
        sent = sum(256 + header + frame for _ in range(2**20 // 256))
        share = pcie_bytes_per_s(generation, 16, direction) / pcie_bytes_per_s(generation)
        assert share == pytest.approx(2**20 / sent)


# ---- what copies take at least


@pytest.mark.parametrize(("host", "link"), [(2.0, 1.0), (1.0, 2.0), (1.0, 1.0)])
def test_staging_and_link_overlap_as_a_pipeline_does(host: float, link: float) -> None:
    """A pageable copy is at best a pipeline of many small chunks."""
    chunks = 10_000
    path = Pipeline([Stage("staging", host / chunks, capacity=1), Stage("link", link / chunks)])
    facts = LinkFacts("", 1 / link, 1 / link, 1 / host, start_s=0.0)
    assert simulate(path, chunks).makespan_s == pytest.approx(facts.seconds(1.0, "h2d", "pageable"), rel=1e-3)
    assert facts.seconds(1.0, "h2d", "pin_on_the_fly") == host + link
    assert facts.seconds(1.0, "h2d", "pinned") == link
