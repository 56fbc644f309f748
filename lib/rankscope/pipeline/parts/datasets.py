"""Datasets of part files, loaded by the trainer itself or ahead of it, and steps that uneven trainers take together."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from ...common.checks import several, truth, whole
from ...sampling.samplers.files import shard_files
from ...timeline import Recorder
from ..processes import Process
from .files import Load, Part, PartError, checked_part, load_part, num_rows, part_error
from .model import TRAINER, loader_lane, parts_ahead

Batch = TypeVar("Batch")


class SyncPartDataset(IterableDataset[dict[str, Tensor]]):
    """The batches of one trainer's share of the part files. Each part is loaded only after the previous one is read.

    `files` are shuffled by `seed` plus epoch and distributed by `shard_files`, so each trainer has its own files.
    `load` takes a path and returns a dict of arrays or CPU tensors with the same number of rows. A batch is a dict of
    tensors of `batch_size` rows, which are views of the part. No batch has rows of two parts, so the last batch of a
    part may be shorter; `drop_last` leaves such batches out. Spans are written to `recorder` as rank `trainer_id`, lane
    "trainer", kind "load"; their item is the part's index in the share.

    Pass it to a DataLoader with ``batch_size=None`` and no workers, because each worker would read the whole share
    again. Raises ValueError if `shard_files` rejects the files or a number is out of range. Iterating raises PartError,
    whose cause is the error of `load`, if a part cannot be loaded; RuntimeError in a worker of a DataLoader.
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        num_trainers: int = 1,
        trainer_id: int = 0,
        seed: int = 0,
        *,
        drop_last: bool = False,
        load: Load = load_part,
        recorder: Recorder | None = None,
    ) -> None:
        self._files = several("files", files, "file names")
        self.batch_size = whole("batch_size", batch_size, 1)
        self.num_trainers = whole("num_trainers", num_trainers, 1)
        self.trainer_id = whole("trainer_id", trainer_id, 0, self.num_trainers - 1)
        self.seed = whole("seed", seed)
        self.drop_last = truth("drop_last", drop_last)
        self.load = load
        self.set_epoch(0)
        if recorder is not None:
            recorder = recorder.for_rank(self.trainer_id)
        self.recorder = recorder

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for which the next iteration distributes the files. Raises ValueError if it is not whole."""
        self.epoch = whole("epoch", epoch)
        shard = shard_files(self._files, self.num_trainers, self.trainer_id, self.seed + self.epoch)
        self.shard: list[str] = [os.fspath(file) for file in shard]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        for index, file in enumerate(self.shard):
            with _span(self.recorder, TRAINER, "load", index):
                try:
                    part = checked_part(self.load(file))
                except Exception as error:
                    raise part_error(file, error) from error
            yield from self._batches(part)

    def _batches(self, part: Part) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of one part."""
        stop = num_rows(part)
        if self.drop_last:
            stop -= stop % self.batch_size
        for start in range(0, stop, self.batch_size):
            yield {name: torch.as_tensor(rows[start : start + self.batch_size]) for name, rows in part.items()}


class AsyncPartDataset(SyncPartDataset):
    """The batches of `SyncPartDataset`, in the same order, from parts that worker processes load ahead.

    The other arguments (`num_trainers`, `trainer_id`, `seed`, `drop_last`, `load`, `recorder`) are those of
    `SyncPartDataset`. `num_loaders` workers load the parts in turn. At most `queue_size` + `num_loaders` parts, rounded
    up to a multiple of `num_loaders`, are loaded or being loaded ahead of the trainer. Kind "load" is recorded on lanes
    "loader 0", …; the trainer records kind "wait" on lane "trainer".

    An iteration starts its workers. They end with it, also if it is abandoned, and with the thread that has asked for
    its first batch. They are forked, so `load` may be defined in a notebook. A part comes through a pipe. In addition
    to the errors of `SyncPartDataset`, iterating raises PartError, which names the file, if the worker that loads a
    part dies or takes longer than `timeout_s`; its cause names the process.

    >>> AsyncPartDataset([], batch_size=32, queue_size=0)
    Traceback (most recent call last):
    ValueError: queue_size must be a whole number of at least 1, got 0
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        *shard: int,
        queue_size: int = 2,
        num_loaders: int = 1,
        timeout_s: float = 300.0,
        **options: Any,
    ) -> None:
        super().__init__(files, batch_size, *shard, **options)
        self.queue_size = whole("queue_size", queue_size, 1)
        self.num_loaders = whole("num_loaders", num_loaders, 1)
        self.timeout_s = timeout_s

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        parts = [*enumerate(self.shard)]  # those of this epoch
        loaders: list[_Loader] = []
        try:
            for _ in range(self.num_loaders):  # all are forked before there are threads
                loaders.append(_Loader(self))
            for place, loader in enumerate(loaders):
                arguments = (parts[place :: self.num_loaders], loader_lane(place), self.recorder)
                threading.Thread(target=loader.work, args=arguments, daemon=True).start()
            for index, _ in parts:
                loader = loaders[index % self.num_loaders]
                with _span(self.recorder, TRAINER, "wait", index):
                    answer = loader.answers.get()
                if isinstance(answer, PartError):
                    raise answer
                loader.free_slots.release()
                yield from self._batches(answer)
        finally:
            for loader in loaders:
                loader.end()


class _Loader:
    """A process that loads parts, and what the thread needs that asks it for them."""

    def __init__(self, dataset: AsyncPartDataset) -> None:
        num_ahead = parts_ahead(dataset.queue_size, dataset.num_loaders)
        self.free_slots = threading.Semaphore(num_ahead // dataset.num_loaders)  # for parts that are not yet taken
        self.answers: SimpleQueue[Part | PartError] = SimpleQueue()
        load = dataset.load
        self._process = Process(lambda file: checked_part(load(file)), dataset.timeout_s)

    def work(self, parts: list[tuple[int, str]], lane: str, recorder: Recorder | None) -> None:
        """Be the thread: let the process load these parts, as far ahead as there are free slots."""
        for index, file in parts:
            self.free_slots.acquire()
            try:
                with _span(recorder, lane, "load", index):
                    part = self._process.call(file)
            except BaseException as error:  # such as SystemExit; also after `end`
                problem = part_error(file, error)
                problem.__cause__ = error
                self.answers.put(problem)
                return
            self.answers.put(part)

    def end(self) -> None:
        self._process.end()
        self.free_slots.release()


def _span(recorder: Recorder | None, lane: str, kind: str, item: int) -> AbstractContextManager[None]:
    return nullcontext() if recorder is None else recorder.span(lane, kind, item)


def in_step(
    batches: Iterable[Batch], group: Any = None, recorder: Recorder | None = None, device: str = "cpu"
) -> Iterator[Batch | None]:
    """Yield this rank's batches, then None until all ranks have yielded theirs, so that all take the same steps.

    Before each step the ranks of `group` (by default the default group) determine whether any of them has a batch left,
    by an all-reduce of one number on `device` (for NCCL, the rank's GPU). A rank that receives None must still take
    part in the collectives of that step. Waiting is recorded on lane "trainer" with kind "barrier"; the item is the
    step. If a rank has ended, the error of the all-reduce is raised; a rank that stops early must leave the group.
    """
    group = group or torch.distributed.group.WORLD
    if group is None:
        raise ValueError("group must be a process group where there is no default group, got None")
    iterator = iter(batches)
    end: Any = object()
    for step in count():
        batch = next(iterator, end)
        num_ranks_left = torch.tensor([batch is not end], dtype=torch.int64, device=device)
        with _span(recorder, TRAINER, "barrier", step):
            group.allreduce([num_ranks_left]).wait()
            is_end = num_ranks_left.item() == 0  # inside the span, because with NCCL only this waits
        if is_end:
            return
        yield None if batch is end else batch


def _refuse_workers() -> None:
    """Raise RuntimeError in a worker of a DataLoader."""
    if get_worker_info() is not None:
        raise RuntimeError("part files must be read in the trainer: give the DataLoader num_workers=0")
