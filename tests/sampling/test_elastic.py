"""Samplers whose state is a position in the order of all ranks: every one in SAMPLERS, stopped at random."""

from __future__ import annotations

import copy
import itertools
import json
import random

import numpy as np
import pytest
import torch
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

from ..extents import SAMPLE_OR_EVERYTHING

KINDS = [name for name, kind in SAMPLERS.items() if kind.make is not None]
BATCHED = ["balanced"]
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


def items_by_step(sampler):
    """Return what all ranks read, as a list of items for each step: an index, or the list of a batch."""
    reads = sampler.all_ranks()
    if reads.batch_stops is None:
        return [[[index] for index in step] for step in zip(*[r.tolist() for r in reads.indices], strict=True)]
    ranks = []
    for indices, stops in zip(reads.indices, reads.batch_stops, strict=True):
        edges = [0, *stops.tolist()]
        ranks.append([indices[start:stop].tolist() for start, stop in itertools.pairwise(edges)])
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
        trained = draw.randint(0, len(steps)) if part < 4 else len(steps)
        again = made(kind, recipe, draw.randrange(recipe.num_ranks))
        again.load_state_dict(sampler.state_after(trained))
        if trained < len(steps):
            assert items_by_step(again) == steps[trained:]  # without a change, it continues as if never stopped
        read += flat(item for step in steps[:trained] for item in step)
        state = sampler.state_after(trained)
        if draw.random() < 0.2:
            list(itertools.islice(sampler, trained))
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
    monkeypatch.setattr(KeyedSampler, "_consumed_after", lambda self, items: self._start + items)
    with pytest.raises(AssertionError):
        test_no_sample_is_lost_or_read_twice_over_random_schedules("keyed", False)


@pytest.mark.parametrize(
    ("before", "after"), [((8, 8), (4, 8)), ((8, 8), (6, 8)), ((8, 8), (8, 5)), ((64, 8), (48, 8)), ((4, 8), (8, 16))]
)
def test_a_balanced_epoch_that_other_ranks_resume_is_balanced_step_by_step(before, after):
    """The rest costs at most 1.2 times the mean; in random order it would cost 1.4 to 3.4 times."""
    for seed in range(3):
        lengths = np.random.default_rng(seed).lognormal(5, 1, 64 * 8 * 30).clip(16, 4096).astype(int)
        stopped = BalancedSampler(lengths, before[0], 0, batch_size=before[1], seed=seed)
        resumed = BalancedSampler(lengths, after[0], 0, batch_size=after[1], seed=seed)
        resumed.load_state_dict(stopped.state_after(7))
        rest = Assignment(lengths.size, *resumed.all_ranks()[:1], batch_stops=resumed.all_ranks().batch_stops)
        assert epoch_work(rest, lengths).imbalance < 1.2
        at_random = assign(lengths.size, after[0], seed=seed).with_loader(after[1])
        assert epoch_work(at_random, lengths).imbalance > 1.4


# ---- one table


@pytest.mark.parametrize("kind", KINDS)
def test_assign_reads_what_each_ranks_sampler_yields(kind):
    draw = random.Random(0)
    for size, num_ranks in [(0, 2), (1, 3), (5, 8), (40, 4), (61, 7)]:
        for drop_last in (False, True):
            recipe = recipe_of(kind, size, num_ranks, draw, epoch=2, drop_last=drop_last)
            if kind == "weighted" and size == 0:
                continue
            collected = Assignment.collect([made(kind, recipe, rank) for rank in range(num_ranks)], size, epoch=2)
            assigned = assign(
                size, num_ranks, sampler=kind, seed=recipe.seed, epoch=2, drop_last=drop_last, **recipe.settings
            )
            for rank in range(num_ranks):
                assert collected.ranks[rank].tolist() == assigned.ranks[rank].tolist()
                assert list(map(list, collected.batches(rank))) == list(map(list, assigned.batches(rank)))


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_the_protocol_of_a_distributed_sampler(kind):
    recipe = recipe_of(kind, 40, 2, random.Random(1), seed=4)
    sampler = made(kind, recipe, 1)
    assert (sampler.num_replicas, sampler.rank, sampler.seed, sampler.epoch) == (2, 1, 4, 0)
    first = list(sampler)
    assert [len(sampler), *sampler] == [len(first), *first]
    begun = iter(sampler)
    items = [next(begun)]
    sampler.set_epoch(1)
    assert items + list(begun) == first  # an iterator goes on as it began
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_state_is_used_once(kind):
    recipe = recipe_of(kind, 60, 2, random.Random(3))
    sampler = made(kind, recipe)
    epoch = list(sampler)
    for trained in (len(epoch) // 2, len(epoch)):
        sampler.load_state_dict(sampler.state_after(trained))
        iter(sampler)  # one that is never used
        assert [list(sampler), list(sampler)] == [epoch[trained:], epoch]
    sampler.load_state_dict(sampler.state_after(3))
    audit_loader(loader_of(kind, sampler, 2, loader=DataLoader))
    Assignment.collect([sampler], 60)
    assert list(sampler) == epoch[3:]  # audits leave it where it was
    sampler.load_state_dict(sampler.state_after(3))
    sampler.set_epoch(2)
    fresh = made(kind, recipe)
    fresh.set_epoch(2)
    assert list(sampler) == list(fresh)  # another epoch than the resumed one is read from its beginning


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_finished_epoch(kind, drop_last):
    """Nothing is left of it, on any number of ranks, and then comes a whole one or the one that was set."""
    recipe = recipe_of(kind, 59, 4, random.Random(3), drop_last=drop_last)
    sampler = made(kind, recipe)
    epoch = list(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state["finished"]
    for ranks in (4, 1):
        again = made(kind, recipe._replace(num_ranks=ranks))
        again.load_state_dict(state)
        assert again.state_dict()["consumed"] == 59
        assert list(again) == []
        assert ranks == 1 or list(again) == epoch
        again.load_state_dict(sampler.state_after(len(epoch)))
        assert list(again) == []
    sampler.set_epoch(1)
    again = made(kind, recipe)
    again.set_epoch(1)
    again.load_state_dict(state)
    assert list(again) == list(sampler)


# ---- torchdata takes them as they are


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return index


def loader_of(kind, sampler, batch_size, num_workers=0, loader=StatefulDataLoader):
    if kind in BATCHED:
        return loader(Numbers(), batch_sampler=sampler, collate_fn=list, num_workers=num_workers)
    return loader(Numbers(), batch_size=batch_size, sampler=sampler, collate_fn=list, num_workers=num_workers)


def kinds_and_workers():
    """Each kind in one process, and with workers: `make test` runs one kind of samples and one of batches."""
    cases = [(kind, 0) for kind in KINDS]
    for kind in KINDS:
        cases.append(
            pytest.param(kind, 2, marks=pytest.mark.slow if kind in ("keyed", *BATCHED) else pytest.mark.oracle)
        )
    return cases


@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
def test_stateful_data_loader_resumes_on_other_ranks_with_another_batch_size(kind, num_workers):
    draw = random.Random(7)
    before = recipe_of(kind, 60, 3, draw)
    after = resized(kind, before, 2, draw)
    read = []
    for rank in range(3):
        loader = loader_of(kind, made(kind, before, rank), 2, num_workers)
        batches = iter(loader)
        for _ in range(3):
            read += next(batches)
        state = loader.state_dict()
        del batches
    for rank in range(2):
        loader = loader_of(kind, made(kind, after, rank), 5, num_workers)
        loader.load_state_dict(copy.deepcopy(state))
        read += itertools.chain(*loader)
        assert list(loader) == list(loader_of(kind, made(kind, after, rank), 5))  # the epoch after it is whole
    difference = np.bincount(read, minlength=60) - whole_epoch(kind, before)
    assert (difference >= 0).all()
    assert difference.sum() <= 1


@pytest.mark.parametrize("batch_size", [5, 7])
@pytest.mark.parametrize("is_exhausted", [True, False], ids=["exhausted", "last batch taken"])
@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
def test_a_stateful_data_loader_saved_at_the_end_of_an_epoch(kind, num_workers, is_exhausted, batch_size):
    """Of 30 samples, the last batch of 7 is incomplete: the sampler has ended there, and the loader has not.

    A loader loads the sampler's state when it is iterated: after set_epoch, which then decides.
    """
    recipe = recipe_of(kind, 60, 2, random.Random(11))

    def loaded(state):
        sampler = made(kind, recipe)
        loader = loader_of(kind, sampler, batch_size, num_workers)
        loader.load_state_dict(copy.deepcopy(state))
        return sampler, loader

    def epoch_read(sampler, loader, epoch):
        sampler.set_epoch(epoch)
        return list(itertools.chain(*loader))

    sampler = made(kind, recipe)
    loader = loader_of(kind, sampler, batch_size, num_workers)
    first = list(loader)
    batches = iter(loader)
    assert [next(batches) for _ in first] == first
    if is_exhausted:
        assert list(batches) == []
    state = loader.state_dict()
    del batches
    expected = [epoch_read(sampler, loader, epoch) for epoch in (1, 2)]
    sampler, loader = loaded(state)
    assert [epoch_read(sampler, loader, epoch) for epoch in (1, 2)] == expected
    sampler, loader = loaded(state)
    if is_exhausted:
        assert list(loader) == first
    else:  # a job that continues with the epoch it was in: nothing is left of it
        assert [epoch_read(sampler, loader, epoch) for epoch in (0, 1, 2)] == [[], *expected]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_data_loader_resumes_at_the_very_end_and_in_the_middle(kind, num_workers):
    """With workers, it makes two iterators and uses the second one."""
    sampler = made(kind, recipe_of(kind, 60, 2, random.Random(9)), 1)
    loader = loader_of(kind, sampler, 5, num_workers, loader=DataLoader)
    items = list(sampler)
    read = list(loader)
    assert flat(read) == flat(items)
    for trained in (len(items), 0, 5):
        sampler.load_state_dict(sampler.state_after(trained))
        assert [flat(loader), list(loader)] == [flat(items[trained:]), read]


@pytest.mark.parametrize("kind", KINDS)
def test_torchdata_nodes_resume_on_other_ranks(kind):
    draw = random.Random(8)
    before = recipe_of(kind, 60, 3, draw)
    after = before._replace(num_ranks=2)
    read = []
    for rank in range(3):
        loader = nodes.Loader(nodes.SamplerWrapper(made(kind, before, rank)))
        batches = iter(loader)
        read += flat(next(batches) for _ in range(3))
        state = loader.state_dict()
    for rank in range(2):
        loader = nodes.Loader(nodes.SamplerWrapper(made(kind, after, rank)))
        loader.load_state_dict(json.loads(json.dumps(state)))
        read += flat(loader)
    difference = np.bincount(read, minlength=60) - whole_epoch(kind, before)
    assert (difference >= 0).all()
    assert difference.sum() <= 1


def test_batches_that_a_loader_groups_again_are_found():
    sampler = made("balanced", recipe_of("balanced", 60, 2, random.Random(13)))
    twice = audit_loader(DataLoader(Numbers(), batch_size=2, sampler=sampler))
    assert [finding.kind for finding in twice.findings] == ["grouped_twice"]
    for loader in (DataLoader(Numbers(), batch_size=None, sampler=sampler), loader_of("balanced", sampler, 2)):
        audited = audit_loader(loader)
        assert "grouped_twice" not in {finding.kind for finding in audited.findings}
        assert audited.batch_sizes == tuple(len(batch) for batch in sampler)


# ---- the process group


def test_a_sampler_that_is_made_before_the_process_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert KeyedSampler(10).num_replicas == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        KeyedSampler(10)
    assert KeyedSampler(10, 1, 0).num_replicas == 1


def made_on_a_rank():
    sampler = KeyedSampler(10)
    return sampler.num_replicas, sampler.rank


@pytest.mark.slow
def test_on_real_ranks_samplers_know_their_number():
    assert launch(made_on_a_rank, 2) == [(2, 0), (2, 1)]
