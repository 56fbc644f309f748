"""A drawing of one step under `fully_shard`: what runs when on each stream, and below it the memory of the rank."""

from __future__ import annotations

from itertools import chain, groupby

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...common.checks import of_type
from ...common.units import decimal_words, percent_words, time_words
from ...drawing.drawing import Drawing
from ...drawing.marks import RIGHT_PX, Box, Line, Mark, Text, key_marks, moved_down, row_name
from ...drawing.palette import MEMORY
from ...timeline.picture import draw_timeline, time_scale
from .step import Cost, Step

_GAP_PX = 32.0  # between the timeline and the memory
_MEMORY_PX = 180.0
_COLUMN_PX = 6.0  # of the memory, which is as high in each column as the largest sum in it


def draw_fsdp_step(
    step: Step, cost: Cost, title: str | None = None, unsharded_bytes: float = 0.0, job: str = "One step"
) -> Drawing:
    """Draw a step that `fsdp.observe` returned, its timeline at this cost, and its memory over the same time.

    A row is one of FSDP's streams. Hatched spans are communication, and the number on a span is its group: 0 is the
    root's, and the wrapped modules follow. Below, the terms of the rank's memory are stacked; hatched ones are buffers
    of communication. The largest sum is marked, and so are `unsharded_bytes`, the same with whole parameters and
    optimizer states. `job` says what trains, and where. Raises ValueError for anything but a step.
    """
    timeline = of_type("step", step, Step).timeline(cost)
    share = timeline.select(kind="wait").busy_s / (timeline.makespan_s or 1.0)
    deck = f"{job}: the GPU waits for {percent_words(share)} of {time_words(timeline.makespan_s)}"
    above = draw_timeline(timeline, title=title or f"A rank holds at most {decimal_words(step.peak_bytes)}", deck=deck)
    px_per_byte = _MEMORY_PX / max(step.peak_bytes, unsharded_bytes)
    left, px_per_s = time_scale(timeline)
    changes_px = np.minimum(left + step.memory_times(cost) * px_per_s, RIGHT_PX)
    areas = _areas(step, changes_px, left, px_per_byte)
    named, keys_px = key_marks({term.replace("_", " "): MEMORY[term] for term in areas})
    top = above.height_px + keys_px + _GAP_PX
    peak_x = float(changes_px[step.peak_place])
    bottom = top + _MEMORY_PX
    peak_y = bottom - step.peak_bytes * px_per_byte
    below = [
        *(moved_down(mark, above.height_px + 8) for mark in named),
        *(moved_down(area, bottom) for area in chain(*areas.values())),
        row_name(bottom - _MEMORY_PX / 2, "memory", left=left),
        row_name(bottom + 4, "0 B", left=left),
        Line(((peak_x, peak_y - 6), (peak_x, peak_y + 6)), "accent", 2),
        Text(
            min(peak_x, RIGHT_PX - 60),
            peak_y - 10,
            f"peak {decimal_words(step.peak_bytes)}",
            "label",
            "accent",
            "middle",
        ),
    ]
    if unsharded_bytes:
        below.append(Line(((left, top), (RIGHT_PX, top)), "ink", 1.5, "4 3"))
        words = f"unsharded {decimal_words(unsharded_bytes)}: parameters and optimizer states are whole"
        below.append(Text(RIGHT_PX, top - 8, words, anchor="end"))
    return replace(above, marks=[*above.marks, *below], height_px=bottom + 12)


def _areas(step: Step, changes_px: NDArray[np.float64], left: float, px_per_byte: float) -> dict[str, list[Mark]]:
    """Return boxes for each term that is seen, stacked upwards from 0: one for neighbouring columns that are equal."""
    memory = step.memory()
    heights = np.array([*memory.values()]) * px_per_byte
    totals = heights.sum(0)
    edges_px = np.arange(left, RIGHT_PX, _COLUMN_PX)
    begins = np.maximum(np.searchsorted(changes_px, edges_px, "right") - 1, 0)  # the state in which a column begins
    stops = np.searchsorted(changes_px, edges_px + _COLUMN_PX, "right")
    fullest = [begin + totals[begin : max(stop, begin + 1)].argmax() for begin, stop in zip(begins, stops, strict=True)]
    shown = heights[:, fullest]
    areas: dict[str, list[Mark]] = {}
    for term, tops, its_heights in zip(memory, shown.cumsum(0).tolist(), shown.tolist(), strict=True):
        columns = zip(edges_px.tolist(), tops, its_heights, strict=True)
        for (top, height), equal in groupby(columns, key=lambda column: column[1:]):
            lefts = [column[0] for column in equal]
            width = lefts[-1] + _COLUMN_PX - lefts[0]
            if height > 0.4:
                look = MEMORY[term]
                areas.setdefault(term, []).append(Box(lefts[0], -top, width, height, look.hue, "tint", look.hatched))
    return areas
