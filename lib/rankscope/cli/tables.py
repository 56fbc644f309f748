"""What `rankscope show` and `import` print: the verdict first, then the machine, then tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..box import Profile, verdict
from ..box.nccl.topology import Topology
from ..box.points import Point
from ..common.units import bytes_words, cell_words, rate_words
from .output import marked, table_of

_FEW = 4  # rows of a table, unless all are asked for

BySize = dict[int, dict[str, Point]]  # points by size (ascending) and algorithm


def overview(profile: Profile, everything: bool = False, topology: Topology | None = None) -> Iterator[RenderableType]:
    """Yield what a profile says: the verdict, what was measured and on what, and tables of a few sizes, or of all."""
    yield marked(("·", sentence) for sentence in verdict(profile, topology))
    yield Text(str(profile), "bold")
    for collective, by_size in groups(profile).items():
        every = 1 if everything else math.ceil(len(by_size) / _FEW)
        shown = sorted(list(by_size)[::-every])  # the largest size is always among them
        yield _sizes_table(profile, collective, {size: by_size[size] for size in shown})
    for where, fit in profile.links.items() if everything else ():
        yield Text(f"link {where}: {fit}")
    yield from _copies_tables(profile)
    if not everything:
        yield Text("--all shows every size and the links; --help explains the columns.", "dim")


def groups(profile: Profile) -> dict[str, BySize]:
    """Return the points of each collective, except those of pairs of nodes.

    Of several points of an algorithm at a size, the fastest one in place counts, or the fastest one if none is.
    """
    points = [point for point in profile.points if "algorithm" in point.options and "src" not in point.options]
    collectives: dict[str, BySize] = {point.what: {} for point in points}
    # Of the same algorithm, later ones replace earlier ones.
    for point in sorted(points, key=lambda one: (one.num_bytes, bool(one.options.get("in_place")), -one.median_s)):
        by_algorithm = collectives[point.what].setdefault(point.num_bytes, {})
        by_algorithm[str(point.options["algorithm"])] = point
    return collectives


def _sizes_table(profile: Profile, collective: str, by_size: BySize) -> Table:
    """Return the fastest algorithm at each size, and whether it is clearly the fastest."""
    rows = []
    for size, points in by_size.items():
        fastest = min(points, key=lambda algorithm: points[algorithm].median_s)
        point = points[fastest]
        is_clear = all(point.differs(other) for other in points.values() if other is not point)
        named = fastest if is_clear and not profile.disturbed else "unclear"
        cells = {"size": bytes_words(size), "fastest": named, "time": cell_words(point.median_s)}
        rate = point.busbw_bytes_per_s(profile.num_ranks)
        if rate > 0:  # 0 on one rank, nan where it has no meaning
            cells["busbw"] = rate_words(rate)
        if len(point.seconds) > 1:
            cells["spread"] = f"{point.spread:.0%}"
        rows.append(cells)
    columns = dict.fromkeys(name for cells in rows for name in cells)  # each once
    table = table_of(collective, *columns)
    for cells in rows:
        table.add_row(*[cells.get(name, "") for name in columns])
    return table


def _copies_tables(profile: Profile) -> Iterator[Table]:
    """Yield the rate of each kind of copy at its largest size, of the last GPU that was measured, if there are any."""
    table = table_of("copies", "what", "size", "rate")
    kinds = {}
    for point in sorted(profile.select("transfer"), key=lambda point: point.num_bytes):
        both = ", both ways at once" if point.options.get("both") else ""
        kinds[f"{point.options.get('direction', '')} {point.options.get('method', '')}{both}"] = point
    for kind, point in kinds.items():
        table.add_row(kind, bytes_words(point.num_bytes), rate_words(point.algbw_bytes_per_s))
    if kinds:
        yield table


def imported(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Yield for each table of logs: its verdict, what was read, and what was left out or inferred."""
    for profile in profiles:
        sizes = [point.num_bytes for point in profile.points]
        what = ", ".join(dict.fromkeys(point.what for point in profile.points))
        yield marked(("·", sentence) for sentence in verdict(profile))
        yield Text(f"{profile}; {what} of {bytes_words(min(sizes))} to {bytes_words(max(sizes))}")
        yield from _copies_tables(profile)
        yield Text(profile.provenance["source"].get("notes", ""), "yellow")
