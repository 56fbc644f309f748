"""The audit of a loader recognises that a framework divides samples that are divided already.

Each wrapping is one with the names and the structure of the real package's and, in `make oracles`, the real one.
"""

from __future__ import annotations

import types

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import BalancedSampler, DistributedSampler, KeyedSampler, audit_loader
from rankscope.sampling.loader_audit import LoaderAudit
from rankscope.sampling.wrapping import DividingLayer, shards_of, twice_sharded

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
    assert message.startswith("BatchSamplerShard of accelerate (and transformers' Trainer) wraps DistributedSampler")
    assert "about 1/4 of the samples" in message
    read = set()
    for rank in range(NUM_RANKS):
        batches = BatchSampler(kind(range(NUM_SAMPLES), NUM_RANKS, rank), 2, False)
        for batch in accelerated(wrapper, batches, rank):
            read |= set(batch.tolist())
    assert len(read) == NUM_SAMPLES // NUM_RANKS  # what the message says


def test_accelerate_around_a_sampler_that_makes_the_batches(wrapper):
    balanced = BalancedSampler([1] * NUM_SAMPLES, NUM_RANKS, 1, batch_size=2)
    message = sharded_twice(accelerated(wrapper, balanced))
    assert "remove BatchSamplerShard" in message


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
    with pytest.raises(ValueError, match="use_distributed_sampler"):
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

    inner = DataLoader(range(8), sampler=KeyedSampler(8, 2, 0))
    assert [shard.name for shard in shards_of(Adapter(inner))] == ["KeyedSampler"]
    circle = Adapter(None)
    circle.base_dataloader = circle
    assert shards_of(circle) == ()


def test_a_dispatcher_does_not_say_among_how_many_ranks_it_divides() -> None:
    kind = type("DataLoaderDispatcher", (), {"__module__": "accelerate.data_loader"})
    (shard,) = shards_of(kind())
    assert shard == DividingLayer("DataLoaderDispatcher", 2, "accelerate", "pass dispatch_batches=False to Accelerator")
    assert shards_of(type("DataLoaderDispatcher", (), {"__module__": "mine"})()) == ()


def test_ranks_are_counted_by_a_number_and_a_rank_of_the_object_itself() -> None:
    def names(**attributes: object) -> list[int]:
        return [shard.num_ranks for shard in shards_of(types.SimpleNamespace(**attributes))]

    assert names(num_replicas=4, rank=0) == names(num_processes=4, process_index=0) == [4]
    assert names(world_size=4, rank=0) == names(_distributed=types.SimpleNamespace(world_size=4, rank=1)) == [4]
    for other in ({"num_replicas": 4}, {"num_replicas": True, "rank": 0}, {"num_replicas": 1, "rank": 0}, {"rank": 0}):
        assert names(**other) == []


def test_a_rank_that_cannot_be_read_yet_counts() -> None:
    """Nor does a number whose property fails stop anybody."""

    class WithoutGroup:
        num_replicas = 4

        @property
        def rank(self) -> int:
            raise RuntimeError("init_process_group has not been called")

    class WithoutNumber:
        rank = 0

        @property
        def num_replicas(self) -> int:
            raise AttributeError("no group")

    assert shards_of(WithoutGroup()) == (DividingLayer("WithoutGroup", 4),)
    assert shards_of(WithoutNumber()) == ()


def test_what_is_divided_twice_is_told_with_what_to_remove() -> None:
    outer = DividingLayer("Outer", 8)
    inner = DividingLayer("Inner", 4, is_grouped=True)
    assert "about 1/4 of the samples are read; remove Outer" in twice_sharded((outer, inner))
    plain = inner._replace(is_grouped=False)
    assert "about 1/4 of the samples are read; remove Inner" in twice_sharded((outer, plain))
    assert "about 1/12 of the samples" in twice_sharded((outer, DividingLayer("Middle", 3), inner))


# ---- what else an audit of a loader finds


def kinds(batch_sizes=(2, 2), num_samples=4, num_workers=0, **found):
    audit = LoaderAudit(batch_sizes, num_samples, num_workers, **{"draws": {}, **found})
    return [finding.kind for finding in audit.findings]


def test_findings_of_a_loader() -> None:
    assert kinds() == []
    assert kinds((4,)) == []
    assert kinds((), 1) == ["nothing_read"]
    assert kinds((3, 1)) == ["short_last_batch"]
    assert kinds((1, 2, 3)) == [], "a batch sampler may make batches of different sizes"
    streamed = {"num_workers": 2, "is_iterable": True}
    assert kinds((2, 1, 2), 5, **streamed) == ["short_batch"]
    assert kinds((2, 2, 2, 2), 4, **streamed, reads_of_workers=(4, 4)) == ["read_by_each_worker"]
    assert kinds((2, 2, 2, 2), 5, **streamed, reads_of_workers=(4, 4), num_dropped=1) == ["read_by_each_worker"]
    assert kinds((3, 3), 4, **streamed, reads_of_workers=(3, 3)) == ["read_too_often"]
    assert kinds((2, 2, 2, 2), 4, 2) == [], "a sampler may draw each sample twice"
    assert kinds((2, 2), 4, **streamed, reads_of_workers=(2, 2)) == []
    assert kinds((2, 2), 3, 0, is_iterable=True) == [], "a stream can be exhausted in this process"
    assert kinds(grouped_twice="Batches") == ["grouped_twice"]


def test_equal_numbers_of_workers_and_of_epochs_are_found() -> None:
    def draws(changes):
        number_of = {(0, 0): 1.0, (0, 1): 4.0, (1, 0): 7.0, (1, 1): 10.0} | changes
        return {place: (("NumPy", number),) for place, number in number_of.items()}

    assert kinds(draws=draws({})) == []
    assert kinds(draws=draws({(0, 1): 1.0})) == ["same_random"]
    assert kinds(draws=draws({(1, 1): 4.0})) == ["repeated_random"]
    assert kinds(draws=draws({(1, 1): 1.0})) == [], "of another worker"
    own = draws({}) | {(0, worker): (("NumPy", 5.0 + worker), ("the rng of Rows", 2.0)) for worker in range(2)}
    assert kinds(draws=own) == ["same_random"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class GuardedSampler(Sampler):
    @property
    def generator(self):
        raise RuntimeError("not made yet")

    def __iter__(self):
        return iter(range(5))


def test_properties_of_a_sampler_are_not_executed() -> None:
    assert audit_loader(DataLoader(range(5), sampler=GuardedSampler())).num_samples == 5


def test_batches_of_any_loader_are_counted() -> None:
    def counted(loader: object) -> tuple[tuple[int, ...], int, int]:
        audit = audit_loader(loader)  # type: ignore[arg-type]
        return audit.batch_sizes, audit.num_samples, audit.num_workers

    assert counted(DataLoader(range(5), batch_size=None)) == ((1,) * 5, 5, 0)
    assert counted(DataLoader(range(5), batch_size=None, sampler=[[0, 1], [2, 3, 4]])) == ((2, 3), 5, 0)
    assert counted(DataLoader(Stream(), batch_size=2, drop_last=True)) == ((2, 2), 5, 0)
    assert audit_loader(DataLoader(range(5))).draws == {}
    batches = DataLoader(range(4), batch_size=2, sampler=BalancedSampler([1] * 4, 1, 0))
    assert (counted(batches)[0], audit_loader(batches).grouped_twice) == ((2, 2), "BalancedSampler")
