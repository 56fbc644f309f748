"""A drawing of one step under `fully_shard`: what runs when on each stream, and below it the memory of the rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from ...common.checks import of_type
from ...common.units import decimal_words, percent_words, time_unit, time_words
from ...figures.marks import Drawing, Key, Rects, Texts
from ...figures.palette import INK, MEMORY, PAPER
from ...figures.timelines import draw_timeline
from ..fsdp.memory import TERMS, PredictedMemory
from ..fsdp.timing import PredictedStep
from .memory import keys_by_look

_GAP_ROWS = 1.6  # between the timeline and the memory
_MEMORY_ROWS = 6.0
_ROW_PX = 22.0
_LETTER_PX = 6.8  # the width of a letter in the words at the peak
_MARKER_ROWS = 0.3  # the height of the bar at the peak
_MOST_INSTANTS = 2_000  # changes of the memory: each is a rectangle for each term, so more make a huge SVG
_NAMED_TERMS = 3  # how many terms of the peak are named


def draw_fsdp_step(step: PredictedStep, title: str | None = None) -> Drawing:
    """Draw a step that `fsdp.predict` returned: its timeline, and its memory over the same time.

    A row is one of FSDP's streams. Hatched spans are communication, and the number on a span is its group: 0 is the
    root's, and the wrapped modules follow. Below, the terms of the rank's memory are stacked; hatched ones are buffers
    of communication. The largest sum is marked, and named with its largest terms.

    Raises ValueError if `step` is not a `PredictedStep`, or its memory is empty or changes more than 2,000 times.
    """
    of_type("step", step, PredictedStep)
    memory = step.memory
    if memory.at_s.size > _MOST_INSTANTS:
        raise ValueError(f"a drawing has at most {_MOST_INSTANTS} changes of memory, got {memory.at_s.size}")
    full_bytes = memory.peak_bytes  # as high as the area
    if not full_bytes:
        raise ValueError("step must have memory to be drawn, got one whose parameters have no elements")
    above = draw_timeline(step.timeline, title=title or _finding(step))
    scale, _ = time_unit(step.timeline.makespan_s)  # the unit of x in the drawing of the timeline
    top = above.height + _GAP_ROWS  # of the memory's area
    bottom = top + _MEMORY_ROWS
    areas = _areas(memory, step, scale, above.width, bottom, _MEMORY_ROWS / full_bytes)
    peak_s = float(memory.at_s[memory.peak_place]) - step.timeline.begin_s
    marker, peak_words = _marked_peak(memory, peak_s / scale, above, top)
    keys = []
    for term in TERMS:
        if memory.terms[term].any():
            keys.append(Key(term.replace("_", " "), MEMORY[term].hue, hatched=MEMORY[term].hatched))
    return replace(
        above,
        height=bottom,
        size_px=(above.size_px[0], above.size_px[1] + _ROW_PX * (_GAP_ROWS + _MEMORY_ROWS)),
        rects=(*above.rects, *areas, marker),
        texts=(*above.texts, peak_words),
        y_ticks=(*above.y_ticks, (top, decimal_words(full_bytes)), (bottom, "0 B")),
        legend=_legend([*above.legend, *keys]),
    )


def _marked_peak(memory: PredictedMemory, peak_x: float, above: Drawing, top: float) -> tuple[Rects, Texts]:
    """Return a short upright bar at `peak_x`, the time of the largest sum, and the words over it.

    `top` is the row at which the memory's area begins, where the bar has its middle. `above` is the drawing of the
    timeline over it.
    """
    peak_x = min(max(peak_x, 0.0), above.width)  # an instant outside the spans is drawn at the edge, as in `_areas`
    bar_width = 0.003 * above.width
    marker = Rects(peak_x - bar_width / 2, top - _MARKER_ROWS / 2, INK, width=bar_width, height=_MARKER_ROWS)
    terms = [name.replace("_", " ") for name, num_bytes in memory.peak_terms.items() if num_bytes]
    largest = ", ".join(terms[:_NAMED_TERMS])  # `peak_terms` has the largest first
    words = f"peak of {decimal_words(memory.peak_bytes)}, during {memory.doing[memory.peak_place]}: {largest}"
    units_per_px = above.width / above.size_px[0]
    half_width = _LETTER_PX * len(words) * units_per_px / 2  # of the words
    words_x = max(min(peak_x, above.width - half_width), half_width)  # centred on the bar, but within the drawing
    return marker, Texts(words_x, top - 0.45, [words], halo=PAPER)


def _legend(keys: Sequence[Key]) -> list[Key]:
    """One entry for work and for the memory that it fills, which share their hue.

    Hatched ones are left out: the names of their lanes say which communication it is. So are waiting and copies, which
    the last entry and the names of their lanes explain.
    """
    shown = []
    for key in keys_by_look(keys):
        if not key.hatched and key.label not in {"wait", "copy_in, copy_out"}:
            shown.append(key)
    return [*shown, Key("hatched: communication, its buffers; light: waiting", PAPER, line="none")]


def _finding(step: PredictedStep) -> str:
    share = step.wait_s / (step.step_s or 1.0)
    wait = f"{time_words(step.step_s)} per step, of which {percent_words(share)} waits for communication"
    return f"{wait}; peak {decimal_words(step.memory.peak_bytes)} per rank"


def _areas(
    memory: PredictedMemory, step: PredictedStep, scale: float, width: float, bottom: float, rows_per_byte: float
) -> list[Rects]:
    """Return rectangles for each term: one between every two changes, as high as its bytes, stacked from the bottom.

    A unit of x has `scale` seconds. x is 0 at the first span of the timeline and `width` at the end of the last one;
    instants outside are drawn at the edges. `bottom` is the row at which the memory's area ends.
    """
    end_s = max(step.step_s, float(memory.at_s[-1]))  # the bytes after the last change last until then
    changes_s = np.append(memory.at_s, end_s) - step.timeline.begin_s
    edges = np.clip(changes_s / scale, 0.0, width)
    lefts = edges[:-1]
    lengths = np.diff(edges)
    height_below = np.zeros(memory.at_s.size)  # of the terms that are drawn already, at each change
    areas = []
    for term, values in memory.terms.items():
        heights = values * rows_per_byte
        tops = bottom - height_below - heights
        height_below = height_below + heights
        shown = (lengths > 0) & (heights > 0)  # several changes may be at one instant
        color, hatched = MEMORY[term]
        if shown.any():
            areas.append(
                Rects(
                    lefts[shown],
                    tops[shown],
                    color,
                    width=lengths[shown],
                    height=heights[shown],
                    hatched=hatched,
                    edge=color,
                )
            )
    return areas
