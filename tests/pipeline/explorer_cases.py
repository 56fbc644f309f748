"""The explorers of `pipeline`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from rankscope.pipeline import Lognormal, Pipeline, Stage
from tests.explorers.cases import Case

OWN = Pipeline(
    [
        Stage("fetch shard", Lognormal(0.1, 0.5), num_workers=9, capacity=20),
        Stage("pack", [0.01 * (1 + item % 3) for item in range(40)]),
    ]
)
CASES = {
    "pipeline": Case("pipeline"),
    "pipeline of yours": Case("pipeline", (OWN,), {"workers_0": 2}),
    "parts": Case("parts", start={"queue_size": 1}),
}
