"""`Link` and `Cluster`: what they hold, and the numbers they refuse."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rankscope.cluster import Cluster, Link

FAST, SLOW = Link(1e-6, 100e9), Link(5e-6, 10e9)


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    link = Link(alpha_s=2e-6, bytes_per_s=4e9)
    assert link.seconds(0) == 2e-6
    assert link.seconds(8e9) == 2.000002
    assert link.beta_s_per_byte == 2.5e-10
    assert Link(0, math.inf).seconds(1e12) == Link(0, math.inf).beta_s_per_byte == 0.0
    assert Link(np.float32(1), np.int64(4)).seconds(2) == 1.5
    assert Link(1, 2) == Link(1.0, 2.0)
    assert hash(Link(1, 2)) == hash(Link(1.0, 2.0))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"num_nodes": 0}, {"gpus_per_node": 2.0}, {"gamma_s_per_byte": -1}, {"ports": 0}, {"switch_adds": 1}),
        *({"intra": 1e9},),
        *({"alpha_s": math.inf}, {"bytes_per_s": 0}),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    right: dict[str, Any] = {"num_nodes": 2, "gpus_per_node": 2, "intra": FAST, "inter": SLOW}
    make: Any = Cluster
    if name in ("alpha_s", "bytes_per_s"):
        right = {"alpha_s": 1e-6, "bytes_per_s": 1e9}
        make = Link
    with pytest.raises(ValueError, match=name):
        make(**{**right, **wrong})


def test_who_is_joined_to_whom_by_what() -> None:
    cluster = Cluster(2, 3, FAST, SLOW)
    ranks = np.arange(6)
    assert cluster.num_ranks == 6
    assert cluster.node(ranks).tolist() == [0, 0, 0, 1, 1, 1]
    alpha_s, beta = cluster.costs(np.array([0, 2, 0, 5, 4]), np.array([2, 3, 5, 0, 3]))
    assert alpha_s.tolist() == [FAST.alpha_s, SLOW.alpha_s, SLOW.alpha_s, SLOW.alpha_s, FAST.alpha_s]
    links = (FAST, SLOW, SLOW, SLOW, FAST)
    assert beta.tolist() == [link.beta_s_per_byte for link in links]


@pytest.mark.parametrize(
    ("cluster", "uniform"),
    [
        (Cluster.uniform(8, FAST), True),
        (Cluster(1, 8, FAST, SLOW), True),  # nobody is on another node
        (Cluster(8, 1, FAST, SLOW), True),  # nobody is on the same
        (Cluster(1, 1, FAST, SLOW), True),
        (Cluster(2, 4, FAST, FAST), True),
        (Cluster(2, 4, FAST, SLOW), False),
        (Cluster(2, 4, FAST, FAST, shared_nic=True), False),
        (Cluster(8, 1, FAST, SLOW, shared_nic=True), True),
        (Cluster(1, 8, FAST, FAST, switch_adds=True), False),
        (Cluster(8, 1, FAST, FAST, switch_adds=True), True),  # no two ranks at a switch
    ],
)
def test_whether_all_are_joined_alike(cluster: Cluster, uniform: bool) -> None:
    assert cluster.is_uniform == uniform


def test_a_cluster_is_a_value() -> None:
    cluster = Cluster(2, 2, FAST, SLOW, 1e-12, None, True)
    with pytest.raises(AttributeError):
        cluster.num_nodes = 3  # type: ignore[misc]
    for same in (pickle.loads(pickle.dumps(cluster)), copy.deepcopy(cluster), replace(cluster)):
        assert same == cluster
        assert hash(same) == hash(cluster)
    assert replace(cluster, ports=2) != cluster
