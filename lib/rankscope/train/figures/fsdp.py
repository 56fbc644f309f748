"""A drawing of one step under `fully_shard`: what runs when on each stream, and below it the memory of the rank."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

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
_LETTER_PX = 6.8
_MOST_INSTANTS = 2_000  # of the memory, that are drawn


def draw_fsdp_step(step: PredictedStep, title: str | None = None) -> Drawing:
    """Draw a step that `fsdp.predict` returned: its timeline, and its memory over the same time.

    A row is one of FSDP's streams. Hatched spans are communication, and the number on a span is its group: 0 is the
    root's, and the wrapped modules follow. Below, the terms of the rank's memory are stacked; hatched ones are buffers
    of communication. The largest sum is marked, and named with its largest terms.

    Raises ValueError if `step` is not a `PredictedStep` or its memory changes more than 2,000 times.
    """
    of_type("step", step, PredictedStep)
    memory = step.memory
    if memory.at_s.size > _MOST_INSTANTS:
        raise ValueError(f"a drawing has at most {_MOST_INSTANTS} changes of memory, got {memory.at_s.size}")
    above = draw_timeline(step.timeline, title=title or _finding(step))
    scale, _ = time_unit(step.timeline.makespan_s)
    bottom = above.height + _GAP_ROWS + _MEMORY_ROWS
    peak_bytes = max(memory.peak_bytes, 1)
    rects = _areas(memory, step, scale, above.width, bottom)
    peak_x = min(max(float(memory.at_s[memory.peak_place]) / scale, 0.0), above.width)
    largest = [name.replace("_", " ") for name, num_bytes in memory.peak_terms.items() if num_bytes][:3]
    words = (
        f"peak of {decimal_words(memory.peak_bytes)}, during {memory.doing[memory.peak_place]}: {', '.join(largest)}"
    )
    half = 0.5 * _LETTER_PX * len(words) * above.width / above.size_px[0]
    words_x = max(min(peak_x, above.width - half), half)  # over the marker, as far as it has room there
    peak = Texts(words_x, bottom - _MEMORY_ROWS - 0.45, [words], halo=PAPER)
    marker = Rects(
        peak_x - 0.0015 * above.width, bottom - _MEMORY_ROWS - 0.15, INK, width=0.003 * above.width, height=0.3
    )
    shown = [term for term in TERMS if memory.terms[term].any()]
    keys = [Key(term.replace("_", " "), MEMORY[term].hue, hatched=MEMORY[term].hatched) for term in shown]
    return attrs.evolve(
        above,
        height=bottom,
        size_px=(above.size_px[0], above.size_px[1] + _ROW_PX * (_GAP_ROWS + _MEMORY_ROWS)),
        rects=(*above.rects, *rects, marker),
        texts=(*above.texts, peak),
        y_ticks=(*above.y_ticks, (bottom - _MEMORY_ROWS, decimal_words(peak_bytes)), (bottom, "0 B")),
        legend=_legend([*above.legend, *keys]),
    )


def _legend(keys: Sequence[Key]) -> list[Key]:
    """One entry for work and for the memory that it fills, which share their hue.

    Hatched ones are left out: the names of their lanes say which communication it is. So is waiting, if it is named.
    """
    shown = [key for key in keys_by_look(keys) if not key.hatched]
    shown = [key for key in shown if key.label not in {"wait", "copy_in, copy_out"}]
    return [*shown, Key("hatched: communication, its buffers; light: waiting", PAPER, line="none")]


def _finding(step: PredictedStep) -> str:
    share = step.wait_s / (step.step_s or 1.0)
    wait = f"{time_words(step.step_s)} per step, of which {percent_words(share)} waits for communication"
    return f"{wait}; peak {decimal_words(step.memory.peak_bytes)} per rank"


def _areas(memory: PredictedMemory, step: PredictedStep, scale: float, width: float, bottom: float) -> list[Rects]:
    """A rectangle for each term between two changes, stacked from the bottom."""
    begin_s = step.timeline.begin_s
    edges = np.append(memory.at_s, max(step.step_s, float(memory.at_s[-1])))
    edges = np.clip((edges - begin_s) / scale, 0.0, width)
    lengths = np.diff(edges)
    shown = lengths > 0
    rows_per_byte = _MEMORY_ROWS / max(memory.peak_bytes, 1)
    below = np.zeros(memory.at_s.size)
    areas = []
    for term, values in memory.terms.items():
        heights = values * rows_per_byte
        wanted = shown & (heights > 0)
        color, hatched = MEMORY[term]
        if wanted.any():
            top = bottom - below[wanted] - heights[wanted]
            areas.append(
                Rects(
                    edges[:-1][wanted],
                    top,
                    color,
                    width=lengths[wanted],
                    height=heights[wanted],
                    hatched=hatched,
                    edge=color,
                )
            )
        below = below + heights
    return areas
