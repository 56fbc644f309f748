"""What a record says: `best` reads those that you add like the shipped ones, and each checks its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import (
    ALGORITHMS,
    Algorithm,
    Schedule,
    ScheduleError,
    best,
    closed_form,
    forms,
    simulate,
)
from rankscope.collectives.builders import rings
from rankscope.collectives.forms import NoClosedForm, Terms

LINK = Link(5e-6, 10e9)
NODES = Cluster(3, 4, Link(2e-6, 300e9), LINK)


def mine(num_ranks: int, num_segments: int = 4) -> Schedule:
    return rings.segmented_ring(num_ranks, num_segments)


def in_a_grid(num_ranks: int, shape: tuple[int, ...] | None = None) -> Schedule:
    return rings.torus_3d(num_ranks, shape)


def add(monkeypatch: pytest.MonkeyPatch, builder: Any) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", builder)


def empty_unless_four(num_ranks: int, num_segments: int = 4) -> Schedule:
    if num_segments == 4:
        return rings.segmented_ring(num_ranks, num_segments)
    return Schedule("allreduce", "mine", num_ranks, num_chunks=1, phases=lambda: iter(()))


def test_the_schedule_with_the_chosen_segments_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", Algorithm(empty_unless_four))
    with pytest.raises(ScheduleError, match="rank"):
        best(1e8, Cluster.uniform(4, LINK))


def test_your_record_is_tried_with_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was simulated with the default of four, whatever the size."""
    cluster = Cluster.uniform(6, LINK, 3e-11)
    for form in (None, forms.segmented_ring):
        add(monkeypatch, Algorithm(mine, form))
        for size in (1e3, 1e8):
            (own,) = best(size, cluster, algorithms=["mine"]).candidates
            (shipped,) = best(size, cluster, algorithms=["segmented_ring"]).candidates
            assert own.options == shipped.options != {"num_segments": 4}
            schedule = mine(6, **own.options)
            assert own.seconds == pytest.approx(simulate(schedule, size, cluster).makespan_s, rel=1e-9)


def test_your_record_follows_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, Algorithm(in_a_grid, num_axes=3))
    (own,) = best(1e8, NODES, algorithms=["mine"]).candidates
    (shipped,) = best(1e8, NODES, algorithms=["torus_3d"]).candidates
    assert own.options == shipped.options == {"shape": (1, 3, 4)}
    assert own.seconds == pytest.approx(shipped.seconds, rel=1e-12)


def test_your_record_takes_part_on_the_nodes_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(cluster: Cluster) -> list[str]:
        return [candidate.algorithm for candidate in best(1e6, cluster).candidates]

    one_node = Cluster(1, 4, LINK, LINK)
    add(monkeypatch, Algorithm(mine, across_nodes=False))
    assert "mine" in names(one_node)
    assert "mine" not in names(NODES)
    add(monkeypatch, Algorithm(mine, within_a_node=False))
    assert "mine" not in names(one_node)
    assert "mine" in names(NODES)


def test_the_closed_form_of_your_record_is_trusted_if_the_links_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_day(t: Terms) -> Any:
        return 86400.0

    add(monkeypatch, Algorithm(lambda num_ranks: rings.ring(num_ranks), a_day))
    assert best(1e6, Cluster.uniform(4, LINK), algorithms=["mine"]).seconds == 86400.0
    assert best(1e6, NODES, algorithms=["mine"]).seconds < 1


def test_a_plain_function_is_built_without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, mine)
    (own,) = best(1e8, NODES, algorithms=["mine"]).candidates
    assert own.options == {}
    assert own.seconds == simulate(mine(12), 1e8, NODES).makespan_s


def test_a_wrong_schedule_of_your_record_is_refused_although_it_has_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    header = {"collective": "allreduce", "algorithm": "mine", "num_chunks": 1}
    add(monkeypatch, Algorithm(lambda n: Schedule.of_steps([], num_ranks=n, **header), forms.ring))
    with pytest.raises(ScheduleError, match="rank 0, chunk 0"):
        best(1e3, Cluster.uniform(4, LINK))


def test_a_value_that_equals_the_default_leaves_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were compared by identity, so that an equal tuple was refused."""

    def build_scaled(num_ranks: int, factors: Any = (1000, 2000)) -> Schedule:
        return rings.ring(num_ranks)

    add(monkeypatch, Algorithm(build_scaled, forms.ring))
    without = closed_form("allreduce", "mine", 4, 8.0, LINK)
    for equal in ((1000, 2000), [1000, 2000], np.array([1000, 2000])):
        assert closed_form("allreduce", "mine", 4, 8.0, LINK, factors=equal) == without
    for other in ((1000, 2001), (1000,), np.array([1000, 2001]), None):
        with pytest.raises(NoClosedForm, match="factors"):
            closed_form("allreduce", "mine", 4, 8.0, LINK, factors=other)
