"""How many of its cases a test runs: a sample in `make test`, everything in `make oracles`."""

from __future__ import annotations

import pytest

SAMPLE_OR_EVERYTHING = pytest.mark.parametrize(
    "everything",
    [pytest.param(False, id="sample"), pytest.param(True, marks=pytest.mark.oracle, id="everything")],
)
