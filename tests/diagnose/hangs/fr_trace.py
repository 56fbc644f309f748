"""What torch's own `fr_trace` says of folders of dumps: run as a program, as it ends the process on some of them.

Each line is JSON: [group, call, ranks] of each call with a fault. Pickles are not loaded: the folders hold JSON, which
is given to its `build_db` in the place of its loader.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def fr_trace(folders: Sequence[Path]) -> list[list[Any]]:
    """Return the faults for each folder: group, call, and the ranks that are missing or differ from the first one."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, *map(str, folders)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def _faults(folder: Path) -> list[tuple[str, int, list[int]]]:
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    details = {}
    for rank, path in enumerate(sorted(folder.iterdir())):
        details[path.name] = {"rank": rank, "host_name": f"host_{rank}", **json.loads(path.read_bytes())}
    args = JobConfig().parse_args([str(folder), "--allow-incomplete-ranks"])
    faults = []
    for call in build_db(details, args, next(iter(details.values()))["version"]).collectives:
        ranks = sorted(call.missing_ranks or call.mismatch_collectives or [])
        if ranks:
            faults.append((call.pg_desc.rpartition(":")[2], call.collective_seq_id, ranks))
    return faults


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(_faults(Path(name))))
