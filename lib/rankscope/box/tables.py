"""The output of the command line: profiles as tables and sentences."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..cli.output import heading, marked, table_of
from ..collectives import ALGORITHMS
from ..common.checks import count_of, one_of
from ..common.samples import LEAST_CLEAN
from ..common.units import bytes_words, cell_words, rate_words, three_digits
from ..timeline import Timeline
from . import Profile, verdict
from .expected import LARGE_BYTES, LOW, Beside, beside, is_like
from .link_facts import peer_rates
from .logs.log import WARNING
from .machines import PREFIX
from .measuring.plan import ITEM_BYTES, NUM_PIECES, builder_options, num_elements
from .profile import LINKS, NATIVE, PATTERNS, Point, busbw_factor, compare
from .sentences import MeasuredCollective, bound_s, groups

if TYPE_CHECKING:
    from pandas import DataFrame

_FASTEST = "bold green"
_CLEAR = 0.005  # resolution of a ratio printed with two decimals
_LEAST_SHOWN = 0.01  # of a link's rate: below it latency decides, and rows of 0 % say nothing


def overview(profile: Profile) -> Iterator[RenderableType]:
    """Yield the profile's origin, its links, the fastest algorithm at each size, its copies, and the verdict."""
    first, *lines = str(profile).splitlines()
    yield Text(first, "bold")
    yield from map(Text, lines)
    yield from _links(profile)
    box = beside(profile)
    for group in groups(profile):
        if not group.is_native:
            yield _by_size(profile, group)
        if group.is_native or any(row.collective == group.collective for row in box.rows):
            yield _beside(box, group)
    yield from copies_tables(profile)
    yield heading("Verdict")
    yield marked(("·", sentence) for sentence in verdict(profile) or ["No rule found a problem."])


def at_sizes(profile: Profile, sizes: Sequence[int]) -> Iterator[RenderableType]:
    """Yield a table for each collective and size: every algorithm, the fastest first, measured and predicted.

    For a size that was not measured it has the native time, interpolated by its curve.
    """
    for size in sizes:
        found = [(group, group.by_size[size]) for group in groups(profile) if size in group.by_size]
        between = None if found else _between_sizes(profile, size)
        if between and between.row_count:
            yield between
        elif not found:
            known = ", ".join(dict.fromkeys(bytes_words(size) for group in groups(profile) for size in group.by_size))
            raise ValueError(f"--num-bytes must be a size that was measured ({known or 'none was'}), got {size}")
        for group, points in found:
            has_several = any(len(point.seconds) > 1 for point in points.values())
            spread, clean = (["IQR", "p99"], ["clean"]) if has_several else ([], [])
            columns = ["algorithm", middle_of(profile), *spread, "busbw", "model", "off", *clean]
            table = table_of(f"{group.collective}, {bytes_words(size)}", *columns)
            for place, point in enumerate(sorted(points.values(), key=lambda point: point.median_s)):
                cells = [_named(point), cell_words(point.median_s)]
                if has_several:
                    cells += [cell_words(point.iqr_s), cell_words(point.p99_s)]
                cells.append(_busbw(profile, point))
                guess = profile.point_s(point)
                cells += ["", ""] if guess is None else [cell_words(guess), f"{guess / point.median_s - 1:+.0%}"]
                if has_several:
                    cells.append(f"{point.num_clean}/{len(point.seconds)}")
                table.add_row(*cells, style=_FASTEST if place == 0 else None)
            yield table


def middle_of(profile: Profile) -> str:
    """Return what the time of a point is: the mean that another program printed, or the median of its iterations."""
    is_mean = profile.protocol.get("statistic") == "mean"
    has_several = any(len(point.seconds) > 1 for point in profile.points)
    return "mean" if is_mean and not has_several else "median"


def _between_sizes(profile: Profile, size: int) -> Table:
    table = table_of(f"{bytes_words(size)}, by curves", "", "native", "from", "to", "busbw")
    table.caption = "through the measured sizes; from, to: the 90 % interval"
    for group in groups(profile):
        with contextlib.suppress(ValueError):  # not native, or at too few sizes
            curve = profile.curve(group.collective)
            seconds = curve.seconds(size)
            busbw = size / seconds * busbw_factor(group.collective, profile.num_ranks)
            times = map(cell_words, (seconds, *curve.interval_s(size)))
            table.add_row(group.collective, *times, rate_words(busbw) if busbw == busbw else "")
    return table


def machines(names: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the published machines: the name that a command takes, and the hardware."""
    table = table_of(count_of(len(names), "published machine"), "profile", "hardware")
    for name, hardware in names.items():
        table.add_row(f"{PREFIX}{name}", hardware)
    yield table


def imported(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Yield a line per profile read from a log: its contents and size; then expected, got, and why."""
    for profile in profiles:
        first, *_ = str(profile).splitlines()
        source = profile.provenance["source"]
        sizes = [point.num_bytes for point in profile.points]
        printed = count_of(sum(len(point.seconds) for point in profile.points), "time")
        plain, has_warning, warning = source.get("notes", "").partition(WARNING)
        note = f" ({plain.removesuffix('; ')})" if plain else ""
        sizes_words = f"{bytes_words(min(sizes))} to {bytes_words(max(sizes))}"
        yield Text(f"{first}, {source['program']}: {printed}, {sizes_words}{note}")
        if has_warning:
            yield Text(f"{WARNING}{warning}", "yellow")
        yield from _why(beside(profile))


def predictions(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, sizes: Sequence[int]
) -> Iterator[RenderableType]:
    """Yield a table for each size: the algorithms' predicted times, the fastest first, and the measured times.

    If no algorithms are given, native is included, interpolated between measured sizes; if no link was measured, it is
    the only one. Raises ValueError for an unknown name, and if there is nothing to predict from.
    """
    one_of("--collective", collective, tuple(ALGORITHMS))
    for name in algorithms or ():
        one_of(f"--algorithm of {collective}", name, tuple(ALGORITHMS[collective]))
    measured = {group.collective: group.by_size for group in groups(profile)}.get(collective, {})
    curve, names = None, tuple(algorithms or ALGORITHMS[collective])
    with contextlib.suppress(ValueError):  # native was not measured, or at too few sizes
        curve = None if algorithms else profile.curve(collective)
    try:
        profile.cluster()  # raises what is missing, if anything
    except ValueError:
        if curve is None:
            raise
        names = ()
    for size in sizes:
        rounded = num_elements(collective, size, profile.num_ranks) * ITEM_BYTES
        rows = [(curve.seconds(rounded), NATIVE)] if curve else []
        for name in names:
            try:
                rows.append((predicted(profile, collective, name, rounded, "ranks").makespan_s, name))
            except ValueError:  # only algorithms that support this number of ranks
                if algorithms:
                    raise
        least_s = bound_s(profile, collective, rounded) if names else 0.0
        points = measured.get(rounded, {})
        least = f"; lower bound {cell_words(least_s)}" if least_s else ""
        title = f"{collective}, {bytes_words(rounded)}{least}"
        table = table_of(title, "algorithm", "predicted", "×bound", *(["measured", "off"] if points else []))
        if curve:
            low, high = map(cell_words, curve.interval_s(rounded))
            table.caption = f"native: from the curve through the measured sizes; 90 % interval {low} to {high}"
        for place, (seconds, name) in enumerate(sorted(rows)):
            point = points.get(name)
            off = "" if name == NATIVE or not point else f"{seconds / point.median_s - 1:+.0%}"
            cells = [cell_words(point.median_s), off] if point else []
            ratio = f"{seconds / least_s:.2f}" if least_s else ""
            table.add_row(name, cell_words(seconds), ratio, *cells, style=None if place else _FASTEST)
        yield table


def predicted(profile: Profile, collective: str, algorithm: str, num_bytes: int, detail: str = "messages") -> Timeline:
    """Return the prediction of `Profile.predict` for an algorithm with the builder options used for measuring."""
    one_of("--collective", collective, tuple(ALGORITHMS))
    one_of(f"--algorithm of {collective}", algorithm, tuple(ALGORITHMS[collective]))
    size = num_elements(collective, num_bytes, profile.num_ranks) * ITEM_BYTES
    options = builder_options(collective, algorithm, size, profile.ranks_per_node)
    return profile.predict(collective, algorithm, size, detail=detail, **options)


def comparison(before: Profile, after: Profile, everything: bool) -> Iterator[RenderableType]:
    """Yield the verdict; the points whose times differ by more than the noise, or all; and what explains them.

    Points without a spread are shown if their ratio is not 1.00, because they may differ.
    """
    frame = compare(before, after)
    both = frame[frame.only_in == ""]
    for letter, profile in (("A", before), ("B", after)):
        yield Text(f"{letter}: {profile.provenance['name']}, {profile.provenance.get('date', 'date not stated')}")
    yield ""
    yield from map(Text, _compared(both))
    for side, name in (("before", "A"), ("after", "B")):
        rows = frame[frame.only_in == side]
        kinds = ", ".join(dict.fromkeys(map(_what, rows.itertuples())))
        if len(rows):
            yield Text(f"Only in {name}: {count_of(len(rows), 'point')}, of {kinds}.")
    is_different = (both.ratio - 1).abs() >= _CLEAR
    chosen = both if everything else both[both.beyond_noise | (~both.has_spread & is_different)]
    if len(chosen):
        yield _both_times(chosen, middle_of(before), middle_of(after))
    for letter, profile, other in (("A", before, after), ("B", after, before)):
        like = is_like(profile, other)
        box = beside(profile, {"AB"[letter == "A"]: other}) if like else beside(profile)
        if any(finding.is_fault or letter == "A" for finding in box.findings):
            yield heading(f"{letter}: expected, got, why")
            if like and letter == "A":
                yield from (_beside(box, group) for group in groups(profile) if group.is_native)
            yield from _why(box)


def _compared(both: DataFrame) -> Iterator[str]:
    """Yield at how many points of both profiles B is faster and slower, and at how many that cannot be told."""
    judged, unknown = both[both.has_spread], both[~both.has_spread]
    faster = int((judged.beyond_noise & (judged.ratio < 1)).sum())
    slower = int((judged.beyond_noise & (judged.ratio > 1)).sum())
    if len(judged):
        within = len(judged) - faster - slower
        counts = f"B is faster at {faster or 'none'} and slower at {slower or 'none'}"
        noise = "within the noise, where the interquartile ranges overlap"
        is_are = "is" if within == 1 else "are"
        yield f"Of {count_of(len(judged), 'point')} in both profiles, {counts}; {within or 'none'} {is_are} {noise}."
    if len(unknown):
        points = f"{count_of(len(unknown), 'point')} in both profiles"
        have, their = ("has", "its") if len(unknown) == 1 else ("have", "their")
        few = f"{have} fewer than {LEAST_CLEAN} iterations in A or B, so {their} noise is not known"
        ends = dict.fromkeys([f"{unknown.ratio.min():.2f}", f"{unknown.ratio.max():.2f}"])
        cannot = f"`compare` cannot tell whether B differs there; B/A is {' to '.join(ends)}"
        yield f"{points} {few}: {cannot}. {LEAST_CLEAN} runs of each, imported together, would have a spread."
    if not len(both):
        yield "The profiles have no point in common."


def _both_times(chosen: DataFrame, middle: str, other: str) -> Table:
    title = f"{middle.capitalize()} times" if middle == other else f"Times: the {middle} in A, the {other} in B"
    table = table_of(title, "what", "size", "A", "B", "B/A", "")
    for row in chosen.itertuples():
        mark, style = "", None
        if not row.has_spread:
            mark = "?"
        elif row.beyond_noise:
            mark, style = ("slower", "red") if row.ratio > 1 else ("faster", "green")
        times = cell_words(row.before_s, row.after_s), cell_words(row.after_s, row.before_s)
        table.add_row(_what(row), bytes_words(row.num_bytes), *times, f"{row.ratio:.2f}", mark, style=style)
    if not chosen.has_spread.all():
        table.caption = "?: too few iterations to tell a difference from noise"
    return table


def _links(profile: Profile) -> Iterator[RenderableType]:
    lines = []
    for where in LINKS:
        for how in PATTERNS:
            if profile.select(how, link=where):
                try:
                    lines.append((f"{where}, {how}", str(profile.link(where, how))))
                except ValueError as error:
                    lines.append((f"{where}, {how}", str(error)))
    if profile.gamma_s_per_byte:
        lines.append(("adding", rate_words(1 / profile.gamma_s_per_byte)))
    if lines:
        yield heading("Links (with 95 % intervals)")
        yield marked(lines)


def _by_size(profile: Profile, group: MeasuredCollective) -> Table:
    columns = ("size", "fastest", middle_of(profile), "busbw", "native", "gain", "×bound", "clean")
    table = table_of(group.collective, *columns)
    table.caption = "gain: native's time / our time; ×bound: time / lower bound"
    for size, points in group.by_size.items():
        best, native = group.fastest(size), points.get(NATIVE)
        least_s = bound_s(profile, group.collective, size)
        ours = [point.median_s for name, point in points.items() if name != NATIVE]
        ratio = native.median_s / min(ours) if native and ours else math.nan
        style = "green" if ratio > 1 + _CLEAR else "red" if ratio < 1 - _CLEAR else ""
        table.add_row(
            bytes_words(size),
            _named(best),
            cell_words(best.median_s),
            _busbw(profile, best),
            cell_words(native.median_s) if native else "",
            Text(f"{ratio:.2f}", style) if ratio == ratio else "",
            f"{best.median_s / least_s:.2f}" if least_s else "",
            f"{best.num_clean}/{len(best.seconds)}",
        )
    return table


def _beside(box: Beside, group: MeasuredCollective) -> Table:
    """The native times and rates, and those of similar machines of the bank."""
    rows = {row.num_bytes: row for row in box.rows if row.collective == group.collective}
    wire, has_clean = box.wire_bytes_per_s, any(len(p.seconds) > 1 for p in box.profile.select(group.collective))
    columns = [*(["expected", "share"] if rows else []), *(["of link"] if wire else []), *(["clean"] * has_clean)]
    table = table_of(f"{group.collective}, {NATIVE}", "size", middle_of(box.profile), "got", *columns)
    notes = [f"expected: of {box.names}; share: of the slowest"] if rows else []
    if not rows:
        notes = [f"the bank has no machine like it{'' if box.gpu else ': its GPUs are not stated'}"]
    notes += [f"link: {rate_words(wire)} one way, empty below 1 %"] if wire else []
    table.caption = "; ".join([f"got: busbw; {notes[0]}", *notes[1:]] if notes else ["got: busbw"])
    for size, points in group.by_size.items():
        if NATIVE not in points:
            continue
        point, row = points[NATIVE], rows.get(size)
        cells = [bytes_words(size), cell_words(point.median_s), _busbw(box.profile, point)]
        cells += ([row.expected, f"{row.share:.0%}"] if row else ["", ""]) if rows else []
        if wire:
            of_link = point.busbw_bytes_per_s(box.profile.num_ranks) / wire
            cells.append(f"{of_link:.0%}" if of_link >= _LEAST_SHOWN else "")
        cells += [f"{point.num_clean}/{len(point.seconds)}"] if has_clean else []
        style = None if row is None or size < LARGE_BYTES or row.share >= LOW else "red"
        table.add_row(*cells, style=style)
    return table


def _why(box: Beside) -> Iterator[RenderableType]:
    if box.findings:
        yield marked(("·", str(finding)) for finding in box.findings)


def _named(point: Point) -> str:
    return str(point.options["algorithm"])


def _busbw(profile: Profile, point: Point) -> str:
    rate = point.busbw_bytes_per_s(profile.num_ranks)
    return rate_words(rate) if rate == rate else ""


def _what(row: Any) -> str:
    place = " out of place" if row.what == "allreduce" and row.in_place is False else ""
    words = [row.what, *(one for one in (row.algorithm, row.link) if isinstance(one, str)), row.options]
    return " ".join(filter(None, words)) + place


# ---- copies to and from a GPU

Columns = dict[str, tuple[Callable[[float], str], str, dict[str, Any]]]  # by name: in which words, and which points
_PLAIN = {"pieces": 1, "both": False}
_METHODS = {
    "pageable": "pageable",
    "pinned": "pinned",
    "non_blocking": "pinned_non_blocking",
    "on the fly": "pin_on_the_fly",
    "cached": "pin_on_the_fly_cached",
}
_PINNED = {"direction": "h2d", "method": "pinned_non_blocking", **_PLAIN}
_OTHERS: Columns = {
    "to GPU": (cell_words, "transfer", _PINNED),
    "both ways": (cell_words, "transfer", _PINNED | {"both": True}),
    "in pieces": (cell_words, "transfer", _PINNED | {"pieces": NUM_PIECES}),
    "on GPU": (cell_words, "transfer", {"direction": "d2d"}),
    "pin": (cell_words, "pin", {"cached": False}),
    "cached": (cell_words, "pin", {"cached": True}),
}


def copies_tables(profile: Profile) -> Iterator[Table]:
    """Yield the rates of copies by method and size, and other measurements of copies; nothing if there are none."""
    methods = "call: how long a non_blocking copy kept the host busy; on the fly: pinned for this copy"
    ways = f"from pinned memory; both ways at once; in {NUM_PIECES} pieces; pin: the host's time of pin_memory()"
    yield from _copies(profile, "copies to the GPU", _methods("h2d"), methods, direction="h2d")
    yield from _copies(profile, "copies to the host", _methods("d2h"), methods, direction="d2h")
    yield from _copies(profile, "copies in other ways", _OTHERS, ways)
    with contextlib.suppress(ValueError):  # no copies between GPUs
        yield _between_gpus(profile)


def _methods(direction: str) -> Columns:
    pinned = _PINNED | {"direction": direction}
    found: Columns = {name: (rate_words, "transfer", pinned | {"method": way}) for name, way in _METHODS.items()}
    return found | {"call": (cell_words, "transfer_host", pinned)}


def _copies(profile: Profile, title: str, columns: Columns, caption: str, **copied: Any) -> Iterator[Table]:
    """Yield a table by size, a column for each kind of copies; nothing where there are no copies at all."""
    sizes = sorted({point.num_bytes for point in profile.select("transfer", **copied)})
    table = table_of(title, "size", *columns)
    table.caption = caption
    for size in sizes:
        table.add_row(bytes_words(size), *(_median(profile, size, *column) for column in columns.values()))
    yield from [table] * bool(sizes)


def _between_gpus(profile: Profile) -> Table:
    size, rates = peer_rates(profile)
    gpus = sorted(set(chain.from_iterable(rates)))
    table = table_of(f"copies between GPUs, {bytes_words(size)} [GB/s]", "from", *map(str, gpus))
    for src in gpus:
        cells = [three_digits(rates[src, dst] / 1e9) if (src, dst) in rates else "" for dst in gpus]
        table.add_row(str(src), *cells)
    return table


def _median(
    profile: Profile, num_bytes: int, in_words: Callable[[float], str], what: str, options: Mapping[str, Any]
) -> str:
    """The median of the matching point, as time or rate; "" if there is none."""
    found = profile.select(what, num_bytes, **options)
    if not found:
        return ""
    return in_words(num_bytes / found[0].median_s if in_words is rate_words else found[0].median_s)
