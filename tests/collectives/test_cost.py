"""Every closed form against the simulation of the very schedule it is about: two methods, one number."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, build, closed_form, lower_bounds, simulate
from rankscope.collectives.cost import Bounds
from rankscope.collectives.forms import NoClosedForm

from ..extents import SAMPLE_OR_EVERYTHING
from .cases import WITH_FORM, cluster_of

MODELS = [(1.0, 2.0, 0.25), (3e-6, 12.5e9, 4e-11), (0.0, 1.0, 0.0), (1e-3, math.inf, 2e-9), (1e-9, 7.0, 5.0)]


def equal(collective: str, name: str, n: int, link: Link, gamma: float, **options: object) -> None:
    stated = closed_form(collective, name, n, 1000.0, link, gamma, **options)
    cluster = cluster_of(name, n, link, gamma)
    simulated = simulate(build(collective, name, n, **options), 1000.0, cluster, detail="ranks").makespan_s
    assert simulated == pytest.approx(stated, rel=1e-9, abs=1e-15), (collective, name, n, options)


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize(("collective", "name"), WITH_FORM)
def test_simulation_equals_closed_form(collective: str, name: str, everything: bool) -> None:
    """Some forms are stated for powers of two only, of ranks or of nodes."""
    for number, n in enumerate([*range(1, 34), 64, 100] if everything else [*range(1, 18), 24, 31, 32, 33, 64, 100]):
        models = MODELS
        if n > 4 and not everything:
            models = [MODELS[number % len(MODELS)]]  # take turns
        for alpha_s, bytes_per_s, gamma in models:
            try:
                equal(collective, name, n, Link(alpha_s, bytes_per_s), gamma)
            except NoClosedForm:
                assert n & (n - 1), (collective, name, n)


@pytest.mark.parametrize(
    ("collective", "name"),
    [("allreduce", "double_binary_tree"), ("scatter", "binomial"), ("broadcast", "scatter_allgather")],
)
def test_no_form_is_made_up_where_none_is_stated(collective: str, name: str) -> None:
    with pytest.raises(NoClosedForm, match="6"):
        closed_form(collective, name, 6, 1e3, Link(1.0, 1.0))


@pytest.mark.parametrize("model", MODELS)
def test_options_are_in_the_forms(model: tuple[float, float, float]) -> None:
    link, gamma = Link(*model[:2]), model[2]
    for n, segments in itertools.product((2, 3, 8, 13), (1, 2, 3, 5, 16)):
        equal("allreduce", "segmented_ring", n, link, gamma, num_segments=segments)
    for n, segments in itertools.product((2, 4, 8, 32), (1, 2, 3, 5, 16)):
        equal("allreduce", "double_binary_tree", n, link, gamma, num_segments=segments)
    for n, segments in itertools.product((2, 3, 8, 13), (1, 2, 3, 16)):
        equal("allreduce", "nvls", n, link, gamma, num_segments=segments)
    for shape in ((1, 12), (2, 6), (3, 4), (4, 3), (12, 1)):
        equal("allreduce", "torus_2d", 12, link, gamma, shape=shape)
        equal("allreduce", "mesh_2d", 12, link, gamma, shape=shape)
        equal("allreduce", "hierarchical_ring", 12, link, gamma, gpus_per_node=shape[1])
    for cube in ((2, 3, 4), (4, 3, 2), (1, 24, 1), (24, 1, 1)):
        equal("allreduce", "torus_3d", 24, link, gamma, shape=cube)


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 4), (4, 2), (3, 5), (8, 8), (1, 8), (8, 1)])
@pytest.mark.parametrize("gamma", [3e-11, pytest.param(0.0, marks=pytest.mark.oracle)])
def test_two_levels_of_links(nodes: int, gpus: int, gamma: float) -> None:
    intra, inter = Link(2e-6, 300e9), Link(7e-6, 25e9)
    cluster = Cluster(nodes, gpus, intra, inter, gamma)
    for name, options in (
        ("torus_2d", {"shape": (nodes, gpus)}),
        ("mesh_2d", {"shape": (nodes, gpus)}),
        ("torus_3d", {"shape": (1, nodes, gpus)}),
        ("hierarchical_ring", {"gpus_per_node": gpus}),
    ):
        simulated = simulate(build("allreduce", name, nodes * gpus, **options), 1e8, cluster).makespan_s
        stated = closed_form("allreduce", name, nodes * gpus, 1e8, inter, gamma, inner=intra, **options)
        assert simulated == pytest.approx(stated, rel=1e-9), name


def test_the_check_sees_a_wrong_form(monkeypatch: pytest.MonkeyPatch) -> None:
    ring: Any = ALGORITHMS["allreduce"]["ring"]
    wrong = msgspec.structs.replace(ring, form=lambda terms: ring.form(terms) * (1 + 3e-9))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", wrong)
    with pytest.raises(AssertionError, match="ring"):
        equal("allreduce", "ring", 8, Link(1.0, 2.0), 0.25)


def test_nothing_simulated_beats_the_bounds() -> None:
    link, gamma = Link(1e-6, 1e9), 1e-10
    for collective, builders in ALGORITHMS.items():
        for name, n, size in itertools.product(builders, (2, 4, 8, 16), (0.0, 1e3, 1e8)):
            bounds = lower_bounds(collective, n, size, link, gamma)
            schedule = build(collective, name, n)
            simulated = simulate(schedule, size, Cluster.uniform(n, link, gamma)).makespan_s
            assert simulated >= float(bounds.seconds) * (1 - 1e-12), (collective, name, n, size)


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        (("allreduce", 5, 100.0, Link(2.0, 4.0), 0.5), Bounds(6.0, 40.0, 40.0)),
        (("broadcast", 5, 100.0, Link(2.0, 4.0)), Bounds(6.0, 25.0, 0.0)),
        (("broadcast", 1, 100.0, Link(2.0, 4.0)), Bounds(0.0, 0.0, 0.0)),
        (("reduce", 2, 100.0, Link(2.0, 4.0), 1.0), Bounds(2.0, 25.0, 50.0)),
        (("barrier", 9, 0.0, Link(2.0, 4.0)), Bounds(8.0, 0.0, 0.0)),
        (("all_to_all", 4, 100.0, Link(0.0, 1.0)), Bounds(0.0, 75.0, 0.0)),
        (("allreduce", 1, 100.0, Link(2.0, 4.0), 0.5), Bounds(0.0, 0.0, 0.0)),
        (("allreduce", 9, 72.0, Link(2.0, 4.0), 0.0, 2), Bounds(4.0, 16.0, 0.0)),  # with 2 ports 2 rounds to know of 9
        (("allreduce", 9, 72.0, Link(2.0, 4.0), 0.0, None), Bounds(2.0, 0.0, 0.0)),
        (("allreduce", 9, 72.0, Link(2.0, 4.0), 1.0, 1, True), Bounds(2.0, 18.0, 0.0)),
        (("allgather", 9, 72.0, Link(2.0, 4.0), 0.0, 1, True), Bounds(2.0, 16.0, 0.0)),
    ],
)
def test_bounds_by_hand(asked: tuple[Any, ...], bounds: Bounds) -> None:
    assert lower_bounds(*asked) == bounds
    assert lower_bounds(*asked).seconds == max(bounds)
