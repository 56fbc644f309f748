"""A recorded job drawn, on one page: own time by phase, who was late in which step, which bucket was waited for.

The page is one HTML file that asks nobody for anything and runs no script. Its drawings are narrow, so that they can be
read on a phone; only the timeline scrolls there.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from itertools import compress

import attrs
import numpy as np

from ...common.checks import printable
from ...common.units import round_ticks, time_unit, time_words, times_in_one_unit
from ...common.words import listed
from ...figures.marks import Drawing, FloatArray, Key, Lines, Rects, stacked, whole_ticks
from ...figures.palette import ALARM, FAINT, INK, PAPER, WORK, diverging
from ...figures.svg import to_svg
from ...figures.timelines import draw_timeline
from ...timeline import Span, Timeline
from ...timeline.timeline import merge
from ..diagnosis import JobDiagnosis
from ..hangs import Hang
from ..join import Joined
from ..savings import SavingsForecast, change_words
from ..trace import PHASES, Trace
from .hangs import draw_hang

_WIDE_PX, _ROW_PX, _TALL_PX = 270.0, 20.0, 480.0
_MOST_COLUMNS, _MOST_ROWS, _MOST_TIMELINES = 60, 32, 8
_ALWAYS_DRAWN, _MOST_LANES = ("main", "backward"), 16  # lanes of a rank: these, and at most so many others
_MOST_HANGS = 20  # findings of a hang that are drawn
_MOSTLY, _LEAST_LATE = 0.95, 0.02  # the scale holds so many cells, and is at least such a share of a step
EXPOSED = "the rank only waits or communicates"
_EARLY_LATE = (("early by", -1.0), ("late by", 1.0))
_PIXELS = 860  # of a timeline's width: spans that are nearer to each other are drawn as one


def draw_phases(diagnosis: JobDiagnosis) -> Drawing:
    """Draw the mean own time of each rank in a step, by phase; a line is the median of all ranks.

    Own time is without what the rank waits for others. Of many ranks, those with the most of it are shown.
    """
    mean_s = diagnosis.phase_s.mean(axis=0)  # ranks by phases
    own_s = mean_s.sum(axis=1)
    rows = _largest(own_s, _MOST_ROWS)
    scale, unit = time_unit(float(own_s.max()))
    width = 1.02 * float(own_s.max()) / scale or 1.0
    parts = dict(zip([Key(phase, WORK[phase][0]) for phase in PHASES], mean_s[rows].T / scale, strict=True))
    seen = [(length * _WIDE_PX > width).any() for length in parts.values()]  # wider than a pixel
    bars, keys, lines = list(compress(stacked(parts), seen)), list(compress(parts, seen)), []
    if len(own_s) > 1:
        at = [float(np.median(own_s)) / scale]
        lines = [Lines(at, [0], at, [len(rows)], color, width_px=wide) for color, wide in ((PAPER, 4), (INK, 2))]
        keys.append(Key("the median of all ranks", INK, line="solid"))
    names = [f"rank {diagnosis.ranks[row]}" for row in rows]
    return _drawing(f"own time per step [{unit}]", width, names, bars, keys, lines)


def draw_lateness(diagnosis: JobDiagnosis) -> Drawing:
    """Draw how much more own time than the median of the others each rank has, a column per step.

    Late ranks are orange, early ones blue. Of many steps several share a column; of many ranks the latest are shown.
    """
    groups = np.array_split(np.arange(len(diagnosis.steps)), min(len(diagnosis.steps), _MOST_COLUMNS))
    late_s = np.stack([diagnosis.late_s[group].mean(axis=0) for group in groups], axis=1)  # ranks by columns
    rows = _largest(late_s.mean(axis=1), _MOST_ROWS)
    usual_s = float(np.median(np.abs(late_s), axis=1).max())  # of the rank that is furthest off
    most_s = max(usual_s, float(np.quantile(np.abs(late_s), _MOSTLY)), _LEAST_LATE * diagnosis.step_s)
    top, left = np.indices((len(rows), len(groups)))
    more = " or more" if np.abs(late_s[rows]).max() > most_s else ""
    cells = Rects(left, top, diverging(late_s[rows] / most_s), edge=FAINT)
    names = [f"rank {diagnosis.ranks[row]}" for row in rows]
    keys = [Key(f"{words} {time_words(most_s)}{more}", diverging([share])[0]) for words, share in _EARLY_LATE]
    ticks = [(place, str(diagnosis.steps[groups[int(place)][0]])) for place, _ in whole_ticks(len(groups), 6)]
    return attrs.evolve(_drawing("step", float(len(groups)), names, [cells], keys), x_ticks=ticks)


def draw_communication(diagnosis: JobDiagnosis) -> Drawing:
    """Draw how much of each bucket's communication per step is exposed, and how much hidden."""
    buckets = diagnosis.buckets
    exposed_s, hidden_s = np.maximum([(one.exposed_s, one.hidden_s) for one in buckets], 0.0).T
    rows = _largest(exposed_s + hidden_s, _MOST_ROWS)
    longest_s = float((exposed_s + hidden_s).max(initial=0.0))
    scale, unit = time_unit(longest_s)
    hue, names = WORK["allreduce"][0], [buckets[row].name for row in rows]
    keys = Key("exposed", hue), Key("hidden under work", hue, hatched=True)
    parts = dict(zip(keys, (exposed_s[rows] / scale, hidden_s[rows] / scale), strict=True))
    return _drawing(f"per step [{unit}]", longest_s / scale or 1.0, names, stacked(parts), keys)


def draw_step(traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis) -> Drawing:
    """Draw the step of median length of all ranks on one clock; a line is where the latest starts its last collective.

    Of many ranks, the latest are shown. Without the traces of some ranks nobody is called the latest.
    """
    order = np.argsort(diagnosis.window_s.mean(axis=1), kind="stable")
    place = int(order[(order.size - 1) // 2])
    rows = _largest(diagnosis.late_s.mean(axis=0), _MOST_TIMELINES)
    kinds = {*PHASES, "unpack", "kernel", *Timeline.COMMUNICATION}
    shown = [traces[row].timeline.shifted(float(np.nan_to_num(joined.offset_s[row]))) for row in rows]
    steps = [timeline.select(kind="step", item=diagnosis.steps[place]) for timeline in shown]
    window = min(one.begin_s for one in steps), max(one.end_s for one in steps)
    parts = []
    for timeline in shown:
        lanes = [lane for lane in timeline.lanes if lane != "gpu"]
        chosen = [kind for kind in timeline.kinds if kind in kinds or kind.startswith("memcpy")]
        parts.append(_coarse(_busiest(timeline.select(lane=lanes, kind=chosen, between_s=window))))
    spans = Timeline.concat(parts).named(("main", "backward"), ())
    latest = rows[int(diagnosis.late_s[place, rows].argmax())]
    late = shown[rows.index(latest)]
    backward = late.select(kind="backward", between_s=window)
    arrived = list(late.select(kind="launch", between_s=(backward.begin_s, backward.end_s)))
    drawing = draw_timeline(spans, " ")
    if diagnosis.missing:
        key = Key(f"no trace of {listed('rank', diagnosis.missing)}", PAPER, line="none")
        return attrs.evolve(drawing, legend=(*drawing.legend, key))
    if not arrived or len(traces) == 1:
        return drawing
    at = (arrived[-1].start_s - spans.begin_s) / time_unit(spans.makespan_s)[0]
    key = Key(f"rank {diagnosis.ranks[latest]} starts its last collective", INK, line="solid")
    return attrs.evolve(drawing, rules=(at,), legend=(*drawing.legend, key))


def _coarse(timeline: Timeline) -> Timeline:
    """The same, with spans of a kind that are less than a pixel from each other as one."""
    spans, pixel_s = list[Span](), timeline.makespan_s / _PIXELS
    order = np.lexsort((timeline.kind, timeline.lane, timeline.rank))
    columns = np.stack([timeline.rank, timeline.lane, timeline.kind])[:, order]
    cuts = np.flatnonzero((np.diff(columns) != 0).any(axis=0)) + 1
    for places in np.split(order, cuts) if len(timeline) else []:
        rank, lane, kind, *_ = timeline[int(places[0])]
        starts_s, stops_s = merge(timeline.start_s[places], timeline.stop_s[places] + pixel_s)
        both = zip(starts_s.tolist(), (stops_s - pixel_s).tolist(), strict=True)
        spans += [Span(rank, lane, kind, -1, start_s, max(stop_s, start_s)) for start_s, stop_s in both]
    return Timeline.of(spans)


def _busiest(timeline: Timeline) -> Timeline:
    """The lanes of one rank that are drawn: "main", "backward", and of the others those with the longest spans."""
    length_s = np.bincount(timeline.lane, timeline.stop_s - timeline.start_s, len(timeline.lanes))
    others = [place for place in np.argsort(-length_s, kind="stable") if timeline.lanes[place] not in _ALWAYS_DRAWN]
    return timeline.select(lane=[*_ALWAYS_DRAWN, *(timeline.lanes[place] for place in others[:_MOST_LANES])])


def _largest(weights: FloatArray, most: int) -> list[int]:
    """The places of at most so many of the largest, in their order."""
    return sorted(np.argsort(-weights, kind="stable")[:most].tolist())


def _drawing(
    x_label: str,
    width: float,
    names: Sequence[str],
    rects: Sequence[Rects],
    keys: Sequence[Key],
    lines: Sequence[Lines] = (),
) -> Drawing:
    return Drawing(
        title="",
        x_label=x_label,
        y_label="",
        width=width,
        height=len(names),
        size_px=(_WIDE_PX, min(max(_ROW_PX * len(names), 2 * _ROW_PX), _TALL_PX)),
        rects=rects,
        lines=lines,
        x_ticks=round_ticks(width)[::2],
        y_ticks=[(place + 0.5, name) for place, name in enumerate(names)],
        legend=keys,
    )


# ---- the page

_STYLE = f"""
body {{ font: 16px/1.5 "DejaVu Sans", Verdana, sans-serif; color: {INK}; background: {PAPER};
  max-width: 68rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1rem; margin: 0 0 -.8rem; position: relative; }}
p:first-of-type {{ font-weight: bold; }}
.parts {{ display: grid; gap: 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }}
.wide {{ grid-column: 1 / -1; overflow-x: auto; }} .wide svg {{ min-width: 860px; }}
@media (max-width: 900px) {{ .wide::before {{ content: "The next drawing scrolls to the right.";
  display: block; position: sticky; left: 0; width: max-content; color: {ALARM}; }} }}
svg {{ width: 100%; height: auto; }} p {{ margin: .5rem 0; }}
table {{ border-collapse: collapse; margin-top: 1rem; }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
td.number {{ text-align: right; white-space: nowrap; }} tr {{ border-top: 1px solid {FAINT}; }}
"""
_STYLE_SHA256 = b64encode(sha256(_STYLE.encode()).digest()).decode()
# the browser loads, runs and sends nothing, whatever names in a trace might become, and takes this one style
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_SHA256}'; base-uri 'none'; form-action 'none'"


def job_page(
    name: str, traces: Sequence[Trace], joined: Joined, diagnosis: JobDiagnosis, answers: SavingsForecast | None
) -> str:
    """Return the HTML of a page on a job: the verdict, its drawings, and what changes would give."""
    parts = []
    if diagnosis.steps:
        parts.append(("", "Own time of each rank, without waiting for others", draw_phases(diagnosis)))
        if len(diagnosis.ranks) > 1:
            parts.append(("", "Own time compared with the others' median, step by step", draw_lateness(diagnosis)))
        parts.append(("wide", "The step of median length, on one clock", draw_step(traces, joined, diagnosis)))
    if diagnosis.buckets:
        parts.append(("", f"Communication per step. Exposed: {EXPOSED}", draw_communication(diagnosis)))
    drawn = [(kind, title, _svg(drawing)) for kind, title, drawing in parts]
    if answers is not None:
        caption, rows = what_if_table(answers, diagnosis)
        cells = "".join(
            f'<tr><td>{escape(what)}</td><td class="number">{takes}</td><td class="number">{saved}</td></tr>'
            for what, takes, saved in rows
        )
        head = "<tr><th>with</th><th>a step takes</th><th></th></tr>"
        notes = "".join(f"<p>{escape(note)}</p>" for note in answers.notes)
        drawn.append(("", caption, f"<table>{head}{cells}</table>{notes}"))
    return _page(name, str(diagnosis), drawn)


def what_if_table(answers: SavingsForecast, diagnosis: JobDiagnosis) -> tuple[str, list[tuple[str, str, str]]]:
    """Return a caption and rows in words: a change, what a step then takes, and by how much that is less."""
    seconds = [one.step_s for one in answers.answers]
    median, mean, *times = times_in_one_unit(answers.step_s, diagnosis.step_s, *seconds)
    rows = [(one.what, time, change_words(one.saved_share)) for one, time in zip(answers.answers, times, strict=True)]
    return f"What if? The median step takes {median}, the mean step {mean}", rows


def hang_page(name: str, hang: Hang) -> str:
    """Return the HTML of a page on a job that hangs: what was found, and each finding drawn."""
    num_drawn = min(len(hang.findings), _MOST_HANGS)
    parts = [("wide", "", _svg(draw_hang(hang, place))) for place in range(num_drawn)]
    if num_drawn < len(hang.findings):
        parts.append(("", f"{len(hang.findings) - num_drawn} more are named above and not drawn", ""))
    return _page(name, str(hang), parts)


def _svg(drawing: Drawing) -> str:
    return to_svg(drawing, shrinks=False)


def _page(name: str, verdict: str, parts: Sequence[tuple[str, str, str]]) -> str:
    lines = "".join(f"<p>{escape(printable(line))}</p>" for line in verdict.splitlines())
    body = "".join(
        f'<section class="{kind}">{title and f"<h2>{escape(title)}</h2>"}{what}</section>'
        for kind, title, what in parts
    )
    title = escape(printable(name))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f'<body><h1>{title}</h1>{lines}<div class="parts">{body}</div></body></html>\n'
    )
