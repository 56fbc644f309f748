"""The file of a `DDPRun`: JSON with an iteration a line and a checksum, read with suspicion."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machine.profile_file import exactly, parsed
from ..timeline import Timeline
from ..values.storage import write_atomically
from .local_step import ParameterSpec

if TYPE_CHECKING:
    from .ddp_run import DDPRun

FORMAT, VERSION = "rankscope ddp run", 1
_FIELDS = ("provenance", "setting", "parameters", "step_s", "clean", "steps")
_SPANS = ("rank", "lane", "kind", "item", "start_s", "stop_s", "lanes", "kinds")


def write(run: DDPRun, path: str | os.PathLike[str]) -> Path:
    """Write a run whole or not at all."""
    body = _body(run)
    head = f'{{"format": "{FORMAT}", "version": {VERSION}, "crc32": "{zlib.crc32(body.encode()):08x}",\n'
    return write_atomically(path, lambda file: file.write((head + body + "}\n").encode()))


def read(path: str | os.PathLike[str]) -> DDPRun:
    """Read a run that `write` wrote; ValueError for anything else, OSError where it cannot be opened."""
    try:
        found = parsed(path, FORMAT, VERSION)
        exactly("it", found, ("format", "version", "crc32", *_FIELDS))
        run = _run(found)
        checksum = f"{zlib.crc32(_body(run).encode()):08x}"
        if found["crc32"] != checksum:
            raise ValueError(f"crc32 must be {checksum!r}, got {found['crc32']!r}: it was damaged or changed by hand")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{os.fspath(path)} is no readable run: {error}") from error
    return run


def _body(run: DDPRun) -> str:
    told = {
        "provenance": dict(run.provenance),
        "setting": dict(run.setting),
        "parameters": [astuple(spec) for spec in run.parameters],
        "step_s": list(run.step_s),
        "clean": [int(one) for one in run.clean],
    }
    steps = ",\n".join(
        json.dumps(
            {
                "buckets": step.buckets,
                "ready_s": [[None if np.isnan(one) else one for one in row] for row in step.ready_s.tolist()],
                "timeline": {name: _listed(getattr(step.timeline, name)) for name in _SPANS},
            }
        )
        for step in run.steps
    )
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in told.items()]
    return ",\n".join([*lines, f'"steps": [\n{steps}\n]'])


def _listed(column: Any) -> list[Any]:
    return list(column) if isinstance(column, tuple) else list(column.tolist())


def _run(found: dict[str, Any]) -> DDPRun:
    from .ddp_run import DDPRun, ObservedStep

    steps = []
    for place, one in enumerate(found["steps"]):
        exactly(f"steps[{place}]", one, ("buckets", "ready_s", "timeline"))
        exactly(f"steps[{place}]: timeline", one["timeline"], _SPANS)
        columns: dict[str, Any] = {name: np.array(one["timeline"][name]) for name in _SPANS[:6]}
        names: dict[str, Any] = {name: tuple(one["timeline"][name]) for name in _SPANS[6:]}
        ready_s = np.array(one["ready_s"], dtype=np.float64)  # None becomes nan
        steps.append(ObservedStep(one["buckets"], ready_s, Timeline(**columns, **names)))
    parameters = tuple(ParameterSpec(*spec) for spec in found["parameters"])
    clean = tuple(bool(one) for one in found["clean"])
    return DDPRun(found["provenance"], found["setting"], parameters, tuple(found["step_s"]), clean, tuple(steps))
