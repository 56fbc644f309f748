"""Every closed form against the simulation of the very schedule it is about: two methods, one number."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, build, closed_form, lower_bounds, simulate
from rankscope.collectives.cost import Bounds, NoClosedForm
from tests.extents import SAMPLE_OR_EVERYTHING

from .cases import WITH_FORM, cluster_of, options

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


def test_the_check_sees_a_wrong_form(monkeypatch: pytest.MonkeyPatch) -> None:
    ring: Any = ALGORITHMS["allreduce"]["ring"]
    wrong = msgspec.structs.replace(ring, form=lambda terms: ring.form(terms) * (1 + 3e-9))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", wrong)
    with pytest.raises(AssertionError, match="ring"):
        equal("allreduce", "ring", 8, Link(1.0, 2.0), 0.25)


@pytest.mark.parametrize(
    ("collective", "num_ranks", "num_bytes", "of_cluster", "bounds"),
    [
        ("allreduce", 5, 100.0, {"gamma_s_per_byte": 0.5}, Bounds(6.0, 40.0, 40.0)),
        ("broadcast", 5, 100.0, {}, Bounds(6.0, 25.0, 0.0)),
        ("barrier", 9, 0.0, {}, Bounds(8.0, 0.0, 0.0)),
        ("allreduce", 9, 72.0, {"ports": 2}, Bounds(4.0, 16.0, 0.0)),  # with 2 ports 2 rounds to know of 9
        ("allreduce", 9, 72.0, {"ports": None}, Bounds(2.0, 0.0, 0.0)),
        ("allreduce", 9, 72.0, {"gamma_s_per_byte": 1.0, "switch_adds": True}, Bounds(2.0, 18.0, 0.0)),
        ("allgather", 9, 72.0, {"switch_adds": True}, Bounds(2.0, 16.0, 0.0)),
    ],
)
def test_bounds_by_hand(
    collective: str, num_ranks: int, num_bytes: float, of_cluster: dict[str, Any], bounds: Bounds
) -> None:
    cluster = Cluster(1, num_ranks, Link(2.0, 4.0), Link(2.0, 4.0), **of_cluster)
    found = lower_bounds(num_bytes, cluster, collective)
    assert found == bounds
    assert found.seconds == max(bounds)


@pytest.mark.parametrize(("collective", "name"), WITH_FORM)
def test_options_are_in_the_forms(collective: str, name: str) -> None:
    for number, n in enumerate((2, 4, 8, 12, 24)):
        for setting in options(collective, name, n):
            alpha_s, bytes_per_s, gamma = MODELS[number % len(MODELS)]
            with suppress(NoClosedForm):
                equal(collective, name, n, Link(alpha_s, bytes_per_s), gamma, **setting)
