"""`Point`, `Profile`: measurements of a machine, their file, and what the model predicts from them."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..cluster import Cluster, Link
from ..collectives import ALGORITHMS, build, simulate
from ..collectives.schedule import COLLECTIVES
from ..common.checks import check_field, each, number, of_type, one_of, truth, whole
from ..common.files import read_json, write_json
from ..common.units import bytes_words
from ..common.words import count_of, one_line
from ..networks import CostTable, Network
from ..provenance import MeasuredHow, Provenance, converted
from .curve import Curve
from .fit import LinkFit, fit_link, slope_s_per_byte
from .machines import notes_of, origin_of, published

if TYPE_CHECKING:
    import pandas as pd

    from ..timeline import Timeline

FORMAT = "rankscope profile"
MOST_RANKS = 256  # in a prediction by algorithm
MOST_BYTES = 1 << 60  # of a point, and the limits of its seconds
LEAST_S = 1e-9
MOST_S = 1e6
LEAST_CLEAN = 4  # iterations: with fewer clean ones, all are used
NATIVE = "native"  # stands for the backend's own collective instead of an algorithm's name
TRANSFERS = ("transfer", "transfer_host", "pin")
WHAT = (*COLLECTIVES, "ping_pong", "together", "add", "copy", *TRANSFERS)
LINKS = ("inter", "intra")
PATTERNS = ("together", "ping_pong")  # of messages over a link
_SPLIT = ("reduce_scatter", "allgather", "all_to_all", "scatter", "gather")  # a rank keeps or brings only its part
NAMED = ("algorithm", "in_place", "link")  # options that have their own columns
_PREDICTED_BYTES = tuple(4**power for power in range(5, 16))  # 1 KiB to 1 GiB


# ---- points


def _rounded(name: str, seconds: Any) -> float:
    """Return the seconds of an iteration, rounded to six digits."""
    return float(f"{number(name, seconds, LEAST_S, MOST_S):.6g}")


# Of a point. Several numbers are the shape of a torus, for example.
_Options = dict[str, str | int | bool | tuple[int, ...]]


class PointKey(NamedTuple):
    """What identifies a point in a profile: no two points share it. The options are sorted by name."""

    what: str
    num_bytes: int
    options: tuple[tuple[str, Any], ...]


class Point(msgspec.Struct, frozen=True, dict=True):
    """One measured operation at one size: the seconds of each iteration, those of its slowest rank.

    `what` is a collective ("allreduce", …), "ping_pong" (a one-way message on an idle network), "together" (every rank
    sends to the next at once), "add" or "copy" (in memory), or one of TRANSFERS (see `measuring.transfers`).
    `num_bytes` is the whole buffer of a collective, otherwise the message. `options` holds the rest: for a collective
    ``algorithm`` (one of ALGORITHMS, or "native" for the backend's own), ``in_place`` and the builder's arguments; for
    messages ``link``, "intra" or "inter". `clean` says for each iteration whether it ran undisturbed: it started on
    time, and the host stole no CPU time. Seconds are rounded to six digits.

    Raises ValueError for values that no measurement can give.

    >>> point = Point("allreduce", 1024, (3e-3, 1e-3, 2e-3), (True, False, True), {"algorithm": "ring"})
    >>> point.median_s, point.num_clean
    (0.002, 2)
    """

    what: str
    num_bytes: int
    seconds: tuple[float, ...]
    clean: tuple[bool, ...]
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_field(self, "what", one_of, WHAT)
        check_field(self, "num_bytes", whole, 0, MOST_BYTES)
        check_field(self, "seconds", each, _rounded)
        check_field(self, "clean", each, truth)
        check_field(self, "options", converted, _Options)
        if not self.seconds:
            raise ValueError("seconds must be of at least one iteration, got none")
        if len(self.clean) != len(self.seconds):
            raise ValueError(f"clean must have an entry for each of {len(self.seconds)} iterations, got {self.clean!r}")

    def __hash__(self) -> int:  # of what can be hashed, unlike `options`
        return hash((self.key, self.seconds))

    @property
    def key(self) -> PointKey:
        return PointKey(self.what, self.num_bytes, tuple(sorted(self.options.items())))

    @property
    def num_clean(self) -> int:
        return sum(self.clean)

    @cached_property
    def used_s(self) -> tuple[float, ...]:
        """The seconds of the clean iterations, or of all if fewer than `LEAST_CLEAN` are clean."""
        clean_s = tuple(second for second, is_clean in zip(self.seconds, self.clean, strict=True) if is_clean)
        return clean_s if len(clean_s) >= LEAST_CLEAN else self.seconds

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of `used_s`, in seconds."""
        return float(np.percentile(self.used_s, number("percent", percent, 0, 100)))

    @cached_property
    def quartiles_s(self) -> tuple[float, float, float]:
        low, middle, high = np.percentile(self.used_s, (25, 50, 75)).tolist()
        return low, middle, high

    @property
    def median_s(self) -> float:
        return self.quartiles_s[1]

    @property
    def iqr_s(self) -> float:
        """The interquartile range in seconds."""
        return self.quartiles_s[2] - self.quartiles_s[0]

    @property
    def p99_s(self) -> float:
        return self.percentile_s(99)

    @property
    def has_spread(self) -> bool:
        """Whether there are enough iterations to tell how widely they vary."""
        return len(self.used_s) >= LEAST_CLEAN

    def differs(self, other: Point) -> bool:
        """Return whether the interquartile ranges of the two do not overlap."""
        low, high = sorted((self, other), key=lambda point: point.median_s)
        return low.quartiles_s[2] < high.quartiles_s[0]

    @property
    def algbw_bytes_per_s(self) -> float:
        """The bytes divided by the median time; nan for 0 bytes."""
        return self.num_bytes / self.median_s if self.num_bytes else math.nan

    def busbw_bytes_per_s(self, num_ranks: int) -> float:
        """Return the bus bandwidth: algbw times `busbw_factor`; nan if it has no meaning."""
        return self.algbw_bytes_per_s * busbw_factor(self.what, num_ranks)

    @property
    def builder_options(self) -> dict[str, Any]:
        """The arguments of the algorithm's builder."""
        return {name: value for name, value in self.options.items() if name not in NAMED}

    @property
    def builder_words(self) -> str:
        """The arguments of the algorithm's builder as one string."""
        words = []
        for name, value in sorted(self.builder_options.items()):
            shown = "×".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"{name}={shown}")
        return ", ".join(words)


def busbw_factor(what: str, num_ranks: int) -> float:
    """Return busbw / algbw of a collective, as nccl-tests define it; nan if it has no meaning.

    >>> busbw_factor("allreduce", 4), busbw_factor("allgather", 4), busbw_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    share = (num_ranks - 1) / num_ranks
    if what == "allreduce":
        return 2 * share
    if what in _SPLIT:
        return share
    if what in ("broadcast", "reduce"):
        return 1.0
    return math.nan


# ---- profiles


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
        keys: set[PointKey] = set()
        for index, point in enumerate(self.points):
            if point.key in keys:
                raise ValueError(f"points[{index}] must differ from those before, got {point.key} again")
            keys.add(point.key)

    def __hash__(self) -> int:  # of what can be hashed, unlike the mappings
        return hash(self.points)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Load a profile from a file that `save` wrote, or from the `bank`, as in "bank:dgx_h100_8".

        Raises FileError (a one-line ValueError that names the file and the place in it) if the file is not a profile or
        is damaged; ValueError if the bank has no such name; OSError if the file cannot be opened.
        """
        machine = published(path)
        if machine is not None:
            return msgspec.json.decode(machine, type=cls)
        return read_json(path, cls, strict=False)  # some have 0 and 1 in place of false and true

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON, atomically. Raises OSError if that fails."""
        return write_json(path, self)

    def add(self, *points: Point) -> Profile:
        """Return a profile with these points added. A point with the same key as another replaces it."""
        by_key = {of_type("point", point, Point).key: point for point in (*self.points, *points)}
        return Profile(self.provenance, self.protocol, tuple(by_key.values()))

    def select(self, what: str | None = None, num_bytes: int | None = None, **options: Any) -> tuple[Point, ...]:
        """Return the points that match all arguments, in their order."""
        selected = []
        for point in self.points:
            if what is not None and point.what != what:
                continue
            if num_bytes is not None and point.num_bytes != num_bytes:
                continue
            if _has(point, options):
                selected.append(point)
        return tuple(selected)

    def native_points(self, collective: str) -> dict[int, list[Point]]:
        """Return all points of the backend's own collective, in ascending order of size.

        The points of a size are in place, out of place, or by pairs.
        """
        by_size: dict[int, list[Point]] = {}
        for point in self.select(collective, algorithm=NATIVE):
            by_size.setdefault(point.num_bytes, []).append(point)
        return dict(sorted(by_size.items()))

    @cached_property
    def native(self) -> Mapping[str, Mapping[int, Point]]:
        """The points of the backend's own collectives by collective and size: one each, in place if there is one.

        Pairs of a fleet, each of which has a point of every size, and points of 0 bytes, which have no rate, are left
        out.
        """
        by_collective: dict[str, dict[int, Point]] = {}
        # Of two points of a size, the later one replaces the other.
        in_place_last = sorted(self.select(algorithm=NATIVE), key=lambda point: bool(point.options.get("in_place")))
        for point in in_place_last:
            is_of_a_pair = "src" in point.options
            if point.num_bytes and not is_of_a_pair:
                by_collective.setdefault(point.what, {})[point.num_bytes] = point
        return {collective: dict(sorted(by_size.items())) for collective, by_size in by_collective.items()}

    def native_s(self, collective: str) -> dict[int, float]:
        """Return the median time in seconds of each size in `native`, or an empty dict if the collective is missing."""
        return {size: point.median_s for size, point in self.native.get(collective, {}).items()}

    def __str__(self) -> str:
        """A few lines that describe the machine and how it was measured."""
        about = self.provenance
        source = about.get("source", {})
        origin = [source[name] for name in ("repository", "path", "date", "licence") if name in source]
        versions = [f"{name} {about[name]}" for name in ("rankscope", "torch", "python") if name in about]
        lines = [
            f"{about['name']}: {self._ranks_words()}",
            self._machine_words(),
            f"from {', '.join(origin)}" if origin else "",
            notes_of(source),
            about.get("environment"),
            ", ".join([about.get("date", "date not stated"), *versions]),
            "; ".join([count_of(len(self.points), "point"), *self._protocol_words()]),
        ]
        return "\n".join(filter(None, lines))

    def _ranks_words(self) -> str:
        nodes = f"on {count_of(self.num_nodes, 'node')}" if self.num_nodes else "(nodes not stated)"
        words = [f"{count_of(self.num_ranks, 'rank')} {nodes}", self.backend]
        for name in ("device", "network"):
            if self.provenance.get(name):
                words.append(self.provenance[name])
        return ", ".join(words)

    def _machine_words(self) -> str:
        about = self.provenance
        words = [about.get("cpu")]
        if "num_cores" in about:
            words.append(count_of(about["num_cores"], "core"))
        if "memory_bytes" in about:
            words.append(bytes_words(about["memory_bytes"]))
        gpus = Counter(gpu["name"] for gpu in about.get("gpus", ()) if "name" in gpu)
        words += [f"{count} × {name}" for name, count in gpus.items()]
        words.append(about.get("system"))
        return ", ".join(filter(None, words))

    def _protocol_words(self) -> list[str]:
        protocol = self.protocol
        words = [protocol[name] for name in ("dtype", "statistic") if name in protocol]
        if "warm_up" in protocol and "iterations" in protocol:
            words.insert(0, f"{protocol['warm_up']} + {protocol['iterations']} iterations")
        return words

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def num_nodes(self) -> int | None:
        """The number of nodes; None if the source of the profile does not state it."""
        ranks = self.provenance.get("ranks_per_node", ())
        return int(self.provenance.get("num_nodes", len(ranks))) or None

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """The number of ranks on each node. Raises ValueError if the profile does not state its nodes."""
        if "ranks_per_node" in self.provenance:
            return tuple(self.provenance["ranks_per_node"])
        if self.num_nodes == self.num_ranks:
            return (1,) * self.num_ranks
        if self.num_nodes == 1:
            return (self.num_ranks,)
        raise ValueError(f"profile {self.provenance['name']!r} does not state its nodes")

    @property
    def backend(self) -> str:
        return str(self.provenance["backend"])

    def link(self, where: str = "inter", how: str = "together") -> LinkFit:
        """Return the fit of messages between nodes ("inter") or within a node ("intra").

        `how` is "together" (all ranks send at once) or "ping_pong". Raises ValueError if such messages were not
        measured or were measured at too few sizes.
        """
        one_of("where", where, LINKS)
        one_of("how", how, PATTERNS)
        if (where, how) not in self._fits:
            points = self.select(how, link=where)
            if not points:
                raise ValueError(f"this profile has no {how} points of link {where!r}")
            try:
                fit = fit_link([point.num_bytes for point in points], [point.used_s for point in points])
            except ValueError as error:
                raise ValueError(f"{how} points of link {where!r}: {error}") from error
            self._fits[where, how] = fit
        return self._fits[where, how]

    @cached_property
    def _fits(self) -> dict[tuple[str, str], LinkFit]:
        """What `link` has fitted so far, by its arguments."""
        return {}

    def best_link(self, where: str) -> LinkFit:
        """Return the best available fit of a link: with all ranks at once, else ping-pong, else that of the other link.

        Raises ValueError if no link was measured at enough sizes.
        """
        one_of("where", where, LINKS)
        other = "intra" if where == "inter" else "inter"
        measured = []  # in the order of preference
        for link in (where, other):
            for how in PATTERNS:
                if self.select(how, link=link):
                    measured.append((link, how))
        if not measured:
            raise ValueError(
                "this profile has no link: it contains neither together nor ping_pong points, which `rankscope "
                "profile` measures"
            )
        for link, how in measured:
            with suppress(ValueError):  # at too few sizes
                return self.link(link, how)
        return self.link(*measured[0])  # raises the error of the preferred link

    @cached_property
    def gamma_s_per_byte(self) -> float:
        """The seconds per byte of a sum, fitted to the "add" points; 0 if there are none."""
        points = self.select("add")
        if not points:
            return 0.0
        return slope_s_per_byte([point.num_bytes for point in points], [point.used_s for point in points])

    def cluster(self, num_ranks: int | None = None) -> Cluster:
        """Return a `Cluster` with the profile's nodes and ranks, the links of `best_link`, and `gamma_s_per_byte`.

        `num_ranks` changes the number of nodes or, if there is one node, the number of ranks on it. If it is smaller
        than the number of ranks on a node, all of them are on one node. Raises ValueError if no link was measured, if
        the profile does not state its nodes or they have different numbers of ranks, if `num_ranks` is larger than a
        node and does not fill its nodes, or if it exceeds `MOST_RANKS`.
        """
        ranks = list(self.ranks_per_node)
        if len(set(ranks)) != 1:
            raise ValueError(f"ranks_per_node must be the same on all nodes of a cluster, got {ranks}")
        num_ranks = whole("num_ranks", self.num_ranks if num_ranks is None else num_ranks, 1, MOST_RANKS)
        is_one_node = len(ranks) == 1
        ranks_per_node = num_ranks if is_one_node else min(num_ranks, ranks[0])
        if num_ranks % ranks_per_node:
            raise ValueError(f"num_ranks must be a multiple of the {ranks[0]} ranks on a node, got {num_ranks}")
        intra = self.best_link("intra").link
        inter = self.best_link("inter").link
        return Cluster(num_ranks // ranks_per_node, ranks_per_node, intra, inter, self.gamma_s_per_byte)

    def predict(
        self,
        collective: str | Point,
        algorithm: str | None = None,
        num_bytes: int | None = None,
        num_ranks: int | None = None,
        detail: str = "messages",
        **options: Any,
    ) -> Timeline:
        """Predict the timeline of `execute` with this algorithm. Each message takes the time from its link's fit.

        To compare with a measurement, write ``profile.predict(point)``: a measured point supplies its collective,
        algorithm, bytes and builder `options`. `num_ranks` is as for `cluster`, `detail` as for `simulate`, which
        follows the executor here.

        Raises ValueError if a name is unknown, if a point has no algorithm of ALGORITHMS, if the builder rejects the
        options, or if `cluster` has no links or rejects `num_ranks`.
        """
        if isinstance(collective, Point):
            if algorithm is not None or num_bytes is not None or options:
                raise ValueError("a point has its own algorithm, bytes and options: add only num_ranks and detail")
            point = collective
            collective = point.what
            algorithm = str(point.options.get("algorithm"))  # "None", if it has none, is refused below
            num_bytes = point.num_bytes
            options = point.builder_options
        one_of("collective", collective, tuple(ALGORITHMS))
        algorithm = one_of(f"algorithm of {collective}", algorithm, tuple(ALGORITHMS[collective]))
        num_bytes = whole("num_bytes", num_bytes, 0)
        cluster = self.cluster(num_ranks)
        schedule = build(collective, algorithm, cluster.num_ranks, **options)
        # The simulation asks again and again for the same few sizes.
        intra_at = cache(self.best_link("intra").at)
        inter_at = cache(self.best_link("inter").at)

        def link_at(src: int, dst: int, message_bytes: float) -> Link:
            if src // cluster.gpus_per_node == dst // cluster.gpus_per_node:
                return intra_at(message_bytes)
            return inter_at(message_bytes)

        return simulate(schedule, num_bytes, cluster, detail, executor=True, link_at=link_at)

    def curve(self, collective: str, in_place: bool | None = None, **options: Any) -> Curve:
        """Return the curve through the measured times of a collective, copy or message.

        `in_place` selects points, by default those in place if there are any. `options` are those of a point:
        ``algorithm`` of a collective ("native", the backend's own, by default), ``direction`` and ``method`` of
        "transfer" (``pieces`` is 1 and ``both`` is False by default), ``link`` of "together" and "ping_pong".

        Raises ValueError if there are no such points, if they were measured in several ways and `options` do not select
        one, or if they were measured at too few sizes; see `Curve`.

        >>> provenance = dict(name="a", backend="nccl", num_ranks=8)
        >>> sizes, options = [2**power for power in range(10, 20)], {"algorithm": "native"}
        >>> points = [Point("allreduce", size, [1e-5 + size / 1e10], [True], options) for size in sizes]
        >>> print(f"{Profile(provenance, {}, points).predicted_s('allreduce', 100_000) * 1e6:.1f} µs")
        20.0 µs
        """
        one_of("collective", collective, WHAT)
        wanted: dict[str, Any] = {}
        if collective in COLLECTIVES:
            wanted["algorithm"] = NATIVE
        elif collective == "transfer":
            wanted |= {"pieces": 1, "both": False}
        wanted |= options
        if in_place is not None:
            wanted["in_place"] = in_place
        key = collective, tuple(sorted(wanted.items()))
        if key not in self._curves:
            named = ", ".join(f"{name}={value}" for name, value in wanted.items())
            points = self._points_of_a_curve(collective, wanted, named)
            try:
                self._curves[key] = Curve({point.num_bytes: point.median_s for point in points})
            except ValueError as error:
                raise ValueError(f"{collective} ({named}): {error}") from error
        return self._curves[key]

    def _points_of_a_curve(self, what: str, wanted: Mapping[str, Any], named: str) -> tuple[Point, ...]:
        """Return the points with the wanted options, one for each size. Messages call the wanted options `named`.

        If "in_place" is not among the wanted options, return only the points in place, if there are any.

        Raises ValueError if there are no points, or if they differ in an option, so that a size may have several.
        """
        points = self.select(what, **wanted)
        if "in_place" not in wanted:
            in_place = self.select(what, **wanted, in_place=True)
            points = in_place or points
        if not points:
            raise ValueError(f"this profile has no points of {what} ({named})")
        first_options = set(points[0].options.items())
        differing = set()
        for point in points:
            only_one_has = first_options ^ set(point.options.items())  # names with values
            differing |= {name for name, _ in only_one_has}
        if differing:
            names = " and ".join(sorted(differing))
            raise ValueError(f"this profile has points of {what} ({named}) with several {names}; select one")
        return points

    @cached_property
    def _curves(self) -> dict[tuple[Any, ...], Curve]:
        """What `curve` has made so far, by the collective and the wanted options."""
        return {}

    def predicted_s(self, collective: str, num_bytes: float, in_place: bool | None = None, **options: Any) -> float:
        """Return the time of `num_bytes` in seconds, interpolated by `curve`, whose arguments and errors apply."""
        return self.curve(collective, in_place, **options).seconds(num_bytes)

    def cost(self, num_ranks: int | None = None) -> CostTable:
        """Return a function from bytes to seconds, the time of one allreduce without other traffic.

        It joins the measured medians of the backend's own allreduce by straight lines. If `num_ranks` differs from the
        profile's, or if that allreduce was measured at fewer than two sizes, it joins the times that `predict` gives
        for a ring from 1 KiB to 1 GiB. Raises ValueError if these cannot be predicted.
        """
        ranks = self.num_ranks if num_ranks is None else whole("num_ranks", num_ranks, 1)
        if ranks == self.num_ranks:
            measured_s = self._fastest_allreduce_s
            if len(measured_s) > 1:
                return CostTable(tuple(measured_s), tuple(measured_s.values()))
        seconds = (self.predict("allreduce", "ring", size, ranks).makespan_s for size in _PREDICTED_BYTES)
        return CostTable(_PREDICTED_BYTES, tuple(seconds))

    def network(self, name: str) -> Network:
        """Return the profile's network for explorers, under a name, with the profile's ranks and `cost`.

        Raises ValueError if the backend's own allreduce was measured at fewer than two sizes.
        """
        measured_s = self._fastest_allreduce_s
        if len(measured_s) < 2:
            raise ValueError(
                f"profile {self.provenance['name']!r} must have the backend's own allreduce at two sizes or more"
            )
        backend = {"gloo": "Gloo", "mpi": "MPI", "nccl": "NCCL"}.get(self.backend, self.backend)
        lines = [f"network: {self.provenance['name']}, {count_of(self.num_ranks, 'rank')}, measured with {backend}"]
        source = self.provenance.get("source", {})
        origin = origin_of(source)
        if origin:
            lines.append(f"source: {'; '.join(origin)}")
        return Network(
            name,
            label=f"{name} ({count_of(self.num_ranks, 'rank')})",
            cost_of=self.cost,
            num_ranks=self.num_ranks,
            most_bytes=float(max(measured_s)),
            about=tuple([one_line(line) for line in lines]),
        )

    @cached_property
    def _fastest_allreduce_s(self) -> Mapping[int, float]:
        """The median seconds of the backend's own allreduce by size, the faster one of in place and out of place."""
        points = self.native_points("allreduce")
        return {size: min(point.median_s for point in at_size) for size, at_size in points.items()}

    @cached_property
    def model_s(self) -> Mapping[PointKey, float]:
        """The predicted seconds of each point, by its key; no entry for points that cannot be predicted."""
        seconds = {}
        for point in self.points:
            predicted_s = self.point_s(point)
            if predicted_s is not None:
                seconds[point.key] = predicted_s
        return seconds

    def point_s(self, point: Point) -> float | None:
        """Return the predicted time of a point of this profile in seconds, or None if it cannot be predicted.

        Collectives with an algorithm of ALGORITHMS are predicted from the links, messages from the fit of their kind.
        """
        name = point.options.get("algorithm")
        try:
            if point.what in PATTERNS:
                return self.link(str(point.options.get("link")), point.what).seconds(point.num_bytes)
            if name in ALGORITHMS.get(point.what, {}):
                key = (point.what, str(name), point.num_bytes, tuple(sorted(point.builder_options.items())))
                if key not in self._makespans_s:
                    timeline = self.predict(point, detail="ranks")  # only the end counts, and no message is drawn
                    self._makespans_s[key] = timeline.makespan_s
                return self._makespans_s[key]
        except ValueError:  # no such link, too few sizes, an algorithm that does not exist for so many ranks
            pass
        return None

    @cached_property
    def _makespans_s(self) -> dict[tuple[Any, ...], float]:
        """What `point_s` has predicted so far; points in place and out of place share an entry."""
        return {}


def compare(before: Profile, after: Profile) -> pd.DataFrame:
    """Return a row for each point of either profile: those of `before` first, then those only in `after`.

    `ratio` is the time in `after` divided by that in `before`. `has_spread` says that both have at least `LEAST_CLEAN`
    iterations: without them their noise is not known, so nobody can tell whether they differ. `beyond_noise` says that
    they have them and that their interquartile ranges do not overlap. `only_in` is "before" or "after" for a point that
    one profile lacks (its ratio is nan), else "". Raises ValueError if an argument is not a Profile.
    """
    import pandas as pd

    old = {point.key: point for point in of_type("before", before, Profile).points}
    new = {point.key: point for point in of_type("after", after, Profile).points}
    keys = dict.fromkeys([*old, *new])  # each once
    rows = [_ComparedPoint(old.get(key), new.get(key)) for key in keys]
    frame = pd.DataFrame(_operations([row.either for row in rows]))
    frame["before_s"] = [row.before.median_s if row.before else math.nan for row in rows]
    frame["after_s"] = [row.after.median_s if row.after else math.nan for row in rows]
    frame["ratio"] = frame.after_s / frame.before_s
    frame["has_spread"] = [row.has_spread for row in rows]
    frame["beyond_noise"] = [row.is_beyond_noise for row in rows]
    frame["only_in"] = [row.only_in for row in rows]
    return frame


class _ComparedPoint(NamedTuple):
    """The points with the same key of two profiles; one of them may be missing."""

    before: Point | None
    after: Point | None

    @property
    def either(self) -> Point:
        point = self.before or self.after
        assert point is not None
        return point

    @property
    def has_spread(self) -> bool:
        return self.before is not None and self.after is not None and self.before.has_spread and self.after.has_spread

    @property
    def is_beyond_noise(self) -> bool:
        if self.before is None or self.after is None or not self.has_spread:
            return False
        return self.before.differs(self.after)

    @property
    def only_in(self) -> str:
        if self.after is None:
            return "before"
        return "after" if self.before is None else ""


def _has(point: Point, options: Mapping[str, Any]) -> bool:
    """Return whether a point has all of these options."""
    return all(name in point.options and point.options[name] == value for name, value in options.items())


def _operations(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Return the columns of a table that say what was measured."""
    columns: dict[str, list[Any]] = {"what": [point.what for point in points]}
    for name in NAMED:
        columns[name] = [point.options.get(name) for point in points]
    columns["options"] = [point.builder_words for point in points]
    columns["num_bytes"] = [point.num_bytes for point in points]
    return columns
