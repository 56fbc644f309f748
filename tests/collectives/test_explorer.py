"""The explorer of allreduces shows what the library verifies and simulates."""

from __future__ import annotations

import pytest

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule, simulate, verify
from rankscope.collectives.explorer import cluster, schedule
from rankscope.common.units import time_words
from tests.collectives.cases import built
from tests.explorers.cases import Case, report, svg

ALLREDUCE = Case("allreduce").made()


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_allreduce_draws_what_it_verifies_and_simulates(name: str) -> None:
    if built("allreduce", name, 12) is None:
        pytest.skip("not for 12 ranks")
    settings = {"algorithm": name, "num_nodes": 3, "gpus_per_node": 4, "num_segments": 3}
    now = ALLREDUCE.at(**settings)
    drawn = schedule(now)
    lines = report(ALLREDUCE, **settings)
    seconds = simulate(drawn, 2**20, cluster(now)).makespan_s
    assert lines[0] == f"verified: {verify(drawn)}"
    assert lines[1].startswith(f"predicted: {time_words(seconds)}; lower bound on the fastest link: ")
    assert svg(ALLREDUCE, **settings).count("<svg") == 2


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", Algorithm(lambda n: Schedule("allreduce", "idle", n, 1, [])))
    assert "rank 0, chunk 0" in explorers.allreduce(algorithm="idle").shown.value
