"""The explorer of part files shows what the library simulates."""

from __future__ import annotations

from rankscope.pipeline import idle_share
from rankscope.pipeline.parts.explorer import predicted
from tests.explorers.cases import Case

PARTS = Case("parts").made()


def test_what_no_queue_of_parts_gets_below_a_long_one_comes_near_to() -> None:
    share = idle_share(predicted(PARTS.at(load_ms=300, queue_size=8, jitter=20), 300))
    assert 1 - 200 / 300 < share < 1 - 200 / 300 + 0.02
