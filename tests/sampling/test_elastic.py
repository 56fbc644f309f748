"""Samplers whose state is a position in the order of all ranks: every one in SAMPLERS, stopped at random."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
from msgspec.structs import replace
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
    WeightedSampler,
    assign,
    audit_loader,
)

from ..extents import SAMPLE_OR_EVERYTHING

KINDS = [name for name, kind in SAMPLERS.items() if kind.make is not None]


def recipe_of(kind, size, num_replicas, draw, **fields):
    """Return a recipe for a sampler of this kind, with random lengths or weights."""
    settings = {}
    if SAMPLERS[kind].values == "lengths":
        settings["lengths"] = np.array([draw.randint(0, 20) for _ in range(size)], dtype=int)
        settings["window"] = draw.randint(1, 5)
    if SAMPLERS[kind].values == "weights":
        settings["weights"] = [draw.choice([0.5, 1, 1, 2]) for _ in range(size)]
    if kind == "balanced":
        settings["batch_size"] = draw.randint(1, 4)
    fields = {"shuffle": True, "seed": draw.randint(0, 5), "epoch": 0, "drop_last": False} | fields
    return EpochRecipe(size=size, num_replicas=num_replicas, settings=settings, **fields)


BATCHED = [kind for kind in KINDS if SAMPLERS[kind].make(recipe_of(kind, 1, 1, random.Random(0)), 0).makes_batches]


def resized(kind, recipe, num_replicas, draw):
    """Return the recipe for another number of ranks and, if that is the sampler's, another batch size and window."""
    settings = dict(recipe.settings)
    if kind == "balanced":
        settings |= {"window": draw.randint(1, 5), "batch_size": draw.randint(1, 4)}
    return replace(recipe, num_replicas=num_replicas, settings=settings)


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
    """Read an epoch in up to four parts on random numbers of ranks. Return what was read, and the padding."""
    size = draw.randint(0, 60)
    recipe = recipe_of(kind, size, draw.randint(1, 8), draw, epoch=draw.randint(0, 3))
    make = SAMPLERS[kind].make
    state = None
    read = []
    for part in range(4):
        sampler = make(recipe, draw.randrange(recipe.num_replicas))
        sampler.set_epoch(recipe.epoch)
        if state is not None:
            sampler.load_state_dict(json.loads(json.dumps(state)))
            sampler.set_epoch(recipe.epoch)  # as a training loop does at the head of each epoch
        steps = items_by_step(sampler)
        assert len(sampler) == len(steps)
        trained = draw.randint(0, len(steps)) if part < 3 else len(steps)
        again = make(recipe, draw.randrange(recipe.num_replicas))
        again.load_state_dict(sampler.state_after(trained))
        if trained < len(steps):
            assert items_by_step(again) == steps[trained:]  # without a change, it continues as if never stopped
        for step in steps[:trained]:
            for item in step:
                read += item
        state = sampler.state_after(trained)
        if draw.random() < 0.2:
            list(itertools.islice(sampler, trained))
            assert sampler.state_dict() == state
        padding = sampler.padding if trained == len(steps) else 0
        if trained == len(steps):
            break
        recipe = resized(kind, recipe, draw.randint(1, 8), draw)
    return recipe, np.array(read, dtype=int), padding


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_is_lost_or_read_twice_over_random_schedules(kind, everything):
    draw = random.Random(kind)
    for _ in range(3000 if everything else 150):
        recipe, read, padding = read_through_schedule(kind, draw)
        whole_epoch = np.concatenate(SAMPLERS[kind].indices(replace(recipe, num_replicas=1)).indices)
        expected = np.bincount(whole_epoch, minlength=recipe.size)
        counts = np.bincount(read, minlength=recipe.size)
        assert (counts >= expected).all()
        assert (counts - expected).sum() == padding < recipe.num_replicas


def test_the_schedules_notice_a_state_that_counts_a_ranks_own_items(monkeypatch):
    """As torchdata's StatefulDistributedSampler does: right for as many ranks, wrong for any other number."""
    own_items = lambda self, start, items: {"position": start["position"] + items}  # noqa: E731
    monkeypatch.setattr(KeyedSampler, "_progress_after", own_items)
    with pytest.raises(AssertionError):
        test_no_sample_is_lost_or_read_twice_over_random_schedules("keyed", False)


# ---- one table


@pytest.mark.parametrize("kind", KINDS)
def test_assign_reads_what_each_ranks_sampler_yields(kind):
    draw = random.Random(0)
    for size, num_replicas in [(0, 2), (1, 3), (5, 8), (40, 4), (61, 7)]:
        for drop_last in (False, True):
            recipe = recipe_of(kind, size, num_replicas, draw, epoch=2, drop_last=drop_last)
            if kind == "weighted" and size == 0:
                continue
            samplers = [SAMPLERS[kind].make(recipe, rank) for rank in range(num_replicas)]
            collected = Assignment.collect(samplers, size, epoch=2)
            assigned = assign(
                size, num_replicas, sampler=kind, seed=recipe.seed, epoch=2, drop_last=drop_last, **recipe.settings
            )
            for rank in range(num_replicas):
                assert collected.ranks[rank].tolist() == assigned.ranks[rank].tolist()
                assert list(map(list, collected.batches(rank))) == list(map(list, assigned.batches(rank)))


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "balanced"])
def test_ranks_read_one_order_in_turn_and_padding_repeats_its_beginning(kind, everything):
    draw = random.Random(kind)
    for _ in range(3000 if everything else 100):
        num_replicas = draw.randint(1, 12)
        recipe = recipe_of(kind, draw.randint(1, 40), num_replicas, draw, drop_last=draw.random() < 0.5)
        samplers = [SAMPLERS[kind].make(recipe, rank) for rank in range(num_replicas)]
        read = [item for step in zip(*samplers, strict=True) for item in step]
        order = list(SAMPLERS[kind].make(replace(recipe, num_replicas=1), 0))
        assert read == [order[place % len(order)] for place in range(len(read))]
        assert read == [samplers[0][place % len(order)] for place in range(len(read))]
        assert samplers[0].padding == max(len(read) - len(order), 0)
        if not recipe.drop_last:
            assert 0 <= samplers[0].padding < num_replicas


@pytest.mark.parametrize("kind", KINDS)
def test_each_has_the_protocol_of_a_distributed_sampler(kind):
    recipe = recipe_of(kind, 30, 3, random.Random(1), seed=4)
    sampler = SAMPLERS[kind].make(recipe, 1)
    assert (sampler.num_replicas, sampler.rank, sampler.seed, sampler.epoch) == (3, 1, 4, 0)
    first = list(sampler)
    assert len(first) == len(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert not sampler.drop_last


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_goes_on_as_it_began(kind):
    recipe = recipe_of(kind, 40, 2, random.Random(2))
    sampler = SAMPLERS[kind].make(recipe, 1)
    whole_epoch = list(sampler)
    begun = iter(sampler)
    items = [next(begun)]
    sampler.set_epoch(5)
    assert items + list(begun) == whole_epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_state_is_used_once(kind):
    recipe = recipe_of(kind, 60, 2, random.Random(3))
    sampler = SAMPLERS[kind].make(recipe, 0)
    whole_epoch = list(sampler)
    trained = len(whole_epoch) // 2
    sampler.load_state_dict(sampler.state_after(trained))
    iter(sampler)  # one that is never used
    assert [list(sampler), list(sampler)] == [whole_epoch[trained:], whole_epoch]
    sampler.load_state_dict(sampler.state_after(len(whole_epoch)))
    assert [list(sampler), list(sampler)] == [[], whole_epoch]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_finished_epoch_nothing_is_left_of_it_and_then_comes_a_whole_one(kind):
    recipe = recipe_of(kind, 60, 2, random.Random(3))
    sampler = SAMPLERS[kind].make(recipe, 0)
    whole_epoch = list(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state["finished"]
    again = SAMPLERS[kind].make(recipe, 0)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert copy.deepcopy(again).state_dict() == state
    assert [list(again), list(again)] == [[], whole_epoch]
    sampler.set_epoch(1)
    again.set_epoch(1)
    again.load_state_dict(state)
    assert list(again) == list(sampler)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BATCHED])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_state_after_an_incomplete_last_batch_does_not_train_the_epoch_again(kind, num_workers):
    """A loader learns that the sampler has ended when it fills this batch, so the sampler's state says so, too."""
    recipe = recipe_of(kind, 60, 1, random.Random(11))
    loader = loader_of(kind, SAMPLERS[kind].make(recipe, 0), 7, num_workers)
    batches = iter(loader)
    read = [next(batches) for _ in range(9)]
    assert [len(batch) for batch in read] == [7] * 8 + [4]
    state = loader.state_dict()
    del batches
    resumed = loader_of(kind, SAMPLERS[kind].make(recipe, 0), 7, num_workers)
    resumed.load_state_dict(copy.deepcopy(state))
    assert list(resumed) == []
    assert list(resumed) == read
    after_the_end = loader_of(kind, SAMPLERS[kind].make(recipe, 0), 7, num_workers)
    assert list(loader) == read
    after_the_end.load_state_dict(copy.deepcopy(loader.state_dict()))
    assert list(after_the_end) == read


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_an_epoch_leaves_nothing_that_was_dropped(kind):
    recipe = recipe_of(kind, 59, 4, random.Random(6), drop_last=True)
    sampler = SAMPLERS[kind].make(recipe, 0)
    states = [sampler.state_after(len(sampler))]
    list(sampler)
    states.append(sampler.state_dict())
    for state in states:
        on_one_rank = SAMPLERS[kind].make(replace(recipe, num_replicas=1), 0)
        on_one_rank.load_state_dict({**state, "finished": False})
        assert list(on_one_rank) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_continues_where_the_sampler_is(kind):
    recipe = recipe_of(kind, 60, 2, random.Random(3))
    sampler = SAMPLERS[kind].make(recipe, 1)
    whole_epoch = list(sampler)
    for copied in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert list(copied) == whole_epoch
    begun = iter(sampler)
    next(begun)
    for copied in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert copied.state_dict() == sampler.state_dict()
        assert list(copied) == whole_epoch[1:]
    assert list(begun) == whole_epoch[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_of_the_epoch_that_is_read(kind):
    """Also if set_epoch is called before the iterator's first item."""
    recipe = recipe_of(kind, 60, 2, random.Random(10))
    if kind == "balanced":
        recipe = replace(recipe, settings={**recipe.settings, "window": 2})
    sampler = SAMPLERS[kind].make(recipe, 0)
    begun = iter(sampler)
    sampler.set_epoch(1)
    items = list(begun)
    expected = SAMPLERS[kind].make(recipe, 0)
    for trained in (1, len(items) // 2, len(items)):
        assert sampler.state_after(trained) == expected.state_after(trained)
    again = SAMPLERS[kind].make(recipe, 0)
    again.load_state_dict(sampler.state_after(2))
    assert list(again) == items[2:]


# ---- torchdata takes them as they are


class Numbers(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def kinds_and_workers():
    """Return each kind in one process, and with workers: `make test` runs one kind of samples and one of batches."""
    cases = [(kind, 0) for kind in KINDS]
    samples = [kind for kind in KINDS if kind not in BATCHED]
    batches = [kind for kind in KINDS if kind in BATCHED]
    for kind in KINDS:
        marks = [pytest.mark.slow] if kind in (samples[0], batches[0]) else [pytest.mark.oracle]
        cases.append(pytest.param(kind, 2, marks=marks))
    return cases


def loader_of(kind, sampler, batch_size, num_workers=0, loader=StatefulDataLoader):
    if kind in BATCHED:
        return loader(Numbers(60), batch_sampler=sampler, collate_fn=list, num_workers=num_workers)
    return loader(Numbers(60), batch_size=batch_size, sampler=sampler, collate_fn=list, num_workers=num_workers)


@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_stateful_data_loader_resumes_on_other_ranks_with_another_batch_size(kind, num_workers):
    draw = random.Random(7)
    before = recipe_of(kind, 60, 3, draw)
    after = replace(before, num_replicas=2)
    if kind == "balanced":
        after = replace(after, settings={**before.settings, "batch_size": 3, "window": 2})
    read = []
    states = []
    for rank in range(3):
        loader = loader_of(kind, SAMPLERS[kind].make(before, rank), 2, num_workers)
        batches = iter(loader)
        for _ in range(3):
            read += next(batches)
        states.append(loader.state_dict())
        del batches
    for rank in range(2):
        loader = loader_of(kind, SAMPLERS[kind].make(after, rank), 5, num_workers)
        loader.load_state_dict(copy.deepcopy(states[0]))
        read += itertools.chain(*loader)
        rest = list(itertools.chain(*loader))  # the epoch after it is whole
        assert rest == list(itertools.chain(*loader_of(kind, SAMPLERS[kind].make(after, rank), 5)))
    whole_epoch = np.concatenate(SAMPLERS[kind].indices(replace(before, num_replicas=1)).indices)
    counts = np.bincount(np.array(read), minlength=60)
    expected = np.bincount(whole_epoch, minlength=60)
    assert (counts >= expected).all()
    assert (counts - expected).sum() <= 1  # padding on two ranks


@pytest.mark.parametrize("is_exhausted", [True, False], ids=["exhausted", "last batch taken"])
@pytest.mark.parametrize(("kind", "num_workers"), kinds_and_workers())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_stateful_data_loader_saved_at_the_end_of_an_epoch(kind, num_workers, is_exhausted):
    """It loads the sampler's state when it is iterated: after set_epoch, which then decides."""
    recipe = recipe_of(kind, 60, 2, random.Random(11))

    def loaded(state):
        sampler = SAMPLERS[kind].make(recipe, 0)
        loader = loader_of(kind, sampler, 5, num_workers)
        loader.load_state_dict(copy.deepcopy(state))
        return sampler, loader

    def epoch_read(sampler, loader, epoch):
        sampler.set_epoch(epoch)
        return list(itertools.chain(*loader))

    sampler = SAMPLERS[kind].make(recipe, 0)
    loader = loader_of(kind, sampler, 5, num_workers)
    num_batches = len(list(loader))
    batches = iter(loader)
    for _ in range(num_batches):
        next(batches)
    if is_exhausted:
        assert list(batches) == []
    state = loader.state_dict()
    del batches
    expected = [epoch_read(sampler, loader, epoch) for epoch in (1, 2)]
    sampler, loader = loaded(state)
    assert [epoch_read(sampler, loader, epoch) for epoch in (1, 2)] == expected
    if not is_exhausted:  # a job that continues with the epoch it was in: nothing is left of it
        sampler, loader = loaded(state)
        assert [epoch_read(sampler, loader, epoch) for epoch in (0, 1, 2)] == [[], *expected]


@pytest.mark.parametrize("kind", KINDS)
def test_torchdata_nodes_resume_on_other_ranks(kind):
    draw = random.Random(8)
    before = recipe_of(kind, 60, 3, draw)
    after = replace(before, num_replicas=2)
    read = []
    for rank in range(3):
        loader = nodes.Loader(nodes.SamplerWrapper(SAMPLERS[kind].make(before, rank)))
        batches = iter(loader)
        read += [next(batches) for _ in range(3)]
        state = loader.state_dict()
    for rank in range(2):
        loader = nodes.Loader(nodes.SamplerWrapper(SAMPLERS[kind].make(after, rank)))
        loader.load_state_dict(json.loads(json.dumps(state)))
        read += list(loader)
    if kind in BATCHED:
        read = list(itertools.chain(*read))
    whole_epoch = np.concatenate(SAMPLERS[kind].indices(replace(before, num_replicas=1)).indices)
    difference = np.bincount(read, minlength=60) - np.bincount(whole_epoch, minlength=60)
    assert (difference >= 0).all()
    assert difference.sum() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_leaves_a_resumed_sampler_where_it_is(kind):
    recipe = recipe_of(kind, 60, 1, random.Random(12))
    sampler = SAMPLERS[kind].make(recipe, 0)
    whole_epoch = list(sampler)
    sampler.load_state_dict(sampler.state_after(3))
    audit_loader(loader_of(kind, sampler, 2, loader=DataLoader))
    Assignment.collect([sampler], 60)
    assert list(sampler) == whole_epoch[3:]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in BATCHED])
def test_batches_that_a_loader_groups_again_are_found(kind):
    sampler = SAMPLERS[kind].make(recipe_of(kind, 60, 2, random.Random(13)), 0)
    twice = audit_loader(DataLoader(Numbers(60), batch_size=2, sampler=sampler))
    assert [finding.kind for finding in twice.findings] == ["grouped_twice"]
    for loader in (
        DataLoader(Numbers(60), batch_size=None, sampler=sampler),
        loader_of(kind, sampler, 2, loader=DataLoader),
    ):
        audited = audit_loader(loader)
        assert "grouped_twice" not in {finding.kind for finding in audited.findings}
        assert audited.batch_sizes == tuple(len(batch) for batch in sampler)


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_loader_takes_them(kind):
    sampler = SAMPLERS[kind].make(recipe_of(kind, 60, 2, random.Random(9)), 1)
    items = list(sampler)
    if kind in BATCHED:
        assert list(DataLoader(Numbers(60), batch_sampler=sampler, collate_fn=list)) == items
    else:
        assert list(DataLoader(Numbers(60), batch_size=None, sampler=sampler)) == items


# ---- states and ranks that do not fit


def check_as_gathered(samplers):
    """Call check_ranks as rank 0 of ranks that have these samplers."""
    samplers[0].check_ranks(lambda own: [own, *[sampler.facts() for sampler in samplers[1:]]])


def test_ranks_whose_samplers_differ_are_named():
    for different, message in [
        (KeyedSampler(11, 2, 1), "size 11, not 10"),
        (KeyedSampler(10, 2, 1, seed=3), "seed 3, not 0"),
        (KeyedSampler(10, 3, 1), "num_replicas 3, not 2"),
        (BalancedSampler([1] * 10, 2, 1, batch_size=2), "sampler 'BalancedSampler', not 'KeyedSampler'"),
    ]:
        samplers = [KeyedSampler(10, 2, 0), different]
        with pytest.raises(ValueError, match=message):
            Assignment.collect(samplers, 10)
        with pytest.raises(ValueError, match=message):
            check_as_gathered(samplers)
    check_as_gathered([KeyedSampler(10, 2, rank) for rank in (0, 1)])
    check_as_gathered([KeyedSampler(10, 2, rank) for rank in (1, 0)])  # the ranks of another group


def test_ranks_that_would_not_divide_one_order_are_named():
    resumed = KeyedSampler(10, 2, 1)
    resumed.load_state_dict(resumed.state_after(2))
    for samplers, message in [
        ([KeyedSampler(10), KeyedSampler(10)], "num_replicas 1"),
        ([KeyedSampler(10, 4, rank) for rank in range(2)], "num_replicas 4"),
        ([KeyedSampler(10, 2, 0), KeyedSampler(10, 2, 0)], "got 0, 0"),
        ([KeyedSampler(10, 2, 0), resumed], "rank 1.* 4.* 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_as_gathered(samplers)


def test_a_sampler_that_is_made_before_the_process_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert KeyedSampler(10).num_replicas == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        KeyedSampler(10)
    assert KeyedSampler(10, 1, 0).num_replicas == 1


def checked_on_a_rank(sizes):
    rank = torch.distributed.get_rank()
    sampler = KeyedSampler(sizes[rank])
    try:
        sampler.check_ranks()
    except ValueError as error:
        return sampler.num_replicas, sampler.rank, str(error)
    return sampler.num_replicas, sampler.rank, ""


@pytest.mark.slow
def test_real_ranks_compare_their_samplers_and_know_their_number():
    assert launch(checked_on_a_rank, 2, args=([10, 10],)) == [(2, 0, ""), (2, 1, "")]
    for answer in launch(checked_on_a_rank, 2, args=([10, 11],)):
        assert "size 11, not 10" in answer[2]


def test_another_epoch_than_the_resumed_one_is_read_from_its_beginning():
    stopped = KeyedSampler(40, 2, 0)
    stopped.set_epoch(1)
    resumed = KeyedSampler(40, 2, 0)
    resumed.load_state_dict(stopped.state_after(5))
    resumed.set_epoch(2)
    fresh = KeyedSampler(40, 2, 0)
    fresh.set_epoch(2)
    assert list(resumed) == list(fresh)
    assert len(list(fresh)) == 20


def test_a_state_of_a_resumed_epoch_is_that_of_one_that_was_never_stopped():
    lengths = [1 + 7 * index % 10 for index in range(100)]
    for before in (1, 3, 4, 6):
        for after in (0, 1, 2, 5):
            stopped = BalancedSampler(lengths, 2, 0, batch_size=2, window=3)
            resumed = BalancedSampler(lengths, 2, 0, batch_size=2, window=3)
            resumed.load_state_dict(stopped.state_after(before))
            assert resumed.state_after(after) == stopped.state_after(before + after)
            assert len(resumed) == len(stopped) - before
            assert list(resumed) == list(stopped)[before:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_that_was_read_reads_other_epochs_as_a_new_one_does(kind):
    recipe = recipe_of(kind, 30, 2, random.Random(3))
    sampler = SAMPLERS[kind].make(recipe, 1)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        new = SAMPLERS[kind].make(recipe, 1)
        new.set_epoch(epoch)
        indices = [of_rank.tolist() for of_rank in sampler.all_ranks().indices]
        assert indices == [of_rank.tolist() for of_rank in new.all_ranks().indices]
        epochs.append(list(sampler))
        assert epochs[-1] == list(new)
    assert epochs[0] == epochs[2] != epochs[1]
    (only_rank,) = assign(30, 1, sampler=kind, **recipe.settings).ranks
    assert set(only_rank.tolist()) <= set(range(30))
    assert kind == "weighted" or sorted(only_rank.tolist()) == list(range(30))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_what_is_left_of_an_epoch_is_read_before_the_one_that_is_set(kind, drop_last):
    """A loader sets the next epoch before it loads the state: that counts only if nothing of the state's is left."""
    recipe = recipe_of(kind, 40, 3, random.Random(5), drop_last=drop_last)
    stopped = SAMPLERS[kind].make(recipe, 1)
    for trained in (1, len(stopped) - 1, len(stopped)):
        resumed = SAMPLERS[kind].make(recipe, 1)
        resumed.set_epoch(1)
        resumed.load_state_dict(stopped.state_after(trained))
        is_left = trained < len(stopped)
        assert resumed.epoch == (0 if is_left else 1)
        if is_left:
            assert list(resumed) == list(stopped)[trained:]


def test_a_state_with_fewer_samples_than_ranks_left_is_not_at_its_end():
    for make in (
        lambda ranks, drop_last: KeyedSampler(5, ranks, 0, drop_last=drop_last),
        lambda ranks, drop_last: BalancedSampler([1] * 5, ranks, 0, batch_size=1, drop_last=drop_last),
    ):
        for trained, drop_last in itertools.product((3, 4), (False, True)):
            resumed = make(2, drop_last)
            resumed.set_epoch(1)
            resumed.load_state_dict(make(1, False).state_after(trained))
            assert resumed.epoch == (1 if drop_last and trained == 4 else 0)


# ---- orders that a stored state refers to


ORDERS = [
    (
        BalancedSampler,
        [{"num_replicas": 3, "batch_size": 4, "window": 5}, {"num_replicas": 5, "batch_size": 3, "window": 2}],
        "ac3d161cd9a4eb00",
    ),
    (
        BalancedSampler,
        [
            {"num_replicas": 7, "batch_size": 40, "cost": "quadratic"},
            {"num_replicas": 2, "batch_size": 2, "cost": "quadratic"},
        ],
        "bd8901ce6e0d10f8",
    ),
    (
        WeightedSampler,
        [{"num_replicas": 3, "num_samples": 400}, {"num_replicas": 5, "num_samples": 400}],
        "5a61552625305271",
    ),
]


@pytest.mark.parametrize(("kind", "jobs", "expected"), ORDERS)
def test_orders_stay_as_they_are(kind, jobs, expected):
    """A state is a position in an order, so a later version of the library must make the same orders."""
    values = [(7 * number * number + 3 * number) % 23 + 1 for number in range(250)]
    digest = hashlib.blake2b(digest_size=8)
    for drop_last, epoch in itertools.product((False, True), (0, 2)):
        state = None
        for job in (jobs[0], jobs[1], jobs[0], jobs[1], jobs[1]):  # stopped and continued, last without a change
            sampler = kind(values, rank=0, seed=2, drop_last=drop_last, **job)
            sampler.set_epoch(epoch)
            if state is not None:
                sampler.load_state_dict(state)
            reads = sampler.all_ranks()
            digest.update(np.concatenate([*reads.indices, *(reads.batch_stops or ())]).astype("<i8").tobytes())
            state = sampler.state_after(min(2, len(sampler)))
    assert digest.hexdigest() == expected
