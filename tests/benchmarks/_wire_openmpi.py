"""Open MPI's side of tests.benchmarks.wire: its forced algorithms on loopback, and across the hosts of a network."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.emulate import Network

from ..collectives import openmpi
from ..collectives.openmpi import Case

NAMES = ("recursive_doubling", "ring", "rabenseifner")
Times = dict[str, list[tuple[float, bool]]]  # by our name for it: the seconds of iterations, and whether clean


@contextmanager
def program() -> Iterator[Path]:
    """The compiled program, in a folder that goes."""
    with tempfile.TemporaryDirectory() as folder:
        yield openmpi.compiled(Path(folder))


def on_loopback(program: Path, num_ranks: int, num_bytes: int, iterations: int) -> Times:
    """What each algorithm takes; the first quarter warms up."""
    case, found = Case("float32", "sum", num_bytes // 4, 0), {}
    for name in NAMES:
        (one,) = openmpi.allreduce(program, num_ranks, name, [case], iterations + iterations // 4)
        found[openmpi.OURS[name]] = [(seconds, not ticks) for seconds, ticks in one.seconds[iterations // 4 :]]
    return found


def on_network(program: Path, network: Network, num_bytes: int, iterations: int, margin_s: float) -> Times:
    """The same with a rank on each host of an emulated network."""
    case, found = Case("float32", "sum", num_bytes // 4, 0), {}
    hosts = ",".join(network.addresses)
    device = ("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network.device)
    control = ("--mca", "oob_tcp_if_include", network.device, "--mca", "plm_rsh_agent", str(_agent(program, network)))
    for name in NAMES:
        file = program.with_name(f"{name}-network")
        where = (*device, *control, "--host", hosts, "--map-by", "node")
        words = openmpi.command(program, network.num_hosts, name, [case], file, iterations + 1, True, where, margin_s)
        process = network.popen(0, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        printed, errors = process.communicate(timeout=120)
        assert not process.returncode, printed + errors
        (one,) = openmpi.read([case], file, printed)
        found[openmpi.OURS[name]] = [(seconds, not ticks) for seconds, ticks in one.seconds[1:]]
    return found


def _agent(program: Path, network: Network) -> Path:
    """A script in the place of ssh, for mpirun: it runs a command on the host of an address."""
    cases = [f"{host}) net={path};;" for host, path in zip(network.addresses, network.namespaces, strict=True)]
    agent = program.with_name("agent")
    lines = ["#!/bin/sh", "case $1 in", *cases, "esac", "shift", 'exec nsenter --net="$net" sh -c "$*"']
    agent.write_text("\n".join(lines) + "\n")
    agent.chmod(0o700)
    return agent
