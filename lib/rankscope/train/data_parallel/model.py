"""The data that a step of DataParallel moves between devices, and when, next to DDP.

DataParallel (torch.nn.parallel.data_parallel) is one process: device 0 has the batch, the parameters and the optimizer.
In each step it scatters the inputs, copies all parameters to the other devices, gathers their outputs, computes the
loss alone, scatters the gradients of the outputs, and adds the others' gradients to its own.
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
_NO_DEVICE = -1  # the item of a span without another device


class StepSizes(msgspec.Struct, frozen=True):
    """The number of samples in a step, and the bytes of ONE sample's inputs and outputs and of all parameters.

    All parameters have gradients, of the same size. Raises ValueError if a field is not a whole number of at least 0,
    or if the batch is empty.
    """

    batch_size: int
    input_bytes: int
    output_bytes: int
    parameter_bytes: int

    def __post_init__(self) -> None:
        check_field(self, "batch_size", whole, 1)
        for name in ("input_bytes", "output_bytes", "parameter_bytes"):
            check_field(self, name, whole, 0)


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
        for name in ("forward_s", "backward_s", "loss_s"):
            check_field(self, name, number, 0)


class DeviceCopy(NamedTuple):
    """One copy from a device to another; `kind` is its collective, `what` the data that moves."""

    kind: str
    what: str
    src: int
    dst: int
    num_bytes: int


def chunk_sizes(batch_size: int, num_devices: int) -> tuple[int, ...]:
    """Return how many samples each device gets from ``torch.chunk``: pieces of ⌈batch_size / num_devices⌉.

    Some devices may get none, and are left out. Raises ValueError for a number of devices below 1.

    >>> chunk_sizes(9, 8)
    (2, 2, 2, 2, 1)
    """
    chunk_size = -(-batch_size // whole("num_devices", num_devices, 1))  # rounded up
    return tuple(min(chunk_size, batch_size - start) for start in range(0, batch_size, chunk_size))


def messages_of(sizes: StepSizes, num_devices: int) -> list[DeviceCopy]:
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
    input_bytes = [chunk * sizes.input_bytes for chunk in chunks]
    output_bytes = [chunk * sizes.output_bytes for chunk in chunks]
    parameter_bytes = [sizes.parameter_bytes] * len(chunks)
    copies = []
    for kind, what, num_bytes in (
        ("scatter", "inputs", input_bytes),
        ("broadcast", "parameters", parameter_bytes),
        ("gather", "outputs", output_bytes),
        ("scatter", "output gradients", output_bytes),
        ("reduce", "gradients", parameter_bytes),
    ):
        for other in range(1, len(chunks)):
            src, dst = (other, 0) if kind in ("gather", "reduce") else (0, other)
            copies.append(DeviceCopy(kind, what, src, dst, num_bytes[other]))
    return copies


def traffic(sizes: StepSizes, num_devices: int, how: str = "data_parallel") -> NDArray[np.float64]:
    """Return the bytes that pass each device's port, out and in, in a step of DataParallel or of "ddp".

    DDP's traffic is a ring allreduce of the gradients, in one bucket. Each rank reads its own inputs.

    >>> sizes = StepSizes(4, 8, 2, 100)
    >>> [traffic(sizes, 4, how).tolist() for how in HOW]
    [[636.0, 212.0, 212.0, 212.0], [300.0, 300.0, 300.0, 300.0]]
    """
    messages = messages_of(sizes, num_devices)
    if one_of("how", how, HOW) == "ddp":
        link_bytes = build("allreduce", "ring", num_devices).traffic(sizes.parameter_bytes)
        return np.asarray(link_bytes.sum(axis=0) + link_bytes.sum(axis=1))
    port_bytes = np.zeros(num_devices)
    for message in messages:
        port_bytes[[message.src, message.dst]] += message.num_bytes
    return port_bytes


def simulate(sizes: StepSizes, num_devices: int, costs: StepCosts, how: str = "data_parallel") -> Timeline:
    """Simulate a step of DataParallel and return its timeline, with one rank per device and lanes "compute" and "link".

    A stage begins when the previous one has ended on all devices, because one process drives them all. Device 0 sends
    and receives one message at a time. A message is on the lanes of both devices; its item is the other device.

    With "ddp" it is a step of DDP in the same terms, without any overlap: forward, loss, backward, then one ring
    allreduce. Each rank has ⌈batch_size / num_devices⌉ samples, and some are repeated if the batch does not divide
    evenly. See `ddp.simulate` for buckets that are sent during the backward pass.

    >>> sizes, costs = StepSizes(4, 0, 0, 100), StepCosts(Link(0.0, 100.0), 0.5, 1.0)
    >>> step = simulate(sizes, 4, costs)
    >>> step.makespan_s, step.select(rank=0, lane="link").busy_s, step.select(rank=1, lane="link").busy_s
    (7.5, 6.0, 2.0)
    >>> simulate(sizes, 4, costs, "ddp").makespan_s
    3.0
    """
    messages = messages_of(sizes, num_devices)
    of_type("costs", costs, StepCosts)
    chunks = chunk_sizes(sizes.batch_size, num_devices)
    stages = ["inputs", "parameters", "forward", "outputs", "loss", "output gradients", "backward", "gradients"]
    samples = {"forward": chunks, "loss": (sizes.batch_size,), "backward": chunks}  # the loss is on device 0 alone
    if one_of("how", how, HOW) == "ddp":
        messages = []
        stages = ["forward", "loss", "backward"]
        samples = dict.fromkeys(stages, (chunks[0],) * num_devices)  # the largest
    sample_s = {"forward": costs.forward_s, "loss": costs.loss_s, "backward": costs.backward_s}
    tape = Tape()
    start_s = 0.0
    for stage in stages:
        for device, num_samples in enumerate(samples.get(stage, ())):
            tape.add(device, "compute", stage, _NO_DEVICE, num_samples * sample_s[stage], after_s=start_s)
        for message in messages:  # one after the other, because all are at the port of device 0
            if message.what == stage:
                seconds = costs.link.seconds(message.num_bytes)
                tape.add(message.src, "link", message.kind, message.dst, seconds, after_s=start_s)
                start_s = tape.add(message.dst, "link", message.kind, message.src, seconds, after_s=start_s)
        start_s = max(tape.free_s.values(), default=0.0)
    if how == "ddp":
        allreduce_s = float(closed_form("allreduce", "ring", num_devices, sizes.parameter_bytes, costs.link))
        for rank in range(num_devices):
            tape.add(rank, "link", "allreduce", _NO_DEVICE, allreduce_s, after_s=start_s)
    return tape.timeline()
