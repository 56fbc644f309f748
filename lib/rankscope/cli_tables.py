"""What the command line prints: profiles as tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from .cli_copies import copies_tables
from .cli_parts import heading, marked, table_of
from .collectives import ALGORITHMS
from .machine import Point, Profile, verdict
from .machine.groups import NATIVE, Group, bounds, groups
from .machine.measure_plan import ITEM_BYTES, builder_options, num_elements
from .machine.profile import HOW, WHERE
from .machine.rows import busbw_bytes_per_s
from .machine.rows import predictions as predicted_points
from .timeline import Timeline
from .values.checks import count_of, one_of
from .values.units import bytes_words, rate_words, time_words

QUICKEST = "bold green"
_CLEAR = 0.005  # of a ratio: what two digits after the point tell apart


def show(*parts: RenderableType) -> None:
    """Print parts, one below the other, in 80 columns where there is no terminal that says otherwise."""
    console = Console(highlight=False, emoji=False, markup=False)
    for place, part in enumerate(parts):
        if place and isinstance(part, Table) and part.title:
            console.print()
        console.print(part)


def overview(profile: Profile) -> Iterator[RenderableType]:
    """Yield where the profile is from, its links, what is quickest at each size, its copies, and the verdict."""
    yield from _origin(profile)
    yield from _links(profile)
    for group in groups(profile):
        yield _by_size(profile, group)
    yield from copies_tables(profile)
    yield heading("Verdict")
    yield marked(("·", sentence) for sentence in verdict(profile))


def at_sizes(profile: Profile, sizes: Sequence[int]) -> Iterator[RenderableType]:
    """Yield a table for each collective and size: every algorithm, the quickest first, and what was predicted."""
    seconds = predicted_points(profile)
    for size in sizes:
        found = [(group, group.by_size[size]) for group in groups(profile) if size in group.by_size]
        if not found:
            known = ", ".join(dict.fromkeys(bytes_words(size) for group in groups(profile) for size in group.by_size))
            raise ValueError(f"--num-bytes must be a size that was measured ({known or 'none was'}), got {size}")
        for group, points in found:
            table = table_of(
                f"{group.collective}, {bytes_words(size)}",
                "algorithm", "median", "IQR", "p99", "busbw", "model", "off", "clean",
            )  # fmt: skip
            for place, point in enumerate(sorted(points.values(), key=lambda point: point.median_s)):
                guess = seconds.get(point.key)
                times = map(time_words, (point.median_s, point.iqr_s, point.p99_s))
                told = ("", "") if guess is None else (time_words(guess), f"{guess / point.median_s - 1:+.0%}")
                clean = f"{point.num_clean}/{len(point.seconds)}"
                style = QUICKEST if place == 0 else None
                table.add_row(_named(point), *times, _busbw(profile, point), *told, clean, style=style)
            yield table


def predictions(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, sizes: Sequence[int]
) -> Iterator[RenderableType]:
    """Yield a table for each size: what the algorithms take, the quickest first, and what was measured of it.

    Raises ValueError for an unknown name, and where no algorithm exists for so many ranks.
    """
    one_of("--collective", collective, tuple(ALGORITHMS))
    for name in algorithms or ():
        one_of(f"--algorithm of {collective}", name, tuple(ALGORITHMS[collective]))
    measured = {group.collective: group.by_size for group in groups(profile)}.get(collective, {})
    for size in sizes:
        rounded = num_elements(collective, size, profile.num_ranks) * ITEM_BYTES
        rows = _predicted_rows(profile, collective, algorithms, rounded)
        bound_s = float(bounds(profile, collective, rounded).seconds)
        points = measured.get(rounded, {})
        title = f"{collective}, {bytes_words(rounded)}; no less than {time_words(bound_s)}"
        table = table_of(title, "algorithm", "predicted", "×bound", *(["measured", "off"] if points else []))
        for place, (seconds, name) in enumerate(rows):
            point = points.get(name)
            told = [time_words(point.median_s), f"{seconds / point.median_s - 1:+.0%}"] if point else []
            ratio = f"{seconds / bound_s:.2f}" if bound_s else ""
            table.add_row(name, time_words(seconds), ratio, *told, style=None if place else QUICKEST)
        yield table


def _predicted_rows(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, num_bytes: int
) -> list[tuple[float, str]]:
    """Seconds and name, the quickest first; of all algorithms those that exist for so many ranks."""
    rows = []
    profile.cluster()
    for name in algorithms or ALGORITHMS[collective]:
        try:
            rows.append((predicted(profile, collective, name, num_bytes).makespan_s, name))
        except ValueError:
            if algorithms:
                raise
    return sorted(rows)


def predicted(profile: Profile, collective: str, algorithm: str, num_bytes: int) -> Timeline:
    """Return what `Profile.predict` does for an algorithm built as for measuring it."""
    one_of("--collective", collective, tuple(ALGORITHMS))
    one_of(f"--algorithm of {collective}", algorithm, tuple(ALGORITHMS[collective]))
    size = num_elements(collective, num_bytes, profile.num_ranks) * ITEM_BYTES
    options = builder_options(algorithm, size, profile.provenance["ranks_per_node"])
    return profile.predict(collective, algorithm, size, **options)


def traced(timeline: Timeline, collective: str, algorithm: str, num_bytes: int, path: Path) -> Text:
    """Return what has been written."""
    what = f"{collective} by {algorithm} of {bytes_words(num_bytes)}"
    return Text(f"{path}: {what}, {count_of(len(timeline), 'span')}, {time_words(timeline.makespan_s)}")


def comparison(before: Profile, after: Profile, everything: bool) -> Iterator[RenderableType]:
    """Yield the points whose times differ by more than the noise, or all, and what only one profile has."""
    from .machine import compare

    frame = compare(before, after)
    both = frame[frame.only_in == ""]
    chosen = both if everything else both[both.beyond_noise]
    for letter, profile in (("A", before), ("B", after)):
        yield Text(f"{letter}: {profile.provenance['name']}, {profile.provenance['date']}")
    if len(chosen):
        table = table_of("Median times", "what", "size", "A", "B", "B/A", "")
        for row in chosen.itertuples():
            mark = "" if not row.beyond_noise else "slower" if row.ratio > 1 else "quicker"
            times = map(time_words, (row.before_s, row.after_s))
            style = {"slower": "red", "quicker": "green"}.get(mark)
            table.add_row(_what(row), bytes_words(row.num_bytes), *times, f"{row.ratio:.2f}", mark, style=style)
        yield table
    slower, quicker = (int((both.beyond_noise & (sign * (both.ratio - 1) > 0)).sum()) for sign in (1, -1))
    within = len(both) - slower - quicker
    yield Text(
        f"\n{count_of(len(both), 'point')} in both. In B {slower} take longer and {quicker} less; {within} are within"
    )
    yield Text("the noise (their interquartile ranges meet).")
    for side, name in (("before", "A"), ("after", "B")):
        rows = frame[frame.only_in == side]
        kinds = ", ".join(dict.fromkeys(map(_what, rows.itertuples())))
        if len(rows):
            yield Text(f"Only in {name}: {count_of(len(rows), 'point')}, of {kinds}.")


# ---- parts


def _origin(profile: Profile) -> Iterator[RenderableType]:
    told = profile.provenance
    nodes = count_of(profile.num_nodes, "node")
    where = "".join(f", {told[name]}" for name in ("device", "network") if told.get(name))
    yield Text(f"{told['name']}: {count_of(profile.num_ranks, 'rank')} on {nodes}, {profile.backend}{where}", "bold")
    cores = count_of(told["num_cores"], "core") if "num_cores" in told else ""
    memory = bytes_words(told["memory_bytes"]) if "memory_bytes" in told else ""
    gpus = [f"{one['name']}" for one in told.get("gpus", []) if "name" in one]
    cards = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    machine = ", ".join(filter(None, [told.get("cpu", ""), cores, memory, *cards, told.get("system", "")]))
    if machine:
        yield Text(machine)
    versions = [f"{name} {told[name]}" for name in ("rankscope", "torch", "python") if name in told]
    yield Text(", ".join([told["date"], *versions]))
    yield Text(count_of(len(profile.points), "point") + _protocol_words(profile))


def _protocol_words(profile: Profile) -> str:
    told = profile.protocol
    words = [f"{told['warm_up']} + {told['iterations']} iterations"] if {"warm_up", "iterations"} <= set(told) else []
    return "".join(f"; {word}" for word in [*words, *(told[name] for name in ("dtype", "statistic") if name in told)])


def _links(profile: Profile) -> Iterator[RenderableType]:
    lines = []
    for where in WHERE:
        for how in HOW:
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


def _by_size(profile: Profile, group: Group) -> Table:
    table = table_of(group.collective, "size", "quickest", "median", "busbw", "native", "gain", "×bound", "clean")
    table.caption = "gain: native's time over that of ours; ×bound: the time over the lower bound"
    for size, points in group.by_size.items():
        best, native = group.quickest(size), points.get(NATIVE)
        ours = [point.median_s for name, point in points.items() if name != NATIVE]
        ratio = native.median_s / min(ours) if native and ours else math.nan
        table.add_row(
            bytes_words(size),
            _named(best),
            time_words(best.median_s),
            _busbw(profile, best),
            time_words(native.median_s) if native else "",
            Text(f"{ratio:.2f}", _colour(ratio)) if ratio == ratio else "",
            _of_bound(profile, group.collective, best),
            f"{best.num_clean}/{len(best.seconds)}",
        )
    return table


def _of_bound(profile: Profile, collective: str, point: Point) -> str:
    try:
        bound_s = float(bounds(profile, collective, point.num_bytes).seconds)
    except ValueError:  # no link was measured
        return ""
    return f"{point.median_s / bound_s:.2f}" if bound_s else ""


def _colour(ratio: float) -> str:
    return "green" if ratio > 1 + _CLEAR else "red" if ratio < 1 - _CLEAR else ""


def _named(point: Point) -> str:
    return str(point.options["algorithm"])


def _busbw(profile: Profile, point: Point) -> str:
    rate = busbw_bytes_per_s(point, profile.num_ranks)
    return rate_words(rate) if rate == rate else ""


def _what(row: Any) -> str:
    place = " out of place" if row.what == "allreduce" and row.in_place is False else ""
    words = [row.what, *(one for one in (row.algorithm, row.link) if isinstance(one, str)), row.options]
    return " ".join(filter(None, words)) + place
