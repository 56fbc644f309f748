"""A device that does what it was told late: in any order that streams and events allow, and on a clock of its own.

It stands in for `PrefetchGpu`. Copies are made when something waits for them, or at random moments before; what a real
device would answer with wrong data is noted in `errors`.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

COPY, CONSUMER = "copy", "consumer"


class LateEvent:
    def __init__(self, device: LateCuda) -> None:
        self._device, self.at_s = device, None

    def synchronize(self) -> None:
        self._device.run_until(self)


@dataclass
class _Op:
    given_s: float
    seconds: float = 0.0
    after: LateEvent | None = None
    do: Callable[[float], None] = lambda _: None


@dataclass
class _Memory:
    """What became of a tensor on the device."""

    alias: torch.Tensor
    copied: bool = False
    recorded: bool = False
    num_readers: int = 0


class LateCuda:
    def __init__(self, rng: random.Random, eagerness: float = 0.0, bytes_per_s: float = 1e9) -> None:
        self.device = torch.device("cpu")
        self.rng, self.eagerness, self.bytes_per_s = rng, eagerness, bytes_per_s
        self.errors: list[str] = []
        self.host_s = 0.0
        self._queues: dict[str, deque[_Op]] = {COPY: deque(), CONSUMER: deque()}
        self._times = {COPY: 0.0, CONSUMER: 0.0}
        self._current = CONSUMER
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self._memory: dict[int, _Memory] = {}

    # ---- what a prefetcher asks for

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        before, self._current = self._current, COPY
        try:
            yield
        finally:
            self._current = before

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.knows(tensor):
            return tensor
        return self.pin(torch.empty_like(tensor).copy_(tensor))

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        if source.numel() and not self.knows(source):
            self.errors.append("a copy from memory that is not pinned")
        target = torch.empty_like(source)
        target.untyped_storage().fill_(0xAB)
        memory, before = _Memory(target.detach()), source.clone()
        key = id(target)
        self._memory[key] = memory
        weakref.finalize(target, self._freed, key)

        def do(_: float) -> None:
            if not torch.equal(source, before):  # as torch's allocator does, this keeps the memory of the source
                self.errors.append("written again before its copy had ended: a source")
            memory.alias.copy_(source)
            memory.copied = True

        self._give(_Op(self.host_s, source.nbytes / self.bytes_per_s, do=do))
        return target

    def mark(self) -> LateEvent:
        event = LateEvent(self)
        self._give(_Op(self.host_s, do=lambda at_s: setattr(event, "at_s", at_s)))
        return event

    def wait_for(self, event: LateEvent) -> None:
        self._give(_Op(self.host_s, after=event))

    def hand_over(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._memory[id(tensor)].recorded = True

    # ---- what a test asks for

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self._pinned[storage.data_ptr()] = storage
        return tensor

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in pinned memory."""
        return tensor.untyped_storage().data_ptr() in self._pinned

    def step(self, tensors: list[torch.Tensor], seconds: float = 0.0) -> list[torch.Tensor]:
        """Enqueue a step; what it reads is in the list that is returned, once it has run."""
        memories = [self._memory[id(tensor)] for tensor in tensors]
        read: list[torch.Tensor] = []
        for memory in memories:
            memory.num_readers += 1

        def do(_: float) -> None:
            for memory in memories:
                memory.num_readers -= 1
                if not memory.copied:
                    self.errors.append("read before its copy had ended: a tensor")
                read.append(memory.alias.clone())

        self._give(_Op(self.host_s, seconds, do=do))
        return read

    def run_until(self, event: LateEvent) -> None:
        while event.at_s is None:
            self._run_one()
        self.host_s = max(self.host_s, event.at_s)

    def run_all(self) -> None:
        while any(self._queues.values()):
            self._run_one()

    # ---- how it goes about it

    def _give(self, op: _Op) -> None:
        self._queues[self._current].append(op)
        while self.rng.random() < self.eagerness and any(self._runnable()):
            self._run_one()

    def _runnable(self) -> list[str]:
        heads = ((stream, queue[0]) for stream, queue in self._queues.items() if queue)
        return [stream for stream, op in heads if op.after is None or op.after.at_s is not None]

    def _run_one(self) -> None:
        runnable = self._runnable()
        assert runnable, "everything waits for an event that never comes"
        stream = self.rng.choice(runnable)
        op = self._queues[stream].popleft()
        start_s = max(self._times[stream], op.given_s, op.after.at_s if op.after else 0.0)
        self._times[stream] = start_s + op.seconds
        op.do(self._times[stream])

    def _freed(self, key: int) -> None:
        memory = self._memory.pop(key)
        if memory.num_readers and not memory.recorded:
            self.errors.append("freed while a step uses it, and not recorded on its stream: a tensor")
