"""What is particular to the explorer of copies: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from rankscope.box import stated
from rankscope.common.units import time_words
from tests.explorers.cases import Case, report

TRANSFERS = Case("transfers").made()


def test_transfers_shows_the_bound_of_the_link() -> None:
    copied, loop = report(TRANSFERS, link="PCIe 4 x16", size="64 MiB", method="pinned")
    assert time_words(stated(4).seconds(2**26, "h2d", "pinned")) in copied
    assert time_words(stated(4).seconds(2**26, "h2d", "pinned") + 8e-3) in loop  # a step takes 8 ms
