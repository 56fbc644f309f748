"""The audit of a loader recognises that a framework divides samples that are divided already.

Each wrapping is one with the names and the structure of the real package's and, in `make oracles`, the real one.
"""

from __future__ import annotations

import types

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import BalancedSampler, DistributedSampler, KeyedSampler, PackedSampler, audit_loader

from ..peers import HOW, importable, peer

NUM_SAMPLES = 32
NUM_RANKS = 4


class Reproduced:
    """Wrappers with the names, modules and attributes of the frameworks' own, reduced to what they divide.

    Sources: accelerate 1.15, data_loader.py; lightning_fabric 2.6, utilities/distributed.py.
    """

    class BatchSamplerShard(BatchSampler):
        __module__ = "accelerate.data_loader"

        def __init__(self, batch_sampler, num_processes=1, process_index=0):
            self.batch_sampler = batch_sampler
            self.num_processes = num_processes
            self.process_index = process_index
            self.batch_size = getattr(batch_sampler, "batch_size", None)
            self.drop_last = False

        def __iter__(self):
            for number, batch in enumerate(self.batch_sampler):
                if number % self.num_processes == self.process_index:
                    yield batch

        def __len__(self):
            return -(-len(self.batch_sampler) // self.num_processes)

    class IterableDatasetShard(IterableDataset):
        __module__ = "accelerate.data_loader"

        def __init__(self, dataset, batch_size=1, num_processes=1, process_index=0):
            self.dataset = dataset
            self.batch_size = batch_size
            self.num_processes = num_processes
            self.process_index = process_index

        def __iter__(self):
            for number, sample in enumerate(self.dataset):
                if number // self.batch_size % self.num_processes == self.process_index:
                    yield sample

    class _Listed(Dataset):
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
            super().__init__(Reproduced._Listed(sampler), **options)

        def __iter__(self):
            return (self.dataset[index] for index in super().__iter__())


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.oracle), "reproduced"])
def wrapper(request):
    """Return a function that returns a framework's class: the real one in `make oracles`, else one like it."""
    if request.param == "reproduced":
        yield lambda module, name: getattr(Reproduced, name)
        return

    def real(module, name):
        imported = peer(module)
        if imported is None:
            pytest.skip(f"{module.split('.')[0]} is not installed: {HOW}")
        return getattr(imported, name)

    with importable():
        yield real


def accelerated(wrapper, batch_sampler, rank=1):
    shard = wrapper("accelerate.data_loader", "BatchSamplerShard")
    return DataLoader(
        range(NUM_SAMPLES), batch_sampler=shard(batch_sampler, num_processes=NUM_RANKS, process_index=rank)
    )


def sharded_twice(loader):
    messages = [finding.message for finding in audit_loader(loader).findings if finding.kind == "sharded_twice"]
    return "".join(messages)


@pytest.mark.parametrize("kind", [TorchDistributedSampler, DistributedSampler])
def test_accelerate_around_a_distributed_sampler(wrapper, kind):
    sampler = kind(range(NUM_SAMPLES), NUM_RANKS, 1)
    loader = accelerated(wrapper, BatchSampler(sampler, 2, False))
    message = sharded_twice(loader)
    assert message.startswith(
        "BatchSamplerShard of accelerate (and transformers' Trainer) wraps DistributedSampler, which is distributed "
        "already: about 1/4 of the samples are read; remove DistributedSampler and pass a sampler that is not"
    )
    read = set()
    for rank in range(NUM_RANKS):
        batches = BatchSampler(kind(range(NUM_SAMPLES), NUM_RANKS, rank), 2, False)
        for batch in accelerated(wrapper, batches, rank):
            read |= set(batch.tolist())
    assert len(read) == NUM_SAMPLES // NUM_RANKS  # what the message says


def test_accelerate_around_a_sampler_that_makes_the_batches(wrapper):
    balanced = BalancedSampler([1] * NUM_SAMPLES, NUM_RANKS, 1, batch_size=2)
    message = sharded_twice(accelerated(wrapper, balanced))
    advice = "remove BatchSamplerShard, which would undo what BalancedSampler is for: do not pass the loader to"
    assert advice in message
    packed = PackedSampler([1] * NUM_SAMPLES, 2, NUM_RANKS, 1)
    assert "remove BatchSamplerShard" in sharded_twice(accelerated(wrapper, packed))


def test_accelerate_around_a_plain_sampler_is_right(wrapper):
    sampler = RandomSampler(range(NUM_SAMPLES))
    assert sharded_twice(accelerated(wrapper, BatchSampler(sampler, 2, False))) == ""
    one_rank = KeyedSampler(NUM_SAMPLES, 1, 0)
    assert sharded_twice(accelerated(wrapper, BatchSampler(one_rank, 2, False))) == ""


def test_a_distributed_sampler_alone_is_right():
    for sampler in (KeyedSampler(NUM_SAMPLES, NUM_RANKS, 1), DistributedSampler(NUM_SAMPLES, NUM_RANKS, 1)):
        audited = audit_loader(DataLoader(range(NUM_SAMPLES), sampler=sampler))
        assert [shard.num_ranks for shard in audited.shards] == [NUM_RANKS]
        assert not audited.findings


class SplitStream(IterableDataset):
    """A stream that each rank reads a part of, as Hugging Face's split_dataset_by_node makes it."""

    def __init__(self, num_ranks):
        self._distributed = types.SimpleNamespace(rank=1, world_size=num_ranks)

    def __iter__(self):
        return iter(range(self._distributed.rank, NUM_SAMPLES, self._distributed.world_size))


def test_accelerate_around_a_stream_that_is_split_already(wrapper):
    shard = wrapper("accelerate.data_loader", "IterableDatasetShard")
    for num_ranks in (NUM_RANKS, 1):
        stream = shard(SplitStream(num_ranks), batch_size=2, num_processes=NUM_RANKS, process_index=1)
        message = sharded_twice(DataLoader(stream, batch_size=2))
        assert ("IterableDatasetShard of accelerate" in message) == (num_ranks > 1)


def test_lightning_around_a_distributed_sampler(wrapper):
    lightning = wrapper("lightning_fabric.utilities.distributed", "DistributedSamplerWrapper")
    inner = KeyedSampler(NUM_SAMPLES, NUM_RANKS, 1)
    loader = DataLoader(range(NUM_SAMPLES), sampler=lightning(inner, num_replicas=NUM_RANKS, rank=1))
    message = sharded_twice(loader)
    assert "DistributedSamplerWrapper of Lightning wraps KeyedSampler" in message
    assert message.endswith("or pass use_distributed_sampler=False to Trainer")
    plain = lightning(RandomSampler(range(NUM_SAMPLES)), num_replicas=NUM_RANKS, rank=1)
    assert sharded_twice(DataLoader(range(NUM_SAMPLES), sampler=plain)) == ""


def test_lightning_constructing_a_batch_sampler_anew_is_told_what_to_do():
    """It calls the class of the batch sampler with its own sampler in the place of the first argument."""
    with pytest.raises(
        ValueError, match="got a DistributedSampler: .* as Lightning does, needs use_distributed_sampler"
    ):
        BalancedSampler(TorchDistributedSampler(range(8), 2, 0), batch_size=2, drop_last=False)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_data_loader_is_looked_through(wrapper):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    inner = StatefulDistributedSampler(range(NUM_SAMPLES), NUM_RANKS, 1)
    assert sharded_twice(StatefulDataLoader(range(NUM_SAMPLES), sampler=inner)) == ""
    lightning = wrapper("lightning_fabric.utilities.distributed", "DistributedSamplerWrapper")
    outer = lightning(inner, num_replicas=NUM_RANKS, rank=1)
    assert "wraps StatefulDistributedSampler" in sharded_twice(StatefulDataLoader(range(NUM_SAMPLES), sampler=outer))


def test_an_adapter_around_a_loader_is_looked_through():
    """accelerate's DataLoaderShard keeps the loader as `base_dataloader`."""

    class Adapter:
        def __init__(self, loader):
            self.base_dataloader = loader

    from rankscope.sampling.wrapping import shards_of

    inner = DataLoader(range(8), sampler=KeyedSampler(8, 2, 0))
    assert [shard.name for shard in shards_of(Adapter(inner))] == ["KeyedSampler"]
    circle = Adapter(None)
    circle.base_dataloader = circle
    assert shards_of(circle) == ()
