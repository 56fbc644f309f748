"""`Profile`: measurements of a machine, their file, and what the model predicts from them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..cluster import Cluster
from ..collectives import build, simulate
from ..collectives.schedule import COLLECTIVES
from ..common.checks import check_field, each, of_type, one_of, while_processing, whole
from ..common.files import FileError, read_json, read_start, write_json
from ..common.words import count_of
from ..networks import CostTable
from ..provenance import MeasuredHow, Provenance, converted
from .curve import Curve
from .fit import LinkFit, fit_link
from .machines import published
from .points import LEAST_CLEAN, NATIVE, WHAT, Point

if TYPE_CHECKING:
    from ..timeline import Timeline

FORMAT = "rankscope profile"
# Four ranks on two quiet cores vary by 0.19 in the median and by up to 0.43; on a GPU, 3 % of the points exceed 0.5.
_QUIET = 0.5
_FEW = 0.1  # of the points
_PREDICTED_BYTES = tuple(4**power for power in range(5, 16))  # 1 KiB to 1 GiB


class Profile(msgspec.Struct, frozen=True, dict=True, tag_field="format", tag=FORMAT):
    """The measurements of a machine: where and with what (`provenance`), how (`protocol`), and the points.

    Raises ValueError if a field is invalid or two points have the same key.
    """

    provenance: Mapping[str, Any]
    protocol: Mapping[str, Any]
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        check_field(self, "provenance", converted, Provenance)
        check_field(self, "protocol", converted, MeasuredHow)
        check_field(self, "points", each, of_type, Point)
        for key, count in Counter(point.key for point in self.points).items():
            if count > 1:
                raise ValueError(f"points must differ, got {key} {count} times")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Load a profile from a file that `save` wrote, or from the `bank`, as in "bank:dgx_h100_8".

        Raises FileError (a one-line ValueError) if the file is not a profile or is damaged; ValueError if the bank has
        no such name; OSError if the file cannot be opened.
        """
        machine = published(path)
        if machine is not None:
            return msgspec.json.decode(machine, type=cls)
        if read_start(path, 1) != b"{":
            raise FileError(path, "not a profile; `rankscope import` reads logs of other programs")
        return read_json(path, cls, strict=False)  # some have 0 and 1 in place of false and true

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON, atomically. Raises OSError if that fails."""
        return write_json(path, self)

    def add(self, *points: Point) -> Profile:
        """Return a profile with these points added. A point with the same key as another replaces it."""
        by_key = {point.key: point for point in (*self.points, *points)}
        return Profile(self.provenance, self.protocol, tuple(by_key.values()))

    def select(self, what: str | None = None, num_bytes: int | None = None, **options: Any) -> tuple[Point, ...]:
        """Return the points that match all arguments, in their order."""
        points = [point for point in self.points if options.items() <= point.options.items()]
        return tuple(p for p in points if what in (None, p.what) and num_bytes in (None, p.num_bytes))

    @cached_property
    def native(self) -> Mapping[str, Mapping[int, Point]]:
        """The points of the backend's own collectives by collective and size: one each, in place if there is one.

        Pairs of a fleet, which have points of the same sizes, and points of 0 bytes, which have no rate, are left out.
        """
        by_collective: dict[str, dict[int, Point]] = {}
        for point in sorted(self.select(algorithm=NATIVE), key=lambda point: point.num_bytes):
            if point.num_bytes and "src" not in point.options:
                by_size = by_collective.setdefault(point.what, {})
                if point.num_bytes not in by_size or point.options.get("in_place"):
                    by_size[point.num_bytes] = point
        return by_collective

    def native_s(self, collective: str) -> dict[int, float]:
        """Return the median time in seconds of each size in `native`, or an empty dict if the collective is missing."""
        return {size: point.median_s for size, point in self.native.get(collective, {}).items()}

    def busbw(self, collective: str) -> dict[int, float]:
        """Return the bus bandwidth in bytes/s of each size in `native` that has one: none on one rank, for example."""
        points = self.native.get(collective, {}).values()
        rates = {point.num_bytes: point.busbw_bytes_per_s(self.num_ranks) for point in points}
        return {size: rate for size, rate in rates.items() if rate > 0}  # not nan either

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def num_nodes(self) -> int | None:
        """The number of nodes; None if the source of the profile does not state it."""
        return int(self.provenance.get("num_nodes", len(self.provenance.get("ranks_per_node", ())))) or None

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """The number of ranks on each node. Raises ValueError if the profile does not state its nodes."""
        if "ranks_per_node" in self.provenance:
            return tuple(self.provenance["ranks_per_node"])
        if self.num_nodes in (1, self.num_ranks):  # they can be distributed in one way only
            return (self.num_ranks // self.num_nodes,) * self.num_nodes
        raise ValueError(f"profile {self.provenance['name']!r} does not state its nodes")

    @property
    def backend(self) -> str:
        return str(self.provenance["backend"])

    @property
    def disturbed(self) -> tuple[Point, ...]:
        """The points that vary more than on a quiet machine, if so many do that the machine was busy; else none.

        Logs of other programs tell nothing of it, as the calls of a job vary for other reasons.
        """
        if "source" in self.provenance:
            return ()
        wide = tuple([point for point in self.points if point.spread > _QUIET and len(point.used_s) >= LEAST_CLEAN])
        return wide if len(wide) > _FEW * len(self.points) else ()

    def __str__(self) -> str:
        """The machine, its versions and what each time is, as one line."""
        about = self.provenance
        nodes = f" on {count_of(self.num_nodes, 'node')}" if self.num_nodes else ""
        words = [f"{about['name']}: {count_of(self.num_ranks, 'rank')}{nodes}", self.backend]
        words += [about[key] for key in ("device", "network", "environment") if about.get(key)]
        gpus = about.get("gpus", ())
        models = Counter(gpu["name"] for gpu in gpus if "name" in gpu)
        words += [f"{count} × {name}" for name, count in models.items()] or [about.get("cpu", "hardware not stated")]
        for gpu in gpus[:1]:  # all have the same software
            words += [f"{name} {gpu[name.lower()]}" for name in ("NCCL", "driver") if gpu.get(name.lower())]
        statistic = "mean" if self.protocol.get("statistic") == "mean" else "median"
        iterations = self.protocol.get("iterations", "several")
        return ", ".join([*words, f"each time is the {statistic} of {iterations} iterations"])

    @cached_property
    def links(self) -> Mapping[str, LinkFit]:
        """The fits of messages that all ranks send at once, within a node ("intra") and between nodes ("inter").

        A link that was measured at fewer than 5 sizes has none.
        """
        fits = {}
        for where in ("inter", "intra"):
            points = self.select("together", link=where)
            with suppress(ValueError):  # too few sizes
                fits[where] = fit_link([point.num_bytes for point in points], [point.median_s for point in points])
        return fits

    def cluster(self, num_ranks: int | None = None) -> Cluster:
        """Return a `Cluster` with the profile's nodes, ranks and links, and the time of a sum in memory.

        A link that was not measured counts as the other one. `num_ranks` changes the number of nodes or, if there is
        one node or they fit on one, the number of ranks on it. Raises ValueError if no link was measured, if the nodes
        are not stated or have different numbers of ranks, or if `num_ranks` is larger than a node and does not fill its
        nodes.
        """
        ranks = self.ranks_per_node
        if len(set(ranks)) != 1:
            raise ValueError(f"ranks_per_node must be the same on all nodes of a cluster, got {ranks}")
        num_ranks = whole("num_ranks", self.num_ranks if num_ranks is None else num_ranks, 1)
        ranks_per_node = num_ranks if len(ranks) == 1 else min(num_ranks, ranks[0])
        if num_ranks % ranks_per_node:
            raise ValueError(f"num_ranks must be a multiple of the {ranks[0]} ranks on a node, got {num_ranks}")
        if not self.links:
            raise ValueError("this profile has no link that was measured at 5 sizes or more")
        any_link = next(iter(self.links.values()))
        intra = self.links.get("intra", any_link).link
        inter = self.links.get("inter", any_link).link
        sums = [point.median_s / point.num_bytes for point in self.select("add")]
        gamma_s_per_byte = float(np.median(sums)) if sums else 0.0
        return Cluster(num_ranks // ranks_per_node, ranks_per_node, intra, inter, gamma_s_per_byte)

    def predict(self, point: Point, num_ranks: int | None = None) -> Timeline:
        """Predict the timeline of `execute` for a measured point: its algorithm and size on the `cluster`.

        `num_ranks` is as for `cluster`. Raises ValueError if the point has no algorithm of ALGORITHMS, if that does not
        exist for so many ranks, or as `cluster`.
        """
        cluster = self.cluster(num_ranks)
        algorithm = str(point.options.get("algorithm"))
        schedule = build(point.what, algorithm, cluster.num_ranks, **point.builder_options)
        return simulate(schedule, point.num_bytes, cluster, executor=True)

    def curve(self, collective: str, **options: Any) -> Curve:
        """Return the curve through the measured times of a collective, copy or message.

        `options` are those of a point: ``algorithm`` of a collective ("native", the backend's own, by default) and
        ``in_place`` (by default true, if there are such points); ``direction`` and ``method`` of "transfer" (``pieces``
        is 1 and ``both`` is False by default); ``link`` of "together" and "ping_pong".

        Raises ValueError if such points were measured at too few sizes (see `Curve`), or in several ways.

        >>> provenance = dict(name="a", backend="nccl", num_ranks=8)
        >>> sizes, options = [2**power for power in range(10, 20)], {"algorithm": "native"}
        >>> points = [Point("allreduce", size, [1e-5 + size / 1e10], [True], options) for size in sizes]
        >>> print(f"{Profile(provenance, {}, points).curve('allreduce').seconds(100_000) * 1e6:.1f} µs")
        20.0 µs
        """
        one_of("collective", collective, WHAT)
        if collective in COLLECTIVES:
            options = {"algorithm": NATIVE, **options}
        elif collective == "transfer":
            options = {"pieces": 1, "both": False, **options}
        points = self.select(collective, **{"in_place": True, **options}) or self.select(collective, **options)
        measured_s = {point.num_bytes: point.median_s for point in points}
        named = ", ".join(f"{name}={value}" for name, value in options.items())
        with while_processing(f"{collective} ({named})"):
            if len(measured_s) < len(points):
                raise ValueError("a size has several points; select one by further options")
            return Curve(measured_s)

    def cost(self, num_ranks: int | None = None) -> CostTable:
        """Return a function from bytes to seconds, the time of one allreduce without other traffic.

        It joins the medians of the backend's own allreduce by straight lines or, for other ranks than the profile's or
        fewer than two sizes, what a ring takes on the `cluster`. Raises ValueError as `cluster` does.
        """
        measured_s = self.native_s("allreduce")
        if num_ranks in (None, self.num_ranks) and len(measured_s) > 1:
            return CostTable(tuple(measured_s), tuple(measured_s.values()))
        cluster = self.cluster(num_ranks)
        ring = build("allreduce", "ring", cluster.num_ranks)
        seconds = [simulate(ring, size, cluster, executor=True).makespan_s for size in _PREDICTED_BYTES]
        return CostTable(_PREDICTED_BYTES, tuple(seconds))
