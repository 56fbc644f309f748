"""The output of the command line: profiles as tables and sentences."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..cli.output import heading, marked, table_of
from ..common.units import bytes_words, cell_words, rate_words, three_digits
from ..common.words import count_of
from . import Profile, verdict
from .compare import compare
from .expected import LARGE_BYTES, LOW, PeerComparison, compare_with_peers, is_like
from .link_facts import peer_rates
from .logs import FAULT
from .measuring.plan import NUM_PIECES
from .points import LEAST_CLEAN, LINKS, NATIVE, PATTERNS, Point, busbw_factor
from .sentences import MeasuredCollective, bound_s, groups

if TYPE_CHECKING:
    from pandas import DataFrame

_FASTEST = "bold green"
_CLEAR = 0.005  # resolution of a ratio printed with two decimals
_LEAST_SHOWN = 0.01  # of a link's rate: below it latency decides, and rows of 0 % say nothing


def overview(profile: Profile) -> Iterator[RenderableType]:
    """Yield what a profile says, as tables and sentences.

    These are its origin, its links, the fastest algorithm at each size, the native times next to those of similar
    machines, its copies, and the verdict.
    """
    first, *lines = str(profile).splitlines()
    yield Text(first, "bold")
    yield from map(Text, lines)
    yield from _links(profile)
    comparison_with_peers = compare_with_peers(profile)
    collectives_with_peers = {row.collective for row in comparison_with_peers.rows}
    for group in groups(profile):
        if not group.is_native:
            yield _by_size(profile, group)
        # `_by_size` states the native times, too, but not those of similar machines.
        if group.is_native or group.collective in collectives_with_peers:
            yield _peer_table(comparison_with_peers, group)
    yield from copies_tables(profile)
    yield heading("Verdict")
    sentences = verdict(profile) or ["No rule found a problem."]
    yield marked(("·", sentence) for sentence in sentences)


def at_sizes(profile: Profile, sizes: Sequence[int]) -> Iterator[RenderableType]:
    """Yield a table for each collective and size: every algorithm, the fastest first, measured and predicted.

    For a size that was not measured it has the native time, interpolated by its curve. Raises ValueError if there is no
    such curve either.
    """
    measured = groups(profile)
    for size in sizes:
        at_size = [group for group in measured if size in group.by_size]
        if not at_size:
            interpolated = _between_sizes(profile, size)
            if not interpolated.row_count:
                known = dict.fromkeys(bytes_words(other) for group in measured for other in group.by_size)  # each once
                known_words = ", ".join(known) or "none was"
                raise ValueError(f"--num-bytes must be a size that was measured ({known_words}), got {size}")
            yield interpolated
        for group in at_size:
            yield _at_size(profile, group, size)


def _at_size(profile: Profile, group: MeasuredCollective, size: int) -> Table:
    """Return every algorithm at a size, the fastest first; with quartiles if there are several iterations.

    "off" is how far the model's prediction is from the measured time.
    """
    points = sorted(group.by_size[size].values(), key=lambda point: point.median_s)
    has_several = any(len(point.seconds) > 1 for point in points)
    columns = ["algorithm", middle_of(profile)]
    if has_several:
        columns += ["IQR", "p99"]
    columns += ["busbw", "model", "off"]
    if has_several:
        columns.append("clean")
    table = table_of(f"{group.collective}, {bytes_words(size)}", *columns)
    for position, point in enumerate(points):
        cells = [_named(point), cell_words(point.median_s)]
        if has_several:
            cells += [cell_words(point.iqr_s), cell_words(point.p99_s)]
        cells.append(_busbw(profile, point))
        predicted_s = profile.point_s(point)
        if predicted_s is None:
            cells += ["", ""]
        else:
            cells += [cell_words(predicted_s), f"{predicted_s / point.median_s - 1:+.0%}"]
        if has_several:
            cells.append(f"{point.num_clean}/{len(point.seconds)}")
        table.add_row(*cells, style=_FASTEST if position == 0 else None)
    return table


def middle_of(profile: Profile) -> str:
    """Return what the time of a point is: the mean that another program printed, or the median of its iterations.

    If several logs were merged, their means are a point's iterations, so its time is a median, too.
    """
    is_mean = profile.protocol.get("statistic") == "mean"
    has_several = any(len(point.seconds) > 1 for point in profile.points)
    return "mean" if is_mean and not has_several else "median"


def _between_sizes(profile: Profile, size: int) -> Table:
    """Return the native time of each collective at a size that was not measured, interpolated, with its interval."""
    table = table_of(f"{bytes_words(size)}, by curves", "", "native", "from", "to", "busbw")
    table.caption = "through the measured sizes; from, to: the 90 % interval"
    for group in groups(profile):
        try:
            curve = profile.curve(group.collective)
        except ValueError:  # not native, or at too few sizes
            continue
        seconds = curve.seconds(size)
        low_s, high_s = curve.interval_s(size)
        busbw = size / seconds * busbw_factor(group.collective, profile.num_ranks)  # nan if it has no meaning
        table.add_row(
            group.collective,
            cell_words(seconds),
            cell_words(low_s),
            cell_words(high_s),
            "" if math.isnan(busbw) else rate_words(busbw),
        )
    return table


def imported(profiles: Sequence[Profile]) -> Iterator[RenderableType]:
    """Yield a line per profile read from a log: its contents and size; then expected, got, and why."""
    for profile in profiles:
        headline = str(profile).splitlines()[0]
        source = profile.provenance["source"]
        sizes = [point.num_bytes for point in profile.points]
        measurements = count_of(sum(len(point.seconds) for point in profile.points), "measurement")
        range_of_sizes = f"{bytes_words(min(sizes))} to {bytes_words(max(sizes))}"
        yield Text(f"{headline}, {source['program']}: {measurements}, {range_of_sizes}")
        notes = source.get("notes", "")
        if notes:
            yield Text(notes, "yellow" if notes.startswith(FAULT) else "")
        yield from _why(compare_with_peers(profile))


def comparison(before: Profile, after: Profile, everything: bool) -> Iterator[RenderableType]:
    """Yield the verdict; the points whose times differ by more than the noise, or all; and what explains them.

    Points without a spread are shown if their ratio is not 1.00, because they may differ.
    """
    frame = compare(before, after)
    both = frame[frame.only_in == ""]
    for letter, profile in (("A", before), ("B", after)):
        date = profile.provenance.get("date", "date not stated")
        yield Text(f"{letter}: {profile.provenance['name']}, {date}")
    yield ""
    yield from map(Text, _compared(both))
    for side, name in (("before", "A"), ("after", "B")):
        rows = frame[frame.only_in == side]
        if len(rows):
            operations = dict.fromkeys(map(_operation, rows.itertuples()))  # each once, in the order of the points
            yield Text(f"Only in {name}: {count_of(len(rows), 'point')}, of {', '.join(operations)}.")
    chosen = both
    if not everything:
        is_not_equal = (both.ratio - 1).abs() >= _CLEAR
        may_differ = ~both.has_spread & is_not_equal
        chosen = both[both.beyond_noise | may_differ]
    if len(chosen):
        yield _both_times(chosen, middle_of(before), middle_of(after))
    yield from _explained("A", before, after)
    yield from _explained("B", after, before)


def _explained(letter: str, profile: Profile, other: Profile) -> Iterator[RenderableType]:
    """Yield what explains the performance of one side, "A" or "B": always for A, for B only if something is faulty.

    A is the profile that the user examines, and B the one to compare it with. If both machines are alike, each is the
    other's similar machine, otherwise these come from the bank.
    """
    are_alike = is_like(profile, other)
    if are_alike:
        other_letter = "B" if letter == "A" else "A"
        comparison_with_peers = compare_with_peers(profile, {other_letter: other})
    else:
        comparison_with_peers = compare_with_peers(profile)
    findings = comparison_with_peers.findings
    has_fault = any(finding.is_fault for finding in findings)
    if not findings or (letter == "B" and not has_fault):
        return
    yield heading(f"{letter}: expected and measured performance, and likely causes")
    if are_alike and letter == "A":  # B's would repeat the rates, with got and expected exchanged
        for group in groups(profile):
            if group.is_native:
                yield _peer_table(comparison_with_peers, group)
    yield from _why(comparison_with_peers)


def _compared(both: DataFrame) -> Iterator[str]:
    """Yield at how many points of both profiles B is faster and slower, and at how many it is not known."""
    judged = both[both.has_spread]
    unknown = both[~both.has_spread]
    faster = int((judged.beyond_noise & (judged.ratio < 1)).sum())
    slower = int((judged.beyond_noise & (judged.ratio > 1)).sum())
    if len(judged):
        equal = len(judged) - faster - slower
        verb = "is" if equal == 1 else "are"
        different_words = f"B is faster at {faster or 'none'} and slower at {slower or 'none'}"
        equal_words = f"{equal or 'none'} {verb} within the noise, where the interquartile ranges overlap"
        yield f"Of {count_of(len(judged), 'point')} in both profiles, {different_words}; {equal_words}."
    if len(unknown):
        low = f"{unknown.ratio.min():.2f}"
        high = f"{unknown.ratio.max():.2f}"
        ratios = low if low == high else f"{low} to {high}"
        points = count_of(len(unknown), "point")
        reason = f"because the noise is unknown with fewer than {LEAST_CLEAN} iterations in A or B"
        yield f"`compare` cannot judge {points} (B/A {ratios}), {reason}. Import at least {LEAST_CLEAN} runs of each."
    if not len(both):
        yield "The profiles have no points in common."


def _both_times(chosen: DataFrame, middle_in_a: str, middle_in_b: str) -> Table:
    """Return the times of points in A and in B. `middle_in_a` and `middle_in_b` are "mean" or "median"."""
    title = f"Times: the {middle_in_a} in A, the {middle_in_b} in B"
    if middle_in_a == middle_in_b:
        title = f"{middle_in_a.capitalize()} times"
    table = table_of(title, "what", "size", "A", "B", "B/A", "")
    for row in chosen.itertuples():
        mark = ""
        style = None
        if not row.has_spread:
            mark = "?"
        elif row.beyond_noise and row.ratio > 1:
            mark = "slower"
            style = "red"
        elif row.beyond_noise:
            mark = "faster"
            style = "green"
        longer_s = max(row.before_s, row.after_s)  # decides the unit of both
        before = cell_words(row.before_s, longer_s)
        after = cell_words(row.after_s, longer_s)
        ratio = f"{row.ratio:.2f}"
        table.add_row(_operation(row), bytes_words(row.num_bytes), before, after, ratio, mark, style=style)
    if not chosen.has_spread.all():
        table.caption = "?: too few iterations to tell a difference from noise"
    return table


def _links(profile: Profile) -> Iterator[RenderableType]:
    """Yield the fit of each link that was measured, or why it could not be fitted, and the rate of sums in memory."""
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
    """Return the fastest algorithm at each size, next to native and the lower bound.

    The fastest one may be native itself; the gain is that of the fastest other one.
    """
    columns = ("size", "fastest", middle_of(profile), "busbw", "native", "gain", "×bound", "clean")
    table = table_of(group.collective, *columns)
    table.caption = "gain: native's time / our time; ×bound: time / lower bound"
    for size, points in group.by_size.items():
        best = group.fastest(size)
        native = points.get(NATIVE)
        lower_bound_s = bound_s(profile, group.collective, size)  # 0 if there is none
        ours_s = [point.median_s for name, point in points.items() if name != NATIVE]
        gain = Text("")
        if native is not None and ours_s:
            gain = _gain(native.median_s / min(ours_s))
        table.add_row(
            bytes_words(size),
            _named(best),
            cell_words(best.median_s),
            _busbw(profile, best),
            cell_words(native.median_s) if native else "",
            gain,
            f"{best.median_s / lower_bound_s:.2f}" if lower_bound_s else "",
            f"{best.num_clean}/{len(best.seconds)}",
        )
    return table


def _gain(ratio: float) -> Text:
    """Return native's time by ours, green if we are faster and red if we are slower."""
    style = ""
    if ratio > 1 + _CLEAR:
        style = "green"
    elif ratio < 1 - _CLEAR:
        style = "red"
    return Text(f"{ratio:.2f}", style)


def _peer_table(comparison_with_peers: PeerComparison, group: MeasuredCollective) -> Table:
    """Return the native times and rates, and the rates of similar machines if there are any.

    Rows in red are those for which `expected` looks for a cause.
    """
    profile = comparison_with_peers.profile
    compared_sizes = {}
    for compared in comparison_with_peers.rows:
        if compared.collective == group.collective:
            compared_sizes[compared.num_bytes] = compared
    link_bytes_per_s = comparison_with_peers.wire_bytes_per_s  # None if it is not known, or on several nodes
    has_several = any(len(point.seconds) > 1 for point in profile.select(group.collective))
    columns = ["size", middle_of(profile), "got"]
    notes = ["got: busbw"]
    if compared_sizes:
        columns += ["expected", "share"]
        notes.append(f"expected: busbw of {comparison_with_peers.names}; share: percentage of the slowest of these")
    elif comparison_with_peers.gpu:
        notes.append("the bank has no similar machine")
    else:
        notes.append("cannot be compared with the bank, because its GPUs are not stated")
    if link_bytes_per_s:
        columns.append("of link")
        notes.append(f"of link: share of {rate_words(link_bytes_per_s)} per direction; blank below 1 %")
    if has_several:
        columns.append("clean")
    table = table_of(f"{group.collective}, {NATIVE}", *columns)
    table.caption = "; ".join(notes)
    for size, points in group.by_size.items():
        if NATIVE not in points:
            continue
        point = points[NATIVE]
        at_peers = compared_sizes.get(size)
        cells = [bytes_words(size), cell_words(point.median_s), _busbw(profile, point)]
        if at_peers is not None:
            cells += [at_peers.expected, f"{at_peers.share:.0%}"]
        elif compared_sizes:  # similar machines were measured at other sizes only
            cells += ["", ""]
        if link_bytes_per_s:
            of_link = point.busbw_bytes_per_s(profile.num_ranks) / link_bytes_per_s
            cells.append(f"{of_link:.0%}" if of_link >= _LEAST_SHOWN else "")
        if has_several:
            cells.append(f"{point.num_clean}/{len(point.seconds)}")
        is_slow = at_peers is not None and size >= LARGE_BYTES and at_peers.share < LOW
        table.add_row(*cells, style="red" if is_slow else None)
    return table


def _why(comparison_with_peers: PeerComparison) -> Iterator[RenderableType]:
    if comparison_with_peers.findings:
        yield marked(("·", str(finding)) for finding in comparison_with_peers.findings)


def _named(point: Point) -> str:
    return str(point.options["algorithm"])


def _busbw(profile: Profile, point: Point) -> str:
    rate = point.busbw_bytes_per_s(profile.num_ranks)
    return "" if math.isnan(rate) else rate_words(rate)


def _operation(row: Any) -> str:
    """Return the operation of a row of `compare`, in words.

    What rankscope measures by default is not stated: an allreduce in place, and the other collectives out of place.
    """
    words = [row.what]
    for name in (row.algorithm, row.link):
        if isinstance(name, str):  # None or NaN for a point without this option
            words.append(name)
    if row.options:
        words.append(row.options)
    if row.what == "allreduce" and row.in_place is False:
        words.append("out of place")
    elif row.what != "allreduce" and row.in_place is True:  # nccl-tests measure all collectives in place, too
        words.append("in place")
    return " ".join(words)


# ---- copies to and from a GPU


class _CopyColumn(NamedTuple):
    """A column of a table of copies: which points are in it, and whether it shows their rates or their times.

    `what` and `options` are those of a `Point`.
    """

    what: str
    options: Mapping[str, Any]
    shows_rates: bool = False


Columns = Mapping[str, _CopyColumn]
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
    "to GPU": _CopyColumn("transfer", _PINNED),
    "both ways": _CopyColumn("transfer", _PINNED | {"both": True}),
    "in pieces": _CopyColumn("transfer", _PINNED | {"pieces": NUM_PIECES}),
    "on GPU": _CopyColumn("transfer", {"direction": "d2d"}),
    "pin": _CopyColumn("pin", {"cached": False}),
    "cached": _CopyColumn("pin", {"cached": True}),
}


def copies_tables(profile: Profile) -> Iterator[Table]:
    """Yield the rates of copies by method and size, and other measurements of copies; nothing if there are none."""
    methods = "call: how long a non_blocking copy kept the host busy; on the fly: pinned for this copy"
    ways = f"from pinned memory; both ways at once; in {NUM_PIECES} pieces; pin: the host's time of pin_memory()"
    yield from _copies(profile, "copies to the GPU", _methods("h2d"), methods)
    yield from _copies(profile, "copies to the host", _methods("d2h"), methods)
    yield from _copies(profile, "copies in other ways", _OTHERS, ways)
    with contextlib.suppress(ValueError):  # no copies between GPUs
        yield _between_gpus(profile)


def _methods(direction: str) -> Columns:
    """Return a column of rates for each method, and one for the time of the call that starts a copy."""
    pinned = _PINNED | {"direction": direction}
    columns = {}
    for name, method in _METHODS.items():
        columns[name] = _CopyColumn("transfer", pinned | {"method": method}, shows_rates=True)
    columns["call"] = _CopyColumn("transfer_host", pinned)
    return columns


def _copies(profile: Profile, title: str, columns: Columns, caption: str) -> Iterator[Table]:
    """Yield a table with a row for each size at which a column has a point; nothing if there is none."""
    table = table_of(title, "size", *columns)
    table.caption = caption
    sizes: set[int] = set()
    for column in columns.values():
        sizes |= {point.num_bytes for point in profile.select(column.what, **column.options)}
    for size in sorted(sizes):
        table.add_row(bytes_words(size), *[_median(profile, size, column) for column in columns.values()])
    if sizes:
        yield table


def _between_gpus(profile: Profile) -> Table:
    size, rates = peer_rates(profile)
    gpus = sorted(set(chain.from_iterable(rates)))
    table = table_of(f"copies between GPUs, {bytes_words(size)} [GB/s]", "from", *map(str, gpus))
    for src in gpus:
        cells = [three_digits(rates[src, dst] / 1e9) if (src, dst) in rates else "" for dst in gpus]
        table.add_row(str(src), *cells)
    return table


def _median(profile: Profile, num_bytes: int, column: _CopyColumn) -> str:
    """Return the median of the matching point, as time or rate; "" if there is none.

    A log may have a copy for each of several GPUs; the first stands for all of them.
    """
    points = profile.select(column.what, num_bytes, **column.options)
    if not points:
        return ""
    seconds = points[0].median_s
    return rate_words(num_bytes / seconds) if column.shows_rates else cell_words(seconds)
