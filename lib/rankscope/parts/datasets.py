"""Datasets of part files, loaded by the trainer itself or ahead of it, and steps that uneven trainers take together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from ..sampling import shard_files
from ..timeline import Recorder
from ..values.checks import function, number, of_type, several, truth, whole
from .files import Load, Part, load_part, loaded
from .loaders import PartLoaders, Setting
from .simulate import TRAINER

Batch = TypeVar("Batch")


class SyncPartDataset(IterableDataset[dict[str, Tensor]]):
    """The batches of one trainer's share of the part files; each part is loaded when the one before is used up.

    `files` are shuffled by `seed` plus epoch and dealt out by `shard_files`: each trainer has files of its own. `load`
    takes a path and returns a dict of arrays or CPU tensors with the same number of rows. A batch is a dict of tensors
    of `batch_size` rows, views of the part; none has rows of two parts, so a part ends with a shorter one, which
    `drop_last` leaves out. Spans go to `recorder` as rank `trainer_id`, lane "trainer": kind "load", item the part's
    place in the share.

    Give it to a DataLoader with ``batch_size=None`` and no workers: each of them would read the whole share again.
    Raises ValueError for what `shard_files` refuses and for numbers out of range; while it is iterated, PartError,
    whose cause is what `load` raised, and RuntimeError in a DataLoader's worker.
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        num_trainers: int = 1,
        trainer_id: int = 0,
        seed: int = 0,
        *,
        load: Load = load_part,
        drop_last: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        one = isinstance(files, str | bytes | os.PathLike)  # shard_files says what is wrong with that
        self._files: Any = files if one else several("files", files, "file names")
        self.batch_size = whole("batch_size", batch_size, 1)
        self.num_trainers = whole("num_trainers", num_trainers, 1)
        self.trainer_id = whole("trainer_id", trainer_id, 0, self.num_trainers - 1)
        self.seed = whole("seed", seed)
        self.load, self.drop_last = function("load", load, "of a path"), truth("drop_last", drop_last)
        self.set_epoch(0)
        self.recorder = None
        if recorder is not None:
            self.recorder = of_type("recorder", recorder, Recorder).for_rank(self.trainer_id)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration deals out the files for. Raises ValueError for no whole number."""
        self.epoch = whole("epoch", epoch)
        shard = shard_files(self._files, self.num_trainers, self.trainer_id, self.seed + self.epoch)
        self.shard: list[str] = [os.fspath(file) for file in shard]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        for place, file in enumerate(self.shard):
            with self._span("load", place):
                part = loaded(self.load, file)
            yield from self._batches(part)

    def _batches(self, part: Part) -> Iterator[dict[str, Tensor]]:
        num_rows = len(next(iter(part.values())))
        stop = num_rows - num_rows % self.batch_size if self.drop_last else num_rows
        for start in range(0, stop, self.batch_size):
            yield {name: torch.as_tensor(rows[start : start + self.batch_size]) for name, rows in part.items()}

    def _span(self, kind: str, item: int) -> AbstractContextManager[None]:
        return self.recorder.span(TRAINER, kind, item) if self.recorder else nullcontext()


class AsyncPartDataset(SyncPartDataset):
    """The same batches in the same order, from parts that processes load ahead.

    `num_loaders` loader processes load the parts in turn, and keep up to `queue_size` of them ready; in addition,
    each loader holds one that it is loading or that finds no room. Parts come through shared memory: a batch that is
    kept keeps its whole part. Loaders record kind "load" on lanes "loader 0", …; the trainer kind "wait" on lane
    "trainer".

    The processes start with the first iteration (some tenths of a second; `with` starts them before), stay for the
    next epoch, and end with `close`, with the dataset, with an iteration that is not finished, and with the trainer,
    however that ends. `load` is pickled, by value where it is of a notebook or a script; the libraries that numpy calls
    have one thread in it. Beyond what `SyncPartDataset` raises: ValueError for a `load` that cannot be sent to another
    process, and LoaderDied, naming the process and its file, at the next batch after a loader has ended, and where a
    part is waited for longer than `timeout_s`.

    >>> AsyncPartDataset([], batch_size=32, queue_size=0)
    Traceback (most recent call last):
    ValueError: queue_size must be a whole number of at least 1, got 0
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        num_trainers: int = 1,
        trainer_id: int = 0,
        seed: int = 0,
        *,
        queue_size: int = 2,
        num_loaders: int = 1,
        load: Load = load_part,
        drop_last: bool = False,
        recorder: Recorder | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(
            files, batch_size, num_trainers, trainer_id, seed, load=load, drop_last=drop_last, recorder=recorder
        )
        self.queue_size = whole("queue_size", queue_size, 1)
        self.num_loaders = whole("num_loaders", num_loaders, 1)
        self.timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
        self._idle: list[PartLoaders] = []
        self._started: list[PartLoaders] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        shard, loaders = self.shard, self._claim()
        finished = False
        try:
            loaders.begin(shard)
            for place in range(len(shard)):
                with self._span("wait", place):
                    part = loaders.take()
                for batch in self._batches(part):
                    yield batch
                    loaders.check()
            finished = True
        finally:
            if finished and not self._idle:
                self._idle.append(loaders)
            else:
                loaders.close()

    @property
    def pids(self) -> list[int]:
        """The ids of the loader processes that run."""
        return [worker.pid for loaders in self._started if loaders.usable for worker in loaders.workers]

    def close(self) -> None:
        """End the processes; the next iteration starts new ones."""
        self._idle.clear()
        while self._started:
            self._started.pop().close()

    def __enter__(self) -> AsyncPartDataset:
        self._idle.append(self._claim())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": [], "_started": []}

    def _claim(self) -> PartLoaders:
        """Loaders that wait for an epoch, or new ones."""
        while self._idle:
            loaders = self._idle.pop()
            if loaders.usable:
                return loaders
        loaders = PartLoaders(Setting(self.load, self.queue_size, self.num_loaders, self.recorder, self.timeout_s))
        self._started = [*filter(lambda others: others.usable, self._started), loaders]
        return loaders


def in_step(
    batches: Iterable[Batch], group: Any = None, recorder: Recorder | None = None, device: str = "cpu"
) -> Iterator[Batch | None]:
    """Yield this rank's batches, then None until the last rank has had its own: all ranks do the same number of steps.

    Before each step the ranks of `group` (the default group) agree whether any of them has a batch left, by an
    all-reduce of one number on `device` (for NCCL: the rank's GPU). A rank that gets None must still take part in what
    the others do together in that step. Waiting is recorded on lane "trainer": kind "barrier", item the step. Raises
    what the all-reduce raises where a rank is gone; a rank that stops early must leave the group.
    """
    if group is None:
        group = torch.distributed.group.WORLD
        if group is None:
            raise ValueError("group must be a process group where there is no default group, got None")
    nothing, step, iterator = object(), 0, iter(batches)
    while True:
        batch: Any = next(iterator, nothing)
        left = torch.tensor([batch is not nothing], dtype=torch.int64, device=device)
        with recorder.span(TRAINER, "barrier", step) if recorder else nullcontext():
            group.allreduce([left]).wait()
            any_left = bool(left.item())
        if not any_left:
            return
        yield None if batch is nothing else batch
        step += 1


def _refuse_workers() -> None:
    if get_worker_info() is not None:
        raise RuntimeError("part files must be read in the trainer: give the DataLoader num_workers=0")
