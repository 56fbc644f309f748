"""Make the bank of machines anew from published logs: python -m tests.tools.make_bank ../shared/measurements.

MACHINES says which published files become which profile; index.json in that folder says where each file is from. Add
your own box, as `rankscope profile` or `rankscope import` wrote it:

    python -m tests.tools.make_bank --add box.json NAME "8 × H100 SXM, 4 × 400 Gb/s InfiniBand" CC0-1.0
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rankscope.box import Profile, read_log
from rankscope.box.logs import merged
from rankscope.box.machines import FOLDER, SICK

LICENCES = ("Apache-2.0", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "MIT", "MIT-0")  # that let us store figures
OURS = "rankscope"  # the repository of a machine whose owner added it himself


class Machine(NamedTuple):
    """A profile of the bank: its hardware in words, the published files, and what these do not say themselves.

    `gpu`, `nodes` and `network` are those of index.json, where a log does not state them. `sick` says why nobody should
    expect these figures. `pick` chooses among several profiles of a file, by what they say of themselves.
    """

    hardware: str
    files: Sequence[str]
    gpu: str = ""
    nodes: int = 0
    network: str = ""
    sick: str = ""
    pick: Mapping[str, Any] = MappingProxyType({})


def abci(gpu: str, each: int, nodes: int, sick: str = "") -> Machine:
    letter, links = ("a", "4 × HDR200 InfiniBand") if gpu == "a100" else ("v", "2 × EDR InfiniBand")
    card = {"a100": "A100-SXM4-40GB", "v100": "V100-SXM2-16GB"}[gpu]
    where = "intra" if nodes == 1 else "inter"
    file = f"abci2-{gpu}-{where}_{letter}node-{nodes}n{each * nodes}g-allreduce-nccl.txt"
    size = f"{each} × {card}" if nodes == 1 else f"{nodes} nodes of {each} × {card}"
    words = f", {links} a node" if nodes > 1 else ""
    return Machine(f"ABCI 2.0: {size}, NVLink{words}", [file], network=links if nodes > 1 else "", sick=sick)


def collected(words: str, file: str, counts: Sequence[int] = (2, 4, 8), sick: dict[int, str] | None = None) -> Any:
    """Machines of NVIDIA AIConfigurator's tables, one a number of GPUs."""
    return {
        number: Machine(
            words.format(number),
            [f"aiconfigurator-{file}-nccl.csv"],
            pick={"num_ranks": number, "dtype": "half"},
            sick=(sick or {}).get(number, ""),
        )
        for number in counts
    }


def fleet(letter: str, cluster: str, gpus: Sequence[int], sick: dict[int, str]) -> dict[str, Machine]:
    return {
        f"h100_fleet_{letter}_pairs_2x{each}": Machine(
            f"H100 fleet {letter}: every pair of its nodes, {each} of 8 H100 each, InfiniBand",
            ["FIGURES-h100-pairwise-fleet.csv"],
            gpu="NVIDIA H100 80GB HBM3",
            network="InfiniBand",
            pick={"num_ranks": 2 * each, "name": cluster},
            sick=sick.get(each, ""),
        )
        for each in gpus
    }


def named(prefix: str, machines: dict[int, Machine]) -> dict[str, Machine]:
    return {f"{prefix}_{number}": one for number, one in machines.items()}


FIVE = "h100-{}-fivecollectives.txt"
MACHINES: dict[str, Machine] = {
    "a100_40gb_8": Machine(
        "8 × A100-SXM4-40GB, NVLink and NVSwitch (Azure ND A100 v4 class)",
        [f"a100x8-40g-superbench-{name}.txt" for name in ("allreduce", "allgather", "reduce", "reducescatter")],
    ),
    **named("a100_80gb", collected("{} × A100-SXM4-80GB, NVLink and NVSwitch", "a100_sxm-2.27.3")),
    "runpod_a100_2": Machine("RunPod: 2 × A100-SXM4-80GB, NVLink", ["a100-2g-healthy-allreduce.txt"]),
    "runpod_a100_2_no_p2p": Machine(
        "RunPod: 2 × A100-SXM4-80GB, peer-to-peer off",
        ["a100-2g-degraded-allreduce.txt"],
        sick="NCCL_P2P_DISABLE=1 sends everything through host memory",
    ),
    "aws_p4d_2x8": Machine(
        "AWS p4d: 2 nodes of 8 × A100-SXM4-40GB, 4 × 100 Gb/s EFA a node", ["p4d-a100-2n16g-efa-allreduce.txt"]
    ),
    "dgx_h100_8": Machine("DGX H100: 8 × H100 80GB HBM3, NVLink 4 and NVSwitch", ["dgxh100-8g-allreduce.txt"]),
    "aws_p5_8": Machine(
        "AWS p5: 8 × H100 80GB HBM3, NVLink 4 and NVSwitch",
        ["p5-h100-batch-8g-allreduce.txt"],
        gpu="NVIDIA H100 80GB HBM3",
        nodes=1,
    ),
    "snellius_h100_4": Machine(
        "Snellius: 4 × H100 SXM, NVLink 4",
        [f"snellius-h100-1n4g-{name}.txt" for name in ("allreduce", "allgather", "reducescatter")],
    ),
    **named("h100", collected("{} × H100 SXM, NVLink 4 and NVSwitch", "h100_sxm-2.29.2")),
    "h100_fleet_4": Machine("A node of H100 fleet b: 4 of 8 × H100 80GB HBM3", [FIVE.format("1n4g")]),
    "h100_fleet_8": Machine("A node of H100 fleet b: 8 × H100 80GB HBM3", [FIVE.format("1n8g")]),
    "h100_fleet_10x1": Machine(
        "H100 fleet b: 10 nodes, 1 of 8 H100 each, 400 Gb/s InfiniBand a GPU",
        [FIVE.format("ib-10n10g")],
        network="InfiniBand",
    ),
    "h100_fleet_10x2": Machine(
        "H100 fleet b: 10 nodes, 2 of 8 H100 each, 400 Gb/s InfiniBand a GPU",
        [FIVE.format("ib-10n20g")],
        network="InfiniBand",
    ),
    **fleet("a", "cluster00", (1, 4, 8), dict.fromkeys((1, 4, 8), "some pairs are far slower than the others")),
    **fleet("b", "cluster01", (1, 2, 4, 8), {}),
    **named("b200", collected("{} × B200, NVLink 5 and NVSwitch", "b200_sxm-2.29.2")),
    **named("b200_nccl_2_28", collected("{} × B200, NVLink 5 and NVSwitch, NCCL 2.28", "b200_sxm-2.28.9")),
    **named("gb200", collected("{} × GB200, NVLink 5", "gb200-2.29.2", (2, 4))),
    "alps_gh200_2x4": Machine(
        "Alps: 2 nodes of 4 × GH200 120GB, Slingshot 11", ["gh200-alps-2n8g-allreduce.txt"], network="Slingshot 11"
    ),
    "alps_gh200_2x4_no_plugin": Machine(
        "Alps: 2 nodes of 4 × GH200 120GB, Slingshot 11 without its plug-in",
        ["gh200-alps-2n8g-allreduce-untuned.txt"],
        sick="without the network's plug-in NCCL talks through sockets",
    ),
    **named(
        "l40s",
        collected(
            "{} × L40S, PCIe 4", "l40s-2.27.3", sick={8: "suspect, an allreduce of 512 MiB takes 0.6 s; the rest too"}
        ),
    ),
    **named("rtx_pro_6000", collected("{} × RTX PRO 6000 Blackwell Server, PCIe 5", "rtx_pro_6000_server-2.29.2")),
    "v100_25gbe_2x1_no_gdr": Machine(
        "2 nodes of 1 × V100-SXM2-16GB, 25 GbE without GPUDirect",
        ["v100-25gbe-2n2g-nogdr.txt"],
        sick="without GPUDirect RDMA all bytes go through host memory",
    ),
    **{
        f"abci_a100_{nodes}x8": abci(
            "a100", 8, nodes, "an outlier of its series: 4 and 16 nodes reach nearly twice as much" * (nodes == 8)
        )
        for nodes in (1, 2, 4, 8, 16)
    },
    **{f"abci_v100_{nodes}x4": abci("v100", 4, nodes) for nodes in (1, 2, 4, 8, 16, 32)},
    "abci_a100_4": Machine(
        "ABCI 2.0: 4 of 8 × A100-SXM4-40GB, NVLink", ["abci2-a100-intra_anode-1n4g-allreduce-nccl.txt"]
    ),
    "jeanzay_v100_4": Machine(
        "Jean Zay: 4 × V100-SXM2-16GB, NVLink, each rank's trials",
        ["jeanzay-v100-16g-1n4g-pytorch-allreduce.txt"],
        gpu="Tesla V100-SXM2-16GB",
        nodes=1,
    ),
    "jeanzay_v100_4x4": Machine(
        "Jean Zay: 4 nodes of 4 × V100-SXM2-32GB, Omni-Path, each rank's trials",
        ["jeanzay-v100-32g-4n16g-opa-pytorch-allreduce.txt"],
        gpu="Tesla V100-SXM2-32GB",
        nodes=4,
        network="Omni-Path",
    ),
    "quadro_rtx6000_copies": Machine(
        "Copies: Quadro RTX 6000, PCIe 3, pageable and pinned",
        ["quadro-rtx6000-pageable-pinned-csv.txt"],
        gpu="Quadro RTX 6000",
    ),
    "v100_pcie_copies": Machine(
        "Copies: V100-PCIE-32GB, PCIe 3, pinned", [f"v100pcie-bandwidthtest-shmoo-{way}.txt" for way in ("h2d", "d2d")]
    ),
    "mi100_copies": Machine(
        "Copies: AMD MI100, PCIe 4, pinned", [f"mi100-rocm-bandwidth-{way}.txt" for way in ("h2d", "d2h")]
    ),
    "rtx5090_4_copies": Machine("Copies: 4 × RTX 5090, PCIe 5, no peer-to-peer", ["rtx5090-4g-nvbandwidth-json.txt"]),
    "nvlink_8_copies": Machine(
        "Copies: between 8 GPUs, NVLink (model not named, A100 class)", ["nvbandwidth-readme-d2d.txt"]
    ),
    "nvlink_2_copies": Machine(
        "Copies: 2 GPUs, NVLink and PCIe 4 (model not named, A100 class)", ["superbench-gpu-copy-bw.txt"]
    ),
}


def permissive(text: str) -> str:
    """Return the licence that a text begins with, if it is one of LICENCES."""
    licence = text.split()[0].rstrip(";,")
    if licence not in LICENCES:
        raise ValueError(f"the licence must be one of {', '.join(LICENCES)}, got {text!r}")
    return licence


def with_source(profile: Profile, rows: Sequence[dict[str, Any]], machine: Machine) -> Profile:
    """Return the profile with where it is from and with what its log does not state, the notes saying so."""
    about, known = dict(profile.provenance), dict(profile.provenance["source"])
    notes = [f"{SICK}{machine.sick}"] if machine.sick else []
    notes += [known["notes"]] if "notes" in known else []
    added = []
    if machine.gpu and not about.get("gpus"):
        about["gpus"] = [{"name": machine.gpu}] * profile.num_ranks
        added.append("GPUs")
    if machine.nodes and not about.get("num_nodes"):
        about |= {"num_nodes": machine.nodes, "ranks_per_node": [profile.num_ranks // machine.nodes] * machine.nodes}
        added.append("nodes")
    if machine.network and not about.get("network"):
        about["network"] = machine.network
        added.append("network")
    notes += [f"{', '.join(added)}: stated by its publisher, not by the log"] if added else []
    paths = dict.fromkeys(row["source_path"] for row in rows)
    first = rows[0]
    assert all(row["source_repo"] == first["source_repo"] for row in rows)
    source = {
        "program": known["program"],
        "repository": first["source_repo"],
        "path": ", ".join(paths),
        "commit": first["source_commit_or_ref"],
        "licence": permissive(first["licence"]),
        "date": str(first.get("source_file_last_change") or ""),
        "notes": "; ".join(notes),
    }
    about |= {"name": machine.hardware, "source": {key: value for key, value in source.items() if value}}
    return Profile(about, profile.protocol, profile.points)


def chosen(profiles: Sequence[Profile], pick: Mapping[str, Any]) -> Iterator[Profile]:
    for one in profiles:
        said = dict(one.provenance) | dict(one.protocol)
        if all(value in said[key] if key == "name" else said.get(key) == value for key, value in pick.items()):
            yield one


def made(folder: Path, machine: Machine, index: dict[str, dict[str, Any]]) -> Profile:
    rows = [index[f"logs/{file}"] for file in machine.files]
    profiles = [one for file in machine.files for one in chosen(read_log(folder / "logs" / file), machine.pick)]
    if not profiles:
        raise ValueError(f"{machine.files[0]} has no profile of {machine.pick}")
    return with_source(merged(profiles, machine.hardware) if len(profiles) > 1 else profiles[0], rows, machine)


def add(path: str, name: str, hardware: str, licence: str, sick: str = "") -> Path:
    """Put a profile that its owner measured into the bank, and if something was wrong, what."""
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"the name must have small letters, digits and underscores, got {name!r}")
    profile = Profile.load(path)
    target = FOLDER / f"{name}.json"
    source = {
        **profile.provenance.get("source", {"program": profile.provenance.get("command", "rankscope profile")}),
        "repository": OURS,
        "path": f"lib/rankscope/box/published/{target.name}",
        "commit": "the one that added this file",
        "licence": permissive(licence),
    }
    if sick:
        source["notes"] = "; ".join(filter(None, [f"{SICK}{sick}", source.get("notes")]))
    return Profile({**profile.provenance, "name": hardware, "source": source}, profile.protocol, profile.points).save(
        target
    )


def main() -> None:
    match sys.argv[1:]:
        case ["--add", path, name, hardware, licence, *sick] if len(sick) < 2:
            print(add(path, name, hardware, licence, *sick))
        case [folder]:
            index = {row["file"]: row for row in json.loads(Path(folder, "index.json").read_text())}
            for name, machine in MACHINES.items():
                target = made(Path(folder), machine, index).save(FOLDER / f"{name}.json")
                print(f"{name:28} {target.stat().st_size:7,} bytes  {machine.hardware}")
            print(f"{sum(path.stat().st_size for path in FOLDER.glob('*.json')):,} bytes in all")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
