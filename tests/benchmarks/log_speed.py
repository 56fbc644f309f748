"""How fast logs are read, next to an older checkout: python -m tests.benchmarks.log_speed OLD/lib

Each kind of lines is read in turn by both, and the medians of the CPU times are compared, so that a busy machine
matters less. Without an older checkout, only the speed is printed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

_LETTERS = 1_500_000
_ROUNDS = 3
_KINDS = {
    "steps": "step {0} loss 2.1 lr 0.0003 tokens/s 12345 grad_norm 0.71 mem 43.1GB\n",
    "steps with the rank": "[rank{1}]: step {0} loss 2.1 lr 0.0003 tokens/s 12345 grad_norm 0.71\n",
    "steps with the time": "2026-02-03 16:35:15,123 INFO trainer.py:9 step {0} loss 2.1 lr 0.0003\n",
    "NCCL's INFO": "n{1}:812:901 [{1}] NCCL INFO Channel 00/0 : {0}[0] -> 1[1] via P2P/CUMEM\n",
    "a tag a hundred times": "[rank{1}]:" * 100 + " step {0}\n",
}
_TIMED = (
    "import sys, time\n"
    "from rankscope.diagnose import read_hang_text\n"
    "text = sys.stdin.read()\n"
    "begin_s = time.process_time()\n"
    "read_hang_text(text)\n"
    "print(time.process_time() - begin_s)\n"
)


def seconds(library: str, text: str) -> float:
    """Return the CPU time in which a library reads a text, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _TIMED],
        input=text,
        env=os.environ | {"PYTHONPATH": library},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    libraries = ["lib", *sys.argv[1:2]]
    for kind, form in _KINDS.items():
        num_lines = _LETTERS // len(form)
        text = "".join(form.format(number, number % 8) for number in range(num_lines))
        rounds = [[seconds(library, text) for library in libraries] for _ in range(_ROUNDS)]
        medians_s = [statistics.median(times_s) for times_s in zip(*rounds, strict=True)]
        ratio = f", {medians_s[-1] / medians_s[0]:.1f} times as fast" if len(medians_s) > 1 else ""
        print(f"{kind:24}{len(text) / medians_s[0] / 1e6:8.1f} MB/s{ratio}", flush=True)


if __name__ == "__main__":
    main()
