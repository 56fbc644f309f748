"""The entry point: runs the kinds, prints a table and the violations; the exit status is 1 where there are any."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from . import kills, pool, stores
from .pool import Verdict

COUNTS = {"files": 2400, "structures": 1600, "commands": 1200, "names": 1200, "kills": 180, "stores": 40}  # at scale 1


def run(kind: str, seed: int, numbers: Sequence[int], num_workers: int = 2) -> list[Verdict]:
    """Run cases, printing what is wrong, with the command that repeats it, as soon as it is found."""

    def report(one: Verdict) -> None:
        if one.wrong:
            again = f"python -m tests.campaign --seed {seed} --only {kind} --case {one.number}"
            print(f"{one.name}: {one.wrong}\n    {again}", flush=True)

    if kind == "kills":
        return kills.run(seed, numbers, report)
    if kind == "stores":
        return stores.run(seed, numbers, report)
    return pool.run(f"tests.campaign.{kind}", seed, numbers, num_workers, report)


def table(kind: str, verdicts: Sequence[Verdict], seconds: float) -> list[str]:
    """A line for each kind of case, then one for all."""
    cases, wrong = Counter(one.name for one in verdicts), Counter(one.name for one in verdicts if one.wrong)
    rows = [f"  {name:48.48} {cases[name]:6} {wrong[name]:6}" for name in sorted(cases)]
    slowest, largest = (max((one[place] for one in verdicts), default=0) for place in (3, 4))
    most = f"{seconds:.0f} s; at most {slowest:.1f} s and {int(largest) >> 20} MiB for a case"
    return [*rows, f"{kind:50.50} {cases.total():6} {wrong.total():6}  {most}"]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--only", default=",".join(COUNTS), help="kinds, with commas between them")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of cases")
    parser.add_argument("--case", type=int, help="this one alone, of one kind")
    given = parser.parse_args(words)
    lines, num_wrong = [f"{'kind of case':50} {'cases':>6} {'wrong':>6}"], 0
    for kind in given.only.split(","):
        if kind not in COUNTS:
            parser.error(f"--only must be of {', '.join(COUNTS)}, got {kind!r}")
        count, begin_s = max(1, round(COUNTS[kind] * given.scale)), time.monotonic()
        verdicts = run(kind, given.seed, range(count) if given.case is None else [given.case])
        lines += table(kind, verdicts, time.monotonic() - begin_s)
        num_wrong += sum(bool(one.wrong) for one in verdicts)
    print("\n".join([*lines, f"{num_wrong} violations"]))
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
