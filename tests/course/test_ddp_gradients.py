"""Each effect on real ranks, against torch in this process; and each check, given something wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import nn

from rankscope.course import bucket_view_memory, no_sync, static_graph, unused_parameters
from rankscope.course.ddp_gradients import NoSync, StaticGraph, Unused
from rankscope.train.gradients import DemoError

from ..processes import children
from ..small import CROSS, batch, mlp
from ..train.test_gradients import gradient, work

pytestmark = pytest.mark.slow


# ---- no_sync


@pytest.fixture(scope="module")
def accumulated() -> NoSync:
    return no_sync(work(16))


def test_no_sync_must_be_around_the_forward(accumulated: NoSync) -> None:
    accumulated.check()
    assert [accumulated.is_right(name) for name in accumulated.placements] == [True, True, False, False]
    assert [result.num_allreduces for result in accumulated.placements.values()] == [1, 2, 1, 0]
    (inputs, targets), module = batch(16), mlp()
    right = gradient(module, CROSS(module(inputs), targets))
    for rank in accumulated.placements["forward and backward"].after_both:
        np.testing.assert_allclose(rank, right, rtol=0, atol=1e-15)


def test_the_first_micro_batch_stays_on_its_rank_only_with_the_forward_inside(accumulated: NoSync) -> None:
    (inputs, targets), right = batch(16), accumulated.placements["forward and backward"]
    for rank, (part, labels) in enumerate(zip(inputs.chunk(2), targets.chunk(2), strict=True)):
        module = mlp()
        own = gradient(module, CROSS(module(part.chunk(2)[0]), labels.chunk(2)[0]) / 2)
        np.testing.assert_allclose(right.after_first[rank], own, rtol=0, atol=1e-15)
    both = accumulated.placements["backward only"].after_first
    np.testing.assert_allclose(both[0], np.mean(right.after_first, axis=0), rtol=0, atol=1e-15)


def test_placements_that_do_not_do_as_known_are_found(accumulated: NoSync) -> None:
    first, second, _, last = accumulated.placements.values()
    name = next(iter(accumulated.placements))
    swapped = evolve(accumulated, placements={**accumulated.placements, name: last})
    for wrong in (swapped, evolve(accumulated, right=accumulated.right * 2)):
        with pytest.raises(DemoError, match="placements of no_sync should be"):
            wrong.check()
    early = {**accumulated.placements, name: evolve(first, after_first=second.after_first)}
    with pytest.raises(DemoError, match="after the first micro-batch"):
        evolve(accumulated, placements=early).check()


# ---- parameters that are not used


@pytest.fixture(scope="module")
def unused() -> Iterator[dict[bool, Unused]]:
    before = leftovers()
    yield {flag: unused_parameters(flag) for flag in (False, True)}
    assert leftovers() == before


def leftovers() -> set[int]:
    """The processes that a launch's server has, according to the system."""
    return {pid for server in children(os.getpid()) for pid in children(server)}


def test_without_the_search_one_rank_hangs_and_the_other_learns_of_it_later(unused: dict[bool, Unused]) -> None:
    result = unused[False]
    result.check()
    full, lacking = result.ranks
    assert (full.error, full.gradient) == ("", None)
    assert lacking.error.startswith("Expected to have finished reduction in the prior iteration")


def test_with_the_search_all_gradients_are_right(unused: dict[bool, Unused]) -> None:
    unused[True].check()
    for story in unused[True].ranks:
        assert story.gradient is not None
        np.testing.assert_allclose(story.gradient, np.mean(unused[True].own, axis=0), atol=1e-15)


def test_stories_that_went_another_way_are_found(unused: dict[bool, Unused]) -> None:
    hung, searched = unused[False], unused[True]
    full, lacking = hung.ranks
    for wrong, message in (
        (evolve(hung, ranks=searched.ranks), "rank 0 should be stuck"),
        (evolve(hung, ranks=(full, evolve(lacking, error="another"))), "torch should name right's two parameters"),
        (evolve(hung, own=(hung.own[0], hung.right)), "rank 1 should be left with its own gradient"),
        (evolve(searched, ranks=hung.ranks), "rank 0 should have the mean"),
        (evolve(searched, own=(searched.own[1],) * 2), "rank 0 should have the mean"),
    ):
        with pytest.raises(DemoError, match=message):
            wrong.check()


# ---- graphs that change


@pytest.fixture(scope="module")
def graphs() -> StaticGraph:
    return static_graph()


def test_static_graph_takes_what_never_changes(graphs: StaticGraph) -> None:
    graphs.check()
    for name in ("always unused", "checkpointed twice"):
        assert (graphs.static[name].num_right, graphs.static[name].error) == (4, "")
    assert "Expected to have finished reduction" in graphs.plain["always unused"].error
    assert "mark a variable ready only once" in graphs.plain["checkpointed twice"].error


def test_static_graph_refuses_what_changes(graphs: StaticGraph) -> None:
    later, gone = graphs.static["used from step 2 on"], graphs.static["unused from step 2 on"]
    assert (later.num_steps, later.num_right) == (2, 2)  # at once
    assert (gone.num_steps, gone.num_right) == (3, 2)  # a step too late
    for run in (later, gone):
        assert "training graph has changed in this iteration" in run.error


def test_graphs_that_fare_otherwise_are_found(graphs: StaticGraph) -> None:
    half = evolve(graphs.static["always unused"], num_right=3)
    for static in (graphs.plain, {**graphs.static, "always unused": half}):
        with pytest.raises(DemoError, match="DDP without and with static_graph should take"):
            evolve(graphs, static=static).check()


# ---- memory


def test_a_bucket_view_saves_the_gradients() -> None:
    module = nn.Sequential(nn.Linear(300, 1000), nn.Linear(1000, 700), nn.Linear(700, 10))
    view = bucket_view_memory(module, torch.ones(2, 300))
    view.check()
    size = sum(parameter.nbytes for parameter in module.parameters())
    assert view.without.gradient_bytes == view.with_view.gradient_bytes == size == view.saved_bytes
    assert view.without.held_bytes == 2 * size
    with pytest.raises(DemoError, match=f"the view should save the gradients' {size} bytes"):
        evolve(view, with_view=view.without).check()


# ---- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: no_sync(work(14)), "inputs must be a multiple of 4 samples, got 14"),
        (lambda: unused_parameters(1), "find_unused must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: bucket_view_memory(mlp(), [1]), r"inputs must be a Tensor, got \[1\]"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
