"""How quickly the log of a job that hangs is read, in processor time: 10 MB of lines of several kinds.

python -m tests.benchmarks.hang_logs
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rankscope.diagnose import explain_hang, read_logs
from tests.diagnose.hang_texts import recorded
from tests.diagnose.made_logs import MADE, signal, status, watchdog

from .logs import process_s

NUM_BYTES = 10_000_000
STEP = "[default3]:2026-11-23 21:35:37,784 INFO train.py:210 epoch 3 step 4321 loss 0.4711 lr 3.0e-4 12.3 samples/s\n"


def explain(path: Path) -> None:
    str(explain_hang(logs=read_logs(path)))


def filled(text: str) -> str:
    return text * (NUM_BYTES // len(text) + 1)


def watchdogs() -> str:
    lines = []
    for rank in range(512):
        lines += [watchdog(rank, 808), status(rank, 808, 811)]
    return "\n".join([*lines, signal(512, 807, 0)]) + "\n"


def texts() -> dict[str, str]:
    """Logs by what they are made of."""
    hangs = "".join(text for hang in recorded() for text in hang.logs.values())
    made = "\n".join(made.text for made in MADE) + "\n"
    return {
        "a hang after steps that went well": filled(STEP) + MADE[0].text,
        "watchdog lines of 513 ranks, again and again": filled(watchdogs()),
        "real hangs of Gloo, one after the other": filled(hangs),
        "lines of all kinds": filled(made),
        "one line without an end": "x" * NUM_BYTES + MADE[0].text,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts().items():
            path = Path(folder, "job.log")
            path.write_text(text)
            call: Callable[[], object] = partial(explain, path)
            seconds = process_s(call)
            num_mb = path.stat().st_size / 1e6
            print(f"{name}: {num_mb:.1f} MB in {seconds:.2f} s of CPU, {num_mb / seconds:.0f} MB/s")


if __name__ == "__main__":
    main()
