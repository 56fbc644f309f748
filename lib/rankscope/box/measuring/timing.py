"""Timing on several ranks: all start at an agreed instant, and the slowest rank counts."""

from __future__ import annotations

import os
import socket
import statistics
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...collectives.process_group import backend_of, group_of, takes_batches

AWAKE_S = 0.001  # a rank stops sleeping this long before the start, because a sleeping core wakes slowly
REST_S = 0.001  # shortest pause after an iteration, so that no rank takes a core while others finish
# of the iteration's time, by which the pause is longer. With 4 ranks on two cores, 94 % of the allreduces of 1 KiB to
# 4 MiB had ended on all ranks when the pause of the first one ended; with no such share 83 %, with twice as much 98 %.
REST_SHARE = 0.25
MOST_REST_S = 0.005  # longest such pause
# Number of agreements, to estimate the time of one; the first ones do not count. Over Gloo on two cores, the first took
# 5 to 9 times as long as later ones, the next three about twice as long. Twice the median of the other 8, the margin,
# was in 95 % of cases at least 1.4 times the median of 2,000.
AGREEMENTS = 12
WARM_UP_AGREEMENTS = 4
PRIORITY = 10  # of all threads after `go_first`, from 1 to 99: any puts them before those without real-time priority


def nothing() -> None:
    """Do nothing."""


class TimedTask(NamedTuple):
    """What a rank does in each iteration. Only `run` is timed; it performs the measured operation `times` times.

    `before` gets ready, as by posting a receive. `after` waits for what `run` has started and left to itself, such as
    a last send, whose end this rank does not time.
    """

    run: Callable[[], object]
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing
    times: int = 1


def stolen_ticks() -> int:
    """Return the CPU time that the host has stolen from this machine, in ticks of 10 ms; 0 if unknown."""
    try:
        # The first line is for all cores: cpu user nice system idle iowait irq softirq steal …
        return int(Path("/proc/stat").read_text().split()[8])
    except (OSError, IndexError, ValueError):
        return 0


def boot_id() -> str:
    """Return an id that differs between machines, and changes when a machine restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def network_id() -> str:
    """Return an id shared by the ranks that can communicate over loopback."""
    try:
        return f"{boot_id()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return boot_id()


class Ranks:
    """A process group whose ranks start together, as seen from this rank. All ranks create it at the same point.

    Ranks on one machine share its clock. On several machines they start when an agreement has ended: `clock_offset_s`
    is how far this rank's instant may then be off that of rank 0, at most about the time of an agreement.
    """

    # Attributes, so that a test can give a rank another clock, other stolen ticks or another machine.
    clock = staticmethod(time.monotonic)
    stolen = staticmethod(stolen_ticks)
    machine = staticmethod(boot_id)

    def __init__(self, group: Any = None, device: str = "cpu") -> None:
        self.group = group_of(group)
        self.device = torch.device(device)
        self.rank = self.group.rank()
        self.size = self.group.size()
        self._control = self.group  # for agreements, which are tensors on the CPU
        is_nccl = takes_batches(backend_of(self.group, torch.empty(0, device=self.device)))
        if is_nccl:  # it sends tensors on GPUs only
            everyone = [dist.get_global_rank(self.group, rank) for rank in range(self.size)]
            self._control = dist.new_group(everyone, backend="gloo")
        self.margin_s = AWAKE_S + self._agreement_s()
        self.is_one_machine = len(set(self.numbered(self.machine()))) == 1
        self.clock_offset_s = 0.0 if self.is_one_machine else self.margin_s

    def slowest(self, values: list[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._control.allreduce([tensor], options).wait()
        return list(tensor.tolist())

    def numbered(self, mine: str) -> list[int]:
        """Return for each rank the number of its string; strings are numbered by first appearance in rank order.

        >>> from rankscope.ranks import in_threads
        >>> in_threads(3, lambda rank, group: Ranks(group).numbered(["b", "a", "b"][rank]))[0]
        [0, 1, 0]
        """
        own = zlib.crc32(mine.encode())  # a number, which a tensor can carry
        hashes = self.slowest([own * (rank == self.rank) for rank in range(self.size)])
        first_seen = list(dict.fromkeys(hashes))
        return [first_seen.index(number) for number in hashes]

    def _agreement_s(self) -> float:
        """Return how long before a start all ranks agree on it, so that all know it in time.

        That is twice the median time of an agreement, on the rank where it is longest, because single agreements take
        longer than the median.
        """
        times_s = []
        for _ in range(AGREEMENTS):
            begin_s = self.clock()
            self.slowest([begin_s])
            times_s.append(self.clock() - begin_s)
        return self.slowest([2 * statistics.median(times_s[WARM_UP_AGREEMENTS:])])[0]

    def together(self) -> tuple[float, bool]:
        """Wait for an instant that all ranks agree on; return it, and whether this rank was on time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # work that the GPU still has would delay the timed run
        (instant,) = self.slowest([self.clock() + self.margin_s])
        if not self.is_one_machine:  # clocks differ, but all ranks learn at about the same time that all are ready
            instant = self.clock() + AWAKE_S
        is_on_time = self.clock() < instant
        time.sleep(max(0.0, instant - AWAKE_S - self.clock()))
        while self.clock() < instant:
            os.sched_yield()  # stays awake, and lets another rank on this core see the instant, too
        return instant, is_on_time

    def once(self, task: TimedTask) -> tuple[float, bool]:
        """Run one iteration; return this rank's seconds, and whether it ran undisturbed on this node."""
        task.before()
        stolen_before = self.stolen()
        instant, is_on_time = self.together()
        seconds = self._timed(task.run, instant)
        # Before the pause, and within what stolen time disturbs: another rank may still be timing the arrival of what
        # this one sends, and MPI may send a long message only while its sender waits for it.
        task.after()
        time.sleep(min(REST_S + REST_SHARE * seconds, MOST_REST_S))
        # Read after the pause: the system counts stolen time at its timer ticks, so some shows only after the run.
        has_lost_no_time = self.stolen() == stolen_before
        return seconds, is_on_time and has_lost_no_time

    def _timed(self, run: Callable[[], object], instant: float) -> float:
        """Return the seconds of a run: on a CPU since the instant of the start, on a GPU by the events around it."""
        if self.device.type != "cuda":
            run()
            return self.clock() - instant
        event: Any = torch.cuda.Event
        begin = event(enable_timing=True)
        end = event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3  # CUDA reports milliseconds


def go_first() -> None:
    """Give all threads of this process real-time priority. Raises RuntimeError if that is not allowed."""
    try:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(PRIORITY))
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"real_time needs Linux, and root or CAP_SYS_NICE: {error}") from error
