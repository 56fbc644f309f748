"""Two network namespaces as two nodes, with plain torchrun on each: one start for both tests, as it takes long."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankscope.box import Profile

pytestmark = [pytest.mark.slow, pytest.mark.oracle]

DEVICE = "between"
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


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Two network namespaces that a cable joins, by name; a test skips where none can be made."""
    names = [f"rankscope-{os.getpid()}-{node}" for node in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for node, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.0.0.{node + 1}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                ip("-n", name, "link", "set", device, "up")
        yield names
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root, Linux and iproute2: {getattr(error, 'stderr', error)}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def ended(nodes: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Profile]:
    """What torchrun's two processes on each of two nodes print, by node, and the profile that they wrote."""
    folder = tmp_path_factory.mktemp("two_nodes")
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
    started = []
    for node, name in enumerate(nodes):
        where = ["--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node), "--master-addr", "10.0.0.1"]
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *where]
        command += ["--master-port", "29500", str(folder / "script.py"), "-o", str(folder / "two.json"), *FEW]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))  # type: ignore[call-overload]
    printed = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0, 0], printed
    return [out for out, _ in printed], Profile.load(folder / "two.json")


def test_launch_and_execute_under_torchrun(ended: tuple[list[str], Profile]) -> None:
    printed, _ = ended
    lines = [line for text in printed for line in text.splitlines() if line.startswith("[(")]
    assert len(lines) == 4  # a result for each rank, on each rank
    assert len(set(lines)) == 1
    found = ast.literal_eval(lines[0])
    assert all(all(right) for right, _, _ in found)
    assert [node for _, node, _ in found] == [0, 0, 1, 1]
    places = [inode for _, _, inode in found]
    assert places[0] == places[1] != places[2] == places[3]


def test_profile_under_torchrun_says_two_nodes(ended: tuple[list[str], Profile]) -> None:
    *_, profile = ended
    assert (profile.num_ranks, profile.num_nodes) == (4, 2)
    assert list(profile.provenance["ranks_per_node"]) == [2, 2]
    assert {point.options["algorithm"] for point in profile.select("allreduce")} == {"ring", "native"}
    assert profile.select("together", link="inter")
