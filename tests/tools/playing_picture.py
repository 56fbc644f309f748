"""Make the pictures that play by themselves, without scripts: python -m tests.tools.playing_picture."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.player.model import playback
from rankscope.collectives.player.picture import draw_play, play_svg
from rankscope.common.units import time_words
from rankscope.drawing.drawing import Drawing, frame_svg, page, to_svg
from rankscope.drawing.marks import RIGHT_PX
from rankscope.drawing.svg import mark_svg
from rankscope.timeline import Timeline
from rankscope.timeline.picture import draw_timeline, time_scale

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
RECORDED_STEP = NOTEBOOKS / "profiles" / "step_of_two_ranks_run.json"
# where a person prefers reduced motion
STILL = (
    "<style>@media(prefers-reduced-motion:reduce){.playing{display:none!important}.still{display:inline!important}}"
    "</style>"
)


def ring() -> str:
    """Return the picture of the README: a ring allreduce on four ranks."""
    play = playback(build("allreduce", "ring", 4), 2**20, Cluster.uniform(4, Link(5e-6, 25e9)))
    title = f"Six ring steps take {time_words(play.finish_s)}"
    buttons = r'<text [^>]*role="button".*?</text>'
    moving = re.sub(buttons, "", play_svg([play], title)).replace('begin="indefinite" ', "")
    still = to_svg(draw_play([play], 0.4 * play.finish_s, title))
    place = re.search(r'viewBox="0 0 (\S+) (\S+)"', moving)
    assert place
    size = f'width="{place[1]}" height="{place[2]}" {place[0]}'
    both = f'<g class="playing">{moving}</g><g class="still" display="none">{still}</g>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STILL}{both}</svg>\n'


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


PICTURES = {"ring_playing.svg": ring, "step_playing.svg": step}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (NOTEBOOKS / "pictures" / name).write_text(picture(), encoding="utf-8")
