"""Does every sample get read once, on this number of ranks, and after resuming? `audit_loader` on the real packages.

Each test has a right setting, in which nothing is found, and a wrong one. docs/library.md has the answers in a table.
"""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DistributedSampler as TorchSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from rankscope.ranks import launch
from rankscope.sampling import KeyedSampler, audit_loader
from tests.peers import HOW, importable, peer

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # of the packages
]

SIZE = 16
FORMS = {"key": lambda row: row["i"], "size": SIZE}


@pytest.fixture(scope="module")
def package():
    """Return a function that imports a module of a peer, or skips the test."""

    def imported(name):
        module = peer(name)
        if module is None:
            pytest.skip(f"{name} is not installed: {HOW}")
        return module

    with importable():
        yield imported


def kinds(loaders, **options):
    return [finding.kind for finding in audit_loader(loaders, **options).findings]


def streams(make, **options):
    """Return a loader for each of two ranks."""
    return [DataLoader(make(rank), batch_size=2, **options) for rank in range(2)]


class OnRank(IterableDataset):
    """A stream as a rank reads it that knows its number from the environment."""

    def __init__(self, stream, rank):
        self.stream = stream
        self.rank = rank

    def __iter__(self):
        os.environ.update({"RANK": str(self.rank), "WORLD_SIZE": "2"})
        yield from self.stream


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


# ---- torchdata


def test_stateful_data_loader():
    """With torchdata's own sampler an epoch is resumed only on as many ranks; with ours on any number."""

    def resumed_on_four(make):
        stopped = [StatefulDataLoader(range(SIZE), batch_size=2, sampler=make(2, rank)) for rank in range(2)]
        before = [index for loader in stopped for index in next(iter(loader)).tolist()]
        iterator = iter(stopped[0])
        next(iterator)
        loaders = [StatefulDataLoader(range(SIZE), batch_size=1, sampler=make(4, rank)) for rank in range(4)]
        for loader in loaders:
            loader.load_state_dict(stopped[0].state_dict())
        return kinds(loaders, read_before=before)

    assert resumed_on_four(lambda ranks, rank: KeyedSampler(SIZE, ranks, rank)) == []
    assert resumed_on_four(lambda ranks, rank: StatefulDistributedSampler(range(SIZE), ranks, rank)) == ["dropped"]


# ---- Hugging Face datasets


def test_hugging_face_split_dataset_by_node(package):
    datasets = package("datasets")
    split = package("datasets.distributed").split_dataset_by_node

    def rows(shards):
        for shard in shards:
            for number in range(4):
                yield {"i": 4 * shard + number}

    def stream():
        return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(4))})

    def of_rank(rank):
        return split(stream(), rank, 2)

    assert kinds(streams(of_rank), **FORMS) == []
    assert kinds([DataLoader(split(stream(), rank, 3), batch_size=1) for rank in range(3)], **FORMS) == ["unbalanced"]
    assert kinds(streams(lambda rank: stream()), **FORMS) == ["duplicates"]  # not split
    # datasets#8568: in 5.2 each rank skips a row of its own part; before, each rank then read the parts of all.
    assert kinds(streams(lambda rank: of_rank(rank).skip(1)), **FORMS) == ["short_last_batch", "dropped"]
    unsplit = streams(lambda rank: stream().skip(1))  # what a rank got from 2.21 to 5.1
    assert kinds(unsplit, **FORMS) == ["short_last_batch", "duplicates", "dropped"]
    # Two shards for a rank, and three workers.
    assert "idle_workers" in kinds(streams(of_rank, num_workers=3), **FORMS)
    # A state continues on the same ranks.
    stopped = [of_rank(rank) for rank in range(2)]
    before = []
    for dataset in stopped:
        iterator = iter(dataset)
        before += [next(iterator)["i"] for _ in range(3)]
    resumed = [of_rank(rank) for rank in range(2)]
    for rank, dataset in enumerate(resumed):
        dataset.load_state_dict(stopped[rank].state_dict())
    rest = {**FORMS, "read_before": before}
    assert kinds(streams(lambda rank: resumed[rank]), **rest, epochs=1) == ["short_last_batch"]
    # In 5.2, later epochs of a dataset that was resumed itself have only the rest, too.
    assert kinds(streams(lambda rank: resumed[rank]), **rest) == ["short_last_batch", "dropped"]
    assert "duplicates" in kinds(streams(of_rank), **FORMS, read_before=before)


@pytest.mark.parametrize("is_split_first", [True, False])
def test_hugging_face_interleave_datasets(package, is_split_first):
    """In 5.2 the division may come before or after (datasets#7868), but by default rows at the end are lost."""
    datasets = package("datasets")
    split = package("datasets.distributed").split_dataset_by_node

    def rows(shards):
        yield from ({"i": 2 * shard + number} for shard in shards for number in range(2))

    def interleaved(rank, **options):
        parts = []
        for first in (0, 4):
            shards = list(range(first, first + 4))
            parts.append(datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards}))
        if is_split_first:
            return datasets.interleave_datasets([split(part, rank, 2) for part in parts], **options)
        return split(datasets.interleave_datasets(parts, **options), rank, 2)

    until_all_end = {"stopping_strategy": "all_exhausted_without_replacement"}
    assert kinds(streams(lambda rank: interleaved(rank, **until_all_end)), **FORMS) == []
    assert kinds(streams(interleaved), **FORMS) == ["short_last_batch", "dropped"]
    repeated = streams(lambda rank: interleaved(rank, **until_all_end, probabilities=[0.9, 0.1], seed=1))
    assert kinds(repeated, **FORMS) == []


# ---- accelerate


def test_accelerate(package):
    prepare = package("accelerate.data_loader").prepare_data_loader

    def prepared(size=SIZE, sampler=None, **options):
        loader = DataLoader(range(size), batch_size=4, sampler=sampler and sampler(range(size)))
        return [prepare(loader, num_processes=2, process_index=rank, **options) for rank in range(2)]

    assert kinds(prepared()) == []
    assert kinds(prepared(split_batches=True)) == []
    assert kinds(prepared(size=18)) == ["duplicates"]  # even_batches: as many batches on all ranks
    assert "unbalanced" in kinds(prepared(size=18, even_batches=False))
    divided = prepared(sampler=lambda dataset: TorchSampler(dataset, num_replicas=2, rank=0))
    assert kinds(divided) == ["sharded_twice", "dropped"]


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(SIZE))


def set_environment():
    rank = torch.distributed.get_rank()
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})


def prepared_on_rank(**options):
    """Return what this rank reads of a stream that is the same on both."""
    set_environment()
    with importable():
        peer("accelerate").PartialState(cpu=True)
        loader = DataLoader(Numbers(), batch_size=4)
        loader = peer("accelerate.data_loader").prepare_data_loader(loader, torch.device("cpu"), 2, **options)
        return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("split_batches", [True, False])
def test_accelerate_dispatch_batches(package, split_batches):
    """With dispatching, the first rank reads for all; without it, each reads everything and keeps its part."""
    package("accelerate.data_loader")
    for dispatch_batches in (True, False):
        options = {"split_batches": split_batches, "put_on_device": True, "dispatch_batches": dispatch_batches}
        first, second = launch(partial(prepared_on_rank, **options), 2)
        assert sorted(first + second) == list(range(SIZE))


# ---- Lightning


def test_lightning(package):
    wrapper = package("lightning_fabric.utilities.distributed").DistributedSamplerWrapper

    def wrapped(sampler):
        samplers = [wrapper(sampler, num_replicas=2, rank=rank, shuffle=False) for rank in range(2)]
        return [DataLoader(range(SIZE), batch_size=2, sampler=sampler) for sampler in samplers]

    assert kinds(wrapped(SequentialSampler(range(SIZE)))) == []
    drawn_twice = kinds(wrapped(RandomSampler(range(SIZE))))  # each rank shuffles for itself, unless they seed alike
    assert drawn_twice == ["duplicates", "dropped"]
    assert "sharded_twice" in kinds(wrapped(KeyedSampler(SIZE, 2, 0)))


# ---- WebDataset


def test_webdataset(package, tmp_path):
    wds = package("webdataset")
    urls = []
    for shard in range(4):
        urls.append(str(tmp_path / f"{shard}.tar"))
        with wds.TarWriter(urls[-1]) as tar:
            for number in range(4 * shard, 4 * shard + 4):
                tar.write({"__key__": f"{number:03}", "i": str(number)})

    def of_rank(rank, splitter=wds.split_by_node):
        return OnRank(wds.WebDataset(urls, nodesplitter=splitter, shardshuffle=False, empty_check=False), rank)

    named = {"key": lambda row: row["__key__"], "size": SIZE}
    assert kinds(streams(of_rank), **named) == []
    assert kinds(streams(lambda rank: of_rank(rank, lambda shards: shards)), **named) == ["duplicates"]
    assert "idle_workers" in kinds(streams(of_rank, num_workers=3), **named)  # webdataset#434: two shards for a rank


# ---- litData


def test_litdata(package, tmp_path):
    package("litdata")
    writer = package("litdata.streaming.writer").BinaryWriter(str(tmp_path), chunk_size=4)
    for number in range(SIZE):
        writer[number] = number
    writer.done()
    writer.merge()
    environment = package("litdata.utilities.env")._DistributedEnv

    def loader(rank, world_size, drop_last=False):
        dataset = package("litdata").StreamingDataset(str(tmp_path), drop_last=drop_last)
        dataset.distributed_env = environment(world_size=world_size, global_rank=rank, num_nodes=1)
        return DataLoader(dataset, batch_size=2)

    assert kinds([loader(rank, 2) for rank in range(2)], size=SIZE) == []
    assert kinds([loader(0, 1), loader(0, 1)], size=SIZE) == ["duplicates"]  # ranks that do not know of each other
    dropped = kinds([loader(rank, 3, drop_last=True) for rank in range(3)], size=SIZE)
    assert "dropped" in dropped


# ---- Grain


def test_grain(package):
    grain = package("grain.python")

    class Stream(IterableDataset):
        def __init__(self, rank, shards, state=None):
            sampler = grain.IndexSampler(num_records=SIZE, num_epochs=1, shard_options=shards, shuffle=True, seed=3)
            self.loader = grain.DataLoader(data_source=range(SIZE), sampler=sampler, worker_count=0)
            self.state = state

        def __iter__(self):
            iterator = iter(self.loader)
            if self.state is not None:
                iterator.set_state(self.state)
            return iterator

    def sharded(rank, num_ranks=2, drop_remainder=False):
        return grain.ShardOptions(shard_index=rank, shard_count=num_ranks, drop_remainder=drop_remainder)

    assert kinds(streams(lambda rank: Stream(rank, sharded(rank))), size=SIZE) == []
    assert kinds(streams(lambda rank: Stream(rank, grain.NoSharding())), size=SIZE) == ["duplicates"]
    three = [DataLoader(Stream(rank, sharded(rank, 3, True)), batch_size=1) for rank in range(3)]
    assert kinds(three, size=SIZE) == ["dropped"]
    before = []
    states = []
    for rank in range(2):
        iterator = iter(Stream(rank, sharded(rank)))
        before += [int(next(iterator)) for _ in range(2)]
        states.append(iterator.get_state())
    resumed = streams(lambda rank: Stream(rank, sharded(rank), states[rank]))
    assert kinds(resumed, size=SIZE, read_before=before, epochs=1) == []  # `Stream` resumes every epoch


# ---- mosaicml-streaming


def streamed(folder, state):
    """Return what this rank reads, at first or after a state, and the state after four samples of each rank."""
    set_environment()
    with importable():
        streaming = peer("streaming")
        dataset = streaming.StreamingDataset(local=folder, batch_size=2, num_canonical_nodes=1, shuffle=False)
        loader = streaming.StreamingDataLoader(dataset, batch_size=2)
        if state is not None:
            loader.load_state_dict(state)
        read = []
        states = []
        for batch in loader:
            read += batch["i"].tolist()
            states.append(loader.state_dict())
        return read, states[1]


def test_mosaicml_streaming(package, tmp_path):
    streaming = package("streaming")
    with streaming.MDSWriter(out=str(tmp_path), columns={"i": "int"}, size_limit=64) as writer:
        for number in range(SIZE):
            writer.write({"i": number})
    alone = streaming.StreamingDataset(local=str(tmp_path), batch_size=2)
    assert kinds(DataLoader(alone, batch_size=2), **FORMS) == []
    assert kinds(streams(lambda rank: alone), **FORMS) == ["duplicates"]  # ranks that do not know of each other
    (first, state), (second, _) = launch(streamed, 2, (str(tmp_path), None))
    assert sorted(first + second) == list(range(SIZE))
    rests = launch(streamed, 2, (str(tmp_path), state))
    assert sorted(first[:4] + second[:4] + [number for rest, _ in rests for number in rest]) == list(range(SIZE))
