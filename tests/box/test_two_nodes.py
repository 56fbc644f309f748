"""Two network namespaces as two nodes, with plain torchrun on each: one start for both tests, as it takes long."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from rankscope.box import Profile
from tests.tools.emulate import emulated

from .networks import needs_network

pytestmark = pytest.mark.slow

RATE, LATENCY_S = 125e6, 0.0005
SCRIPT = """
import os, sys
from rankscope.cli import main
from rankscope.collectives import ALGORITHMS, build, execute
from rankscope.ranks import launch

def work(num_elements):
    import torch
    import torch.distributed as dist
    rank, found = dist.get_rank(), []
    for name in ALGORITHMS["allreduce"]:
        tensor = torch.arange(num_elements) * 10**rank
        execute(build("allreduce", name, 4), tensor)
        found.append((tensor == torch.arange(num_elements) * 1111).all().item())
    return found, int(os.environ["GROUP_RANK"]), os.stat("/proc/self/ns/net").st_ino

if __name__ == "__main__":
    print(launch(work, 4, args=(1000,)))
    sys.exit(main(["profile", *sys.argv[1:]]))
"""
FEW = ["--sizes", "1KiB:16KiB", "--algorithms", "ring,native", "--iterations", "4", "--budget", "0.02"]


def on_two_nodes(words: list[str], timeout_s: float = 240) -> tuple[list[str], set[int]]:
    """What torchrun's two processes on each of two nodes print, by node, and the nodes' network namespaces."""
    with emulated(2, RATE, LATENCY_S) as network:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": network.device, "OMP_NUM_THREADS": "1"}
        to = ["--master-addr", network.addresses[0], "--master-port", "29500"]
        started = []
        for node in range(2):
            where = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node), *to]
            command = [sys.executable, "-m", "torch.distributed.run", *where, *words]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(network.popen(node, command, env=environment, text=True, **pipes))
        printed = [process.communicate(timeout=timeout_s) for process in started]
        assert [process.returncode for process in started] == [0, 0], printed
        return [out for out, _ in printed], {os.stat(path).st_ino for path in network.namespaces}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], set[int], Profile]:
    folder = tmp_path_factory.mktemp("two_nodes")
    (folder / "script.py").write_text(SCRIPT)
    printed, inodes = on_two_nodes([str(folder / "script.py"), "-o", str(folder / "two.json"), *FEW])
    return printed, inodes, Profile.load(folder / "two.json")


@needs_network
def test_launch_and_execute_under_torchrun(ended: tuple[list[str], set[int], Profile]) -> None:
    printed, inodes, _ = ended
    lines = [line for text in printed for line in text.splitlines() if line.startswith("[(")]
    assert len(lines) == 4  # a result for each rank, on each rank
    assert len(set(lines)) == 1
    found = ast.literal_eval(lines[0])
    assert all(all(right) for right, _, _ in found)
    assert [node for _, node, _ in found] == [0, 0, 1, 1]
    places = [inode for _, _, inode in found]
    assert places[0] == places[1] != places[2] == places[3]
    assert set(places) == inodes


@needs_network
def test_profile_under_torchrun_says_two_nodes(ended: tuple[list[str], set[int], Profile]) -> None:
    *_, profile = ended
    assert (profile.num_ranks, profile.num_nodes) == (4, 2)
    assert list(profile.provenance["ranks_per_node"]) == [2, 2]
    assert {point.options["algorithm"] for point in profile.select("allreduce")} == {"ring", "native"}
    inter = profile.select("together", link="inter")
    assert min(min(point.seconds) for point in inter) >= LATENCY_S
