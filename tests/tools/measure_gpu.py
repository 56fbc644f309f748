"""All that one GPU can tell, in one profile and within 8 minutes: python tests/tools/measure_gpu.py -o gpu.json.

Copies, NCCL with a single rank, schedules carried out in one process by virtual ranks, which the GPU's own memory
bounds, and no link, and traces of training steps by torch.profiler, next to the profile. It needs torch, numpy,
cloudpickle, msgspec, typer and rich, and nothing installed of rankscope's own. With --tests it runs the tests
that need a GPU instead, by pytest.

A machine without network takes what it lacks as wheels: ``pip download --no-deps --only-binary :all: --python-version
3.11 --platform manylinux2014_x86_64 -d wheels cloudpickle msgspec`` elsewhere, then ``pip install --no-index
--find-links wheels cloudpickle msgspec`` there.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lib")]

from rankscope.box import Profile, Protocol, measure  # noqa: E402
from rankscope.box.measuring.run import Progress  # noqa: E402
from rankscope.box.points import Point  # noqa: E402
from rankscope.cli.output import print_parts  # noqa: E402
from rankscope.cli.tables import overview  # noqa: E402
from rankscope.common.units import bytes_words, time_words  # noqa: E402
from rankscope.diagnose import read_traces  # noqa: E402
from rankscope.pipeline import prefetched  # noqa: E402
from rankscope.provenance import command_words  # noqa: E402

SIZES = tuple(4**power for power in range(5, 16))  # 1 KiB to 1 GiB
PROTOCOL = Protocol(iterations=30, budget_s=0.12, sizes=SIZES, collectives=("allreduce", "allgather"))
VIRTUAL, VIRTUAL_SIZES, SCHEDULES = (2, 4, 8), (2**16, 2**20, 2**24), ("ring", "halving_doubling")
RUNS, STEPS = 10, 10
DEVICE = "cuda"
COPIES = ("memcpy", "memcpy h2d")  # kinds of spans in a trace
NCCL: dict[str, Any] = {"backend": "nccl", "num_ranks": 1}
ENOUGH_S = 420.0  # no part begins after this


def virtual_points(device: str, sizes: Sequence[int], runs: int = RUNS) -> list[Point]:
    """Return what schedules take in one process, on tensors of one device: the host's seconds to their end."""
    import torch

    from rankscope.collectives import build, run_local

    points = []
    for num_ranks in VIRTUAL:
        for name in SCHEDULES:
            schedule = build("allreduce", name, num_ranks)
            for size in sizes:
                tensors = [torch.full((size // 4,), float(rank + 1), device=device) for rank in range(num_ranks)]
                seconds = []
                for _ in range(runs + 2):
                    begin = time.perf_counter()
                    found = run_local(schedule, tensors)
                    if device != "cpu":
                        torch.cuda.synchronize()
                    seconds.append(time.perf_counter() - begin)
                right = num_ranks * (num_ranks + 1) / 2
                if not all(one is not None and bool((one == right).all()) for one in found):
                    raise RuntimeError(f"allreduce by {name} of {num_ranks} virtual ranks gave a wrong result")
                options = {"executor": "in process", "schedule": name, "device": device, "num_ranks": num_ranks}
                points.append(Point("allreduce", size, tuple(seconds[2:]), (True,) * runs, options))
    return points


# ---- tables


def steps_table(device: str, folder: Path, batch_size: int = 512, width: int = 4096) -> Iterator[str]:
    """Trace training steps by torch.profiler, with batches prefetched and not; state how far copies overlap."""
    import torch
    from torch.profiler import profile

    module = torch.nn.Sequential(torch.nn.Linear(3 * width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1000))
    module.to(device)
    sgd = torch.optim.SGD(module.parameters(), lr=0.01)
    batches = [(torch.randn(batch_size, 3 * width), torch.randint(0, 1000, (batch_size,))) for _ in range(STEPS)]
    for name, loader in (("as_they_come", batches), ("prefetched", prefetched(batches, device))):
        for _ in range(2):  # the first finds nothing ready
            with profile() as profiler:
                for inputs, targets in loader:
                    loss = torch.nn.functional.cross_entropy(module(inputs.to(device)), targets.to(device))
                    loss.backward()
                    sgd.step()
                    sgd.zero_grad()
                if device != "cpu":
                    torch.cuda.synchronize()
        path = folder / f"steps_{name}.json.gz"
        profiler.export_chrome_trace(str(path))
        (trace,) = read_traces(path)
        timeline = trace.timeline
        yield f"\n{STEPS} steps, batches {name}: {time_words(timeline.makespan_s)}, traced in {path.name}"
        if "kernel" in timeline.kinds:
            copies_s = timeline.select(kind=COPIES).busy_s
            hidden_s = timeline.overlap_s(COPIES, "kernel")
            yield f"copies take {time_words(copies_s)}, and kernels run during {time_words(hidden_s)} of it"


def collectives_table(profile: Profile) -> Iterator[str]:
    """NCCL's launches and the virtual ranks' sums, one line a size."""
    kinds: dict[str, list[Point]] = {}
    for point in profile.points:
        executor = point.options.get("executor")
        if executor:
            schedule, num_ranks, device = (point.options[name] for name in ("schedule", "num_ranks", "device"))
            name = f"{point.what} by {schedule}, {num_ranks} ranks, {executor} ({device})"
            kinds.setdefault(name, []).append(point)
        elif point.options.get("algorithm") == "native":
            kinds.setdefault(f"{point.what} by NCCL, 1 rank: what a launch takes", []).append(point)
    for name, points in kinds.items():
        yield f"\n{name}"
        yield "  " + ", ".join(f"{bytes_words(point.num_bytes)} {time_words(point.median_s)}" for point in points)
    yield "\nvirtual ranks share the GPU's memory, which bounds them: nothing of theirs tells of a link"


# ---- the run


def main() -> int:
    """Measure, print and store; return what the process ends with."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu.json"))
    parser.add_argument("--name", default="one GPU")
    parser.add_argument("--tests", action="store_true", help="run the tests that need a GPU, and nothing else")
    told = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use", file=sys.stderr)
        return 2
    if told.tests:
        return run_tests()
    start = time.monotonic()
    command = command_words(["python", *sys.argv])
    setting: dict[str, Any] = {**NCCL, "fresh": True, "name": told.name, "command": command, "report": _reporter(start)}
    profile = _tried("copies and NCCL", lambda: measure(told.output, PROTOCOL, **setting), start)
    if profile is None and not told.output.exists():
        return 1
    profile = profile or Profile.load(told.output)  # what was measured before something failed
    virtual = _tried("virtual ranks", lambda: virtual_points(DEVICE, VIRTUAL_SIZES), start)
    profile = profile.add(*(virtual or []))
    profile.save(told.output)
    steps = _tried("steps of training", lambda: list(steps_table(DEVICE, told.output.parent)), start)
    print_parts(overview(profile, everything=True))
    for table in (collectives_table(profile), steps or []):
        print("\n".join(table))
    print(f"\n{len(profile.points)} points in {told.output.name}, {time.monotonic() - start:.0f} s")
    return 0


def run_tests() -> int:
    """Run the tests that need a GPU, from their files alone: others need packages that may not be here."""
    if importlib.util.find_spec("pytest") is None:
        print("pytest is not here, and the tests need it", file=sys.stderr)
        return 2
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu\n" in path.read_text()]
    words = ["-q", "-rs", "-p", "no:cacheprovider", "-m", "gpu", "--continue-on-collection-errors"]
    return subprocess.run([sys.executable, "-m", "pytest", *words, *map(str, files)], cwd=ROOT).returncode


def _reporter(start: float) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        words = f"{progress.num_done} of {progress.num_points} points; {progress.doing}"
        print(f"{time.monotonic() - start:4.0f} s: {words}", file=sys.stderr, flush=True)

    return report


def _tried(name: str, part: Callable[[], Any], start: float) -> Any:
    """What a part measures; None, and a word on it, where it fails or time is up: the rest shall not be lost."""
    if time.monotonic() - start > ENOUGH_S:
        print(f"{name}: left out, for want of time", file=sys.stderr)
        return None
    print(f"{time.monotonic() - start:4.0f} s: {name}", file=sys.stderr, flush=True)
    try:
        return part()
    except Exception as error:  # of a torch that nobody has tried this with, say
        print(f"{name}: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
