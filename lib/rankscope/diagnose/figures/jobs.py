"""A recorded job drawn, on one page: own time by phase, late ranks by step, exposed communication by bucket.

The page is one HTML file that loads nothing and runs no script. Its drawings are narrow, so that they can be read on a
phone; only the timeline scrolls there.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from ...common.units import round_ticks, time_unit, time_words
from ...common.words import listed, printable
from ...figures.marks import Drawing
from ...figures.palette import ALARM, FAINT, INK, PAPER, WORK, diverging
from ...figures.plots import FloatArray, Key, Lines, Plot, Rects, stacked, whole_ticks
from ...figures.svg import to_svg
from ...figures.timelines import draw_timeline
from ...timeline import Span, Timeline
from ...timeline.intervals import merge
from ..diagnosis import JobDiagnosis
from ..hangs import Hang
from ..join import Joined
from ..trace import CALL_KINDS, PHASES, Trace
from .hangs import calls_table

_WIDE_PX = 270.0
_WIDTH_PER_LONGEST = 1.02  # the width of a drawing by its longest bar, which so does not touch the edge
_ROW_PX = 20.0
_LEAST_HEIGHT_PX = 40.0  # of a drawing with a single row
_MOST_HEIGHT_PX = 480.0  # of a drawing with many rows
_MOST_COLUMNS = 60  # of steps
_MOST_ROWS = 32  # of ranks or buckets
_MOST_TIMELINES = 8  # ranks on one clock
_ALWAYS_DRAWN = ("main", "backward")  # lanes of a rank
_MOST_LANES = 16  # others of a rank
_SCALED_SHARE = 0.95  # of the cells of lateness lie within the scale of colours …
_LEAST_SCALE = 0.02  # … which reaches to at least this share of a step, so that less than that looks pale
EXPOSED = "the rank only waits or communicates"
_PIXELS = 660  # of a timeline's width: spans that are closer to each other are drawn as one


def draw_phases(diagnosis: JobDiagnosis) -> Plot:
    """Draw the mean own time of each rank in a step, by phase; a line is the median of all ranks.

    Own time is without waiting for other ranks. Of many ranks, those with the most own time are shown.
    """
    mean_s = diagnosis.phase_s.mean(axis=0)  # ranks by phases
    own_s = mean_s.sum(axis=1)
    rows = _largest(own_s, _MOST_ROWS)
    scale, unit = time_unit(float(own_s.max()))
    width = _WIDTH_PER_LONGEST * float(own_s.max()) / scale
    if width == 0:  # nobody did anything
        width = 1.0
    lengths = {}  # the lengths of a phase's bars, one for each row
    for column, phase in enumerate(PHASES):
        lengths[Key(phase, WORK[phase].hue)] = mean_s[rows, column] / scale
    bars = []
    keys = []
    pixel = width / _WIDE_PX
    for bar, (key, length) in zip(stacked(lengths), lengths.items(), strict=True):
        if (length > pixel).any():  # a phase that no row shows has no key, either
            bars.append(bar)
            keys.append(key)
    lines = []
    if len(own_s) > 1:
        median_x = [float(np.median(own_s)) / scale]
        for color, width_px in ((PAPER, 4), (INK, 2)):  # a light edge below the line, so that it shows on bars
            lines.append(Lines(x0=median_x, y0=[0], x1=median_x, y1=[len(rows)], color=color, width_px=width_px))
        keys.append(Key("the median of all ranks", INK, line="solid"))
    keys += _left_out(len(rows), len(own_s), "ranks", "those with the most own time")
    names = [f"rank {diagnosis.ranks[row]}" for row in rows]
    return _drawing(f"own time per step [{unit}]", width, names, bars, keys, lines)


def draw_lateness(diagnosis: JobDiagnosis) -> Plot:
    """Draw each rank's own time compared with the median of the others, with one column per step.

    Late ranks are orange, early ones blue. If there are many steps, several share a column; if there are many ranks,
    the latest are shown.
    """
    steps_of_column = np.array_split(np.arange(len(diagnosis.steps)), min(len(diagnosis.steps), _MOST_COLUMNS))
    columns = [diagnosis.late_s[steps].mean(axis=0) for steps in steps_of_column]
    late_s = np.stack(columns, axis=1)  # ranks by columns
    rows = _largest(late_s.mean(axis=1), _MOST_ROWS)
    # the scale of colours: the usual lateness of the rank that is furthest off, and most of the cells, are within it
    usual_s = float(np.median(np.abs(late_s), axis=1).max())
    most_s = max(usual_s, float(np.quantile(np.abs(late_s), _SCALED_SHARE)), _LEAST_SCALE * diagnosis.step_s)
    top, left = np.indices((len(rows), len(columns)))
    cells = Rects(left, top, diverging(late_s[rows] / most_s), edge=FAINT)
    names = [f"rank {diagnosis.ranks[row]}" for row in rows]
    most = time_words(most_s)
    if np.abs(late_s[rows]).max() > most_s:
        most = f"{most} or more"
    keys = [Key(f"early by {most}", diverging([-1.0])[0]), Key(f"late by {most}", diverging([1.0])[0])]
    keys += _left_out(len(rows), len(diagnosis.ranks), "ranks", "the latest")
    ticks = []
    for position, label in whole_ticks(len(columns), most=6):  # more labels would overlap on a narrow drawing
        first_step = steps_of_column[int(label)][0]  # the label is the number of the column
        ticks.append((position, str(diagnosis.steps[first_step])))
    return replace(_drawing("step", float(len(columns)), names, [cells], keys), x_ticks=ticks)


def draw_communication(diagnosis: JobDiagnosis) -> Plot:
    """Draw the exposed and the hidden communication of each bucket per step."""
    buckets = diagnosis.buckets
    # these are differences of floats, which may be a little below 0
    exposed_s = np.maximum([bucket.exposed_s for bucket in buckets], 0.0)
    hidden_s = np.maximum([bucket.hidden_s for bucket in buckets], 0.0)
    rows = _largest(exposed_s + hidden_s, _MOST_ROWS)
    longest_s = float((exposed_s + hidden_s).max(initial=0.0))
    scale, unit = time_unit(longest_s)
    hue = WORK["allreduce"].hue
    lengths = {
        Key("exposed", hue): exposed_s[rows] / scale,
        Key("hidden under work", hue, hatched=True): hidden_s[rows] / scale,
    }
    width = longest_s / scale
    if width == 0:  # nobody communicated
        width = 1.0
    names = [buckets[row].name for row in rows]
    keys = [*lengths, *_left_out(len(rows), len(buckets), "buckets", "those with the most communication")]
    return _drawing(f"per step [{unit}]", width, names, stacked(lengths), keys)


def draw_step(traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis) -> Drawing:
    """Draw the step of median length of all ranks on one clock, with a line for the latest of them.

    The line is where this rank starts the last collective of its backward. Of many ranks, the latest are shown. If some
    ranks have no trace, no rank is called the latest.
    """
    by_length = np.argsort(diagnosis.window_s.mean(axis=1), kind="stable")
    row = int(by_length[(by_length.size - 1) // 2])  # of the step of median length; of two, the shorter one
    columns = _largest(diagnosis.late_s.mean(axis=0), _MOST_TIMELINES)  # the ranks that are drawn
    timelines = []
    for column in columns:
        offset_s = float(np.nan_to_num(joined.offset_s[column]))  # nan for a rank that shares no call with the others
        timelines.append(traces[column].timeline.shifted(offset_s))
    steps = [timeline.select(kind="step", item=diagnosis.steps[row]) for timeline in timelines]
    window_s = min(step.begin_s for step in steps), max(step.end_s for step in steps)
    parts = [_coarse(_of_step(timeline, window_s)) for timeline in timelines]
    spans = Timeline.concat(parts).named(("main", "backward"), ())  # these lanes come first
    notes = [key.label for key in _left_out(len(columns), len(traces), "ranks", "the latest")]
    if diagnosis.missing:  # one of them may have been later than those that are drawn
        notes.append(f"no trace of {listed('rank', diagnosis.missing)}")
    # a blank title, as the page has one; without any, the drawing gets its own
    drawing = draw_timeline(spans, " ", "; ".join(notes))
    if diagnosis.missing:
        return drawing
    latest = int(diagnosis.late_s[row, columns].argmax())  # in this step, as an index of `columns`
    # Collectives of gradients, with the last of which a step ends (see `own_times`), are launched in backward.
    backward = timelines[latest].select(kind="backward", between_s=window_s)
    launches = timelines[latest].select(kind="launch", between_s=(backward.begin_s, backward.end_s))
    if not len(launches) or len(traces) == 1:  # without other ranks, none is the latest
        return drawing
    at_s = float(launches.start_s.max()) - spans.begin_s
    notes.append(f"rank {diagnosis.ranks[columns[latest]]} starts its last collective at {time_words(at_s)}")
    return draw_timeline(spans, " ", "; ".join(notes))


def _left_out(num_shown: int, num_all: int, noun: str, which: str) -> list[Key]:
    """Return an entry of the legend that says of how many ranks or buckets so many are shown, unless all are."""
    if num_shown == num_all:
        return []
    return [Key(f"{num_shown} of {num_all} {noun} are shown: {which}", PAPER, line="none")]


def _of_step(timeline: Timeline, window_s: tuple[float, float]) -> Timeline:
    """The spans of one rank in a window of time that are drawn."""
    known = {*PHASES, "unpack", "kernel", *CALL_KINDS}
    kinds = [kind for kind in timeline.kinds if kind in known or kind.startswith("memcpy")]
    lanes = [lane for lane in timeline.lanes if lane != "gpu"]  # a summary of the kernels that the streams show
    return _busiest(timeline.select(lane=lanes, kind=kinds, between_s=window_s))


def _coarse(timeline: Timeline) -> Timeline:
    """Return the same, with spans of a kind that are less than a pixel from each other as one."""
    if not len(timeline):
        return Timeline.of([])
    pixel_s = timeline.makespan_s / _PIXELS
    # the spans sorted by rank, lane and kind, and cut where one of these changes
    order = np.lexsort((timeline.kind, timeline.lane, timeline.rank))
    columns = np.stack([timeline.rank, timeline.lane, timeline.kind])[:, order]
    edges = np.flatnonzero((np.diff(columns) != 0).any(axis=0)) + 1
    spans: list[Span] = []
    for alike in np.split(order, edges):
        first = timeline[int(alike[0])]
        # longer by a pixel, spans that are less than that from each other touch, and become one
        starts_s, stops_s = merge(timeline.start_s[alike], timeline.stop_s[alike] + pixel_s)
        for start_s, stop_s in zip(starts_s.tolist(), (stops_s - pixel_s).tolist(), strict=True):
            end_s = max(stop_s, start_s)  # adding a pixel and subtracting it again may lose a little by rounding
            spans.append(Span(first.rank, first.lane, first.kind, item=-1, start_s=start_s, stop_s=end_s))
    return Timeline.of(spans)


def _busiest(timeline: Timeline) -> Timeline:
    """Return the lanes of one rank that are drawn: "main", "backward", and of the others those that are busiest."""
    length_s = np.bincount(timeline.lane, timeline.stop_s - timeline.start_s, len(timeline.lanes))  # of all spans
    longest_first = [timeline.lanes[lane] for lane in np.argsort(-length_s, kind="stable")]
    others = [lane for lane in longest_first if lane not in _ALWAYS_DRAWN]
    return timeline.select(lane=[*_ALWAYS_DRAWN, *others[:_MOST_LANES]])


def _largest(weights: FloatArray, most: int) -> list[int]:
    """Return the indices of the largest weights, at most so many, in their order."""
    return sorted(np.argsort(-weights, kind="stable")[:most].tolist())


def _drawing(
    x_label: str,
    width: float,
    names: Sequence[str],
    rects: Sequence[Rects],
    keys: Sequence[Key],
    lines: Sequence[Lines] = (),
) -> Plot:
    """Return a drawing with a row for each of these names, and no title."""
    height_px = min(max(_ROW_PX * len(names), _LEAST_HEIGHT_PX), _MOST_HEIGHT_PX)
    return Plot(
        title="",
        x_label=x_label,
        y_label="",
        width=width,
        height=len(names),
        size_px=(_WIDE_PX, height_px),
        rects=rects,
        lines=lines,
        x_ticks=round_ticks(width)[::2],  # every other one, as the drawing is narrow
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],  # in the middle of each row
        legend=keys,
    )


# ---- the page

_STYLE = f"""
body {{ font: 16px/1.5 "DejaVu Sans", Verdana, sans-serif; color: {INK}; background: {PAPER};
  max-width: 68rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1rem; margin: 0 0 -.8rem; position: relative; }}
p:first-of-type {{ font-weight: bold; }}
.parts {{ display: grid; gap: 2rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }}
.wide, .hang {{ grid-column: 1 / -1; overflow-x: auto; }} .wide svg {{ min-width: 860px; }}
table {{ border-collapse: collapse; }} th, td {{ border: 1px solid {FAINT}; padding: .2rem .6rem; text-align: left; }}
section::before {{ content: "The next drawing scrolls to the right."; display: none; position: sticky; left: 0;
  width: max-content; color: {ALARM}; }}
@media (max-width: 900px) {{ .wide::before {{ display: block; }} }}
svg {{ width: 100%; height: auto; }} p {{ margin: .5rem 0; }}
"""


class _Section(NamedTuple):
    """A part of a page: HTML under a title; `width` is "wide" or "hang" for one with a row of its own, else empty.

    A wide drawing is as wide as the page, and so wide that its spans can be told from each other.
    """

    width: str
    title: str
    html: str


def job_page(name: str, traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis) -> str:
    """Return the HTML of a page on a job: the verdict and its drawings."""
    sections = []
    if diagnosis.steps:
        own_times = to_svg(draw_phases(diagnosis))
        sections.append(_Section(width="", title="Own time of each rank, without waiting for others", html=own_times))
        if len(diagnosis.ranks) > 1:
            title = "Own time compared with the others' median, step by step"
            sections.append(_Section(width="", title=title, html=to_svg(draw_lateness(diagnosis))))
        step = to_svg(draw_step(traces, joined, diagnosis))
        sections.append(_Section(width="wide", title="The step of median length, on one clock", html=step))
    if diagnosis.buckets:
        title = f"Communication per step. Exposed: {EXPOSED}"
        sections.append(_Section(width="", title=title, html=to_svg(draw_communication(diagnosis))))
    return _page(name, str(diagnosis), sections)


def hang_page(name: str, hang: Hang) -> str:
    """Return the HTML of a page on a job that hangs: the findings in words, and tables of the calls they name."""
    tables = dict.fromkeys(calls_table(hang, finding) for finding in hang.findings)
    return _page(name, str(hang), [_Section(width="hang", title="", html=table) for table in tables if table])


def _page(name: str, verdict: str, sections: Sequence[_Section]) -> str:
    """Return the HTML of a page: a title, the verdict line by line, and sections next to each other."""
    lines = "".join(f"<p>{escape(printable(line))}</p>" for line in verdict.splitlines())
    body = ""
    for section in sections:
        heading = f"<h2>{escape(section.title)}</h2>" if section.title else ""
        body += f'<section class="{section.width}">{heading}{section.html}</section>'
    title = escape(printable(name))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f'<body><h1>{title}</h1>{lines}<div class="parts">{body}</div></body></html>\n'
    )
