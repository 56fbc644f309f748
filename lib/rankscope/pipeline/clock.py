"""`Clock`: how long a thread has worked, without the time in which it waited for a core."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import NamedTuple

# This file of Linux has three numbers: the nanoseconds on a core, those of waiting for a core, and a count.
_SCHEDSTAT = "/proc/thread-self/schedstat"
_SCHEDSTAT_BYTES = 64  # enough for the three numbers


class Reading(NamedTuple):
    """The readings of a thread's clocks at one moment, in nanoseconds."""

    wall: int
    cpu: int  # of all threads of the process
    queued: int  # for how long the thread was ready and had no core

    def worked_since(self, earlier: Reading) -> int:
        """Return the nanoseconds since an earlier reading, less those in which the thread waited for a core."""
        queued = max(self.queued - earlier.queued, 0)
        return max(self.wall - earlier.wall - queued, 0)  # a wait between reading two clocks counts in one only


class Clock:
    """Reads the clocks of the thread that reads it first. If the system does not count waits, `queued` is 0."""

    def __init__(self) -> None:
        self._file: int | None = None  # a descriptor; None before the first reading

    def read(self) -> Reading:
        """Return a reading; it takes a few microseconds."""
        queued = 0
        with contextlib.suppress(OSError, IndexError):  # no such file, or the thread has ended
            if self._file is None:
                self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
                weakref.finalize(self, os.close, self._file)
            queued = int(os.pread(self._file, _SCHEDSTAT_BYTES, 0).split()[1])
        return Reading(time.perf_counter_ns(), time.process_time_ns(), queued)
