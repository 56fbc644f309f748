"""`CapSweep`: steps measured at several bucket caps beside what the model predicts for them, and their file."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..machine.profile import used_places
from ..machine.profile_file import exactly, parsed
from ..machine.provenance import checked_provenance
from ..values.checks import number, of_type, several, truth
from ..values.storage import write_atomically
from .cost import CostTable
from .launches import bucket_places
from .local_step import Contention, LocalStep, ParameterSpec, Seconds
from .overlap import simulate_step

FORMAT, VERSION = "rankscope cap sweeps", 1
_ABOUT = ("torch", "date", "command")


@dataclass(frozen=True)
class MeasuredCap:
    """The seconds of each step at one cap (None is the default), which were clean, and the buckets in launch order."""

    bucket_cap_mb: float | None
    buckets: tuple[tuple[int, ...], ...]
    step_s: tuple[float, ...]
    clean: tuple[bool, ...]

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None:
            object.__setattr__(self, "bucket_cap_mb", number("bucket_cap_mb", self.bucket_cap_mb, above=0))
        object.__setattr__(self, "buckets", bucket_places(self.buckets))
        seconds, clean = several("step_s", self.step_s, "seconds"), several("clean", self.clean, "True or False")
        object.__setattr__(self, "step_s", tuple(number("step_s", one, above=0) for one in seconds))
        object.__setattr__(self, "clean", tuple(truth("clean", one) for one in clean))
        if not self.step_s or len(self.step_s) != len(self.clean):
            raise ValueError(f"clean must have a word on each of {len(self.step_s)} steps, got {len(self.clean)}")

    @property
    def used_s(self) -> Seconds:
        """The seconds of the iterations that are used; see `used_places`."""
        return np.array(self.step_s)[list(used_places(self.clean))]

    @property
    def median_s(self) -> float:
        return float(np.median(self.used_s))


@dataclass(frozen=True, eq=False)
class CapSweep:
    """What one module's step takes at several caps on some ranks, and all that the model predicts it from.

    None of that was fitted to these steps: `local` is the step without allreduces, `cost` the allreduce by itself, and
    `contention` that of a module that was made for it. `provenance` is as a Profile's.
    """

    name: str
    provenance: Mapping[str, Any]
    local: LocalStep
    cost: CostTable
    contention: Contention
    measured: tuple[MeasuredCap, ...]

    def __post_init__(self) -> None:
        of_type("name", self.name, str)
        object.__setattr__(self, "provenance", checked_provenance("provenance", self.provenance))
        for name, kind in (("local", LocalStep), ("cost", CostTable), ("contention", Contention)):
            of_type(name, getattr(self, name), kind)
        object.__setattr__(self, "measured", tuple(of_type("measured", one, MeasuredCap) for one in self.measured))
        if not self.measured:
            raise ValueError("measured must have at least one cap, and has none")

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def network(self) -> str:
        return str(self.provenance["network"])

    @property
    def caps_mb(self) -> tuple[float | None, ...]:
        return tuple(one.bucket_cap_mb for one in self.measured)

    @property
    def measured_s(self) -> Seconds:
        """The median step at each cap."""
        return np.array([one.median_s for one in self.measured])

    def predicted_s(self, contention: Contention | None = None) -> Seconds:
        """Return the predicted step at each cap, with the buckets that DDP had; by default with the sweep's contention.

        >>> load_sweeps("notebooks/profiles/ddp_steps.json")[0].predicted_s().shape  # doctest: +SKIP
        (5,)
        """
        chosen = self.contention if contention is None else of_type("contention", contention, Contention)
        steps = (simulate_step(self.local, self.cost, buckets=one.buckets, contention=chosen) for one in self.measured)
        return np.array([step.makespan_s for step in steps])

    @property
    def errors(self) -> Seconds:
        """How far the predictions are off what was measured, as shares of that."""
        return np.asarray(self.predicted_s() / self.measured_s - 1)


def save_sweeps(path: str | os.PathLike[str], sweeps: Sequence[CapSweep], command: str) -> Path:
    """Write sweeps as JSON, whole or not at all; `command` says what has measured them."""
    sweeps = [of_type("sweeps", one, CapSweep) for one in several("sweeps", sweeps, "CapSweep values")]
    if not sweeps:
        raise ValueError(f"sweeps must have at least one, got {sweeps!r}")
    of_type("command", command, str)
    last = sweeps[-1].provenance
    about = {"torch": last["torch"], "date": str(last["date"])[:10], "command": command}
    body = ",\n".join(json.dumps(_told(sweep), separators=(",", ":")) for sweep in sweeps)
    head = {"format": FORMAT, "version": VERSION, "crc32": f"{zlib.crc32(body.encode()):08x}", **about}
    text = f'{json.dumps(head)[:-1]},\n"sweeps":[\n{body}\n]}}\n'
    return write_atomically(path, lambda file: file.write(text.encode()))


def load_sweeps(path: str | os.PathLike[str]) -> list[CapSweep]:
    """Read the sweeps that `save_sweeps` wrote, the same to seven digits.

    Raises ValueError, in a line that names the file, for any other and for one that was damaged or changed; OSError
    where it cannot be opened.
    """
    try:
        found = parsed(path, FORMAT, VERSION)
        exactly("it", found, ("format", "version", "crc32", *_ABOUT, "sweeps"))
        body = ",\n".join(json.dumps(one, separators=(",", ":")) for one in found["sweeps"])
        if found["crc32"] != f"{zlib.crc32(body.encode()):08x}":
            raise ValueError(f"crc32 is not {found['crc32']!r}: it was damaged or changed by hand")
        return [_sweep(one) for one in found["sweeps"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{os.fspath(path)} has no readable sweeps: {error}") from error


def local_told(local: LocalStep) -> dict[str, Any]:
    """Return a local step as JSON has it: seconds to seven digits, None in the place of nan."""
    fields = ("forward_s", "backward_s", "optimizer_s", "unpack_s")
    return {
        "parameters": [astuple(spec) for spec in local.parameters],
        "ready_s": [None if np.isnan(one) else _short(one) for one in local.ready_s],
        **{name: _short(getattr(local, name)) for name in fields},
    }


def local_read(told: Mapping[str, Any]) -> LocalStep:
    """Return the local step that `local_told` has told."""
    specs = tuple(ParameterSpec(*spec) for spec in told["parameters"])
    ready_s = [np.nan if one is None else number("ready_s", one) for one in told["ready_s"]]
    return LocalStep(**{**told, "parameters": specs, "ready_s": np.array(ready_s)})


def _short(seconds: float) -> float:
    return float(f"{seconds:.7g}")


def _told(sweep: CapSweep) -> dict[str, Any]:
    return {
        "name": sweep.name,
        "provenance": dict(sweep.provenance),
        "local": local_told(sweep.local),
        "cost": [list(sweep.cost.num_bytes), [_short(one) for one in sweep.cost.seconds]],
        "contention": [sweep.contention.compute, sweep.contention.communication],
        "measured": [
            [one.bucket_cap_mb, one.buckets, [_short(s) for s in one.step_s], [int(c) for c in one.clean]]
            for one in sweep.measured
        ],
    }


def _sweep(told: Any) -> CapSweep:
    exactly("a sweep", told, ("name", "provenance", "local", "cost", "contention", "measured"))
    measured = [MeasuredCap(cap, buckets, seconds, [bool(c) for c in clean])  # type: ignore[arg-type]
                for cap, buckets, seconds, clean in told["measured"]]  # fmt: skip
    cost = CostTable(*(tuple(map(float, column)) for column in told["cost"]))
    return CapSweep(
        name=told["name"],
        provenance=told["provenance"],
        local=local_read(told["local"]),
        cost=cost,
        contention=Contention(*told["contention"]),
        measured=tuple(measured),
    )
