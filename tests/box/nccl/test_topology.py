"""The reader of NCCL's topology XML and of `nvidia-smi topo -m`, on samples in the form of public pastes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankscope.box import nccl
from rankscope.box.nccl.topology import Topology, explained
from rankscope.cli.program import program

NIC = '<pci busid="{bus}:b0:00.0" class="0x020700"><nic>{ports}</nic></pci>'
PORTS = '<net name="mlx5_{gpu}" speed="400000"/><net name="eth{gpu}" speed="10000"/>'


def dump(links: list[list[tuple[str, int, str]]]) -> str:
    """A dump of a box with a switch for every two GPUs and two CPUs; `links` are (target, count, class) by GPU."""
    lines = ['<?xml version="1.0"?>', '<system version="1">']
    half = len(links) // 2
    for cpu in range(2):
        lines.append(f'<cpu numaid="{cpu}" arch="x86_64" vendor="GenuineIntel" modelid="143">')
        for gpu in range(cpu * half, (cpu + 1) * half):
            nvlinks = "".join(f'<nvlink target="{to}" count="{n}" tclass="{kind}"/>' for to, n, kind in links[gpu])
            if gpu % 2 == 0:
                lines.append(f'<pci busid="{gpu:04x}:00:00.0" class="0x060400">')
            lines.append(f'<pci busid="{gpu:04x}:01:00.0" class="0x030200"><gpu dev="{gpu}">{nvlinks}</gpu></pci>')
            if gpu % 2 == 1:
                lines += [NIC.format(bus=f"{gpu:04x}", ports=PORTS.format(gpu=gpu)), "</pci>"]
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"])


def read(tmp_path: Path, text: str) -> Topology:
    path = tmp_path / "topo"
    path.write_text(text, encoding="utf-8")
    return nccl.read_topology(path)


def test_a_static_file_states_neither_nvlinks_nor_speeds(tmp_path: Path) -> None:
    """As clouds give to virtual machines: cards without ports, and a port that is in no PCI device."""
    devices = '<pci busid="0001:00:00.0" class="0x030200"/><pci busid="0101:00:00.0" class="0x020700"/>'
    eth = '<nic><net name="eth0" speed="100000"/></nic>'
    box = read(tmp_path, f'<system><cpu><pci busid="ffff:ff:01.0" class="0x060400">{devices}</pci>{eth}</cpu></system>')
    assert (box.nics, box.ways) == (["eth0", "0101:00:00.0"], [["X", "PHB", "PIX"]])


def test_links_to_switches_connect_all_pairs(tmp_path: Path) -> None:
    switches = [("0000:f5:00.0", 5, "0x068000"), ("0000:f6:00.0", 5, "0x068000"), ("0000:f7:00.0", 8, "0x068000")]
    box = read(tmp_path, dump([switches] * 8))
    assert {word for row in box.ways for word in row[:8]} == {"X", "NV18"}
    assert (box.nics, box.nic_gb_per_s) == (["mlx5_1", "mlx5_3", "mlx5_5", "mlx5_7"], 50.0)
    assert box.ways[0][8:] == ["PIX", "PHB", "SYS", "SYS"]


def test_direct_links_and_ways_over_pcie(tmp_path: Path) -> None:
    pairs = [[(f"{gpu ^ 1:04x}:01:00.0", 4, "0x030200")] for gpu in range(4)]
    assert read(tmp_path, dump(pairs)).ways[0] == ["X", "NV4", "SYS", "SYS", "PIX", "SYS"]
    assert read(tmp_path, dump([[]] * 8)).ways[0][:5] == ["X", "PIX", "PHB", "PHB", "SYS"]


A40S = """\
> $ nvidia-smi topo -m
>         \x1b[4mGPU0    GPU1    GPU2    GPU3    NIC0    mlx5_1  CPU Affinity    NUMA Affinity   GPU NUMA ID\x1b[0m
> GPU0     X      NV4     NODE    SYS     NODE    SYS     0-95    0               N/A
> GPU1    NV4      X      NODE    SYS     PXB     SYS     0-95    0               N/A
> GPU2    NODE    NODE     X      SYS     PIX     SYS     0-95    0               N/A
> GPU3    SYS     SYS     SYS      X      SYS     PHB     96-191  1               N/A
> NIC0    NODE    PXB     PIX     SYS      X      SYS
> mlx5_1  SYS     SYS     SYS     PHB     SYS      X

Legend:

  X    = Self
"""


def test_topo_m_is_read_with_what_a_paste_adds(tmp_path: Path) -> None:
    box = read(tmp_path, A40S)
    assert box.ways[1] == ["NV4", "X", "NODE", "SYS", "PXB", "SYS"]
    assert (box.nics, box.nic_gb_per_s) == (["NIC0", "mlx5_1"], None)
    assert read(tmp_path, A40S.replace("    ", " | ")) == box
    assert read(tmp_path, A40S.replace("SYS", "SOC").partition("Legend")[0] + "GPU0 X OK\n") == box


def test_it_is_explained_and_drawn_without_knowing_the_gpu(tmp_path: Path) -> None:
    box = read(tmp_path, A40S)
    pairs, nvlink, sockets, host, *cards = explained(box)
    assert pairs == "4 GPUs, 1 pair NV4, 2 pairs NODE, 3 pairs SYS"
    assert nvlink.endswith("GPUs 0 and 1; GPU 2; GPU 3.")
    assert sockets.endswith("GPUs 0 to 2; GPU 3.")
    assert "5 pairs" in host
    assert [line.split(";")[0].rstrip(".") for line in cards] == [
        "GPU 0: NODE to NIC0",
        "GPU 1: PXB to NIC0",
        "GPU 2: PIX to NIC0",
        "GPU 3: PHB to mlx5_1",
    ]
    assert ["without GPUDirect" in line for line in cards] == [True, False, False, True]
    alone, through_host = explained(Topology([["X", "PHB"], ["PHB", "X"]], []))
    assert alone == "2 GPUs, 1 pair PHB"
    assert "1 pair" in through_host


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<system>\n<cpu>\n</system>", "line 3"),
        ("<graphs/>", "no GPU"),
        ("nothing", "neither"),
        (A40S.replace("NV4      X      NODE", "NV4      X      FAST"), r"6 columns, .* \[6, 2, 6, 6\]"),
        (A40S.replace("> GPU3 ", "> "), "4 GPUs"),
        (A40S.replace("GPU1    GPU2", "", 1), "2 GPUs"),
        (dump([[]] * 4).replace('speed="400000"', 'speed="fast"'), "fast"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"topo: .*{word}"):
        read(tmp_path, text)


@pytest.mark.parametrize("gpu", ["a40", "h100"])
def test_the_command_explains_any_box_and_chooses_for_a_known_gpu(tmp_path: Path, gpu: str) -> None:
    read(tmp_path, A40S)
    words = ["nccl", f"{gpu}x4", "--nodes", "4", "--topo", str(tmp_path / "topo")]
    shown = CliRunner().invoke(program("nccl"), words, env={"COLUMNS": "120"})
    assert shown.exit_code == 0
    assert "GPU 0: NODE to NIC0" in shown.output
    assert shown.output.splitlines()[0].split()[:4] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert shown.output.splitlines()[1].split()[:2] == ["GPU0", "X"]
    assert ("tree LL" in shown.output) == (gpu == "h100")
    assert ("no constants" in shown.output) == (gpu == "a40")
