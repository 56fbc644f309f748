"""Make the picture that plays by itself, without scripts: python -m tests.tools.playing_picture."""

from __future__ import annotations

from pathlib import Path

from rankscope.figures.marks import RIGHT_PX, Drawing, page
from rankscope.figures.svg import frame_svg, mark_svg
from rankscope.figures.timelines import draw_timeline, time_scale
from rankscope.timeline import Timeline

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
STEP = NOTEBOOKS / "pictures" / "step_playing.svg"
RECORDED_STEP = NOTEBOOKS / "profiles" / "step_of_two_ranks_run.json"
# where a person prefers reduced motion
STILL = (
    "<style>@media(prefers-reduced-motion:reduce){.playing{display:none!important}.still{display:inline!important}}"
    "</style>"
)


def step() -> str:
    """Return the picture of notebook 00: a recorded step of two ranks under DDP."""
    timeline = Timeline.from_chrome_trace(RECORDED_STEP)
    waiting_ms = timeline.select(rank=0, kind="wait").busy_s * 1e3
    step_ms = timeline.select(rank=0).makespan_s * 1e3
    title = f"Rank 0 waits for {waiting_ms:.0f} of {step_ms:.0f} ms of a step"
    left, _ = time_scale(timeline)
    return swept(draw_timeline(timeline, title, "recorded on two ranks under DDP"), left, 10.0) + "\n"


def swept(drawing: Drawing, left: float, seconds: float) -> str:
    """Return a drawing over time, which begins at `left`, with a line that sweeps over it, over and over.

    What is to come is pale. Where a person prefers reduced motion, the whole drawing is shown.
    """
    marks = "".join(mark_svg(mark) for mark in drawing.marks)
    timing = f'dur="{seconds + 3:g}s" repeatCount="indefinite" keyTimes="0;{seconds / (seconds + 3):.4f};1"'
    width = RIGHT_PX - left
    height = drawing.height_px - 26
    grows = f'<animate attributeName="width" values="{left:g};{RIGHT_PX:g};{RIGHT_PX:g}" {timing}/>'
    moves = f'<animateTransform attributeName="transform" type="translate" values="0;{width:g};{width:g}" {timing}/>'
    inside = (
        f'{STILL}<g class="still" display="none">{marks}</g><g class="playing"><g opacity="0.18">{marks}</g>'
        f'<clipPath id="rs-swept"><rect x="0" y="-4" width="{left:g}" height="{drawing.height_px + 8:g}">{grows}</rect>'
        f'</clipPath><g clip-path="url(#rs-swept)">{marks}</g>'
        f'<path d="M{left:g} 0V{height:g}" class="s-ink" stroke="#1f2328" stroke-width="2">{moves}</path></g>'
    )
    return frame_svg(drawing, inside, page(drawing).height_px)


if __name__ == "__main__":
    STEP.write_text(step(), encoding="utf-8")
