"""`Trace`: what one rank did, in the words that a diagnosis needs, whoever recorded it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...timeline import Timeline

KINDS_OF_WORDS = {  # the letters in names of collectives, and our words; longer ones contain those that follow
    "reducescatter": "reduce_scatter",
    "alltoa": "alltoall",  # "all_to_all", "all_to_allv", "alltoall_base"
    "allreduce": "allreduce",
    "allgather": "allgather",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send_recv",
    "recv": "send_recv",
}
CALL_KINDS = (*dict.fromkeys(KINDS_OF_WORDS.values()), "nccl")  # "nccl" if no name states which
PHASES = ("loader", "h2d", "zero_grad", "forward", "backward", "optimizer", "host")  # "host" is what no span covers


class Call(NamedTuple):
    """A collective of a rank that ended within its trace.

    `kind` is one of `CALL_KINDS`. The CPU asked for the call at `launch_s`; NCCL's kernel or Gloo's work
    ran from `start_s` to `stop_s`.
    """

    kind: str
    launch_s: float
    start_s: float
    stop_s: float
    lane: str = "gloo"  # of its span


class Trace(msgspec.Struct, frozen=True):
    """What one rank did: spans, and collectives in the order of their launch, in seconds from its first event.

    Lanes of `timeline` and their kinds:

    - "main", the thread that runs the steps: "step" (item: its number), "loader", "forward" (DDP's, or from the first
      to the last range of FSDP's), "zero_grad", "optimizer", "unpack" (gradients leave a bucket) and
      "range: NAME"; "thread 12": as "main"
    - "backward": "backward", and within it a "gradient" each
    - "gpu": a phase, or "host" between two phases: from the first to the last kernel or copy that was launched in it
    - "stream 7": "kernel", "memset", "memcpy h2d", "memcpy", and collectives (item: place in `calls`)
    - "gloo": collectives on the CPU

    `num_ranks` is that of the job, 0 if the trace does not say. `left_out` are files of the job that cannot be read.
    """

    rank: int
    timeline: Timeline
    calls: tuple[Call, ...]
    source: str = ""
    num_ranks: int = 0
    left_out: tuple[str, ...] = ()
