"""Read ABCI's published figures for notebook a5: python -m tests.tools.make_abci ../shared/measurements.

The figures are those of aistabci/abci2.0benchmark (MIT): steps of one and of several GPUs, epochs of training jobs on
1 to 32 nodes, and allreduce tables of the same nodes. index.json in that folder names file, path and commit of each.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.common.storage import write_atomically

TARGET = Path(__file__).parents[2] / "notebooks" / "profiles" / "abci_imagenet.json"
COMMAND = "python -m tests.tools.make_abci ../shared/measurements"
WARM_UP = 20  # steps of a log that do not count
ROW = re.compile(r"^ +(\d+) +\d+ +float +sum +[\d.]+ +[\d.]+ +[\d.]+ +\S+ +([\d.]+) +[\d.]+ +[\d.]+ +\S+$", re.M)


def step(text: str) -> dict[str, Any]:
    """The median step of a DLLogger file, as the time from one step's line to the next."""
    lines = [json.loads(line.removeprefix("DLLL ")) for line in text.splitlines()]
    settings = next(line["data"] for line in lines if line["step"] == "PARAMETER")
    done_s = [
        float(line["elapsedtime"])
        for line in lines
        if isinstance(line.get("step"), list) and len(line["step"]) == 2 and "train.compute_time" in line["data"]
    ]
    names = {"num_ranks": "world_size", "batch_size": "batch_size", "amp": "amp"}
    seconds = float(np.median(np.diff(done_s)[WARM_UP:]))
    return {name: settings[key] for name, key in names.items()} | {"step_s": round(seconds, 6)}


def table(text: str) -> dict[str, Any]:
    """Bytes and seconds of an nccl-tests table, in place, as a training step has it."""
    rows = [(int(size), float(in_place_us)) for size, in_place_us in ROW.findall(text)]
    return {"num_bytes": [size for size, _ in rows], "seconds": [round(us * 1e-6, 9) for _, us in rows]}


def training(job: dict[str, Any]) -> dict[str, Any]:
    """The epochs of a job: the first one, the median and the spread of the others, and validation."""
    train_end_s, validation_end_s = np.array(job["train_end_s"]), np.array(job["val_end_s"])
    steady_s, validation_s = train_end_s[1:] - validation_end_s[:-1], validation_end_s - train_end_s
    low, middle, high = np.percentile(steady_s, [5, 50, 95]).round(2).tolist()
    return {
        "num_epochs": len(train_end_s),
        "first_epoch_s": float(train_end_s[0]),
        "epoch_s": middle,
        "epoch_5_to_95_s": [low, high],
        "validation_s": round(float(np.median(validation_s)), 2),
        "total_s": job["total_s"],
    }


def figures(folder: Path) -> dict[str, Any]:
    index = [row for row in json.loads((folder / "index.json").read_text()) if "abci2" in row["file"]]

    def read(kind: str, of: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in index:
            if row["kind"] == kind and of in row["file"]:
                gpu = "A100" if "a100" in row["file"] else "V100"
                about = {"gpu": gpu, "num_nodes": row["num_nodes"], "num_ranks": row["num_ranks"]}
                yield (folder / row["file"]).read_text(), {**about, "path": row["source_path"]}

    epochs = json.loads((folder / "abci2_imagenet_epochs.json").read_text())
    steps = [about | step(text) for text, about in read("training-log", "-imagenet-")]
    tables = [about | table(text) for text, about in read("nccl-tests", "-allreduce-")]
    jobs = []
    for job in epochs["jobs"]:
        gpus, gpu, batch_size = (8, "A100", 256) if "A100" in job["node"] else (4, "V100", 96)
        nodes = {"gpu": gpu, "num_nodes": job["num_nodes"], "num_ranks": gpus * job["num_nodes"]}
        jobs.append(nodes | {"batch_size": batch_size} | training(job))

    def sized(row: dict[str, Any]) -> Any:
        return row["gpu"], row["num_ranks"], row.get("amp", False)

    return {
        "what": "ResNet-50 on ImageNet and NCCL's allreduce on ABCI 2.0, as AIST published them",
        "source": {
            "repository": "aistabci/abci2.0benchmark",
            "commit": "f0aa27f2fbbbc09b71d1765c83693f0beef8b43f",
            "licence": "MIT (stated in README, (c) 2021 AIST)",
        },
        "hardware": {
            "A100": "8 x A100-SXM4-40GB a node, InfiniBand 4x HDR200",
            "V100": "4 x V100-SXM2-16GB a node, InfiniBand 2x EDR",
        },
        "torch": "the one in NVIDIA's container pytorch 21.04",
        "date": "2021-06-09",
        "command": COMMAND,
        "steps": {
            "program": "DeepLearningExamples, main.py, DALI: median step of 78, after 20 to warm up",
            "rows": sorted(steps, key=sized),
        },
        "jobs": {
            "program": epochs["program"],
            "path": epochs["source"].split(", ")[1],
            "rows": sorted(jobs, key=sized),
        },
        "allreduce": {
            "program": "nccl-tests 0b30de5, NCCL 2.8.4-1, float, in place: mean of 100",
            "rows": sorted(tables, key=sized),
        },
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {COMMAND}")
    text = json.dumps(figures(Path(sys.argv[1])), indent=1)
    lists = re.sub(
        r"\[[\d.,\se-]+\]", lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text
    )
    write_atomically(TARGET, lambda file: file.write(f"{lists}\n".encode()))
    print(f"{TARGET.name}: {len(lists)} bytes")


if __name__ == "__main__":
    main()
