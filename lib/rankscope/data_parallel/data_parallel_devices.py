"""The devices of a DataParallel step: virtual ones, of this process, with memory apart; or GPUs, by torch's functions.

Both scatter, replicate, work, gather and reduce, and note each copy as a `Message` and each piece of work as a span.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import parallel

from ..timeline import Span, Timeline
from .data_parallel_model import Message, StepCosts, chunk_sizes

Replica = list[Tensor]  # the parameters that get a gradient, in the order of the module's


class Devices:
    """What both kinds have: the notes, and the loss on device 0."""

    def __init__(self, num_devices: int, home: torch.device, costs: StepCosts | None) -> None:
        self.num_devices, self.home, self.costs = num_devices, home, costs
        self.messages: list[Message] = []
        self._spans: list[Span] = []

    def timeline(self) -> Timeline:
        """Return what ran so far, from 0 on."""
        spans = Timeline.of(sorted(self._spans, key=lambda span: span.start_s))
        return spans.shifted(-spans.begin_s)

    def compute(self, device: int, kind: str, seconds: float, work: Callable[[], Any]) -> Any:
        """Do work on a device, which takes `seconds` at least."""
        start_s = time.perf_counter()
        result = work()
        self._settle(start_s + seconds)
        self._spans.append(Span(device, "compute", kind, -1, start_s, time.perf_counter()))
        return result

    def sample_s(self, kind: str) -> float:
        """How long a sample takes at least."""
        return 0.0 if self.costs is None else float(getattr(self.costs, f"{kind}_s"))

    def _settle(self, until_s: float) -> None:
        time.sleep(max(0.0, until_s - time.perf_counter()))


class VirtualDevices(Devices):
    """Devices of which each is a thread and tensors of its own; a copy takes what `costs` say, or what it takes."""

    def __init__(self, num_devices: int, costs: StepCosts | None) -> None:
        super().__init__(num_devices, torch.device("cpu"), costs)

    def scatter(self, what: str, tensor: Tensor) -> list[Tensor]:
        """Give each device its chunk: that of device 0 is not copied."""
        chunks = torch.split(tensor, list(chunk_sizes(len(tensor), self.num_devices)))
        others = [self._send("scatter", what, 0, place, [chunk])[0] for place, chunk in enumerate(chunks[1:], 1)]
        return [chunks[0], *others]

    def replicate(self, module: nn.Module, num_replicas: int) -> list[nn.Module]:
        """Copy the module; device 0 works with the module itself."""
        return [module, *(self._copy_of(module, device) for device in range(1, num_replicas))]

    def _copy_of(self, module: nn.Module, device: int) -> nn.Module:
        ours = [*module.parameters(), *module.buffers()]
        sent = self._send("broadcast", "parameters", 0, device, ours)
        theirs = (
            nn.Parameter(copied, own.requires_grad) if isinstance(own, nn.Parameter) else copied
            for own, copied in zip(ours, sent, strict=True)
        )
        return copy.deepcopy(module, {id(own): copied for own, copied in zip(ours, theirs, strict=True)})

    def work(self, kind: str, chunks: Iterable[int], works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do something on each device at once, in a thread each, as torch's parallel_apply does."""
        with ThreadPoolExecutor(len(works)) as pool:
            seconds = [chunk * self.sample_s(kind) for chunk in chunks]
            each = enumerate(zip(seconds, works, strict=True))
            futures = [pool.submit(self.compute, place, kind, *one) for place, one in each]
            return [future.result() for future in futures]

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the chunks together on device 0."""
        others = [self._send("gather", "outputs", place, 0, [one])[0] for place, one in enumerate(outputs[1:], 1)]
        return torch.cat([outputs[0], *others])

    def reduce(self, replicas: Sequence[Replica]) -> None:
        """Add the gradients of all to those of device 0, one device after the other."""
        for device, replica in enumerate(replicas[1:], 1):
            gradients = [gradient_of(parameter) for parameter in replica]
            self._send("reduce", "gradients", device, 0, gradients, replicas[0])

    def _send(
        self, kind: str, what: str, src: int, dst: int, tensors: Sequence[Tensor], onto: Replica | None = None
    ) -> list[Tensor]:
        """Copy tensors to another device, and add them there where it says `onto` what."""
        message = Message(kind, what, src, dst, sum(tensor.nbytes for tensor in tensors))
        start_s = time.perf_counter()
        copies = [tensor.detach().clone() for tensor in tensors]
        for parameter, gradient in zip(onto or [], copies, strict=onto is not None):
            parameter.grad = gradient_of(parameter).add_(gradient)
        if self.costs is not None:
            self._settle(start_s + self.costs.message_s(message))
        stop_s = time.perf_counter()
        self.messages.append(message)
        for device, other in ((src, dst), (dst, src)):
            self._spans.append(Span(device, "link", kind, other, start_s, stop_s))
        return copies


class Gpus(Devices):
    """GPUs driven by torch.nn.parallel's own functions; all are waited for at the end of each stage."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__(len(devices), devices[0], None)
        self._devices = list(devices)

    def scatter(self, what: str, tensor: Tensor) -> list[Tensor]:
        chunks = self._stage("scatter", lambda: parallel.scatter(tensor, self._devices))
        self._note("scatter", what, [chunk.nbytes for chunk in chunks])
        return list(chunks)

    def replicate(self, module: nn.Module, num_replicas: int) -> list[nn.Module]:
        num_bytes = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
        self._note("broadcast", "parameters", [num_bytes] * num_replicas)
        devices = self._devices[:num_replicas]
        replicas: list[nn.Module] = self._stage("broadcast", lambda: parallel.replicate(module, devices, detach=True))
        for name, parameter in module.named_parameters():
            for replica in replicas:
                tensor_of(replica, name).requires_grad_(parameter.requires_grad)
        return replicas

    def work(self, kind: str, chunks: Iterable[int], works: Sequence[Callable[[], Any]]) -> list[Any]:
        def on(device: int) -> Any:
            def synchronised() -> Any:
                result = works[device]()
                torch.cuda.synchronize(self._devices[device])
                return result

            with torch.cuda.device(self._devices[device]):
                return self.compute(device, kind, 0.0, synchronised)

        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(on, range(len(works))))

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        self._note("gather", "outputs", [one.nbytes for one in outputs], home=True)
        gathered: Tensor = self._stage("gather", lambda: parallel.gather(outputs, self._devices[0]))
        return gathered

    def reduce(self, replicas: Sequence[Replica]) -> None:
        gradients = [[gradient_of(parameter) for parameter in replica] for replica in replicas]
        self._note("reduce", "gradients", [sum(one.nbytes for one in each) for each in gradients], home=True)
        if len(replicas) > 1:
            reduce: Any = parallel.comm.reduce_add_coalesced
            sums = self._stage("reduce", lambda: reduce(gradients, self._devices[0].index))
            for parameter, total in zip(replicas[0], sums, strict=True):
                parameter.grad = total

    def _stage(self, kind: str, work: Callable[[], Any]) -> Any:
        start_s = time.perf_counter()
        result = work()
        for device in self._devices:
            torch.cuda.synchronize(device)
        stop_s = time.perf_counter()
        self._spans += [Span(place, "link", kind, -1, start_s, stop_s) for place in range(self.num_devices)]
        return result

    def _note(self, kind: str, what: str, num_bytes: Sequence[int], home: bool = False) -> None:
        for device, size in list(enumerate(num_bytes))[1:]:
            self.messages.append(Message(kind, what, *((device, 0) if home else (0, device)), size))


def tensor_of(module: nn.Module, name: str) -> Tensor:
    """Return a module's tensor by its dotted name, also where it is a replica's, which torch does not list."""
    path, _, last = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), last)
    return found


def gradient_of(parameter: Tensor) -> Tensor:
    """Return its gradient, zeros where it has got none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
