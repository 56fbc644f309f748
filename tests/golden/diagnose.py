"""The verdicts on recorded and made hangs and traces: ranks, causes and numbers, whatever the sentences say.

Their texts are stored next to the outputs. Logs of Gloo are recordings; the others were made by tests of `diagnose`
before these became fewer.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.diagnose import diagnose, explain_hang, read_dumps, read_hang_text, read_logs, read_traces

from .box import MEASUREMENTS
from .values import Cases, attempt, floats, ints, plain

_INPUTS = Path(__file__).parent / "stored" / "diagnose_inputs.json.gz"


def cases() -> Cases:
    inputs = json.loads(gzip.decompress(_INPUTS.read_bytes()))
    return {name: partial(_of_files, entry["kind"], entry["files"]) for name, entry in inputs.items()}


def trace_cases() -> Cases:
    """Return the cases of published traces; none where their folder is not found."""
    if MEASUREMENTS is None:
        return {}
    return {path.name: partial(_traces, path) for path in sorted((MEASUREMENTS / "traces").iterdir())}


def _of_files(kind: str, files: dict[str, str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return _READERS[kind](Path(folder))


def _logs(folder: Path) -> Any:
    """The verdict on the files, and on their texts pasted one after the other."""
    pasted = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.iterdir()))
    return [_hang(logs=read_logs(folder)), _hang(logs=read_hang_text(pasted))]


def _dumps(folder: Path) -> Any:
    return _hang(read_dumps(folder))


def _hang(*dumps: Any, **logs: Any) -> Any:
    """Cause, ranks, group and call of each finding."""
    found = explain_hang(*dumps, **logs).findings
    return plain([[finding.cause, finding.ranks, finding.group, finding.call] for finding in found])


def _traces(path: Path) -> Any:
    return attempt(_job, [path] if path.is_file() else path)


def _job(paths: Any) -> dict[str, Any]:
    found = diagnose(read_traces(paths))
    times = ("window_s", "phase_s", "waiting_s", "covered_s", "late_s")
    return {
        "ranks": plain(found.ranks),
        "missing": plain(found.missing),
        "steps": ints(found.steps),
        "culprits": plain([culprit[:3] for culprit in found.culprits]),
        "means_s": [float(found.step_s), float(found.exposed_s), float(found.hidden_s)],
        "calls": plain(found.calls),
        **{name: floats(getattr(found, name).ravel()) for name in times},
    }


_READERS: dict[str, Callable[[Path], Any]] = {"log": _logs, "dumps": _dumps, "traces": _traces}
