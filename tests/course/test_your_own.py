"""Notebook a6 executed by papermill on things made up at random: each of its five paths, and what it prints."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile, verdict
from rankscope.collectives import Schedule, build, simulate, verify
from rankscope.sampling import Assignment, audit
from rankscope.train import ddp
from rankscope.train.ddp.buckets import ParameterSpec

from ..box.made import BYTES_PER_S, collective, links, profile

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "appendix/a6_your_own.ipynb"
SEED = int(os.environ.get("RANKSCOPE_SEED", random.SystemRandom().randrange(10**6)))

MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader

from rankscope.collectives import Schedule


def samplers():
    return {ranks!r}, {size}


def loader():
    return DataLoader({samples!r}, batch_size={batch_size}, num_workers={num_workers})


def schedule():
    return Schedule.from_text({schedule!r})


def module():
    widths = {widths!r}
    return nn.Sequential(*(nn.Linear(num_in, num_out) for num_in, num_out in zip(widths, widths[1:])))


def loss(module, rank, number):
    return module(torch.ones(4, {widths[0]})).square().mean()
"""


def random_tree(draw: random.Random, num_ranks: int) -> str:
    """An allreduce up a tree to rank 0 with its edges drawn at random, and down again."""
    parents = {rank: draw.randrange(rank) for rank in range(1, num_ranks)}
    up = [f"{step}: {rank}>{parents[rank]}:0+" for step, rank in enumerate(reversed(range(1, num_ranks)))]
    down = [f"{num_ranks - 2 + rank}: {parents[rank]}>{rank}:0=" for rank in range(1, num_ranks)]
    return "\n".join([f"allreduce tree ranks={num_ranks} chunks=1", *up, *down])


def random_profile(draw: random.Random) -> Profile:
    """A box of some links, and the times of allreduces on it, with noise."""
    slow = draw.uniform(0.3, 20)
    points = links(seconds=lambda size: slow * (30e-6 + size / BYTES_PER_S), noise=0.01)
    base = profile(points, num_ranks=2, ranks_per_node=[2], date="2031-02-03T04:05:06+00:00")

    def seconds(factor: float, size: float) -> float:
        return factor * (60e-6 + size / BYTES_PER_S)

    algorithms = ("native", "ring", "recursive_doubling")
    times = {algorithm: partial(seconds, draw.uniform(1.5, 3) * slow) for algorithm in algorithms}
    return collective(base, times)


def random_values(draw: random.Random) -> dict[str, Any]:
    size = draw.randint(5, 60)
    num_ranks = draw.randint(2, 4)
    return {
        "size": size,
        "ranks": [[draw.randrange(size) for _ in range(draw.randint(1, 20))] for _ in range(num_ranks)],
        "samples": [draw.random() for _ in range(draw.randint(8, 40))],
        "batch_size": draw.randint(1, 5),
        "num_workers": draw.randint(0, 2),
        "schedule": random_tree(draw, draw.randint(2, 4)),
        "widths": [draw.randint(2, 700) for _ in range(draw.randint(2, 6))],
    }


def printed(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    return "".join("".join(output.get("text", "")) for output in outputs)


def papermill(folder: Path, **parameters: str) -> subprocess.CompletedProcess[str]:
    words = [word for name, value in parameters.items() for word in ("-p", name, value)]
    command = [sys.executable, "-m", "papermill", str(NOTEBOOK), "out.ipynb", "--no-progress-bar", "-k", "python3"]
    home = {"IPYTHONDIR": str(folder / "ipython"), "MPLBACKEND": "agg"}
    return subprocess.run(
        [*command, *words], cwd=folder, env=os.environ | home, capture_output=True, text=True, timeout=300
    )


@pytest.mark.oracle
def test_the_five_paths_take_what_is_made_up_at_random(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    values = random_values(draw)
    box = random_profile(draw)
    box.save(tmp_path / "box.json")
    (tmp_path / "mine.py").write_text(MODULE.format(**values))
    done = papermill(tmp_path, yours="mine", box="box.json")
    assert done.returncode == 0, f"RANKSCOPE_SEED={SEED}\n{done.stderr[-3000:]}"
    text = printed(tmp_path / "out.ipynb")

    epoch = Assignment.collect(values["ranks"], size=values["size"])
    assert f"{audit(epoch)}\n" in text, SEED

    batches = min(-(-len(values["samples"]) // values["batch_size"]), 40)
    assert f"\n{batches} batches recorded" in text, SEED

    schedule = Schedule.from_text(values["schedule"])
    cluster = box.cluster(schedule.num_ranks)
    ring = build("allreduce", "ring", schedule.num_ranks)
    own_us = simulate(schedule, 2**16, cluster).makespan_s * 1e6
    ring_us = simulate(ring, 2**16, cluster).makespan_s * 1e6
    assert f"{verify(schedule)}\n" in text, SEED
    assert f"   64 KiB: yours {own_us:9.1f} µs, the ring {ring_us:9.1f} µs\n" in text, SEED
    assert f"= {sum(range(1, schedule.num_ranks + 1))} everywhere" in text, SEED

    sizes = []
    for num_in, num_out in pairwise(values["widths"]):
        sizes += [num_in * num_out, num_out]
    buckets = ddp.buckets([ParameterSpec(str(place), 4 * size) for place, size in enumerate(sizes)]).rebuilt
    assert f"launched on two ranks: {len(buckets)}; every gradient" in text, SEED
    assert "use DistributedDataParallel(module" in text or "keep the default" in text, SEED

    for sentence in verdict(box):
        assert f"- {sentence}\n" in text, SEED


def test_an_allreduce_that_is_none_stops_the_notebook_with_its_reason(tmp_path: Path) -> None:
    values = random_values(random.Random(0)) | {"schedule": "allreduce half ranks=2 chunks=1\n0: 0>1:0+"}
    (tmp_path / "mine.py").write_text(MODULE.format(**values))
    random_profile(random.Random(0)).save(tmp_path / "box.json")
    done = papermill(tmp_path, yours="mine", box="box.json")
    assert done.returncode != 0
    assert "ScheduleError: rank 0, chunk 0: the result lacks the contribution of rank 1" in done.stderr
