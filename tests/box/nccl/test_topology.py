"""The reader of NCCL's topology XML and of `nvidia-smi topo -m`, on samples written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rankscope.box import nccl
from rankscope.box.figures.topology import draw_topology
from rankscope.box.nccl.topology import Topology
from rankscope.cli.program import program
from rankscope.figures.svg import to_svg

X16 = 'link_speed="32.0 GT/s PCIe" link_width="16"'
NET = '<pci busid="{bus}:b0:00.0" class="0x020700" {x}><nic>{nets}</nic></pci>'


def dump(links: list[list[tuple[str, int, str]]], vendor: str = 'vendor="GenuineIntel" modelid="143"') -> str:
    """A dump of boxes with a switch for every two GPUs and two CPUs; `links` are (target, count, class) by GPU."""
    lines = ['<?xml version="1.0"?>', '<system version="1">']
    for cpu in range(2):
        lines += [f'  <cpu numaid="{cpu}" arch="x86_64" familyid="6" {vendor}>']
        half = len(links) // 2
        for gpu in range(cpu * half, (cpu + 1) * half):
            nvlinks = "".join(f'<nvlink target="{to}" count="{n}" tclass="{kind}"/>' for to, n, kind in links[gpu])
            inner = f'<gpu dev="{gpu}" sm="90" rank="{gpu}" gdr="1">{nvlinks}</gpu>'
            if gpu % 2 == 0:
                lines += [f'    <pci busid="{gpu:04x}:00:00.0" class="0x060400" {X16}>']
            lines += [f'      <pci busid="{gpu:04x}:01:00.0" class="0x030200" {X16}>{inner}</pci>']
            if gpu % 2 == 1:
                nets = f'<net name="mlx5_{gpu}" speed="400000"/><net name="eth{gpu}" speed="10000"/>'
                lines += [f"      {NET.format(bus=f'{gpu:04x}', x=X16, nets=nets)}", "    </pci>"]
        lines += ["  </cpu>"]
    return "\n".join([*lines, "</system>"])


def read(tmp_path: Path, text: str, gpu: str = "h100") -> Topology:
    path = tmp_path / "topo"
    path.write_text(text, encoding="utf-8")
    return nccl.read_topology(path, gpu)


def test_links_to_a_switch_connect_all_pairs_at_once(tmp_path: Path) -> None:
    switches = [("0000:f5:00.0", 5, "0x068000"), ("0000:f6:00.0", 5, "0x068000"), ("0000:f7:00.0", 8, "0x068000")]
    box = read(tmp_path, dump([switches] * 8))
    assert {word for row in box.ways for word in row} == {"X", "NV18"}
    assert box.gb_per_s[0, 1] == pytest.approx(370.8)
    assert (box.nics, box.nic_gb_per_s) == (4, 50.0)


def test_direct_links_and_the_ways_over_pcie_have_their_own_rates(tmp_path: Path) -> None:
    pair = [[(f"{k ^ 1:04x}:01:00.0", 4, "0x030200")] for k in range(4)]
    box = read(tmp_path, dump(pair), "a100")
    assert [box.ways[0][k] for k in range(4)] == ["X", "NV4", "SYS", "SYS"]
    assert box.gb_per_s[0].tolist() == [np.inf, 80.0, 22.0, 22.0]
    none = read(tmp_path, dump([[]] * 8), "a100")
    assert none.ways[0][1:5] == ("PIX", "PHB", "PHB", "SYS")
    assert none.gb_per_s[0][1:5].tolist() == [24.0, 24.0, 24.0, 22.0]  # A100 has PCIe 4, whatever the switch has


@pytest.mark.parametrize(
    ("vendor", "rate"),
    [
        ('vendor="GenuineIntel" modelid="207"', 40.0),
        ('vendor="GenuineIntel" modelid="85"', 10.0),
        ('vendor="GenuineIntel" modelid="79"', 6.0),
        ('vendor="AuthenticAMD" modelid="1"', 16.0),
        ("", 10.0),
    ],
)
def test_the_way_between_two_sockets_is_that_of_the_cpu(tmp_path: Path, vendor: str, rate: float) -> None:
    assert read(tmp_path, dump([[]] * 4, vendor)).gb_per_s[0, 3] == rate


def test_a_file_for_virtual_machines_has_the_links_of_the_data_sheet_and_says_so(tmp_path: Path) -> None:
    gpus = "".join(f'<pci busid="000{k}:00:00.0" class="0x030200" {X16}/>' for k in range(8))
    text = f'<system version="1"><cpu numaid="0" vendor="GenuineIntel" modelid="143">{gpus}</cpu></system>'
    box = read(tmp_path, text)
    assert (box.ways[0][7], box.nics, box.nic_gb_per_s) == ("NV18", 0, None)
    assert "states no NVLink" in box.notes[0]
    assert read(tmp_path, text, "l40s").ways[0][7] == "PHB"


MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV4\tSYS\tPXB\t0-31\t0
GPU1\tNV4\t X \tPHB\tSYS\t0-31\t0
GPU2\tSYS\tPHB\t X \tNODE\t32-63\t1
NIC0\tPXB\tSYS\tNODE\t X

Legend:

  X    = Self
"""


def test_topo_m_is_read_with_its_underlining_and_without_its_legend(tmp_path: Path) -> None:
    box = read(tmp_path, MATRIX, "a100")
    assert box.ways == (("X", "NV4", "SYS"), ("NV4", "X", "PHB"), ("SYS", "PHB", "X"))
    assert box.gb_per_s[1].tolist() == [80.0, np.inf, 24.0]
    assert box.gb_per_s[0, 2] == 10.0
    assert (box.nics, box.nic_gb_per_s) == (1, None)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<system>\n<cpu>\n</system>", "line 3"),
        ("<graphs/>", "graphs"),
        ('<system version="1"/>', "2 GPUs"),
        (dump([[("0", 0, "0x068000")]] * 4), "line 5"),
        ("nothing", "neither"),
        (MATRIX.replace("NV4\t X \tPHB", "NV4\t X \tFAST"), "line 3: 'FAST'"),
        ("\n \n" + MATRIX.replace("NV4\t X \tPHB", "NV4\t X \tFAST"), "line 5: 'FAST'"),
        (MATRIX.replace("GPU2\tSYS", "GPU7\tSYS"), "line 4"),
        (dump([[]] * 4).replace('speed="400000"', 'speed="fast"'), "fast"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"topo: .*{word}"):
        read(tmp_path, text)


def test_it_is_drawn_and_the_command_says_what_connects_the_gpus(tmp_path: Path) -> None:
    box = read(tmp_path, dump([[("0000:f5:00.0", 18, "0x068000")]] * 8))
    svg = to_svg(draw_topology(box))
    assert svg.count("NV18") == 56
    assert "NVLink" in svg
    picture, topo = tmp_path / "topo.svg", str(tmp_path / "topo")
    words = ["nccl", "h100x8", "--nodes", "4", "--topo", topo, "--picture", str(picture)]
    shown = CliRunner().invoke(program("nccl"), words, env={"COLUMNS": "120"})
    assert "28 pairs NV18, 370.8 GB/s; 4 network cards of 50 GB/s" in shown.output
    assert picture.read_text(encoding="utf-8").startswith("<svg")
