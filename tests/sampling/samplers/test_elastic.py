"""Samplers whose state is a position in the order of all ranks: every one in SAMPLERS, stopped at random."""

from __future__ import annotations

import copy
import itertools
import json
import random

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

from rankscope.ranks import launch
from rankscope.sampling import (
    SAMPLERS,
    Assignment,
    BalancedSampler,
    EpochRecipe,
    KeyedSampler,
    assign,
    audit_loader,
    epoch_work,
)
from tests.extents import SAMPLE_OR_EVERYTHING

KINDS = [name for name, kind in SAMPLERS.items() if kind.make is not None]
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def recipe_of(kind, size, num_ranks, draw, **fields):
    """Return a recipe for a sampler of this kind, with random lengths or weights."""
    settings = {}
    if kind == "balanced":
        lengths = np.array([draw.randint(0, 20) for _ in range(size)], dtype=int)
        settings = {"lengths": lengths, "window": draw.randint(1, 5), "batch_size": draw.randint(1, 4)}
    if kind == "weighted":
        settings = {"weights": [draw.choice([0.5, 1, 1, 2]) for _ in range(size)]}
    fields = {"shuffle": True, "seed": draw.randint(0, 5), "epoch": 0, "drop_last": False} | fields
    return EpochRecipe(size, num_ranks, settings=settings, **fields)


def resized(kind, recipe, num_ranks, draw):
    """Return the recipe for another number of ranks and, if that is the sampler's, another batch size and window."""
    settings = dict(recipe.settings)
    if kind == "balanced":
        settings |= {"window": draw.randint(1, 5), "batch_size": draw.randint(1, 4)}
    return recipe._replace(num_ranks=num_ranks, settings=settings)


def made(kind, recipe, rank=0):
    return SAMPLERS[kind].make(recipe, rank)


def flat(items):
    return [index for item in items for index in (item if isinstance(item, list) else [item])]


def whole_epoch(kind, recipe):
    """Count the reads of each sample on one rank."""
    reads = SAMPLERS[kind].reads(recipe._replace(num_ranks=1, drop_last=False))
    return np.bincount(np.concatenate(reads.indices), minlength=recipe.size)


def assignment_of(sampler):
    indices, stops = sampler.all_ranks()
    return Assignment(sampler.size, indices, batch_stops=stops)


def items_by_step(sampler):
    """Return what all ranks read, as a list for each step of the samples that each rank reads there."""
    assignment = assignment_of(sampler)
    ranks = [[batch.tolist() for batch in assignment.batches(rank)] for rank in range(sampler.num_replicas)]
    return [list(step) for step in zip(*ranks, strict=True)]


def read_through_schedule(kind, draw):
    """Read an epoch in up to five parts on random numbers of ranks. Return the recipe, what was read, and padding."""
    recipe = recipe_of(kind, draw.randint(0, 60), draw.randint(1, 8), draw, epoch=draw.randint(0, 3))
    recipe = recipe._replace(drop_last=draw.random() < 0.3)
    first = recipe
    state = None
    read = []
    for part in range(5):
        sampler = made(kind, recipe, draw.randrange(recipe.num_ranks))
        sampler.set_epoch(recipe.epoch)
        if state is not None:
            sampler.load_state_dict(json.loads(json.dumps(state)))
            sampler.set_epoch(recipe.epoch)  # as a training loop does at the head of each epoch
        steps = items_by_step(sampler)
        assert len(sampler) == len(steps)
        sizes = [{len(item) for item in step} for step in steps]
        assert all(len(sizes_of_step) == 1 for sizes_of_step in sizes)
        assert all(size == {recipe.settings.get("batch_size", 1)} for size in sizes[:-1])
        trained = draw.randint(0, len(steps)) if part < 4 else len(steps)
        again = made(kind, recipe, draw.randrange(recipe.num_ranks))
        idle = made(kind, resized(kind, recipe, draw.randint(1, 8), draw))  # a job between them that reads nothing
        idle.load_state_dict(sampler.state_after(trained))
        again.load_state_dict(idle.state_dict())
        if trained < len(steps):
            assert items_by_step(again) == steps[trained:]  # without a change, it continues as if never stopped
        read += flat(item for step in steps[:trained] for item in step)
        state = sampler.state_after(trained)
        if draw.random() < 0.2:
            own = [step[sampler.rank] for step in steps[:trained]]
            assert [flat([item]) for item in itertools.islice(sampler, trained)] == own
            assert sampler.state_dict() == state
        if trained == len(steps):
            return recipe, read, sampler.padding
        recipe = resized(kind, recipe, draw.randint(1, 8), draw)
        if draw.random() < 0.2:
            recipe = first  # the job that began the epoch takes it up again


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_is_lost_or_read_twice_over_random_schedules(kind, everything):
    draw = random.Random(kind)
    for _ in range(3000 if everything else 150):
        recipe, read, padding = read_through_schedule(kind, draw)
        difference = np.bincount(read, minlength=recipe.size) - whole_epoch(kind, recipe)
        num_lost = -difference[difference < 0].sum()
        if recipe.drop_last:
            assert 0 <= num_lost < recipe.num_ranks
        else:
            assert num_lost == 0
        assert difference[difference > 0].sum() == padding < recipe.num_ranks


def test_the_schedules_notice_a_state_that_counts_a_ranks_own_items(monkeypatch):
    """As torchdata's StatefulDistributedSampler does: right for as many ranks, wrong for any other number."""
    monkeypatch.setattr(KeyedSampler, "_consumed_after", lambda self, items: self._consumed_before + items)
    with pytest.raises(AssertionError):
        test_no_sample_is_lost_or_read_twice_over_random_schedules("keyed", False)


@pytest.mark.parametrize(
    ("before", "after"), [((8, 8), (4, 8)), ((8, 4), (8, 3)), ((64, 8), (48, 8)), ((4, 8), (8, 16)), ((64, 4), (48, 3))]
)
@pytest.mark.parametrize("sigma", [1, 1.5])
def test_a_balanced_epoch_that_other_ranks_resume_is_as_balanced_as_one_of_their_own(before, after, sigma):
    """The rest costs at most 1.2 times the mean, unless a step's longest sample alone costs more; at random 1.5 to 8.

    A third job, which resumes what the second one began, has the same balance.
    """
    lengths = np.random.default_rng(0).lognormal(5, sigma, 64 * 8 * 30).clip(1, 2**20).astype(int)
    jobs = [BalancedSampler(lengths, ranks, 0, batch_size=size) for ranks, size in (before, after, before)]
    jobs[1].load_state_dict(jobs[0].state_after(7))
    jobs[2].load_state_dict(jobs[1].state_after(7))
    for job in jobs[1:]:
        work = epoch_work(assignment_of(job), lengths)
        longest = [lengths[flat(batches)].max() for batches in items_by_step(job)]
        means = work.step_costs.mean(axis=1)
        assert work.imbalance < max(1.2, 1.01 * np.maximum(means, longest).sum() / means.sum())
        at_random = assign(lengths.size, job.num_replicas).with_loader(job.batch_size)
        assert epoch_work(at_random, lengths).imbalance > 1.4


# ---- the protocol


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_goes_on_as_it_began_and_each_epoch_has_its_order(kind):
    sampler = made(kind, recipe_of(kind, 40, 2, random.Random(1)), 1)
    first = list(sampler)
    assert len(sampler) == len(first)
    begun = iter(sampler)
    items = [next(begun)]
    sampler.set_epoch(1)
    assert items + list(begun) == first
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_state_is_used_once(kind):
    sampler = made(kind, recipe_of(kind, 60, 2, random.Random(3)))
    epoch = list(sampler)
    for trained in (len(epoch) // 2, len(epoch)):
        sampler.load_state_dict(sampler.state_after(trained))
        iter(sampler)  # one that is never used
        assert [list(sampler), list(sampler)] == [epoch[trained:], epoch]
    sampler.load_state_dict(sampler.state_after(3))
    audit_loader(loader_of(kind, sampler, loader=DataLoader))
    Assignment.collect([sampler], 60)
    assert list(sampler) == epoch[3:]  # audits leave it where it was
    sampler.load_state_dict(sampler.state_after(3))
    sampler.set_epoch(2)
    sampler.set_epoch(0)
    assert list(sampler) == epoch  # another epoch than the resumed one is read from its beginning


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_finished_epoch(kind, drop_last):
    """Nothing is left of it, on any number of ranks, and then comes a whole one or the one that was set."""
    recipe = recipe_of(kind, 59, 4, random.Random(3), drop_last=drop_last)
    sampler = made(kind, recipe)
    epoch = list(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    assert (state["finished"], state["consumed"]) == (True, 59)
    for ranks in (1, 4):
        again = made(kind, recipe._replace(num_ranks=ranks))
        for end in (state, sampler.state_after(len(epoch))):
            again.load_state_dict(end)
            assert list(again) == []
    assert list(again) == epoch
    sampler.set_epoch(1)
    again = made(kind, recipe._replace(epoch=1))
    again.load_state_dict(state)
    assert list(again) == list(sampler)


# ---- loaders take them as they are


def loader_of(kind, sampler, how=0, batch_size=2, loader=StatefulDataLoader):
    """Return a loader with `how` many workers, or torchdata's nodes."""
    if how == "nodes":
        return nodes.Loader(nodes.SamplerWrapper(sampler))
    options = {"batch_size": batch_size, "sampler": sampler}
    if kind == "balanced":
        options = {"batch_sampler": sampler}
    return loader(range(60), collate_fn=list, num_workers=how, **options)


def kinds_and_workers():
    """Each kind in one process, and with workers: `make test` runs one kind of samples and one of batches."""
    cases = [(kind, 0) for kind in KINDS]
    for kind in KINDS:
        mark = pytest.mark.slow if kind in ("keyed", "balanced") else pytest.mark.oracle
        cases.append(pytest.param(kind, 2, marks=mark))
    return cases


@pytest.mark.parametrize(("kind", "how"), [*kinds_and_workers(), *[(kind, "nodes") for kind in KINDS]])
def test_stateful_loaders_resume_on_other_ranks_with_another_batch_size(kind, how):
    draw = random.Random(7)
    before = recipe_of(kind, 60, 3, draw)
    after = resized(kind, before, 2, draw)
    read = []
    for rank in range(3):
        loader = loader_of(kind, made(kind, before, rank), how)
        batches = iter(loader)
        read += flat(next(batches) for _ in range(3))
        state = loader.state_dict()
        del batches
    for rank in range(2):
        loader = loader_of(kind, made(kind, after, rank), how, 5)
        loader.load_state_dict(copy.deepcopy(state))
        read += flat(loader)
        if how != "nodes":  # they set the next epoch
            assert flat(loader) == flat(made(kind, after, rank))  # the epoch after it is whole
    difference = np.bincount(read, minlength=60) - whole_epoch(kind, before)
    assert (difference >= 0).all()
    assert difference.sum() <= 1


@pytest.mark.parametrize("batch_size", [7, pytest.param(5, marks=pytest.mark.oracle)])
@pytest.mark.parametrize("is_exhausted", [True, False], ids=["exhausted", "last batch taken"])
@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
def test_a_stateful_data_loader_saved_at_the_end_of_an_epoch(kind, num_workers, is_exhausted, batch_size):
    """Of 30 samples, the last batch of 7 is incomplete: the sampler has ended there, and the loader has not.

    A loader loads the sampler's state when it is iterated: after set_epoch, which then decides.
    """
    recipe = recipe_of(kind, 60, 2, random.Random(11))

    def loader():
        return loader_of(kind, made(kind, recipe), num_workers, batch_size)

    def epochs_read(loader, epochs, state=None):
        if state is not None:
            loader.load_state_dict(copy.deepcopy(state))
        read = []
        for epoch in epochs:
            (loader.batch_sampler if kind == "balanced" else loader.sampler).set_epoch(epoch)
            read.append(flat(loader))
        return read

    stopped = loader()
    first = list(stopped)
    batches = iter(stopped)
    assert [next(batches) for _ in first] == first
    if is_exhausted:
        assert list(batches) == []
    state = stopped.state_dict()
    del batches
    expected = epochs_read(stopped, (1, 2))
    assert epochs_read(loader(), (1, 2), state) == expected
    # A job that continues with the epoch it was in: nothing is left of it, unless the loader had begun the next one.
    assert epochs_read(loader(), (0,), state) == [flat(first) if is_exhausted else []]
    assert is_exhausted or epochs_read(loader(), (0, 1, 2), state) == [[], *expected]


@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
def test_a_plain_data_loader_resumes_at_the_very_end_and_in_the_middle(kind, num_workers):
    """With workers, it makes two iterators and uses the second one."""
    sampler = made(kind, recipe_of(kind, 60, 2, random.Random(9)), 1)
    loader = loader_of(kind, sampler, num_workers, 5, loader=DataLoader)
    items = list(sampler)
    for trained in (len(items), 0, 5):
        sampler.load_state_dict(sampler.state_after(trained))
        assert [flat(loader), flat(loader)] == [flat(items[trained:]), flat(items)]


# ---- the process group


def test_a_sampler_that_is_made_before_the_process_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert KeyedSampler(10).num_replicas == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        KeyedSampler(10)


def made_on_a_rank():
    sampler = KeyedSampler(10)
    return sampler.num_replicas, sampler.rank


@pytest.mark.slow
def test_on_real_ranks_samplers_know_their_number():
    assert launch(made_on_a_rank, 2) == [(2, 0), (2, 1)]
