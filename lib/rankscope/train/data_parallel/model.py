"""What a step of DataParallel moves between devices and when, next to DDP's step: sizes, messages and timelines.

DataParallel (torch.nn.parallel.data_parallel) is one process: device 0 has the batch, the parameters and the optimizer.
Each step it scatters the inputs, copies all parameters and buffers to the other devices, gathers their outputs, takes
the loss alone, scatters the gradients of the outputs, and adds the others' gradients to its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster import Link
from ...collectives import build, closed_form
from ...common.checks import number, of_type, one_of, whole
from ...common.frozen import checked, frozen
from ...timeline import Span, Timeline

HOW = ("data_parallel", "ddp")
MOST_DEVICES = 1024


@frozen
class StepSizes:
    """The samples in a step, and the bytes: inputs and outputs of ONE sample, parameters and buffers of a model.

    `parameter_bytes` are those that get a gradient, of the same size; `frozen_bytes` those that get none. Raises
    ValueError for what is no whole number, for a batch without samples and for bytes below 0.
    """

    batch_size: int = checked(whole, 1)
    input_bytes: int = checked(whole, 0)
    output_bytes: int = checked(whole, 0)
    parameter_bytes: int = checked(whole, 0)
    frozen_bytes: int = checked(whole, 0, default=0)
    buffer_bytes: int = checked(whole, 0, default=0)


class DeviceCopy(NamedTuple):
    """One copy from a device to another; `kind` is its collective, `what` the thing that moves."""

    kind: str
    what: str
    src: int
    dst: int
    num_bytes: int


@frozen
class StepCosts:
    """What a step takes: each message α + m/B on `link`; forward, backward and loss so many seconds for each sample.

    Raises ValueError for numbers below 0.
    """

    link: Link = checked(Link)
    forward_s: float = checked(number, 0)
    backward_s: float = checked(number, 0)
    loss_s: float = checked(number, 0, default=0.0)


@frozen(eq=False)
class StepTraffic:
    """Of one step: `link_bytes[src, dst]`, and the bytes of each thing that moves."""

    link_bytes: NDArray[np.float64]
    bytes_of: dict[str, float]

    @property
    def total_bytes(self) -> float:
        return float(self.link_bytes.sum())

    @property
    def port_bytes(self) -> NDArray[np.float64]:
        """What passes each device's port, out and in."""
        return np.asarray(self.link_bytes.sum(axis=0) + self.link_bytes.sum(axis=1))

    @property
    def imbalance(self) -> float:
        """The busiest port's bytes over the mean of all; 1 where all carry the same, or nothing."""
        return float(self.port_bytes.max() / self.port_bytes.mean()) if self.total_bytes else 1.0


def chunk_sizes(batch_size: int, num_devices: int) -> tuple[int, ...]:
    """Return how many samples each device gets: as ``torch.chunk`` cuts, in pieces of ⌈batch_size / num_devices⌉.

    Fewer devices than there are may be used. Raises ValueError for numbers below 1.

    >>> chunk_sizes(9, 8)
    (2, 2, 2, 2, 1)
    """
    batch_size = whole("batch_size", batch_size, 1)
    size = -(-batch_size // whole("num_devices", num_devices, 1, MOST_DEVICES))
    return tuple(min(size, batch_size - first) for first in range(0, batch_size, size))


def messages_of(sizes: StepSizes, num_devices: int) -> tuple[DeviceCopy, ...]:
    """Return each copy of a step in its order, from the batch on device 0 to the gradients on device 0.

    Parameters go to those devices only that have samples. NCCL, where torch was built with it, passes parameters and
    gradients on from device to device instead: the same bytes in all, and less through device 0.

    >>> for message in messages_of(StepSizes(4, 8, 2, 100), 2):
    ...     print(*message)
    scatter inputs 0 1 16
    broadcast parameters 0 1 100
    gather outputs 1 0 4
    scatter output gradients 0 1 4
    reduce gradients 1 0 100
    """
    chunks = chunk_sizes(of_type("sizes", sizes, StepSizes).batch_size, num_devices)
    copied = sizes.parameter_bytes + sizes.frozen_bytes + sizes.buffer_bytes
    outputs = [chunk * sizes.output_bytes for chunk in chunks]
    stages = [
        ("scatter", "inputs", False, [chunk * sizes.input_bytes for chunk in chunks]),
        ("broadcast", "parameters", False, [copied] * len(chunks)),
        ("gather", "outputs", True, outputs),
        ("scatter", "output gradients", False, outputs),
        ("reduce", "gradients", True, [sizes.parameter_bytes] * len(chunks)),
    ]
    return tuple(
        DeviceCopy(kind, what, device if home else 0, 0 if home else device, num_bytes[device])
        for kind, what, home, num_bytes in stages
        for device in range(1, len(chunks))
    )


def traffic(sizes: StepSizes, num_devices: int, how: str = "data_parallel") -> StepTraffic:
    """Return what a step puts on each link, of DataParallel or of "ddp".

    DDP's is a ring allreduce of the gradients, in one bucket; buffers, if there are any, go from rank 0 to the others
    by a binomial tree, and each rank reads its own inputs.

    >>> sizes = StepSizes(4, 8, 2, 100)
    >>> [traffic(sizes, 4, how).port_bytes.tolist() for how in HOW]
    [[636.0, 212.0, 212.0, 212.0], [300.0, 300.0, 300.0, 300.0]]
    """
    if one_of("how", how, HOW) == "ddp":
        of_type("sizes", sizes, StepSizes)
        moved = {"gradients": build("allreduce", "ring", num_devices).traffic(sizes.parameter_bytes)}
        if sizes.buffer_bytes:
            moved["buffers"] = build("broadcast", "binomial", num_devices).traffic(sizes.buffer_bytes)
        link_bytes = np.sum([one.link_bytes for one in moved.values()], axis=0)
        bytes_of = {what: float(one.link_bytes.sum()) for what, one in moved.items()}
        return StepTraffic(link_bytes, bytes_of)
    link_bytes, bytes_of = np.zeros((num_devices, num_devices)), {}
    for message in messages_of(sizes, num_devices):
        link_bytes[message.src, message.dst] += message.num_bytes
        bytes_of[message.what] = bytes_of.get(message.what, 0.0) + message.num_bytes
    return StepTraffic(link_bytes, bytes_of)


def simulate(sizes: StepSizes, num_devices: int, costs: StepCosts, how: str = "data_parallel") -> Timeline:
    """Return what each device does when in a step of DataParallel: a rank for each device, lanes "compute" and "link".

    A stage begins when the one before has ended on all devices, as the one process that drives them does it. Device 0
    sends and receives one message at a time; a message is on the lanes of both its ends, its item the other device.

    With "ddp" it is a step of DDP in the same terms, without any overlap: forward, loss, backward, then one ring
    allreduce. Each rank has ⌈batch_size / num_devices⌉ samples, some twice where they do not divide. Buffers are left
    out. See `ddp.simulate` for buckets that are sent while the backward goes on.

    >>> sizes, costs = StepSizes(4, 0, 0, 100), StepCosts(Link(0.0, 100.0), 0.5, 1.0)
    >>> step = simulate(sizes, 4, costs)
    >>> step.makespan_s, step.select(rank=0, lane="link").busy_s, step.select(rank=1, lane="link").busy_s
    (7.5, 6.0, 2.0)
    >>> simulate(sizes, 4, costs, "ddp").makespan_s
    3.0
    """
    of_type("costs", costs, StepCosts)
    messages = messages_of(sizes, num_devices)
    chunks = chunk_sizes(sizes.batch_size, num_devices)
    spans: list[Span] = []
    if one_of("how", how, HOW) == "ddp":
        form = ("allreduce", "ring", num_devices, sizes.parameter_bytes)
        now_s = 0.0
        for lane, kind, seconds in (
            ("compute", "forward", costs.forward_s * chunks[0]),
            ("compute", "loss", costs.loss_s * chunks[0]),
            ("compute", "backward", costs.backward_s * chunks[0]),
            ("link", "allreduce", float(closed_form(*form, costs.link))),
        ):
            spans += [Span(rank, lane, kind, -1, now_s, now_s + seconds) for rank in range(num_devices)]
            now_s += seconds
        return Timeline.of(spans)
    computing = {
        "forward": [chunk * costs.forward_s for chunk in chunks],
        "loss": [sizes.batch_size * costs.loss_s],  # device 0 alone
        "backward": [chunk * costs.backward_s for chunk in chunks],
    }
    for what in ("inputs", "parameters", "forward", "outputs", "loss", "output gradients", "backward", "gradients"):
        start_s = max((span.stop_s for span in spans), default=0.0)
        for device, seconds in enumerate(computing.get(what, ())):
            spans.append(Span(device, "compute", what, -1, start_s, start_s + seconds))
        for message in (message for message in messages if message.what == what):
            stop_s = start_s + costs.link.seconds(message.num_bytes)
            spans.append(Span(message.src, "link", message.kind, message.dst, start_s, stop_s))
            spans.append(Span(message.dst, "link", message.kind, message.src, start_s, stop_s))
            start_s = stop_s
    return Timeline.of(spans)
