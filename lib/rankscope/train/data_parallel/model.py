"""The data that a step of DataParallel moves between devices, and when, next to DDP: sizes, messages and timelines.

DataParallel (torch.nn.parallel.data_parallel) is one process: device 0 has the batch, the parameters and the optimizer.
In each step it scatters the inputs, copies all parameters and buffers to the other devices, gathers their outputs,
computes the loss alone, scatters the gradients of the outputs, and adds the others' gradients to its own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...cluster import Link
from ...collectives import build, closed_form
from ...common.checks import check_field, number, of_type, one_of, whole
from ...timeline import Tape, Timeline

HOW = ("data_parallel", "ddp")
MOST_DEVICES = 1024  # `traffic` has a matrix with a row and a column for each
_NO_DEVICE = -1  # the item of a span without another device


class StepSizes(msgspec.Struct, frozen=True):
    """The number of samples in a step, and the bytes of ONE sample's inputs and outputs and of a model.

    `parameter_bytes` are the bytes of parameters with gradients, which have the same size; `frozen_bytes` are those of
    parameters without. Raises ValueError if a field is not a whole number of at least 0, or if the batch is empty.
    """

    batch_size: int
    input_bytes: int
    output_bytes: int
    parameter_bytes: int
    frozen_bytes: int = 0
    buffer_bytes: int = 0

    def __post_init__(self) -> None:
        check_field(self, "batch_size", whole, 1)
        check_field(self, "input_bytes", whole, 0)
        check_field(self, "output_bytes", whole, 0)
        check_field(self, "parameter_bytes", whole, 0)
        check_field(self, "frozen_bytes", whole, 0)
        check_field(self, "buffer_bytes", whole, 0)


class DeviceCopy(NamedTuple):
    """One copy from a device to another; `kind` is its collective, `what` the data that moves."""

    kind: str
    what: str
    src: int
    dst: int
    num_bytes: int


class StepCosts(msgspec.Struct, frozen=True):
    """The times of a step: α + m/B on `link` per message; forward, backward and loss in seconds per sample.

    Raises ValueError if a number is below 0.
    """

    link: Link
    forward_s: float
    backward_s: float
    loss_s: float = 0.0

    def __post_init__(self) -> None:
        check_field(self, "link", of_type, Link)
        check_field(self, "forward_s", number, 0)
        check_field(self, "backward_s", number, 0)
        check_field(self, "loss_s", number, 0)


class StepTraffic(msgspec.Struct, frozen=True, eq=False):
    """The bytes of one step: `link_bytes[src, dst]` on each link, and `bytes_of` each kind of data."""

    link_bytes: NDArray[np.float64]
    bytes_of: dict[str, float]

    @property
    def total_bytes(self) -> float:
        return float(self.link_bytes.sum())

    @property
    def port_bytes(self) -> NDArray[np.float64]:
        """The bytes that pass each device's port, out and in."""
        return np.asarray(self.link_bytes.sum(axis=0) + self.link_bytes.sum(axis=1))

    @property
    def imbalance(self) -> float:
        """The busiest port's bytes divided by the mean of all ports; 1 if all carry the same, or nothing."""
        if not self.total_bytes:
            return 1.0
        return float(self.port_bytes.max() / self.port_bytes.mean())


def chunk_sizes(batch_size: int, num_devices: int) -> tuple[int, ...]:
    """Return how many samples each device gets from ``torch.chunk``: pieces of ⌈batch_size / num_devices⌉.

    Some devices may get none, and are left out. Raises ValueError for a number of devices below 1.

    >>> chunk_sizes(9, 8)
    (2, 2, 2, 2, 1)
    """
    chunk_size = -(-batch_size // whole("num_devices", num_devices, 1, MOST_DEVICES))  # rounded up
    return tuple(min(chunk_size, batch_size - start) for start in range(0, batch_size, chunk_size))


def messages_of(sizes: StepSizes, num_devices: int) -> tuple[DeviceCopy, ...]:
    """Return the copies of a step in order, from the batch on device 0 to the gradients on device 0.

    Only devices that have samples get the parameters. If torch was built with NCCL, parameters and gradients pass from
    device to device instead: the same bytes in total, but fewer through device 0.

    >>> for message in messages_of(StepSizes(4, 8, 2, 100), 2):
    ...     print(*message)
    scatter inputs 0 1 16
    broadcast parameters 0 1 100
    gather outputs 1 0 4
    scatter output gradients 0 1 4
    reduce gradients 1 0 100
    """
    chunks = chunk_sizes(of_type("sizes", sizes, StepSizes).batch_size, num_devices)
    others = range(1, len(chunks))  # the devices that have samples, without device 0
    model_bytes = sizes.parameter_bytes + sizes.frozen_bytes + sizes.buffer_bytes
    copies = []
    for device in others:
        copies.append(DeviceCopy("scatter", "inputs", 0, device, chunks[device] * sizes.input_bytes))
    for device in others:
        copies.append(DeviceCopy("broadcast", "parameters", 0, device, model_bytes))
    for device in others:
        copies.append(DeviceCopy("gather", "outputs", device, 0, chunks[device] * sizes.output_bytes))
    for device in others:
        copies.append(DeviceCopy("scatter", "output gradients", 0, device, chunks[device] * sizes.output_bytes))
    for device in others:
        copies.append(DeviceCopy("reduce", "gradients", device, 0, sizes.parameter_bytes))
    return tuple(copies)


def traffic(sizes: StepSizes, num_devices: int, how: str = "data_parallel") -> StepTraffic:
    """Return the bytes on each link in a step of DataParallel or of "ddp".

    DDP's traffic is a ring allreduce of the gradients, in one bucket. Rank 0 broadcasts the buffers, if there are any,
    along a binomial tree. Each rank reads its own inputs.

    >>> sizes = StepSizes(4, 8, 2, 100)
    >>> [traffic(sizes, 4, how).port_bytes.tolist() for how in HOW]
    [[636.0, 212.0, 212.0, 212.0], [300.0, 300.0, 300.0, 300.0]]
    """
    of_type("sizes", sizes, StepSizes)
    if one_of("how", how, HOW) == "ddp":
        return _ddp_traffic(sizes, num_devices)
    messages = messages_of(sizes, num_devices)
    link_bytes = np.zeros((num_devices, num_devices))
    bytes_of: dict[str, float] = {}
    for message in messages:
        link_bytes[message.src, message.dst] += message.num_bytes
        bytes_of[message.what] = bytes_of.get(message.what, 0.0) + message.num_bytes
    return StepTraffic(link_bytes, bytes_of)


def _ddp_traffic(sizes: StepSizes, num_devices: int) -> StepTraffic:
    """Return the traffic of DDP's two collectives; without buffers, DDP broadcasts nothing."""
    traffic_of = {"gradients": build("allreduce", "ring", num_devices).traffic(sizes.parameter_bytes)}
    if sizes.buffer_bytes:
        traffic_of["buffers"] = build("broadcast", "binomial", num_devices).traffic(sizes.buffer_bytes)
    link_bytes = np.sum([collective.link_bytes for collective in traffic_of.values()], axis=0)
    bytes_of = {what: float(collective.link_bytes.sum()) for what, collective in traffic_of.items()}
    return StepTraffic(link_bytes, bytes_of)


def simulate(sizes: StepSizes, num_devices: int, costs: StepCosts, how: str = "data_parallel") -> Timeline:
    """Simulate a step of DataParallel and return its timeline, with one rank per device and lanes "compute" and "link".

    A stage begins when the previous one has ended on all devices, because one process drives them all. Device 0 sends
    and receives one message at a time. A message is on the lanes of both devices; its item is the other device.

    With "ddp" it is a step of DDP in the same terms, without any overlap: the broadcast of buffers, if there are any,
    forward, loss, backward, then one ring allreduce. Each rank has ⌈batch_size / num_devices⌉ samples, and some are
    repeated if the batch does not divide evenly. See `ddp.simulate` for buckets that are sent during the backward pass.

    >>> sizes, costs = StepSizes(4, 0, 0, 100), StepCosts(Link(0.0, 100.0), 0.5, 1.0)
    >>> step = simulate(sizes, 4, costs)
    >>> step.makespan_s, step.select(rank=0, lane="link").busy_s, step.select(rank=1, lane="link").busy_s
    (7.5, 6.0, 2.0)
    >>> simulate(sizes, 4, costs, "ddp").makespan_s
    3.0
    """
    of_type("costs", costs, StepCosts)
    of_type("sizes", sizes, StepSizes)
    chunks = chunk_sizes(sizes.batch_size, num_devices)
    if one_of("how", how, HOW) == "ddp":
        return _simulate_ddp(sizes, num_devices, costs, samples_per_rank=chunks[0])  # the largest chunk
    messages = messages_of(sizes, num_devices)
    computing_s = {
        "forward": [chunk * costs.forward_s for chunk in chunks],
        "loss": [sizes.batch_size * costs.loss_s],  # device 0 alone
        "backward": [chunk * costs.backward_s for chunk in chunks],
    }
    tape = Tape()
    for stage in ("inputs", "parameters", "forward", "outputs", "loss", "output gradients", "backward", "gradients"):
        start_s = max(tape.free_s.values(), default=0.0)
        if stage in computing_s:
            for device, seconds in enumerate(computing_s[stage]):
                tape.add(device, "compute", stage, _NO_DEVICE, seconds, after_s=start_s)
        for message in messages:  # one after the other, because all are at the port of device 0
            if message.what == stage:
                seconds = costs.link.seconds(message.num_bytes)
                tape.add(message.src, "link", message.kind, message.dst, seconds, after_s=start_s)
                start_s = tape.add(message.dst, "link", message.kind, message.src, seconds, after_s=start_s)
    return tape.timeline()


def _simulate_ddp(sizes: StepSizes, num_devices: int, costs: StepCosts, samples_per_rank: int) -> Timeline:
    """Return a step in which all ranks do the same at the same time, one phase after the other."""
    allreduce_s = float(closed_form("allreduce", "ring", num_devices, sizes.parameter_bytes, costs.link))
    phases = [
        ("compute", "forward", costs.forward_s * samples_per_rank),
        ("compute", "loss", costs.loss_s * samples_per_rank),
        ("compute", "backward", costs.backward_s * samples_per_rank),
        ("link", "allreduce", allreduce_s),
    ]
    if sizes.buffer_bytes:  # without buffers, DDP broadcasts nothing
        broadcast_s = float(closed_form("broadcast", "binomial", num_devices, sizes.buffer_bytes, costs.link))
        phases.insert(0, ("link", "broadcast", broadcast_s))
    tape = Tape()
    for lane, kind, seconds in phases:
        start_s = max(tape.free_s.values(), default=0.0)
        for rank in range(num_devices):
            tape.add(rank, lane, kind, _NO_DEVICE, seconds, after_s=start_s)
    return tape.timeline()
