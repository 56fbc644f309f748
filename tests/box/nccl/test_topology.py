"""The reader of `nvidia-smi topo -m`, on samples in the form of public pastes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankscope.box import nccl
from rankscope.box.nccl.topology import Topology, explained
from rankscope.cli.program import program


def read(tmp_path: Path, text: str) -> Topology:
    path = tmp_path / "topo"
    path.write_text(text, encoding="utf-8")
    return nccl.read_topology(path)


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
    assert box.nics == ["NIC0", "mlx5_1"]
    assert box.nvlinks == {0, 4}
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
        ("nothing", "no table"),
        (A40S.replace("NV4      X      NODE", "NV4      X      FAST"), r"6 columns, .* \[6, 2, 6, 6\]"),
        (A40S.replace("> GPU3 ", "> "), "4 GPUs"),
        (A40S.replace("GPU1    GPU2", "", 1), "2 GPUs"),
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
    assert ("tree LL" in shown.output) == (gpu == "h100")
    assert ("no constants" in shown.output) == (gpu == "a40")
