"""What `box` refuses: each call, and a word that the error contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankscope import figures
from rankscope.box import (
    Profile,
    Protocol,
    fit_link,
    measure,
    nccl,
    pcie_bytes_per_s,
    stated,
    verdict,
)
from rankscope.box.curve import Curve
from rankscope.box.judging.explorer import box
from rankscope.box.judging.picture import draw_with_peers
from rankscope.box.measuring.plan import keys_of
from rankscope.box.networks import network_of
from rankscope.box.points import Point
from rankscope.networks import CostTable

from .made import links, point, profile

ANY: Any = None
TEXT: Any = "text"
SIZES = [2**power for power in range(8, 25)]
TWO = {"quick": Profile.load("bank:h100_8"), "slow": Profile.load("bank:l40s_8")}
MODEL = nccl.Model("h100")


def made(**changes: Any) -> Point:
    """Return a point with these changes."""
    return Point(**({"what": "copy", "num_bytes": 8, "seconds": [1.0], "clean": [True]} | changes))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    # points and profiles
    "no operation": (lambda: made(what="allrecude"), "what"),
    "no seconds": (lambda: made(seconds=()), "seconds"),
    "a time of 0": (lambda: made(seconds=[0.0]), "seconds"),
    "no name": (lambda: Profile({"backend": "nccl", "num_ranks": 2}, {}), "name"),
    "no ranks": (lambda: Profile({"name": "a", "backend": "nccl", "num_ranks": 0}, {}), "num_ranks"),
    "a protocol of another type": (lambda: Profile(profile().provenance, {"statistic": 3}), "protocol"),
    "an option of another type": (lambda: made(options={"a": {}}), "options"),
    "no machine of the bank": (lambda: Profile.load("bank:../profile"), "bank"),
    "a verdict of no profile": (lambda: verdict(ANY), "profile"),
    # links, predictions, curves
    "no link": (lambda: profile().cluster(), "link"),
    "no algorithm": (lambda: profile(links()).predict(point("allreduce", 4, 1.0, algorithm="rung")), "algorithm"),
    "too few sizes": (lambda: profile(links(sizes=SIZES[:3])).cluster(), "5"),
    "uneven nodes": (lambda: profile(links(), ranks_per_node=[3, 1], num_nodes=2).cluster(), "nodes"),
    "half a node": (lambda: profile(links(), ranks_per_node=[2, 2], num_nodes=2).cluster(3), "num_ranks"),
    "no network": (lambda: network_of("mine", profile(links())), "two sizes"),
    "no curve": (lambda: Curve(dict.fromkeys(range(5), 1e-5)), "5 sizes"),
    "a negative size": (lambda: Curve(dict.fromkeys(SIZES, 1e-5)).seconds(-1), "num_bytes"),
    "no points of a curve": (lambda: profile(links()).curve("allreduce"), "allreduce"),
    "a fit of few sizes": (lambda: fit_link(SIZES[:4], [1.0] * 4), "5"),
    "a fit of a time of 0": (lambda: fit_link(SIZES, [1.0] * 16 + [0.0]), "seconds"),
    # facts of links
    "PCIe 7": (lambda: pcie_bytes_per_s(7), "generation"),
    "no direction": (lambda: stated(4).seconds(1, "up"), "direction"),
    "no method": (lambda: stated(4).seconds(1, "h2d", "magic"), "method"),
    # measuring
    "no collective": (lambda: Protocol(collectives=["barrier"]), "collectives"),
    "less than an element": (lambda: Protocol(sizes=[2]), "sizes"),
    "no iterations": (lambda: Protocol(iterations=0), "iterations"),
    "an algorithm of others": (lambda: keys_of(Protocol(algorithms=["rings"]), "gloo", [4], False), "rings"),
    "an algorithm for other ranks": (
        lambda: keys_of(Protocol(collectives=["allgather"], algorithms=["recursive_doubling"]), "gloo", [6], False),
        "power of two",
    ),
    "measuring no protocol": (lambda: measure("a.json", ANY or {}), "protocol"),
    # NCCL's model
    "an unknown GPU": (lambda: nccl.Model("h300"), "gpu"),
    "one GPU on one node": (lambda: nccl.Model(gpus_per_node=1), "gpus_per_node"),
    "an old version": (lambda: nccl.Model(version=(2, 18)), "version"),
    "a collective that NCCL lacks": (lambda: MODEL.choose("all_to_all", 1024), "collective"),
    "a buffer of 0": (lambda: MODEL.choose("allreduce", 0), "num_bytes"),
    # figures
    "a figure of no profiles": (lambda: figures.profile(ANY), "profiles"),
    "a figure of another value": (lambda: figures.profile({"a": ANY}), "profile"),
    "no machines": (lambda: figures.profile({}), "at least one"),
    "peers of nothing": (lambda: draw_with_peers(profile()), "nothing to draw"),
    "peers of one rank": (
        lambda: draw_with_peers(profile([point("allreduce", 2048, 1.0, algorithm="native")], num_ranks=1)),
        "nothing to draw",
    ),
    "copies of nothing": (lambda: figures.copies(None), "facts"),
    "copies of no direction": (lambda: figures.copies(stated(4), direction="up"), "direction"),
    # explorers
    "a box without rates": (lambda: box(profile()), "bus bandwidths"),
    "a box of another type": (lambda: box(8), "profile"),
    "a table of one size": (lambda: CostTable((1.0,), (1.0,)), "two"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_argument_is_one_error_that_names_it(name: str) -> None:
    call, word = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
