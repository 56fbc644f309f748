"""The explorers of `pipeline`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from tests.explorers.cases import Case

CASES = {
    "pipeline": Case("pipeline"),
    "parts": Case("parts", start={"queue_size": 1}),
}
