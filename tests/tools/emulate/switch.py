"""The helper process of an emulated network: its switch, and the cleanup if its owner is killed.

It is a script that uses only the standard library, so it starts at once. Packets leave a host at its rate, take the
latency, and enter the other host at that host's rate. The times of a packet follow from those of the packets before it,
not from when this process was scheduled. Bare acknowledgements take only the latency, because neither fits nor
predictions include them. Nothing is ever dropped: queues are unlimited.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import os
import select
import signal
import sys
import time

PRIORITY = 50  # real-time priority, above that of the measuring ranks
MOST_BYTES = 65536
_AT_ONCE = 64  # packets read from a host before the next host's turn
_AHEAD_S = 0.001  # a host with more bytes in flight is not read
_BARE = 120  # longer packets carry data


class Switch:
    """Moves packets between TUN devices; device k has the address ….(k + 1)."""

    def __init__(self, tuns: list[int], bytes_per_s: float, latency_s: float) -> None:
        self._tuns, self._bytes_per_s, self._latency_s = tuns, bytes_per_s, latency_s
        self._left, self._came = [0.0] * len(tuns), [0.0] * len(tuns)  # when its last packet has left, and arrived
        self._travelling: list[tuple[float, int, int, bytes]] = []  # by arrival time on an idle network
        self._waiting: list[tuple[float, int, int, bytes]] = []  # by delivery time, after queueing
        self._count = 0

    def run(self, owner: int) -> None:
        """Move packets until the owner's pidfd is ready."""
        while True:
            now = time.monotonic()
            busy = [until for until in self._left if until > now + _AHEAD_S]
            idle = [tun for tun, until in zip(self._tuns, self._left, strict=True) if until <= now + _AHEAD_S]
            times = [queue[0][0] for queue in (self._travelling, self._waiting) if queue]
            times += [until - _AHEAD_S for until in busy]
            wait_s = max(0.0, min(times) - now) if times else None
            ready = select.select([owner, *idle], (), (), wait_s)[0]
            if owner in ready:
                return
            for tun in ready:
                self._take(self._tuns.index(tun), time.monotonic())
            self._deliver(time.monotonic())

    def _take(self, host: int, now: float) -> None:
        tun, num_hosts, bytes_per_s, latency_s = self._tuns[host], len(self._tuns), self._bytes_per_s, self._latency_s
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(tun, MOST_BYTES)
            except BlockingIOError:
                return
            to = packet[19] - 1
            if packet[0] != 0x45 or not 0 <= to < num_hosts:  # not IPv4 to one of the hosts
                continue
            self._count += 1
            if is_bare(packet):
                heapq.heappush(self._waiting, (now + latency_s, self._count, to, packet))
                continue
            self._left[host] = max(now, self._left[host]) + len(packet) / bytes_per_s
            heapq.heappush(self._travelling, (self._left[host] + latency_s, self._count, to, packet))

    def _deliver(self, now: float) -> None:
        travelling, waiting = self._travelling, self._waiting
        while travelling and travelling[0][0] <= now:
            came, number, to, packet = heapq.heappop(travelling)
            self._came[to] = max(came, self._came[to] + len(packet) / self._bytes_per_s)
            heapq.heappush(waiting, (self._came[to], number, to, packet))
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the host is being removed
                os.write(self._tuns[to], packet)


def is_bare(packet: bytes) -> bool:
    """Whether an IPv4 packet is a pure TCP acknowledgement."""
    size = len(packet)
    return 40 <= size <= _BARE and packet[9] == 6 and packet[33] == 0x10 and size == 20 + (packet[32] >> 4) * 4


def processes_in(namespaces: set[int]) -> list[int]:
    """Return the processes in these network namespaces (given by inode), except this one."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with contextlib.suppress(OSError):
            if pid != os.getpid() and os.stat(f"/proc/{pid}/ns/net").st_ino in namespaces:
                found.append(pid)
    return found


def end_processes(namespaces: set[int], patience_s: float = 5.0) -> None:
    """Kill all processes in these namespaces, and wait until they are gone."""
    deadline = time.monotonic() + patience_s
    while (pids := processes_in(namespaces)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def main(owner_pid: int, bytes_per_s: float, latency_s: float, tuns: list[int], namespaces: list[int]) -> None:
    """Carry packets, if there are devices, until the owner ends; then end the processes in the namespaces."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inodes = {os.fstat(descriptor).st_ino for descriptor in namespaces}
    owner = os.pidfd_open(owner_pid)
    if tuns:
        with contextlib.suppress(OSError):  # not allowed: continue without
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    gc.disable()  # no reference cycles here
    if os.getppid() == owner_pid:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        Switch(tuns, bytes_per_s, latency_s).run(owner)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    end_processes(inodes)


if __name__ == "__main__":
    words = sys.argv[1:]
    descriptors = [[int(number) for number in word.split(",") if number] for word in words[3:]]
    main(int(words[0]), float(words[1]), float(words[2]), descriptors[0], descriptors[1])
