"""What this checkout takes next to an older one: python -m tests.benchmarks.older CHECKOUT [--rounds 7] [--only NAME,…]

CHECKOUT is another checkout of this repository, for instance one made with `git worktree add`. Each case is a few lines
that mean the same in both. It runs in a process of its own, once with each library in turn, and tells the seconds that
the process and its children have computed, without imports and preparation; where a case waits for ranks, seconds of
the clock. The ratio is new / old of each pair of neighbours, the median first and then the range, so that a machine
whose speed changes moves both. If one of the two cannot run a case, its error is told instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ._traces import write

ROOT = Path(__file__).parents[2]

NUM_TRACES = 4
EVENTS_PER_TRACE = 100_000

# It gets the preparation, the timed lines, and whether the clock counts instead of the processor.
TIMED = """
import json, os, sys, time
prepare, timed, by_clock = sys.argv[1], compile(sys.argv[2], "timed", "exec"), sys.argv[3] == "True"
def seconds():
    if by_clock:
        return time.perf_counter()
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
names = {}
exec(prepare, names)
begin = seconds()
exec(timed, names)
print(json.dumps(seconds() - begin))
"""


class Case(NamedTuple):
    """Lines that are executed before the time is taken, and lines that are timed."""

    name: str
    prepare: str
    timed: str
    by_clock: bool = False


SPANS = """
from rankscope.timeline import Span, Timeline
spans = [Span(n % 64, f"lane {n % 4}", "abc"[n % 3], n, n * 0.1, n * 0.1 + 0.3) for n in range(200_000)]
"""

CASES = [
    Case(
        "assign 10⁶ samples to 64 ranks",
        "from rankscope.sampling import assign",
        "for seed in range(5): assign(10**6, 64, seed=seed)",
    ),
    Case(
        "a rank's share of 8·10⁶ samples",
        "from rankscope.sampling import DistributedSampler\nsampler = DistributedSampler(range(8 * 10**6), 8, 3)",
        "for epoch in range(3):\n    sampler.set_epoch(epoch)\n    sum(sampler)",
    ),
    Case(
        "audit an epoch of 10⁶",
        "from rankscope.sampling import assign, audit\nepoch = assign(10**6, 64)",
        "for _ in range(5): audit(epoch)",
    ),
    Case(
        "simulate a ring of 4,096",
        "from tests.benchmarks.collectives import cluster_of\nfrom rankscope.collectives import build, simulate\n"
        "cluster, schedule = cluster_of(4096, 'random'), build('allreduce', 'ring', 4096)",
        "for _ in range(5): simulate(schedule, 2**30, cluster)",
    ),
    Case(
        "simulate a ring of 1,024, one slow link",
        "from tests.benchmarks.collectives import cluster_of\nfrom rankscope.collectives import build, simulate\n"
        "cluster, schedule = cluster_of(1024, 'slow'), build('allreduce', 'ring', 1024)",
        "for _ in range(5): simulate(schedule, 2**30, cluster, detail='ranks')",
    ),
    Case(
        "simulate all allreduces of 256 ranks",
        "from tests.benchmarks.collectives import cluster_of\n"
        "from rankscope.collectives import ALGORITHMS, build, simulate\n"
        "cluster = cluster_of(256, 'random')\n"
        "schedules = [build('allreduce', name, 256) for name in ALGORITHMS['allreduce']]",
        "for schedule in schedules: simulate(schedule, 2**30, cluster)",
    ),
    Case(
        "verify doubling of 256",
        "from rankscope.collectives import build, verify\nschedule = build('allreduce', 'halving_doubling', 256)",
        "for _ in range(20): verify(schedule)",
    ),
    Case(
        "best of 64 ranks in 12 sizes",
        "from rankscope.cluster import Cluster, Link\nfrom rankscope.collectives import best\n"
        "cluster = Cluster(8, 8, Link(2e-6, 300e9), Link(6e-6, 50e9))",
        "for power in range(10, 34, 2): best(2**power, cluster)",
    ),
    Case(
        "execute a ring of 1 KiB on 4 ranks",
        "import torch\nfrom rankscope.collectives import build, execute\nfrom rankscope.ranks import launch\n"
        "ring = build('allreduce', 'ring', 4)\n"
        "def job():\n    import torch\n    for _ in range(1000): execute(ring, torch.ones(256))\n"
        "launch(job, 4)",
        "launch(job, 4)",
        by_clock=True,
    ),
    Case(
        "execute a ring of 4 MiB on 4 ranks",
        "import torch\nfrom rankscope.collectives import build, execute\nfrom rankscope.ranks import launch\n"
        "ring = build('allreduce', 'ring', 4)\n"
        "def job():\n    import torch\n    for _ in range(50): execute(ring, torch.ones(2**20))\n"
        "launch(job, 4)",
        "launch(job, 4)",
        by_clock=True,
    ),
    Case(
        "simulate a pipeline of 20,000 items",
        "from rankscope.pipeline import Lognormal, Pipeline, Stage, simulate\n"
        "pipeline = Pipeline([Stage('read', Lognormal(0.01, 0.5), num_workers=4),"
        " Stage('decode', 0.005, num_workers=2), Stage('step', 0.004)])",
        "for _ in range(3): simulate(pipeline, 20_000)",
    ),
    Case(
        "the DataLoader's twin, 5,000 batches",
        "from rankscope.pipeline import Lognormal, simulate_dataloader",
        "for seed in range(3): simulate_dataloader(Lognormal(0.012, 0.5), 0.003, 5000, num_workers=4, seed=seed)",
    ),
    Case(
        "run 5,000 items through three threads",
        "from rankscope.pipeline import Pipeline, Stage, run\n"
        "pipeline = Pipeline([Stage(name, fn=abs) for name in 'abc'])",
        "run(pipeline, range(5000))",
    ),
    Case(
        "run 1,000 items through a process",
        "from rankscope.pipeline import Pipeline, Stage, run\n"
        "pipeline = Pipeline([Stage('a', fn=abs, processes=True), Stage('b', fn=abs)])",
        "run(pipeline, range(1000))",
    ),
    Case(
        "record 2,000 batches of a DataLoader",
        "import torch\nfrom rankscope.pipeline import record_dataloader\n"
        "data = torch.utils.data.TensorDataset(torch.zeros(8000, 64))\n"
        "loader = record_dataloader(torch.utils.data.DataLoader(data, batch_size=4))",
        "for batch in loader: pass",
    ),
    Case(
        "8 MB batches between processes",
        "import numpy as np\nfrom rankscope.pipeline import Pipeline, Stage, run\n"
        "def make(item): return np.ones(2**20)\n"
        "pipeline = Pipeline([Stage('make', fn=make, processes=True), Stage('take', fn=np.shape)])\n"
        "run(pipeline, range(4))",
        "run(pipeline, range(200))",
        by_clock=True,
    ),
    Case(
        "launch 4 ranks first",
        "from rankscope.ranks import launch",
        "launch(int, 4)",
        by_clock=True,
    ),
    Case(
        "launch 4 warm ranks, 5 times",
        "from rankscope.ranks import launch\nlaunch(int, 4)",
        "for _ in range(5): launch(int, 4)",
        by_clock=True,
    ),
    Case(
        "launch 8 warm ranks, 5 times",
        "from rankscope.ranks import launch\nlaunch(int, 8)",
        "for _ in range(5): launch(int, 8)",
        by_clock=True,
    ),
    Case(
        "launch 4 ranks with train, 5 times",
        "import rankscope.train\nfrom rankscope.ranks import launch\n"
        "def fn():\n    from rankscope.train import ddp, uneven, zero\n    ddp.measure, zero.run, uneven.measure\n"
        "launch(int, 4)\nlaunch(fn, 4)",
        "for _ in range(5): launch(fn, 4)",
        by_clock=True,
    ),
    Case(
        "launch 2 ranks with a DataLoader, 5 times",
        "from rankscope.ranks import launch\n"
        "def fn():\n    from torch.utils.data import DataLoader\n"
        "    return sum(int(batch.sum()) for batch in DataLoader(range(10), batch_size=5, num_workers=2))\n"
        "launch(fn, 2)",
        "for _ in range(5): launch(fn, 2)",
        by_clock=True,
    ),
    Case(
        "record 200,000 spans",
        "from rankscope.timeline import Recorder\nrecorder = Recorder()",
        "for item in range(200_000):\n    with recorder.span('a', 'b', item):\n        pass",
    ),
    Case(
        "read a trace of 30 MB as a timeline",
        "import os\nfrom rankscope.timeline import Timeline\npath = os.environ['TRACES'] + '/rank0.json'",
        "Timeline.from_chrome_trace(path)",
    ),
    Case(
        "a timeline of 200,000 spans",
        SPANS,
        "for _ in range(3): Timeline.of(spans)",
    ),
    Case(
        "select from 200,000 spans",
        f"{SPANS}\ntimeline = Timeline.of(spans)",
        "for rank in range(64): timeline.select(rank=rank, kind=['a', 'b'], between_s=(3.0, 1e4)).busy_s",
    ),
    Case(
        "select from 100 spans",
        f"{SPANS}\ntimeline = Timeline.of(spans[:100])",
        "for rank in range(2000): timeline.select(rank=rank, kind='a').busy_s",
    ),
    Case(
        "part files: 1,000 steps of 16 trainers",
        "try:\n    from rankscope.pipeline import simulate_parts as simulate\n"
        "except ImportError:\n    from rankscope.parts import simulate\n"
        "def loop(): simulate([[0.5] * 50] * 16, [[20] * 50] * 16, 0.02, queue_size=2, num_loaders=2)",
        "for _ in range(3): loop()",
    ),
    Case(
        "a step of DataParallel on 256 devices",
        "from rankscope.cluster import Link\n"
        "from rankscope.train.data_parallel import StepCosts, StepSizes, simulate\n"
        "sizes, costs = StepSizes(1024, 100, 10, 10**8), StepCosts(Link(1e-5, 1e10), 0.001, 0.002)",
        "for _ in range(3): simulate(sizes, 256, costs)",
    ),
    Case(
        "read and diagnose 400,000 events",
        "import glob, os\nfrom rankscope.diagnose import diagnose, read_traces\n"
        "paths = sorted(glob.glob(os.environ['TRACES'] + '/*'))",
        "diagnose(read_traces(paths))",
        by_clock=True,  # processes of their own read the traces
    ),
    Case(
        "diagnose them again",
        "import glob, os\nfrom rankscope.diagnose import diagnose, read_traces\n"
        "traces = read_traces(sorted(glob.glob(os.environ['TRACES'] + '/*')))\ndiagnose(traces)",
        "for _ in range(5): diagnose(traces)",
    ),
    Case(
        "read a log of 5 MB",
        "import os\nfrom rankscope.box import read_log\nfrom tests.box import logs_made\n"
        "text = '\\n'.join(logs_made.table(sizes=[2**power for power in range(3, 35)])) + '\\n'\n"
        "path = os.environ['TRACES'] + '.log'\n"
        "open(path, 'w').write(text * (5_000_000 // len(text)))",
        "read_log(path)",
    ),
    Case(
        "three profiles of the bank",
        "from rankscope.box import Profile, bank\nnames = list(bank())[:3]",
        "for name in names: Profile.load(f'bank:{name}')",
    ),
    Case(
        "DDP: 10,000 gradients at 1,024 ranks",
        "import numpy as np\nfrom rankscope.cluster import Link\n"
        "from rankscope.train.ddp import LocalStep, cost, recommend, simulate\n"
        "sizes_bytes = (4 * 2 ** np.random.default_rng(0).integers(6, 20, 10_000)).tolist()\n"
        "local, allreduce = LocalStep.modelled(sizes_bytes, backward_s=0.5), cost(Link(1e-5, 1e10), 1024)",
        "for _ in range(5): simulate(local, allreduce)\nrecommend(local, allreduce)",
    ),
]


def seconds(case: Case, checkout: Path, traces_folder: str) -> float:
    """Run a case with the library of a checkout; ValueError with the last line of its error if it cannot."""
    environment = os.environ | {"PYTHONPATH": f"{checkout / 'lib'}{os.pathsep}{checkout}", "TRACES": traces_folder}
    command = [sys.executable, "-c", TIMED, case.prepare, case.timed, str(case.by_clock)]
    finished = subprocess.run(command, cwd=traces_folder, env=environment, capture_output=True, text=True)
    if finished.returncode:
        raise ValueError(finished.stderr.strip().splitlines()[-1])
    return float(json.loads(finished.stdout.splitlines()[-1]))


def row(case: Case, older: Path, rounds: int, traces_folder: str) -> str:
    """The line of the table of a case."""
    times_s: dict[Path, list[float]] = {ROOT: [], older: []}
    for number in range(rounds):
        in_turn = (ROOT, older) if number % 2 else (older, ROOT)
        for checkout in in_turn:
            try:
                times_s[checkout].append(seconds(case, checkout, traces_folder))
            except ValueError as error:
                return f"{case.name:40}  fails in {checkout}: {error}"
    ratios = [new_s / old_s for new_s, old_s in zip(times_s[ROOT], times_s[older], strict=True)]
    medians_s = [statistics.median(times_s[checkout]) for checkout in (older, ROOT)]
    kind = "clock" if case.by_clock else "CPU"
    return (
        f"{case.name:40}{medians_s[0]:8.3f}{medians_s[1]:8.3f}{statistics.median(ratios):8.2f}"
        f"{min(ratios):8.2f} to {max(ratios):.2f}  {kind}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="names of cases, or parts of them, with commas between them")
    options = parser.parse_args()
    parts = options.only.split(",")
    print(f"{'':40}{'old [s]':>8}{'new [s]':>8}{'ratio':>8}{'range':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(NUM_TRACES):
            write(Path(folder, f"rank{rank}.json"), rank, EVENTS_PER_TRACE)
        for case in CASES:
            if any(part in case.name for part in parts):
                print(row(case, options.checkout.resolve(), options.rounds, folder), flush=True)


if __name__ == "__main__":
    main()
