"""`Profile`: what a machine was measured to do, and what the model makes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cluster import Cluster, Link
from ..collectives import build, simulate_executor
from ..values.checks import of_type, one_of, whole
from ..values.frozen import ReadOnly
from .fit import LinkFit, fit_link, slope_s_per_byte
from .points import Key, Point
from .profile_file import ProfileError, check_protocol, check_provenance, read, write

if TYPE_CHECKING:
    import pandas as pd

    from ..timeline import Timeline

WHERE, HOW = ("inter", "intra"), ("together", "ping_pong")


@dataclass(frozen=True)
class Profile:
    """Where, with what and how a machine was measured (`provenance`, `protocol`), and the points, no key twice.

    `PROVENANCE` and `PROTOCOL` say what the two hold. Raises ProfileError, a ValueError, for anything else.
    """

    provenance: Mapping[str, Any] = field(hash=False)
    protocol: Mapping[str, Any] = field(hash=False)
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "provenance", ReadOnly(check_provenance(self.provenance)))
        object.__setattr__(self, "protocol", ReadOnly(check_protocol(self.protocol)))
        if not isinstance(self.points, list | tuple):
            raise ProfileError(f"points must be a list, got {self.points!r}")
        object.__setattr__(self, "points", tuple(self.points))
        known: set[Key] = set()
        for place, point in enumerate(self.points):
            of_type(f"points[{place}]", point, Point)
            if point.key in known:
                raise ProfileError(f"points[{place}] must be another than those before, got {_words(point)} again")
            known.add(point.key)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that `save` wrote, the same again.

        Raises ProfileError, in one line that names the file and the place in it, for any other file and for one that
        was damaged, cut short, changed or written by a newer version; OSError where it cannot be opened.
        """
        return read(path, cls)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON, a point a line, whole or not at all. Raises OSError where that cannot be."""
        return write(self, path)

    def add(self, point: Point) -> Profile:
        """Return the profile with one more point, or with it in the place of the one that has its key."""
        of_type("point", point, Point)
        places = {one.key: place for place, one in enumerate(self.points)}
        place = places.get(point.key, len(self.points))
        return Profile(self.provenance, self.protocol, (*self.points[:place], point, *self.points[place + 1 :]))

    def select(self, what: str | None = None, num_bytes: int | None = None, **options: Any) -> tuple[Point, ...]:
        """Return the points that fit everything asked for, in their order."""
        return tuple(
            point
            for point in self.points
            if what in (None, point.what)
            and num_bytes in (None, point.num_bytes)
            and all(name in point.options and point.options[name] == value for name, value in options.items())
        )

    @property
    def num_ranks(self) -> int:
        return int(self.provenance["num_ranks"])

    @property
    def num_nodes(self) -> int:
        return int(self.provenance["num_nodes"])

    @property
    def backend(self) -> str:
        return str(self.provenance["backend"])

    def link(self, where: str = "inter", how: str = "together") -> LinkFit:
        """Return the fit of the messages between nodes ("inter") or within one ("intra").

        `how` is "together", all ranks sending at once, or "ping_pong". Raises ValueError where no such messages were
        measured, and where they were at too few sizes.
        """
        one_of("where", where, WHERE)
        one_of("how", how, HOW)
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
        return {}

    @cached_property
    def gamma_s_per_byte(self) -> float:
        """Seconds that adding up takes a byte, from the "add" points; 0 where there are none."""
        points = self.select("add")
        return slope_s_per_byte([p.num_bytes for p in points], [p.used_s for p in points]) if points else 0.0

    def best_link(self, where: str) -> LinkFit:
        """Return the fit that tells most of a link: of all ranks at once, else of ping-pong, else the other link's.

        Raises ValueError where no link was measured, or none at enough sizes.
        """
        one_of("where", where, WHERE)
        if where not in self._best:
            self._best[where] = self._chosen(where)
        return self._best[where]

    @cached_property
    def _best(self) -> dict[str, LinkFit]:
        return {}

    def _chosen(self, where: str) -> LinkFit:
        places = [(place, how) for place in sorted(WHERE, key=where.__ne__) for how in HOW]
        problems = []
        for place, how in places:
            if self.select(how, link=place):
                try:
                    return self.link(place, how)
                except ValueError as error:  # at too few sizes
                    problems.append(error)
        if problems:
            raise problems[0]
        raise ValueError("this profile has no link: neither together nor ping_pong points were measured")

    def cluster(self, num_ranks: int | None = None) -> Cluster:
        """Return the model's cluster: these nodes and ranks, links as `best_link` tells, and `gamma_s_per_byte`.

        With another number of ranks it has more or fewer nodes like these, or, of one node, more or fewer ranks on it.
        Raises ValueError where no link was measured, where nodes have different numbers of ranks, and for a number of
        ranks that does not fill its nodes.
        """
        ranks = list(self.provenance["ranks_per_node"])
        if len(set(ranks)) != 1:
            raise ValueError(f"ranks_per_node must be the same on all nodes to make a cluster of them, got {ranks}")
        number = self.num_ranks if num_ranks is None else whole("num_ranks", num_ranks, 1)
        each = number if self.num_nodes == 1 else min(number, ranks[0])
        if number % each:
            raise ValueError(f"num_ranks must be a multiple of the {ranks[0]} ranks on a node, got {number}")
        intra, inter = self.best_link("intra").link, self.best_link("inter").link
        return Cluster(number // each, each, intra, inter, self.gamma_s_per_byte)

    def predict(
        self, collective: str, algorithm: str, num_bytes: int, num_ranks: int | None = None, **options: Any
    ) -> Timeline:
        """Return what `execute` would do with this algorithm on the cluster, each message by its piece of the fit.

        `options` are the builder's, `num_ranks` is as for `cluster`.

        Raises ValueError for an unknown name, for what the builder refuses, and where `cluster` does.
        """
        cluster = self.cluster(num_ranks)
        schedule = build(collective, algorithm, cluster.num_ranks, **options)
        intra_at, inter_at = (cache(self.best_link(where).at) for where in ("intra", "inter"))

        def link_at(src: int, dst: int, message_bytes: float) -> Link:
            same = src // cluster.gpus_per_node == dst // cluster.gpus_per_node
            return (intra_at if same else inter_at)(message_bytes)

        return simulate_executor(schedule, num_bytes, cluster, link_at)

    @cached_property
    def predicted_s(self) -> Mapping[Key, float]:
        """The seconds that the model has for each point; see `rows.predictions`."""
        from .rows import predictions

        return ReadOnly(predictions(self))

    def to_frame(self, predicted: bool = False) -> pd.DataFrame:
        """Return a row a point: what it is of, its times and rates and, where asked for, what the model predicts.

        Not a number stands where busbw has no meaning, or nothing can be predicted.
        """
        from .rows import to_frame

        return to_frame(self, predicted)


def _words(point: Point) -> str:
    options = ", ".join(f"{name}={value}" for name, value in point.options.items())
    return f"{point.what} of {point.num_bytes} bytes ({options})"
