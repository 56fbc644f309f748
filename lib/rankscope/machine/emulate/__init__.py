"""`emulated`: a network of a given rate and latency on one machine, so slow that the CPU does not matter.

Each host is a network namespace of Linux. With a latency the hosts' packets go through a switch, a process beside this
one; without, links are shaped in the kernel (tbf), both ways, and joined by a bridge.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from ...values.checks import number, whole
from ...workers.host import how_it_ended
from ...workers.launch import launch_in
from . import hosts
from . import switch as switching

Result = TypeVar("Result")


class Network:
    """Hosts that only see each other; made by `emulated`, and gone with its end.

    `addresses` are theirs; `namespaces` are paths that ``nsenter --net=…`` takes, and the interface has the same name,
    `device`, on every host. It prints as what it is: "emulated: 100 Mbit/s, 5 ms".
    """

    device = hosts.DEVICE

    def __init__(
        self, namespaces: list[int], bytes_per_s: float, latency_s: float, switch: subprocess.Popen[bytes] | None
    ) -> None:
        self._namespaces, self._started = namespaces, list[subprocess.Popen[Any]]()
        self._guards: dict[int, Callable[[], str]] = {}
        if switch and switch.stdout:
            words = f"the switch of the emulated network (pid {switch.pid})"
            self._guards[switch.stdout.fileno()] = lambda: f"{words} {how_it_ended(switch.wait())}"
        self.num_hosts, self.bytes_per_s, self.latency_s = len(namespaces), bytes_per_s, latency_s
        self.addresses = tuple(hosts.address(host) for host in range(len(namespaces)))
        self.namespaces = tuple(f"/proc/{os.getpid()}/fd/{namespace}" for namespace in namespaces)

    def launch(
        self,
        fn: Callable[..., Result],
        args: Sequence[Any] = (),
        timeout_s: float = 60.0,
        progress: bool = False,
    ) -> list[Result]:
        """As `rankscope.ranks.launch` on Gloo, with a rank on each host."""
        places = [(path, self.device) for path in self.namespaces]
        return launch_in(places, fn, args, timeout_s, progress, self._guards)

    def popen(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, with the options of `subprocess.Popen`; it is killed when the network goes."""
        namespace = self._namespaces[whole("host", host, 0, self.num_hosts - 1)]

        def start() -> subprocess.Popen[Any]:
            self._started.append(subprocess.Popen(argv, **options))
            return self._started[-1]

        return hosts.inside(namespace, start)

    def __str__(self) -> str:
        latency = f", {self.latency_s * 1e3:g} ms" if self.latency_s else ""
        return f"emulated: {self.bytes_per_s * 8 / 1e6:g} Mbit/s{latency}"

    def _end(self) -> None:
        switching.end_processes({os.fstat(namespace).st_ino for namespace in self._namespaces})
        for process in self._started:
            process.kill()
            process.wait()


@contextmanager
def emulated(num_hosts: int, bytes_per_s: float, latency_s: float = 0.0) -> Iterator[Network]:
    """Have a network of hosts that send and receive `bytes_per_s` at once, a packet taking `latency_s` in between.

    With a latency packets go through a switch, which is good for some 100 Mbit/s a host, with 8 hosts. Without one they
    go through the kernel, which carries more, but lets a first packet go free, and does not care for real time.

    Whatever runs on the hosts is killed at the end, and nothing is left, even if this process is killed. Raises
    ValueError for bad input, RuntimeError where such a network cannot be made: it takes root, Linux, and iproute2.

    >>> with emulated(2, 12.5e6, latency_s=0.005) as network:  # doctest: +SKIP
    ...     network.launch(total, args=(10,))
    [21, 21]
    """
    num_hosts = whole("num_hosts", num_hosts, 1, 64)
    bytes_per_s = number("bytes_per_s", bytes_per_s, 1e3, 1e11)
    latency_s = number("latency_s", latency_s, 0, 10)
    by_switch = latency_s > 0
    missing = [] if sys.platform == "linux" else ["Linux"]
    missing += [] if missing or os.geteuid() == 0 else ["root"]
    missing += [f"{name} (iproute2)" for name in ("ip", "tc") if shutil.which(name) is None]
    missing += [] if not by_switch or os.path.exists(hosts.TUN) else [f"{hosts.TUN} (only without latency_s)"]
    if missing:
        raise RuntimeError(f"an emulated network needs {', '.join(missing)}")
    with ExitStack() as stack:
        join = hosts.join_by_switch if by_switch else hosts.join_by_bridge
        try:
            made = [hosts.new_namespace(stack) for _ in range(num_hosts)]
            tuns = join(made, bytes_per_s, stack)
        except OSError as error:
            raise RuntimeError(f"an emulated network cannot be made here: {error}") from error
        keeper = stack.enter_context(_keeper(tuns, made, bytes_per_s, latency_s))
        network = Network(made, bytes_per_s, latency_s, keeper if by_switch else None)
        stack.callback(network._end)
        yield network


@contextmanager
def _keeper(
    tuns: list[int], namespaces: list[int], bytes_per_s: float, latency_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the switch, which also ends what runs in the namespaces if this process is killed."""
    lists = [",".join(map(str, descriptors)) for descriptors in (tuns, namespaces)]
    numbers = map(str, (os.getpid(), bytes_per_s, latency_s))
    with subprocess.Popen(
        [sys.executable, "-I", switching.__file__, *numbers, *lists],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[*tuns, *namespaces],
        start_new_session=True,  # Ctrl-C is for this process
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError("the switch of the emulated network did not start")
            yield process
        finally:
            process.kill()
