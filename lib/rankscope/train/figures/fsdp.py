"""A drawing of one step under `fully_shard`: what runs when on each stream, and below it the memory of the rank."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ...common.checks import of_type
from ...common.units import decimal_words, percent_words, time_words
from ...figures.marks import RIGHT_PX, Box, Drawing, Line, Mark, Text, moved_down
from ...figures.palette import MEMORY
from ...figures.plots import Key, key_marks
from ...figures.timelines import draw_timeline, time_scale
from ..fsdp.memory import TERMS, PredictedMemory
from ..fsdp.timing import PredictedStep
from .memory import keys_by_look

_GAP_PX = 32.0  # between the timeline and the memory
_MEMORY_PX = 132.0
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
    above = draw_timeline(step.timeline, title=title or _finding(step), deck=_deck(step))
    left, px_per_s = time_scale(step.timeline)
    keys = []
    for term in TERMS:
        if memory.terms[term].any():
            keys.append(Key(term.replace("_", " "), MEMORY[term].hue, hatched=MEMORY[term].hatched))
    named, keys_px = key_marks(keys_by_look(keys))
    top = above.height_px + keys_px + _GAP_PX
    bottom = top + _MEMORY_PX
    below: list[Mark] = [moved_down(mark, above.height_px + 8) for mark in named]
    below += _areas(memory, step, left, px_per_s, bottom)
    for y, words in ((top, decimal_words(full_bytes)), (bottom, "0 B")):
        below.append(Text(left - 12, y + 4, words, "label", "ink", "end"))
    peak_s = float(memory.at_s[memory.peak_place]) - step.timeline.begin_s
    peak_x = min(max(left + peak_s * px_per_s, left), RIGHT_PX)
    below.append(Line(((peak_x, top - 6), (peak_x, top + 6)), "accent", 2))
    words = f"peak, during {memory.doing[memory.peak_place]}"
    anchor = "end" if peak_x > (left + RIGHT_PX) / 2 else "start"
    below.append(Text(peak_x, top - 10, words, "label", "accent", anchor))
    return replace(above, marks=[*above.marks, *below], height_px=bottom + 12)


def _finding(step: PredictedStep) -> str:
    share = step.wait_s / (step.step_s or 1.0)
    return f"{percent_words(share)} of {time_words(step.step_s)} waits for communication"


def _deck(step: PredictedStep) -> str:
    """The largest terms at the peak."""
    terms = [name.replace("_", " ") for name, num_bytes in step.memory.peak_terms.items() if num_bytes]
    return f"peak of {decimal_words(step.memory.peak_bytes)}: {', '.join(terms[:_NAMED_TERMS])}"


def _areas(memory: PredictedMemory, step: PredictedStep, left: float, px_per_s: float, bottom: float) -> list[Mark]:
    """Return boxes for each term: one between every two changes, as high as its bytes, stacked from the bottom.

    Time begins at `left`; instants outside the spans are drawn at the edges.
    """
    end_s = max(step.step_s, float(memory.at_s[-1]))  # the bytes after the last change last until then
    changes_s = np.append(memory.at_s, end_s) - step.timeline.begin_s
    edges = np.clip(left + changes_s * px_per_s, left, RIGHT_PX)
    below = np.zeros(memory.at_s.size)  # the height of the terms that are drawn already, at each change
    areas: list[Mark] = []
    for term, values in memory.terms.items():
        heights = values * _MEMORY_PX / memory.peak_bytes
        look = MEMORY[term]
        for start, stop, height, under in zip(edges, edges[1:], heights, below, strict=False):
            if stop > start and height > 0:  # several changes may be at one instant
                box = Box(start, bottom - under - height, stop - start, height, look.hue, "tint", look.hatched)
                areas.append(box)
        below = below + heights
    return areas
