"""A step of DataParallel dissected stage by stage, on tensors that really move between devices.

The devices are virtual, of this process, each with memory and a thread of its own; or GPUs, driven by torch itself.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import parallel

from ..gradients import LossFn, Work, apart, flat, rounding_of
from ..timeline import Span, Timeline
from ..values.checks import of_type, whole
from ..values.frozen import ReadOnly, frozen
from .model import Message, StepCosts, StepSizes, chunk_sizes, messages_of, simulate

Replica = list[Tensor]  # the parameters that get a gradient, in the order of the module's


class DataParallelError(RuntimeError):
    """A step on several devices moved or computed something else than it should."""


@frozen(eq=False)
class DissectedStep:
    """A step that ran: what moved, when, and its gradients, next to those of one device with the whole batch.

    `messages` are the copies as they were made. `timeline` has a rank for each device, with lanes "compute" and "link".
    Gradients are by the names of ``module.named_parameters()``.
    """

    sizes: StepSizes
    num_devices: int
    costs: StepCosts | None
    messages: tuple[Message, ...]
    timeline: Timeline
    loss: float
    single_loss: float
    gradients: Mapping[str, Tensor]
    single_gradients: Mapping[str, Tensor]

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """How many samples each device had."""
        return chunk_sizes(self.sizes.batch_size, self.num_devices)

    @property
    def difference(self) -> float:
        """The largest difference from the single device's gradients, as a share of their largest entry."""
        return apart(flat(self.gradients.values()), flat(self.single_gradients.values()))

    @property
    def rounding(self) -> float:
        """The `difference` up to which gradients count as equal."""
        return rounding_of(self.gradients.values())

    def predicted(self) -> Timeline:
        """Return the step as `simulate` has it, at the costs that it ran with; ValueError where it ran with none."""
        return simulate(self.sizes, self.num_devices, of_type("costs", self.costs, StepCosts))

    def check(self) -> None:
        """Raise DataParallelError where other bytes moved than the model has, or gradients differ beyond rounding."""
        self.timeline.check()
        expected = messages_of(self.sizes, self.num_devices)
        if self.messages != expected:
            pairs = zip([*self.messages, None], [*expected, None], strict=False)
            moved, wanted = next((one, other) for one, other in pairs if one != other)
            raise DataParallelError(f"message {moved} moved where the model has {wanted}")
        if not self.difference <= self.rounding:
            raise DataParallelError(
                f"gradients differ by {self.difference:.2g} of the largest from those of one device, and rounding "
                f"makes {self.rounding:.2g} at most: does the module look at the other samples of its batch?"
            )


def dissect(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: LossFn,
    devices: int | Sequence[str | torch.device] = 4,
    costs: StepCosts | None = None,
) -> DissectedStep:
    """Do forward and backward of one step as ``nn.DataParallel`` does, on copies, and return what happened.

    `devices` is a number of virtual devices: each has tensors of its own and a thread, and nothing is shared. Copies
    and computing take what they take, or at least what `costs` say, so that a slow link can be seen on any machine. A
    list of CUDA devices is driven by torch's own scatter, replicate, gather and reduce_add_coalesced, in stages that
    wait for each other.

    The module is left as it is. It maps inputs of shape (batch, …) to one tensor of shape (batch, …), and the loss is
    a mean over the batch, or what `loss_fn` returns for all outputs on device 0. Raises ValueError for what is no such
    thing, for costs on GPUs, and for a module without a parameter to train.

    >>> step = dissect(nn.Linear(3, 2), torch.randn(9, 3), torch.randn(9, 2), nn.functional.mse_loss, 8)
    >>> step.check()
    >>> step.chunk_sizes, [message.what for message in step.messages if message.dst == 4 or message.src == 4]
    ((2, 2, 2, 2, 1), ['inputs', 'parameters', 'outputs', 'output gradients', 'gradients'])
    """
    place = _devices(devices, costs)
    work = Work(module, inputs, targets, loss_fn)
    inputs, targets = (tensor.detach().to(place.home) for tensor in (inputs, targets))
    module, single = (copy.deepcopy(work.module).to(place.home) for _ in range(2))
    for one in (module, single):
        one.zero_grad()
    with _one_core_each():
        outputs, loss = _step(place, module, inputs, targets, loss_fn)
        single_loss = loss_fn(single(inputs), targets)
        single_loss.backward()  # type: ignore[no-untyped-call]
    trained, frozen = (
        sum(one.nbytes for one in module.parameters() if one.requires_grad is wanted) for wanted in (True, False)
    )
    buffer_bytes = sum(one.nbytes for one in module.buffers())
    return DissectedStep(
        sizes=StepSizes(len(inputs), inputs[0].nbytes, outputs[0].nbytes, trained, frozen, buffer_bytes),
        num_devices=place.num_devices,
        costs=place.costs,
        messages=tuple(place.messages),
        timeline=place.timeline(),
        loss=float(loss.detach()),
        single_loss=float(single_loss.detach()),
        gradients=_gradients(module),
        single_gradients=_gradients(single),
    )


def _devices(devices: int | Sequence[str | torch.device], costs: StepCosts | None) -> VirtualDevices | Gpus:
    if costs is not None:
        of_type("costs", costs, StepCosts)
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        return VirtualDevices(whole("devices", devices, 1, 64), costs)
    try:
        gpus = [torch.device(device) for device in devices]
    except (RuntimeError, TypeError):  # no device's name
        gpus = []
    if not gpus or any(gpu.type != "cuda" or gpu.index is None for gpu in gpus):
        raise ValueError(f"devices must be a number of virtual ones, or CUDA devices by number, got {devices!r}")
    if costs is not None:
        raise ValueError(f"costs must be None on GPUs, which take what they take, got {costs!r}")
    if max(gpu.index for gpu in gpus) >= torch.cuda.device_count():
        raise ValueError(f"devices must be of the {torch.cuda.device_count()} GPUs that torch finds, got {devices!r}")
    return Gpus(gpus)


@contextlib.contextmanager
def _one_core_each() -> Iterator[None]:
    """A virtual device has one core: torch's own threads, one team a device, would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(
    place: VirtualDevices | Gpus, module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn
) -> tuple[Tensor, Tensor]:
    """The outputs as they were gathered, and the loss; the gradients are in the module."""
    chunks = place.scatter("inputs", inputs)
    sizes = [len(chunk) for chunk in chunks]
    replicas = place.replicate(module, len(chunks))
    pairs = zip(replicas, chunks, strict=True)
    parts: list[Tensor] = place.work("forward", sizes, [partial(replica, chunk) for replica, chunk in pairs])
    for part, size in zip(parts, sizes, strict=True):
        if not isinstance(part, Tensor) or part.shape[:1] != (size,):
            raise ValueError(f"module must return a tensor with a row for each of its {size} samples, got {part!r}")
    outputs = place.gather([part.detach() for part in parts]).requires_grad_()

    def loss_and_gradient() -> Tensor:
        loss = loss_fn(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    loss = place.compute(0, "loss", len(inputs), loss_and_gradient)
    assert outputs.grad is not None
    back = zip(parts, place.scatter("output gradients", outputs.grad), strict=True)
    place.work("backward", sizes, [partial(part.backward, gradient) for part, gradient in back])
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    place.reduce([[_tensor_of(replica, name) for name in names] for replica in replicas])
    return outputs, loss


def _tensor_of(module: nn.Module, name: str) -> Tensor:
    """A module's tensor by its dotted name, also where it is a replica's, which torch does not list."""
    path, _, last = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(path), last)
    return found


def _gradient_of(parameter: Tensor) -> Tensor:
    """Its gradient, zeros where it has got none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _gradients(module: nn.Module) -> Mapping[str, Tensor]:
    return ReadOnly({name: _gradient_of(one) for name, one in module.named_parameters() if one.requires_grad})


# ---- devices: they note each copy as a Message and each piece of work as a Span


class Devices:
    """What both kinds have: the notes, and the loss on device 0, whose torch device is `home`."""

    def __init__(self, num_devices: int, home: torch.device, costs: StepCosts | None) -> None:
        self.num_devices, self.home, self.costs = num_devices, home, costs
        self.messages: list[Message] = []
        self._spans: list[Span] = []

    def timeline(self) -> Timeline:
        """Return what ran so far, from 0 on."""
        spans = Timeline.of(sorted(self._spans, key=lambda span: span.start_s))
        return spans.shifted(-spans.begin_s)

    def compute(self, device: int, kind: str, num_samples: int, work: Callable[[], Any]) -> Any:
        """Do work on a device, which takes what `costs` say of so many samples, at least."""
        start_s = time.perf_counter()
        result = work()
        if self.costs is not None:
            _wait_until(start_s + num_samples * getattr(self.costs, f"{kind}_s"))
        self._spans.append(Span(device, "compute", kind, -1, start_s, time.perf_counter()))
        return result


def _wait_until(stop_s: float) -> None:
    time.sleep(max(0.0, stop_s - time.perf_counter()))


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
        ours = [*module.parameters(), *module.buffers()]
        replicas = [module]
        for device in range(1, num_replicas):
            sent = self._send("broadcast", "parameters", 0, device, ours)
            theirs = {
                id(own): nn.Parameter(copied, own.requires_grad) if isinstance(own, nn.Parameter) else copied
                for own, copied in zip(ours, sent, strict=True)
            }
            replicas.append(copy.deepcopy(module, theirs))
        return replicas

    def work(self, kind: str, sizes: Iterable[int], works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do something on each device at once, in a thread each, as torch's parallel_apply does."""
        with ThreadPoolExecutor(len(works)) as pool:
            each = enumerate(zip(sizes, works, strict=True))
            futures = [pool.submit(self.compute, device, kind, *one) for device, one in each]
            return [future.result() for future in futures]

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the chunks together on device 0."""
        others = [self._send("gather", "outputs", place, 0, [one])[0] for place, one in enumerate(outputs[1:], 1)]
        return torch.cat([outputs[0], *others])

    def reduce(self, replicas: Sequence[Replica]) -> None:
        """Add the gradients of all to those of device 0, one device after the other."""
        for device, replica in enumerate(replicas[1:], 1):
            gradients = [_gradient_of(parameter) for parameter in replica]
            self._send("reduce", "gradients", device, 0, gradients, replicas[0])

    def _send(
        self, kind: str, what: str, src: int, dst: int, tensors: Sequence[Tensor], onto: Replica | None = None
    ) -> list[Tensor]:
        """Copy tensors to another device, and add them there where it says `onto` what."""
        message = Message(kind, what, src, dst, sum(tensor.nbytes for tensor in tensors))
        start_s = time.perf_counter()
        copies = [tensor.detach().clone() for tensor in tensors]
        for parameter, gradient in zip(onto or [], copies, strict=onto is not None):
            parameter.grad = _gradient_of(parameter).add_(gradient)
        if self.costs is not None:
            _wait_until(start_s + self.costs.link.seconds(message.num_bytes))
        stop_s = time.perf_counter()
        self.messages.append(message)
        self._spans.append(Span(src, "link", kind, dst, start_s, stop_s))
        self._spans.append(Span(dst, "link", kind, src, start_s, stop_s))
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
                _tensor_of(replica, name).requires_grad_(parameter.requires_grad)
        return replicas

    def work(self, kind: str, sizes: Sequence[int], works: Sequence[Callable[[], Any]]) -> list[Any]:
        def on(device: int) -> Any:
            def synchronised() -> Any:
                result = works[device]()
                torch.cuda.synchronize(self._devices[device])
                return result

            with torch.cuda.device(self._devices[device]):
                return self.compute(device, kind, sizes[device], synchronised)

        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(on, range(len(works))))

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        self._note("gather", "outputs", [one.nbytes for one in outputs], home=True)
        gathered: Tensor = self._stage("gather", lambda: parallel.gather(outputs, self._devices[0]))
        return gathered

    def reduce(self, replicas: Sequence[Replica]) -> None:
        gradients = [[_gradient_of(parameter) for parameter in replica] for replica in replicas]
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
