"""Record a ring on the emulated cluster, for notebook 05: python -m tests.tools.record_ring (root, Linux)."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rankscope.common.files import write_whole
from rankscope.timeline import Recorder, Timeline
from tests.tools.emulate import emulated

TARGET = Path(__file__).parents[2] / "notebooks" / "profiles" / "ring_64kib_emulated.json"
NUM_BYTES, WARM_UP, RUNS = 2**16, 3, 9


def be_rank(recorder: Recorder) -> list[float]:
    """Carry out the ring some times, the last ones recorded; return when each began, by the clock of spans."""
    import torch

    from rankscope.box.measuring.timing import Ranks, go_first
    from rankscope.collectives import build, execute

    go_first()
    ranks = Ranks()
    tensor = torch.ones(NUM_BYTES // 4)
    ring = build("allreduce", "ring", ranks.size)
    mine, began_s = recorder.for_rank(ranks.rank), []
    for run in range(WARM_UP + RUNS):
        instant, _ = ranks.together()
        execute(ring, tensor, recorder=mine if run >= WARM_UP else None)
        began_s += [instant] if run >= WARM_UP else []
    return began_s


def typical(spans: Timeline, began_s: list[float]) -> Timeline:
    """The run of median length, from 0 on."""
    runs = []
    for begin, end in zip(began_s, [*began_s[1:], float("inf")], strict=True):
        rows = (spans.start_s >= begin) & (spans.start_s < end)
        runs.append(spans.take(rows.nonzero()[0]).shifted(-begin))
    return sorted(runs, key=lambda run: run.end_s)[len(runs) // 2]


def main() -> None:
    recorder = Recorder()
    with emulated(4, 12.5e6, 0.005) as network:
        import torch

        began_s = network.launch(be_rank, (recorder,))[0]
        about = {
            "torch": torch.__version__,
            "date": datetime.now(UTC).date().isoformat(),
            "command": "python -m tests.tools.record_ring",
            "network": str(network),
        }
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        typical(recorder.timeline(), began_s).to_chrome_trace(trace)
        text = json.dumps(about | json.loads(trace.read_text()), separators=(",", ":"))
    write_whole(TARGET, text.encode())
    print(f"{TARGET.name}: {Timeline.from_chrome_trace(TARGET).end_s * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
