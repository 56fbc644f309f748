"""`emulated`: a network with a given rate and latency on one machine, so slow that the CPU does not matter.

Each host is a Linux network namespace. With a latency, packets pass through a switch in a process of its own; without
one, the kernel shapes the links in both directions (tbf) and a bridge connects them.

The namespaces have no names. Each exists as long as this process keeps its descriptor or a process runs in it, so
nothing is left behind, however this process ends. All settings are made inside the namespaces.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rankscope.common.checks import number, whole
from rankscope.ranks.errors import MachineError, RankError
from rankscope.ranks.host import how_it_ended
from rankscope.ranks.launcher import launch

from . import namespaces as network_namespaces
from . import switch as switching

Result = TypeVar("Result")
DEVICE = "host0"
TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_COMMAND_S = 10.0
_LATER_S = 10.0  # by which the group's timeout is longer than the launch's, whose error says more
# How long a packet is on the wire. The switch takes 9000 bytes at 100 Mbit/s; a shaper lets two packets go free.
_SWITCHED_S, _SHAPED_S = 0.72e-3, 0.36e-3
_QUEUE = 20_000  # packets
_UNSENT = 4  # packets of one connection in a shaper, so that it does not block the others
_BUFFER_BYTES = 2**28  # shaper buffer: more than all connections of a host have in flight
# no slow start, no idle restart, no spurious loss detection: nothing is ever lost
_SETTINGS = {
    "ipv4/tcp_congestion_control": "reno",
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/tcp_early_retrans": "0",
    "ipv4/tcp_rmem": "4096 33554432 67108864",
    "ipv4/tcp_wmem": "4096 33554432 67108864",
    "ipv6/conf/all/disable_ipv6": "1",
}
_ROUTE = "initcwnd 2000 initrwnd 2000 quickack 1 rto_min 2s"


class Network:
    """Hosts that can reach only each other; created by `emulated` and removed when it ends.

    `addresses` are the hosts' IP addresses, `namespaces` the paths for ``nsenter --net=…``, `device` the name of the
    interface on every host. It prints as "emulated: 100 Mbit/s, 5 ms".
    """

    device = DEVICE

    def __init__(
        self, namespaces: list[int], bytes_per_s: float, latency_s: float, switch: subprocess.Popen[bytes] | None
    ) -> None:
        self._namespaces, self._started = namespaces, list[subprocess.Popen[Any]]()
        self._switch = switch
        self._is_over = False
        if switch is not None:
            threading.Thread(target=self._end_ranks_without_switch, args=(switch,), daemon=True).start()
        self.num_hosts, self.bytes_per_s, self.latency_s = len(namespaces), bytes_per_s, latency_s
        self.addresses = tuple(address(host) for host in range(len(namespaces)))
        self.namespaces = tuple(f"/proc/{os.getpid()}/fd/{namespace}" for namespace in namespaces)

    def launch(
        self,
        fn: Callable[..., Result],
        args: Sequence[Any] = (),
        timeout_s: float = 60.0,
        ranks_per_host: int = 1,
        progress: bool = False,
    ) -> list[Result]:
        """Launch as `rankscope.ranks.launch` with Gloo, with `ranks_per_host` consecutive ranks on each host."""
        each = whole("ranks_per_host", ranks_per_host, 1)
        paths = [path for path in self.namespaces for _ in range(each)]
        timeout_s = number("timeout_s", timeout_s, above=0)
        try:
            with TemporaryDirectory() as folder:
                work = (paths, self.device, f"{folder}/meeting", fn, tuple(args), timeout_s + _LATER_S)
                return launch(network_namespaces.on_its_host, len(paths), work, "gloo", timeout_s, progress)
        except RankError as error:
            if self._switch is None or self._switch.poll() is None:
                raise
            words = f"the switch of the emulated network (pid {self._switch.pid})"
            raise MachineError(f"{words} {how_it_ended(self._switch.wait())}") from error

    def popen(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, with the options of `subprocess.Popen`; it is killed when the network ends."""
        namespace = self._namespaces[whole("host", host, 0, self.num_hosts - 1)]

        def start() -> subprocess.Popen[Any]:
            self._started.append(subprocess.Popen(argv, **options))
            return self._started[-1]

        return inside(namespace, start)

    def __str__(self) -> str:
        latency = f", {self.latency_s * 1e3:g} ms" if self.latency_s else ""
        return f"emulated: {self.bytes_per_s * 8 / 1e6:g} Mbit/s{latency}"

    def _end_ranks_without_switch(self, switch: subprocess.Popen[bytes]) -> None:
        """Kill what runs on the hosts once the switch has ended, as nothing of it can go on; be a thread."""
        switch.wait()
        if not self._is_over:
            self._end_ranks()

    def _end_ranks(self) -> None:
        switching.end_processes({os.fstat(namespace).st_ino for namespace in self._namespaces})

    def _end(self) -> None:
        self._is_over = True
        self._end_ranks()
        for process in self._started:
            process.kill()
            process.wait()


@contextmanager
def emulated(num_hosts: int, bytes_per_s: float, latency_s: float = 0.0) -> Iterator[Network]:
    """Emulate a network of hosts that send and receive `bytes_per_s` at once, with a latency of `latency_s`.

    With a latency, packets pass through the switch process, which carries about 100 Mbit/s per host with 8 hosts.
    Without one, the kernel carries them: it is faster, but the first packet passes unshaped, and it does not depend
    on real-time priority.

    Processes on the hosts are killed at the end, and nothing is left behind, even if this process is killed. Raises
    ValueError for invalid arguments, MachineError if the network cannot be created: it needs root, Linux and iproute2.

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
    missing += [] if not by_switch or os.path.exists(TUN) else [f"{TUN} (only without latency_s)"]
    if missing:
        raise MachineError(f"an emulated network needs {', '.join(missing)}")
    with ExitStack() as stack:
        join = join_by_switch if by_switch else join_by_bridge
        try:
            made = [new_namespace(stack) for _ in range(num_hosts)]
            tuns = join(made, bytes_per_s, stack)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"an emulated network cannot be made here: {error}") from error
        keeper = stack.enter_context(_keeper(tuns, made, bytes_per_s, latency_s))
        network = Network(made, bytes_per_s, latency_s, keeper if by_switch else None)
        stack.callback(network._end)
        yield network


@contextmanager
def _keeper(
    tuns: list[int], namespaces: list[int], bytes_per_s: float, latency_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the switch; it also ends the processes in the namespaces if this process is killed."""
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
                raise MachineError("the switch of the emulated network did not start")
            yield process
        finally:
            process.kill()


# ---- hosts: a namespace each, with one device, and what joins them


def address(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


def inside(namespace: int, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread inside a network namespace and return its result."""

    def run() -> Result:
        network_namespaces.enter(f"/proc/self/fd/{namespace}")
        return work()

    return _in_thread(run)


def new_namespace(stack: ExitStack) -> int:
    """Return the descriptor of a new namespace, kept until the stack closes."""
    return _in_thread(lambda: _kept(network_namespaces.leave_for_new(), stack))


def join_by_switch(hosts: list[int], bytes_per_s: float, stack: ExitStack) -> list[int]:
    """Give each host a TUN device, and return the descriptors that the switch reads and writes."""
    mtu = int(min(max(1500, bytes_per_s * _SWITCHED_S), 65000))
    tuns = []
    for host, namespace in enumerate(hosts):
        tuns.append(inside(namespace, lambda: _new_tun(stack)))
        _run(namespace, "ip", f"link set {DEVICE} mtu {mtu} txqueuelen {_QUEUE}")
        _configure(namespace, host, mtu)
    return tuns


def join_by_bridge(hosts: list[int], bytes_per_s: float, stack: ExitStack) -> list[int]:
    """Connect the hosts by a bridge in its own namespace, shaped in both directions; needs no switch process."""
    bridge = new_namespace(stack)
    mtu = int(min(max(1500, bytes_per_s * _SHAPED_S), 9000))
    burst = 2 * max(mtu, round(bytes_per_s * _SHAPED_S))  # at high rates the timer is too coarse for two packets
    _run(bridge, "ip", f"link add bridge0 mtu {mtu} type bridge forward_delay 0 stp_state 0", "link set bridge0 up")
    for host, namespace in enumerate(hosts):
        port, device = f"port{host}", f"mtu {mtu} gso_max_segs 1"
        peer = f"{device} name {DEVICE} netns /proc/{os.getpid()}/fd/{namespace}"
        _run(bridge, "ip", f"link add {port} {device} type veth peer {peer}", f"link set {port} master bridge0 up")
        shape = f"root tbf rate {round(bytes_per_s * 8)}bit burst {burst} limit {_BUFFER_BYTES}"
        _run(bridge, "tc", f"qdisc add dev {port} {shape}")
        _run(namespace, "tc", f"qdisc add dev {DEVICE} {shape}")
        _configure(namespace, host, mtu)
    return []


def _configure(namespace: int, host: int, mtu: int) -> None:
    def write() -> None:
        for name, value in {**_SETTINGS, "ipv4/tcp_limit_output_bytes": str(_UNSENT * mtu)}.items():
            path = f"/proc/sys/net/{name}"
            if os.path.exists(path):
                with open(path, "w") as file:
                    file.write(value)

    inside(namespace, write)
    _run(
        namespace,
        "ip",
        "link set lo up",
        f"addr add {address(host)}/24 dev {DEVICE} noprefixroute",
        f"link set {DEVICE} up",
        f"route add 10.77.0.0/24 dev {DEVICE} src {address(host)} {_ROUTE}",
    )


def _kept(descriptor: int, stack: ExitStack) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _new_tun(stack: ExitStack) -> int:
    import fcntl  # not on every system

    tun = _kept(os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), stack)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return tun


def _run(namespace: int, program: str, *lines: str) -> None:
    """Let an iproute2 program run commands in a namespace; raises MachineError if one fails."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _COMMAND_S}
    done = inside(namespace, lambda: subprocess.run([program, "-batch", "-"], input="\n".join(lines), **options))
    if done.returncode:
        raise MachineError(f"{program} refused one of {', '.join(lines)}: {done.stderr.strip()}")


def _in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a thread and return its result; on Ctrl-C it completes, so that it can be undone later."""
    with ThreadPoolExecutor(1, "in a network namespace") as pool:
        return pool.submit(work).result()
