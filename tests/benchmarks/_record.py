"""Write a benchmark's rows to a file, with the machine and the command that measured them."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rankscope.common.files import write_whole


def write_record(path: Path, benchmark: str, what: str, **tables: Sequence[Mapping[str, Any]]) -> None:
    """Write tables of a benchmark, such as `dataloader`, and how it measured them."""
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.date.today().isoformat(),
        "command": f"python -m tests.benchmarks.{benchmark} --record",
        "what": what,
        **tables,
    }
    text = json.dumps(content, indent=1)
    write_whole(path, text.encode() + b"\n")
