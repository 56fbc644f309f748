"""Read the matrices of p2pBandwidthLatencyTest (NVIDIA/cuda-samples): copies between GPUs, and their latencies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..points import Point
from ..profile import Profile
from .log import COPY_BYTES, COPY_NOTE, Log, timed

_DEVICE = re.compile(r"^ *Device: \d+, (.+?), pciBusID", re.MULTILINE)
_MATRIX = (
    re.compile(  # a title, the numbers of the columns, and rows; of latencies, those by the GPU's clock come first
        r"(?P<title>(?:(?P<ways>Uni|Bi)directional )?P2P=(?P<peer>En|Dis)abled [^\n]*Matrix \((?:GB/s|us)\))\s*\n"
        r" *(?:D\\D|GPU)(?P<columns>(?: +\d+)+) *\n(?P<rows>(?: +\d+ +[\d. ]+\n?)*)"
    )
)
_CELL = re.compile(r"\d+\.\d\d")  # cells of four digits have no blank before them
HOST = "through host memory"  # the method of copies without peer-to-peer access


def p2p_text(log: Log) -> Iterator[Profile]:
    """Yield the profile of all whole matrices; nothing if there are none.

    A rate of both directions at once is their sum. A latency is that of a copy of 0 bytes.
    """
    text = "\n".join(log.lines)
    points: list[Point] = []
    notes = [COPY_NOTE]
    num_gpus = 0
    for matrix in _MATRIX.finditer(text):
        num_columns = len(matrix["columns"].split())
        rows = [_CELL.findall(row) for row in matrix["rows"].splitlines()]
        if [len(row) for row in rows] != [num_columns] * num_columns:
            notes.append(f"{matrix['title']} is left out: it is cut")
            continue
        num_gpus = max(num_gpus, num_columns)
        for source, row in enumerate(rows):
            for target, cell in enumerate(row):
                if source != target:
                    points.append(_point(matrix, float(cell), source, target))
    if points:
        yield log.copies(points, "p2pBandwidthLatencyTest", notes, _DEVICE.findall(text), num_gpus)


def _point(matrix: re.Match[str], value: float, source: int, target: int) -> Point:
    method = HOST
    if matrix["peer"] == "En":
        method = "read" if "Reads" in matrix["title"] else "write"
    options: dict[str, Any] = {"direction": "p2p", "method": method, "pieces": 1, "both": matrix["ways"] == "Bi"}
    options |= {"src": source, "dst": target}
    if matrix["ways"]:
        return timed("transfer", COPY_BYTES, [COPY_BYTES / value * 1e-9], {**options, "size": "not stated"})
    return timed("transfer", 0, [value * 1e-6], options)
