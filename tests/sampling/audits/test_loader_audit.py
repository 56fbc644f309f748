"""`audit_loader`: each finding seen, nothing found where nothing is, and nothing changed by the audit."""

from __future__ import annotations

import random
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from rankscope.sampling import (
    Assignment,
    AuditError,
    BalancedSampler,
    DistributedSampler,
    KeyedSampler,
    WeightedSampler,
    audit,
    audit_loader,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def kinds(audited):
    return [finding.kind for finding in audited.findings]


def same_seed(worker):
    np.random.seed(0)


def seed_by_worker(worker):
    np.random.seed(worker)


class Rows(IterableDataset):
    """Yields these rows, of which worker w of W reads the part ``split(w, W)``, a slice; by default all."""

    def __init__(self, rows, split=lambda worker, num_workers: slice(None)):
        self.rows = rows
        self.split = split

    def __iter__(self):
        worker = get_worker_info()
        return iter(self.rows if worker is None else self.rows[self.split(worker.id, worker.num_workers)])


def every(worker, num_workers):
    return slice(worker, None, num_workers)


def rounded_up(worker, num_workers):
    return slice(4 * worker, 4 * worker + 4)


def first_two(worker, num_workers):
    return every(worker, 2) if worker < 2 else slice(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"batch_size": 5}, []),
        ({"batch_size": 4}, ["short_last_batch"]),
        ({"batch_size": 4, "drop_last": True}, []),
        ({"batch_size": 11, "drop_last": True}, ["nothing_read"]),
        ({"batch_size": None}, []),
        ({"batch_size": 5, "num_workers": 2, "worker_init_fn": same_seed}, ["same_random", "repeated_random"]),
        ({"batch_size": 5, "num_workers": 2, "worker_init_fn": seed_by_worker}, ["repeated_random"]),
    ],
)
def test_a_loader_is_audited(options, found):
    audited = audit_loader(DataLoader(range(10), **options))
    assert kinds(audited) == found
    assert ("nothing found" in str(audited)) == (not found)
    audited.check(allow=found)
    if found:
        with pytest.raises(AuditError):
            audited.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "split", "options", "found"),
    [
        (range(10), every, {"batch_size": 5}, []),
        (range(10), Rows(()).split, {"batch_size": 5}, ["read_by_each_worker"]),
        (range(10), Rows(()).split, {"batch_size": 5, "num_workers": 0}, []),
        (range(10), Rows(()).split, {"batch_size": 4, "drop_last": True}, ["read_by_each_worker"]),
        ([*range(10), 10, 11], rounded_up, {"batch_size": 2, "num_workers": 2}, ["lost_rows"]),
        (range(15), rounded_up, {"batch_size": 4, "drop_last": True}, ["lost_rows"]),
        (range(10), every, {"batch_size": 4, "drop_last": True}, []),
        (range(10), first_two, {"batch_size": 5, "num_workers": 4}, ["idle_workers"]),
        (range(0), every, {"batch_size": 2}, ["nothing_read"]),
        (range(6), every, {"batch_size": 2}, ["short_last_batch", "short_batch"]),
        ([[1, 2], [3, 4], [5, 6]], every, {"batch_size": 3, "num_workers": 0}, []),  # lists, such as tokens of a text
    ],
)
def test_a_stream_is_audited(rows, split, options, found):
    loader = DataLoader(Rows(rows, split), **{"num_workers": 2} | options)
    assert kinds(audit_loader(loader)) == found


class Forgot(Rows):
    """Without workers there are 10 rows, and `split` yields more."""

    def __iter__(self):
        return iter(self.rows[:10]) if get_worker_info() is None else super().__iter__()


@pytest.mark.slow
def test_rows_that_do_not_exist_without_workers_are_found_and_named():
    loader = DataLoader(Forgot(range(12), rounded_up), batch_size=2, num_workers=3)
    (finding,) = audit_loader(loader).findings
    assert finding.kind == "read_too_often"
    assert "12 samples of 10" in finding.message
    (finding,) = audit_loader(loader, key=lambda row: f"row {row}").findings
    assert finding.message.endswith(": 'row 10', 'row 11'")


# ---- all ranks together


NAMES = {
    "dictionaries": (lambda number: {"id": number}, lambda row: row["id"]),
    "texts": (str, None),
    "tensors": (torch.tensor, None),
    "batches": (lambda number: torch.tensor([2 * number, 2 * number + 1]), lambda row: row),
}


def rank_loaders(row, parts, **options):
    return [DataLoader(Rows([row(number) for number in part]), batch_size=2, **options) for part in parts]


@pytest.mark.parametrize(("row", "key"), NAMES.values(), ids=NAMES)
def test_rows_of_all_ranks_are_compared_by_name(row, key):
    halves = [range(0, 16, 2), range(1, 16, 2)]
    assert kinds(audit_loader(rank_loaders(row, halves), key=key)) == []
    wrong = [range(1, 16), range(1, 16)]  # datasets#8568: each rank reads all, without the first one
    size = 32 if row is NAMES["batches"][0] else 16
    audited = audit_loader(rank_loaders(row, wrong), key=key, size=size)
    assert kinds(audited) == ["short_last_batch", "duplicates", "dropped"]
    uneven = [range(10), range(10, 16)]
    assert kinds(audit_loader(rank_loaders(row, uneven), key=key)) == ["unbalanced"]


def ranks_of(make, num_ranks, size=40):
    """Return the loader of each rank, with the sampler that `make` returns for it."""
    return [DataLoader(range(size), batch_size=2, sampler=make(num_ranks, rank)) for rank in range(num_ranks)]


def test_indices_of_all_ranks_are_compared_also_after_a_stop():
    state = KeyedSampler(40, 4, 0).state_after(6)

    def resumed(num_ranks, rank):
        sampler = keyed(num_ranks, rank)
        sampler.load_state_dict(state)
        return sampler

    keyed = partial(KeyedSampler, 40)
    assert kinds(audit_loader(ranks_of(keyed, 4))) == []
    three = audit_loader(ranks_of(keyed, 4)[:3])
    assert kinds(three) == ["dropped"]
    assert repr(three).startswith("3 ranks: 15 batches, 30 samples")  # of a dataset of 40
    before = torch.tensor([list(keyed(4, rank))[:6] for rank in range(4)])  # rows of batches are names, too
    assert kinds(audit_loader(ranks_of(resumed, 2), read_before=before)) == []
    assert kinds(audit_loader(ranks_of(keyed, 2), read_before=before)) == ["duplicates"]
    assert kinds(audit_loader(ranks_of(resumed, 2))) == ["dropped"]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda ranks, rank: WeightedSampler([1] * 30 + [9] * 10, ranks, rank), []),
        (lambda ranks, rank: WeightedRandomSampler([1] * 30 + [9] * 10, 20), []),
        (lambda ranks, rank: RandomSampler(range(40), replacement=True, num_samples=20 + 4 * rank), ["unbalanced"]),
        (lambda ranks, rank: RandomSampler(range(40)), ["duplicates"]),
    ],
)
def test_draws_with_replacement_are_no_duplicates(make, found):
    assert kinds(audit_loader(ranks_of(make, 2))) == found


def test_a_stateful_data_loader_is_audited_where_it_was_resumed():
    def loader():
        return StatefulDataLoader(range(20), batch_size=4, sampler=KeyedSampler(20, 1, 0))

    stopped = loader()
    batches = iter(stopped)
    before = [next(batches), next(batches)]
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    assert kinds(audit_loader(resumed, size=20, read_before=before)) == []
    assert len(list(resumed)) == 3  # the audit has left it where it was


def test_samples_that_are_divided_twice_are_found():
    """test_named_loaders.py has the wrappers of frameworks."""
    inner = WeightedSampler([1] * 8, 2, 1)
    (finding,) = audit_loader(DataLoader(range(8), sampler=DistributedSampler(inner, 3, 1))).findings
    assert finding.kind == "sharded_twice"
    assert "about 1/2 of the samples are read; remove DistributedSampler" in finding.message
    assert kinds(audit_loader(DataLoader(range(8), sampler=inner))) == []
    stream = Rows([0])
    stream.num_replicas = 4  # without a rank, it means something else
    assert kinds(audit_loader(DataLoader(stream))) == []


# ---- names, not only counts


def dealt(*ranks, rows=range(6)):
    return [DataLoader(rows, sampler=indices) for indices in ranks]


@pytest.mark.parametrize(
    ("loaders", "options", "found"),
    [
        (dealt([1, 3, 5], [2, 4, 6]), {}, {"out_of_range": ": 6", "dropped": ": 0"}),
        (dealt([-1, 1, 5], [0, 2, 4]), {}, {"out_of_range": ": -1", "dropped": ": 3"}),
        (dealt([-1, 1, 5]), {}, {"out_of_range": ": -1"}),
        (dealt([0, 1, 2, 7]), {"size": 4}, {"out_of_range": ": 7", "dropped": "1 sample of 4"}),
        (dealt(range(6)), {"size": 4}, {"beyond_size": "6 different"}),
        (dealt([2, 3], [4, 5]), {"read_before": [0, 1], "epochs": 1}, {}),
        (dealt([2, 3], [4, 5]), {"read_before": [0, 1]}, {"dropped": "epoch 1: 2 samples of 6"}),
        (dealt([2, 3], [4, 5]), {"read_before": [7, 8]}, {"out_of_range": ": 7, 8", "dropped": ": 0, 1"}),
        (dealt([2, 3], [4, 5]), {"read_before": ["0", "1"]}, {"out_of_range": "'0', '1'", "dropped": ": 0, 1"}),
        (dealt([(0, 32), (1, 64)]), {}, {}),  # a size with each index, for a dataset that takes it
    ],
)
def test_rows_that_do_not_exist_hide_no_lost_ones(loaders, options, found):
    audited = audit_loader(loaders if len(loaders) > 1 else loaders[0], **options)
    assert kinds(audited) == list(found)
    for finding in audited.findings:
        assert found[finding.kind] in finding.message


class Part(Dataset):
    """Six of the rows of a dataset that was split by hand."""

    def __init__(self, start):
        self.start = start

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"id": self.start + index}


HAND_SPLIT = {
    "subsets": lambda rank: Subset(range(12), range(6 * rank, 6 * rank + 6)),
    "lists of indices": lambda rank: Subset(range(12), [2 * number + rank for number in range(6)]),
    "lists": lambda rank: [f"row {number}" for number in range(rank, 12, 2)],
    "tensors": lambda rank: TensorDataset(torch.arange(12)[rank::2]),
    "joined": lambda rank: ConcatDataset([[12 * rank], range(12 * rank + 1, 12 * rank + 6)]),
    "a class": lambda rank: Part(6 * rank),
}


@pytest.mark.parametrize("part", HAND_SPLIT.values(), ids=HAND_SPLIT)
def test_datasets_that_were_split_by_hand_need_a_key(part):
    def loaders():
        return [DataLoader(part(rank), batch_size=3) for rank in range(2)]

    with pytest.raises(ValueError, match="key"):
        audit_loader(loaders())
    assert kinds(audit_loader(loaders(), key=str)) == []
    again = [DataLoader(part(0), batch_size=3, sampler=range(rank, 6, 2)) for rank in range(2)]  # made anew
    assert kinds(audit_loader(again)) == []
    assert kinds(audit_loader(again, key=str)) == []
    assert kinds(audit_loader([*loaders(), *loaders()], key=str)) == ["duplicates"]


class FewLater(Rows):
    """Later epochs have only the end of the first one, as datasets#7447 has them after resuming."""

    def __iter__(self):
        rows = self.rows
        self.rows = rows[-2:]
        return iter(rows)


def test_each_epoch_is_compared():
    def loaders():
        return [DataLoader(FewLater(range(start, start + 8)), batch_size=2) for start in (0, 8)]

    finding, *others = audit_loader(loaders(), size=16).findings
    assert (finding.kind, finding.message[:20]) == ("dropped", "epoch 1: 12 samples ")
    assert others == []
    assert kinds(audit_loader(loaders(), size=16, epochs=1)) == []
    once = DataLoader(range(8), sampler=iter(range(8)))
    assert kinds(audit_loader(once)) == ["nothing_read"]


class EvalSampler:
    """https://github.com/neuro-galaxy/torch_brain/pull/217: a comparison in `__len__` is the wrong way round."""

    def __init__(self, size, num_ranks, rank):
        self.indices = range(rank, size, num_ranks)
        self.length = size // num_ranks + (size % num_ranks < rank)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return self.length


def test_a_wrong_len_is_found_in_loaders_and_in_samplers():
    samplers = [EvalSampler(10, 4, rank) for rank in range(4)]
    audited = audit_loader([DataLoader(range(10), sampler=sampler, batch_size=2) for sampler in samplers])
    collected = audit(Assignment.collect(samplers, 10))
    for report in (audited, collected):
        (finding,) = [finding for finding in report.findings if finding.kind == "wrong_length"]
        told = re.findall(r"rank (\d)'s EvalSampler says (\d) and yields (\d)", finding.message)
        assert told == [("0", "2", "3"), ("1", "2", "3"), ("3", "3", "2")]
    assert "unbalanced" in {finding.kind for finding in collected.findings}

    class Long(Rows):
        def __len__(self):
            return 9

    assert kinds(audit_loader(DataLoader(Long(range(4))))) == ["wrong_length"]


def test_a_dataset_without_a_length_is_audited_and_one_that_needs_workers_says_so():
    class Endless(Dataset):
        def __getitem__(self, index):
            return index

    assert kinds(audit_loader(DataLoader(Endless(), sampler=[5, 6, 7]))) == []
    ranks = [DataLoader(Endless(), sampler=[rank, 9]) for rank in range(2)]
    assert kinds(audit_loader(ranks)) == ["duplicates"]

    class NeedsWorkers(IterableDataset):
        def __iter__(self):
            return iter([get_worker_info().id])

    with pytest.raises(ValueError, match="get_worker_info"):
        audit_loader(DataLoader(NeedsWorkers(), num_workers=1, multiprocessing_context="fork"))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 32])
def test_seeds_that_depend_on_the_rank_are_named_and_other_faults_are_not(num_ranks):
    def hints(sampler_of_rank):
        ranks = range(num_ranks)
        loaders = [DataLoader(range(SIZE), batch_size=4, sampler=sampler_of_rank(rank)) for rank in ranks]
        reports = [audit_loader(loaders), audit(Assignment.collect(map(sampler_of_rank, ranks), SIZE))]
        return ["seed" in str(report) for report in reports]

    SIZE = 640
    assert hints(lambda rank: DistributedSampler(SIZE, num_ranks, rank, seed=rank)) == [True, True]
    assert hints(lambda rank: DistributedSampler(SIZE, num_ranks, rank // 2 * 2)) == [False, False]  # a rank twice
    assert hints(lambda rank: DistributedSampler(SIZE, num_ranks, 0)) == [False, False]
    window = SIZE // num_ranks
    assert hints(lambda rank: range(rank * window // 2, rank * window // 2 + window)) == [False, False]


# ---- generators of a dataset


class DrawsRows(Dataset):
    def __init__(self, rng):
        self.rng = rng

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(self.rng.random())


def own_generator(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["same_random", "repeated_random"]),
        ({"persistent_workers": True}, ["same_random"]),
        ({"worker_init_fn": own_generator}, []),
    ],
)
def test_a_generator_of_the_dataset_that_every_worker_copies(options, found):
    dataset = DrawsRows(np.random.default_rng(0))
    assert kinds(audit_loader(DataLoader(dataset, batch_size=2, num_workers=2, **options))) == found
    assert dataset[0] == DrawsRows(np.random.default_rng(0))[0]


# ---- odd loaders


def test_batches_of_any_loader_are_counted():
    def sizes(loader):
        return audit_loader(loader).ranks[0].batch_sizes

    assert sizes(DataLoader(range(5), batch_size=None, sampler=[[0, 1], [2, 3, 4]])) == (2, 3)
    assert sizes(DataLoader(Rows(range(5)), batch_size=2, drop_last=True)) == (2, 2)
    uneven = audit_loader(DataLoader(range(6), batch_sampler=[[0], [1, 2], [3, 4, 5]]))
    assert kinds(uneven) == []  # a batch sampler may make batches of different sizes
    empty = audit_loader(DataLoader(range(2), batch_sampler=[[0, 1], []]))
    assert kinds(empty) == ["short_last_batch"]
    assert "not defined" in str(empty)


@pytest.mark.parametrize(
    ("options", "found"), [({"batch_size": 2}, ["grouped_twice"]), ({"batch_size": None}, [])], ids=["wrong", "right"]
)
def test_batches_that_a_loader_groups_again_are_found(options, found):
    assert kinds(audit_loader(DataLoader(range(4), sampler=BalancedSampler([1] * 4, 1, 0), **options))) == found


# ---- nothing has changed afterwards


class ShufflesWith(Sampler):
    """Shuffles with a generator of its own, whose name is not `generator`."""

    def __init__(self, rng):
        self.rng = rng
        self.epoch = 0

    @property
    def generator(self):
        raise RuntimeError("not made yet")

    def __iter__(self):
        self.epoch += 1
        if isinstance(self.rng, torch.Generator):
            return iter(torch.randperm(20, generator=self.rng).tolist())
        order = list(range(20))
        self.rng.shuffle(order)
        return iter(order)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator().manual_seed(1),
        lambda: np.random.RandomState(np.random.PCG64(1)),
        lambda: random.Random(1),
    ],
)
def test_the_own_generator_of_a_sampler_is_where_it_was_after_an_audit(make):
    sampler = ShufflesWith(make())
    audit_loader(DataLoader(range(20), sampler=sampler))
    assert sampler.epoch == 0
    assert list(sampler) == list(ShufflesWith(make()))


def test_a_sampler_whose_generator_has_no_state_is_audited():
    assert kinds(audit_loader(DataLoader(range(20), sampler=ShufflesWith(random.SystemRandom())))) == []


class Draws(IterableDataset):
    """Draws its samples from its own generator and those of the process that reads it."""

    def __init__(self):
        self.rng = random.Random(1)

    def __iter__(self):
        return iter([self.rng.random(), random.random(), float(np.random.random()), float(torch.rand(1))])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("has_generator", [True, False])
def test_a_training_goes_on_as_if_there_had_been_no_audit(num_workers, has_generator):
    def read(is_audited):
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(3)
        generator = torch.Generator().manual_seed(4) if has_generator else None
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        loader = DataLoader(range(20), shuffle=True, generator=generator, **options)
        drawing = DataLoader(Draws())
        list(loader)  # begins the workers
        if is_audited:
            assert len(audit_loader(loader).draws) == 2 * num_workers
            audit_loader(drawing)
        return list(map(float, [*loader, *drawing]))

    assert read(is_audited=True) == read(is_audited=False)
