"""Store the outputs that later code must reproduce.

python -m tests.golden.make                      all parts
python -m tests.golden.make PART...              some parts
python -m tests.golden.make PART --show CASE     print what one case computes now; stores nothing
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from .values import Cases

STORED = Path(__file__).parent / "stored"
# The module and the function that makes the cases of each part.
PARTS = {
    "pipeline": ("pipeline", "cases"),
    "box": ("box", "cases"),
    "logs": ("box", "log_cases"),
    "nccl": ("nccl", "cases"),
}


@cache
def cases_of(part: str) -> Cases:
    """Return the cases of a part; each is computed when it is called."""
    module, function = PARTS[part]
    make: Callable[[], Cases] = getattr(import_module(f"{__package__}.{module}"), function)
    return make()


def computed(case: Callable[[], Any]) -> Any:
    """Return a case's value as it is after it has been stored and loaded."""
    return json.loads(json.dumps(case()))


def stored(part: str) -> dict[str, Any]:
    """Return the stored values of a part, by case."""
    values: dict[str, Any] = json.loads(gzip.decompress((STORED / f"{part}.json.gz").read_bytes()))
    return values


def store(part: str) -> int:
    """Compute all cases of a part and store them; return the number of bytes."""
    values = {name: computed(case) for name, case in cases_of(part).items()}
    lines = [f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in values.items()]
    text = "{" + ",\n".join(lines) + "}\n"
    STORED.mkdir(exist_ok=True)
    return (STORED / f"{part}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description="Store the outputs that later code must reproduce.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--show", metavar="CASE", help="print what this case computes now, and store nothing")
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        if arguments.show:
            print(json.dumps(computed(cases_of(part)[arguments.show]), indent=1))
        elif cases_of(part):
            print(f"{part}: {store(part)} bytes", flush=True)
        else:
            print(f"{part}: left as it is, because the published measurements are not next to the checkout")


if __name__ == "__main__":
    main()
