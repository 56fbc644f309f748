"""How quickly logs are read, in MB/s of processor time, next to pandas' read_csv of the same bytes.

``python -m tests.benchmarks.logs``
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from rankscope.box import read_log
from tests.box import logs_made as made

INFO = "node000:4000:4012 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7 | 16/8/64"
NUM_BYTES = 10_000_000


def process_s(what: Callable[[], object], repeats: int = 3) -> float:
    took = []
    for _ in range(repeats):
        begin = time.process_time()
        what()
        took.append(time.process_time() - begin)
    return min(took)


def lines_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\x01", header=None, engine="c", quoting=3)


def main() -> None:
    table = "\n".join(made.table(sizes=[2**power for power in range(3, 35)])) + "\n"
    head, _, rows = table.partition("(GB/s)\n")
    info = f"{INFO}\n" * (NUM_BYTES // len(INFO))
    logs = {"one table among NCCL's lines": f"{head}(GB/s)\n{info}{rows}", "tables": table * (NUM_BYTES // len(table))}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in logs.items():
            path = Path(folder, "a.log")
            path.write_text(text)
            ours, theirs = process_s(partial(read_log, path)), process_s(partial(lines_of, path))
            rates = [f"{len(text) / 1e6 / seconds:.0f} MB/s" for seconds in (ours, theirs)]
            print(f"{name}, {len(text) / 1e6:.1f} MB: read_log {ours:.2f} s, {rates[0]}; read_csv of lines {rates[1]}")


if __name__ == "__main__":
    main()
