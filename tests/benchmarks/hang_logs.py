"""What verdicts on hangs from text are right, and how long it takes to read 10 MB of lines, in processor time.

``python -m tests.benchmarks.hang_logs`` prints a table of verdicts by kind: on the recorded hangs of Gloo, on the texts
of `made_logs`, and on drawn logs. A verdict is right, says that it cannot tell, or is wrong.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rankscope.diagnose import explain_hang, read_hang_text, read_logs
from rankscope.diagnose.hangs import Hang
from tests.diagnose.drawn_logs import drawn
from tests.diagnose.hang_checks import problem, wrong_words
from tests.diagnose.hang_texts import recorded
from tests.diagnose.made_logs import MADE, signal, status, watchdog

from .logs import process_s

NUM_BYTES = 10_000_000
NUM_DRAWN = 6000
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
        "a different error in each line": "".join(
            f"[rank0]: KeyError: {number}\n" for number in range(NUM_BYTES // 25)
        ),
        "pieces of eleven letters": "".join(f"{number:010}\r" for number in range(NUM_BYTES // 11)),
        "one line without an end": "x" * NUM_BYTES + MADE[0].text,
    }


def verdict(hang: Hang, wrong: str) -> str:
    if wrong:
        return "wrong"
    return "right" if hang.culprits else "cannot tell"


def verdicts() -> Iterator[tuple[str, str]]:
    """Yield the kind of each text, and what its verdict is."""
    for recorded_hang in recorded():
        with tempfile.TemporaryDirectory() as folder:
            for name, text in recorded_hang.logs.items():
                Path(folder, name).write_text(text)
            hang = explain_hang(logs=read_logs(folder))
        what = "FSDP" if recorded_hang.case.what.startswith("fsdp") else "other calls"
        yield f"recorded from Gloo, {what}", verdict(hang, problem(hang, recorded_hang.case.truths))
    for made in MADE:
        hang = explain_hang(logs=read_hang_text(made.text + "\n"))
        yield "made from torch's format strings", verdict(hang, problem(hang, made.truths))
    for seed in range(NUM_DRAWN):
        log = drawn(seed)
        hang = explain_hang(logs=read_hang_text(log.text))
        yield f"drawn, {log.kind}", verdict(hang, wrong_words(hang, log))


def print_verdicts() -> None:
    counts = Counter(verdicts())
    columns = ("right", "cannot tell", "wrong")
    print(f"{'':40}" + "".join(f"{column:>13}" for column in columns))
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind:40}" + "".join(f"{counts[kind, column]:13}" for column in columns))


def main() -> None:
    print_verdicts()
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
