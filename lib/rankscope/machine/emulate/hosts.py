"""The hosts of an emulated network: a network namespace each, with one device, and what joins them.

A namespace has no name. It is there for as long as this process keeps its descriptor, or a process runs in it, so that
nothing is left behind, however this process ends. All settings are made inside of them.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from ...workers import namespaces

Result = TypeVar("Result")
DEVICE = "host0"
TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_COMMAND_S = 10.0
# How long a packet is on the wire. The switch takes 9000 bytes at 100 Mbit/s; a shaper lets two packets go free.
_SWITCHED_S, _SHAPED_S = 0.72e-3, 0.36e-3
_QUEUE = 20_000  # packets
_UNSENT = 4  # packets of a connection in a shaper, so that others do not wait behind all that it has to send
_BUFFER_BYTES = 2**28  # of a shaper: more than all connections of a host have under way
# no slow start, no pause after a silence, no guesses that a packet is lost: none ever is
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


def address(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


def inside(namespace: int, work: Callable[[], Result]) -> Result:
    """Return what `work` returns in a thread of its own that sees the network of a namespace."""

    def run() -> Result:
        namespaces.enter(f"/proc/self/fd/{namespace}")
        return work()

    return _in_thread(run)


def new_namespace(stack: ExitStack) -> int:
    """Return the descriptor of a new namespace, kept until the stack closes."""
    return _in_thread(lambda: _kept(namespaces.leave_for_new(), stack))


def join_by_switch(hosts: list[int], bytes_per_s: float, stack: ExitStack) -> list[int]:
    """Give each host a TUN device, and return their descriptors, to be read and written by the switch."""
    mtu = int(min(max(1500, bytes_per_s * _SWITCHED_S), 65000))
    tuns = []
    for host, namespace in enumerate(hosts):
        tuns.append(inside(namespace, lambda: _new_tun(stack)))
        _run(namespace, "ip", f"link set {DEVICE} mtu {mtu} txqueuelen {_QUEUE}")
        _configure(namespace, host, mtu)
    return tuns


def join_by_bridge(hosts: list[int], bytes_per_s: float, stack: ExitStack) -> list[int]:
    """Join the hosts by a bridge in a namespace of its own, shaped in both directions, with nothing for a switch."""
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
    """Let a program of iproute2 carry out commands in a namespace; RuntimeError where it refuses one."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _COMMAND_S}
    done = inside(namespace, lambda: subprocess.run([program, "-batch", "-"], input="\n".join(lines), **options))
    if done.returncode:
        raise RuntimeError(f"{program} refused one of {', '.join(lines)}: {done.stderr.strip()}")


def _in_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns in a thread of its own; after Ctrl-C what is being made is made, and taken down later."""
    with ThreadPoolExecutor(1, "in a network namespace") as pool:
        return pool.submit(work).result()
