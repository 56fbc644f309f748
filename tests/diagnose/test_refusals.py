"""What `rankscope.diagnose` refuses: each case is a call that raises ValueError, and a word that its message has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rankscope.diagnose import diagnose, explain_hang, read_dumps, read_hang_text, read_logs, read_traces, watch

from .hangs.made_dumps import healthy, write
from .traces.made_jobs import job, phases
from .traces.test_trace import gloo_step, written


def text_file(folder: Path, name: str, text: Any) -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def dump(folder: Path, contents: Any) -> Any:
    return read_dumps(text_file(folder, "trace_0", contents))


def traces(folder: Path, *infos: dict[str, Any]) -> Any:
    for place, info in enumerate(infos):
        written(folder, gloo_step(), f"{'abc'[place]}.json", **info)
    return read_traces(folder)


def dumps_of_two_jobs(folder: Path) -> Any:
    first, second = write(folder / "2", healthy(2)), write(folder / "3", healthy(3))
    return read_dumps([first / "trace_rank_0", second / "trace_rank_2"])


REFUSED: list[tuple[str, Callable[[Path], Any]]] = [
    ("no dumps", read_dumps),
    ("number of its rank", lambda folder: read_dumps(text_file(folder, "train.log", "{}"))),
    ("version", lambda folder: dump(folder, {"version": "1.4", "entries": []})),
    ("damaged", lambda folder: dump(folder, {"version": "2.1", "entries": [{}]})),
    ("read_traces", lambda folder: read_dumps(written(folder, gloo_step(), "rank_0"))),
    ("of one job", dumps_of_two_jobs),
    ("no log", read_logs),
    ("list of files", lambda folder: read_traces(5)),
    ("no trace", read_traces),
    ("no event", lambda folder: read_traces(text_file(folder, "rank0.json", '{"traceEvents": []}'))),
    ("Expecting value", lambda folder: read_traces(text_file(folder, "rank0.json", '{"traceEvents": [{"ph":'))),
    ("both of rank 0", lambda folder: traces(folder, {"rank": 0}, {"rank": 0})),
    ("its rank", lambda folder: traces(folder, {"rank": None}, {"rank": None})),
    ("traces must be", lambda folder: diagnose([])),
    ("traces must be", lambda folder: diagnose(job(phases())[:1] * 2)),
    ("neither", lambda folder: explain_hang()),
    ("HangLogs", lambda folder: explain_hang(logs="text")),  # type: ignore[arg-type]
    ("text must be", lambda folder: read_hang_text(5)),  # type: ignore[arg-type]
    ("DistributedDataParallel", lambda folder: watch(nn.Linear(1, 1), [])),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("word", "call"), REFUSED, ids=[f"{place} {word}" for place, (word, _) in enumerate(REFUSED)])
def test_what_is_refused(word: str, call: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word):
        call(tmp_path)
