"""What a rank does while DDP is measured: whole steps of a real DistributedDataParallel, with a stamp at each event."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..machine.measuring.timing import Ranks, Task, network_id
from .buckets import parameter_specs
from .local_step import ParameterSpec

Loss = Callable[[nn.Module, int, Any], Tensor]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Setting:
    """How steps are run; `communicate` False lets DDP do all but the allreduces, `observe` False nothing but DDP."""

    iterations: int
    warm_up: int
    accumulation: int
    device: str
    ddp: dict[str, Any]  # DistributedDataParallel's own options
    communicate: bool = True
    observe: bool = True


@dataclass
class Record:
    """What one rank saw: seconds from the start of each step, one row an iteration."""

    nodes: list[int]  # of all ranks
    parameters: list[ParameterSpec]
    step_s: list[float] = field(default_factory=list)
    clean: list[bool] = field(default_factory=list)
    begun_s: list[float] = field(default_factory=list)  # when the step started, by time.perf_counter
    loaded_s: list[list[float]] = field(default_factory=list)  # when each micro-batch was there
    passes_s: list[list[float]] = field(default_factory=list)  # begin, then the ends of each forward and backward
    end_s: list[float] = field(default_factory=list)
    ready_s: list[list[float]] = field(default_factory=list)  # when each gradient is in its bucket
    buckets: list[list[list[int]]] = field(default_factory=list)
    launch_s: list[list[float]] = field(default_factory=list)
    done_s: list[list[float]] = field(default_factory=list)


def be_rank(module: nn.Module, loss: Loss, optimizer: Optimizer | None, setting: Setting) -> Record:
    """Run the steps on this rank, on a copy of the module, and return what was seen."""
    device = _device(setting.device)
    module = copy.deepcopy(module).to(device)
    ranks = Ranks(device=str(device))
    devices = [device] if device.type == "cuda" else None
    ddp = nn.parallel.DistributedDataParallel(module, device_ids=devices, **setting.ddp)
    watched = [p for p in module.parameters() if p.requires_grad]
    watch = Watch(Clock(device), watched)
    if setting.observe or not setting.communicate:
        watch.allreduces(ddp, setting.communicate)
    handles = watch.hooks() if setting.observe else []
    stepper = None if optimizer is None else optimizer(watched)
    steps = Steps(ddp, loss, stepper, setting, watch, ranks.numbered(network_id()))
    for _ in range(setting.warm_up + setting.iterations):
        seconds, clean = ranks.once(Task(steps.run, steps.before))
        steps.finish(seconds, clean)
    for handle in handles:
        handle.remove()
    return steps.record


class Clock:
    """Instants on a device: those of the host, or events of the current stream, read when all is over."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"

    def now(self) -> Any:
        if not self.is_cuda:
            return time.monotonic()
        event: Any = torch.cuda.Event
        event = event(enable_timing=True)
        event.record()
        return event

    def since(self, begin: Any, instant: Any) -> float:
        return float(begin.elapsed_time(instant)) * 1e-3 if self.is_cuda else float(instant - begin)


class Watch:
    """Stamps what DDP does in the step that is under way."""

    def __init__(self, clock: Clock, parameters: list[nn.Parameter]) -> None:
        self.clock, self.parameters = clock, parameters
        self.places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self.clear()

    def clear(self) -> None:
        self.ready: dict[int, Any] = {}
        self.buckets: list[list[int]] = []
        self.launched: list[Any] = []
        self.done: dict[int, Any] = {}

    def hooks(self) -> list[Any]:
        """Stamp each gradient after DDP has taken it: hooks of one node run in the order they came in."""
        return [self._accumulator(p).register_hook(self._stamp(place)) for place, p in enumerate(self.parameters)]

    def allreduces(self, ddp: nn.parallel.DistributedDataParallel, communicate: bool) -> None:
        """Stamp each bucket's allreduce, or leave it out."""
        hook = _allreduce if communicate else _nothing
        ddp.register_comm_hook(self, lambda state, bucket: hook(state, bucket))  # DDP refuses annotations as texts

    def _accumulator(self, parameter: nn.Parameter) -> Any:
        with torch.enable_grad():
            made_by = parameter.view_as(parameter).grad_fn
        assert made_by is not None
        return made_by.next_functions[0][0]

    def _stamp(self, place: int) -> Callable[[Any, Any], None]:
        def stamp(inputs: Any, outputs: Any) -> None:
            self.ready[place] = self.clock.now()

        return stamp

    def launch(self, bucket: Any) -> int:
        self.buckets.append([self.places[id(parameter)] for parameter in bucket.parameters()])
        self.launched.append(self.clock.now())
        return len(self.launched) - 1


def _allreduce(watch: Watch, bucket: Any) -> Any:
    """The allreduce that DDP does by itself, with stamps; what it divides by, the loss was divided by already."""
    place = watch.launch(bucket)
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

    def done(future: Any) -> Any:
        watch.done[place] = watch.clock.now()
        return future.value()[0]

    return work.get_future().then(done)


def _nothing(watch: Watch, bucket: Any) -> Any:
    place = watch.launch(bucket)
    watch.done[place] = watch.launched[place]
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Steps:
    """One step after the other, and the record of those after the warm-up; `loss` gets what `fetch` has for it."""

    def __init__(
        self,
        ddp: nn.parallel.DistributedDataParallel,
        loss: Loss,
        optimizer: torch.optim.Optimizer | None,
        setting: Setting,
        watch: Watch,
        nodes: list[int],
        fetch: Callable[[int], Any] = int,
    ) -> None:
        self.ddp, self.loss, self.optimizer, self.setting, self.watch = ddp, loss, optimizer, setting, watch
        self.fetch, self.rank, self._number = fetch, dist.get_rank(), 0
        self.record = Record(nodes, list(parameter_specs(ddp.module)))
        divides = setting.observe or not setting.communicate
        self._share = 1 / dist.get_world_size() if divides else None

    def before(self) -> None:
        self.ddp.zero_grad()
        self.watch.clear()

    def run(self) -> None:
        now = self.watch.clock.now
        self._begun_s, self._passes, self._loaded = time.perf_counter(), [now()], []
        for micro in range(self.setting.accumulation):
            last = micro == self.setting.accumulation - 1
            with nullcontext() if last else self.ddp.no_sync():
                batch = self.fetch(self._number * self.setting.accumulation + micro)
                self._loaded.append(now())
                loss: Any = self.loss(self.ddp, self.rank, batch)
                loss = loss if self._share is None else loss * self._share
                self._passes.append(now())
                if last:
                    self.watch.ready.clear()
                loss.backward()
                self._passes.append(now())
        if self.optimizer is not None:
            self.optimizer.step()
        self._end = now()

    def finish(self, seconds: float, clean: bool) -> None:
        """Keep what the step has left, unless it was one of the warm-up."""
        self._number += 1
        if self._number <= self.setting.warm_up:
            return
        watch, record, begin = self.watch, self.record, self._passes[0]

        def since(instant: Any) -> float:
            return watch.clock.since(begin, instant)

        record.step_s.append(seconds)
        record.clean.append(clean)
        record.begun_s.append(self._begun_s)
        record.loaded_s.append([since(one) for one in self._loaded])
        record.passes_s.append([since(one) for one in self._passes])
        record.end_s.append(since(self._end))
        places = range(len(watch.parameters))
        record.ready_s.append([since(watch.ready[p]) if p in watch.ready else np.nan for p in places])
        record.buckets.append(watch.buckets)
        record.launch_s.append([since(one) for one in watch.launched])
        record.done_s.append([since(watch.done[place]) for place in range(len(watch.launched))])


def _device(device: str) -> torch.device:
    if device != "cuda":
        return torch.device(device)
    return torch.device("cuda", torch.cuda.current_device())
