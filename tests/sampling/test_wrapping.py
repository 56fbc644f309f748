"""The audit of a loader recognises that a framework divides samples that are divided already.

The wrappers have the names and attributes of the real packages'; test_named_loaders.py has the real ones.
"""

from __future__ import annotations

import types

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import BalancedSampler, DistributedSampler, KeyedSampler, audit_loader
from rankscope.sampling.wrapping import DividingLayer, shards_of, twice_sharded

NUM_SAMPLES = 32
NUM_RANKS = 4


class BatchSamplerShard:
    __module__ = "accelerate.data_loader"

    def __init__(self, batch_sampler, num_processes, process_index):
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index

    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % self.num_processes == self.process_index:
                yield batch


class Listed(Dataset):
    def __init__(self, sampler):
        self._sampler = sampler
        self._sampler_list = list(sampler)

    def __getitem__(self, index):
        return self._sampler_list[index]

    def __len__(self):
        return len(self._sampler)


class DistributedSamplerWrapper(TorchDistributedSampler):
    __module__ = "lightning_fabric.utilities.distributed"

    def __init__(self, sampler, **options):
        super().__init__(Listed(sampler), **options)

    def __iter__(self):
        return (self.dataset[index] for index in super().__iter__())


class SplitStream(IterableDataset):
    """A stream that each rank reads a part of, as Hugging Face's split_dataset_by_node makes it."""

    def __init__(self, num_ranks):
        self._distributed = types.SimpleNamespace(rank=1, world_size=num_ranks)

    def __iter__(self):
        return iter(range(self._distributed.rank, NUM_SAMPLES, self._distributed.world_size))


def accelerated(batch_sampler, rank=1):
    return DataLoader(range(NUM_SAMPLES), batch_sampler=BatchSamplerShard(batch_sampler, NUM_RANKS, rank))


def sharded_twice(loader):
    return "".join(finding.message for finding in audit_loader(loader).findings if finding.kind == "sharded_twice")


@pytest.mark.parametrize("kind", [TorchDistributedSampler, DistributedSampler])
def test_accelerate_around_a_distributed_sampler(kind):
    message = sharded_twice(accelerated(BatchSampler(kind(range(NUM_SAMPLES), NUM_RANKS, 1), 2, False)))
    assert message.startswith("BatchSamplerShard of accelerate (and transformers' Trainer) wraps DistributedSampler")
    assert "about 1/4 of the samples" in message
    read = set()
    for rank in range(NUM_RANKS):
        for batch in accelerated(BatchSampler(kind(range(NUM_SAMPLES), NUM_RANKS, rank), 2, False), rank):
            read |= set(batch.tolist())
    assert len(read) == NUM_SAMPLES // NUM_RANKS  # what the message says


def test_accelerate_around_samplers_that_make_the_batches_or_do_not_divide():
    balanced = BalancedSampler([1] * NUM_SAMPLES, NUM_RANKS, 1, batch_size=2)
    assert "remove BatchSamplerShard" in sharded_twice(accelerated(balanced))
    for sampler in (RandomSampler(range(NUM_SAMPLES)), KeyedSampler(NUM_SAMPLES, 1, 0)):
        assert sharded_twice(accelerated(BatchSampler(sampler, 2, False))) == ""


def test_lightning_around_a_distributed_sampler():
    inner = KeyedSampler(NUM_SAMPLES, NUM_RANKS, 1)
    outer = DistributedSamplerWrapper(inner, num_replicas=NUM_RANKS, rank=1)
    message = sharded_twice(DataLoader(range(NUM_SAMPLES), sampler=outer))
    assert "DistributedSamplerWrapper of Lightning wraps KeyedSampler" in message
    assert message.endswith("or pass use_distributed_sampler=False to Trainer")
    plain = DistributedSamplerWrapper(RandomSampler(range(NUM_SAMPLES)), num_replicas=NUM_RANKS, rank=1)
    assert sharded_twice(DataLoader(range(NUM_SAMPLES), sampler=plain)) == ""


def test_lightning_constructing_a_batch_sampler_anew_is_told_what_to_do():
    """It calls the class of the batch sampler with its own sampler in the place of the first argument."""
    with pytest.raises(ValueError, match="use_distributed_sampler"):
        BalancedSampler(TorchDistributedSampler(range(8), 2, 0), batch_size=2, drop_last=False)


def test_a_distributed_sampler_or_stream_alone_is_right():
    for sampler in (KeyedSampler(NUM_SAMPLES, NUM_RANKS, 1), DistributedSampler(NUM_SAMPLES, NUM_RANKS, 1)):
        audited = audit_loader(DataLoader(range(NUM_SAMPLES), sampler=sampler))
        assert [shard.num_ranks for shard in audited.shards] == [NUM_RANKS]
        assert not audited.findings
    assert [shard.num_ranks for shard in shards_of(DataLoader(SplitStream(4)))] == [4]
    assert shards_of(DataLoader(SplitStream(1))) == ()


def test_an_adapter_around_a_loader_is_looked_through():
    """accelerate's DataLoaderShard keeps the loader as `base_dataloader`."""
    inner = DataLoader(range(8), sampler=KeyedSampler(8, 2, 0))
    assert [shard.name for shard in shards_of(types.SimpleNamespace(base_dataloader=inner))] == ["KeyedSampler"]
    circle = types.SimpleNamespace()
    circle.base_dataloader = circle
    assert shards_of(circle) == ()


def test_ranks_are_counted_by_a_number_and_a_rank_of_the_object_itself():
    def counted(**attributes):
        return [shard.num_ranks for shard in shards_of(types.SimpleNamespace(**attributes))]

    assert counted(num_replicas=4, rank=0) == counted(num_processes=4, process_index=0) == [4]
    for other in ({"num_replicas": 4}, {"num_replicas": True, "rank": 0}, {"num_replicas": 1, "rank": 0}, {"rank": 0}):
        assert counted(**other) == []

    class WithoutGroup:
        num_replicas = 4

        @property
        def rank(self):
            raise RuntimeError("init_process_group has not been called")

    assert shards_of(WithoutGroup()) == (DividingLayer("WithoutGroup", 4),)


def test_what_is_divided_twice_is_told_with_what_to_remove():
    outer = DividingLayer("Outer", 8)
    inner = DividingLayer("Inner", 4, is_grouped=True)
    assert "about 1/4 of the samples are read; remove Outer" in twice_sharded((outer, inner))
    assert "about 1/4 of the samples are read; remove Inner" in twice_sharded((outer, inner._replace(is_grouped=False)))
    assert "about 1/12 of the samples" in twice_sharded((outer, DividingLayer("Middle", 3), inner))
