"""`Trace`: what one rank did, in the words that a diagnosis needs, whoever recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from ..timeline.intervals import intersect, merge
from ..timeline.spans import Times

Ints = NDArray[np.int64]
CALL_KINDS = (*Timeline.COMMUNICATION, "barrier", "gather", "scatter")
PHASES = ("loader", "h2d", "zero_grad", "forward", "backward", "optimizer", "host")  # "host" is what no span covers


class Calls(msgspec.Struct, frozen=True, eq=False):
    """A rank's collectives in the order of their launch; `group` and `kind` are places in `groups` and `kinds`.

    A kind is a word of `CALL_KINDS`; the group is "" where the trace does not say it. `num_bytes` is what the rank puts
    in, -1 where the trace does not say. `launch_s` is when the CPU asked for it, nan where the trace does not show
    that; `start_s` and `stop_s` are those of NCCL's kernel, or of Gloo's work, nan where it did not end within the
    trace.
    """

    group: Ints
    kind: Ints
    num_bytes: Ints
    launch_s: Times
    start_s: Times
    stop_s: Times
    groups: tuple[str, ...]
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return self.kind.size


class Trace(msgspec.Struct, frozen=True, eq=False):
    """What one rank did: spans and collectives, both in seconds from the first event of this trace.

    Lanes of `timeline` and their kinds:

    - "main", the thread that runs the steps: "step" (item: its number), "loader", "forward" (DDP's, or from the
      first to the last range of FSDP's), "zero_grad", "optimizer", "launch" of a collective (item: its place in
      `calls`, -1 for none), "unpack" (gradients leave a bucket), "range: NAME", and CUDA's calls: "cuda_runtime", and
      "cuda_sync" for those that wait
    - "backward": "backward", and within it a "gradient" each (item: its number)
    - "gpu": "loader", "forward", "zero_grad", "backward", "optimizer" and, for what was launched between these, "host":
      from the start of the first to the end of the last kernel or copy that the CPU launched there (item: the step)
    - "stream 7": "kernel", "memset", "memcpy h2d", "d2h", "d2d" or "p2p" (item: its bytes), and the collectives
    - "gloo": collectives on the CPU (item: place in `calls`, as on streams); "thread 12": as "main"

    Spans of a lane may run at once, so `Timeline.check`, which is for lanes that do one thing at a time, refuses most
    traces: "main" and "backward" have spans within others, "gloo" stands for several threads, and on "gpu" a phase may
    begin before the one before it ends, because streams run side by side.

    `joint_calls` are the places in `calls` of those that each stand for the allreduces of all of DDP's buckets in a
    backward, as `watch` records them.
    """

    rank: int
    timeline: Timeline
    calls: Calls
    source: str = ""
    group_ranks: Mapping[str, tuple[int, ...]] = {}  # as far as the trace says
    joint_calls: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))


class GpuTimes(NamedTuple):
    """Seconds of a rank's GPU, as `gpu_times` says."""

    total_s: float
    busy_s: float
    idle_s: float
    compute_s: float
    communication_s: float
    overlap_s: float


def gpu_times(trace: Trace) -> GpuTimes:
    """Return how long a rank's GPU worked, and on what, over all its streams; all 0 where the trace has no GPU.

    The total runs from the start of the first to the end of the last kernel, copy or collective; `busy_s` is the time
    in which at least one runs. `compute_s` is that of kernels, `communication_s` that of collectives, and `overlap_s`
    that in which both run. These are the definitions of Holistic Trace Analysis 0.5.0
    (https://github.com/facebookresearch/HolisticTraceAnalysis), whose idle time is `idle_s`, whose compute time is
    `compute_s`, and whose overlap is ``overlap_s / communication_s``. It differs in four things: it rounds the times of
    newer traces to microseconds (HTA_DISABLE_NS_ROUNDING=1 stops that); it takes waits for an event ("Stream Wait
    Event") for kernels; without `include_last_profiler_step` it leaves out the last step; and where there are several
    steps it leaves out what was launched after the last one.
    """
    streams = trace.timeline.select(lane=[lane for lane in trace.timeline.lanes if lane.startswith("stream ")])
    compute = streams.select(kind="kernel")
    communication = streams.select(kind=CALL_KINDS)
    computing = merge(compute.start_s, compute.stop_s)
    communicating = merge(communication.start_s, communication.stop_s)
    starts_s, stops_s = intersect(computing, communicating)
    total_s = streams.makespan_s
    return GpuTimes(
        total_s=total_s,
        busy_s=streams.busy_s,
        idle_s=total_s - streams.busy_s,
        compute_s=compute.busy_s,
        communication_s=communication.busy_s,
        overlap_s=float((stops_s - starts_s).sum()),
    )
