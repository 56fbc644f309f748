"""Frames of one drawing as an SVG in which what has a key moves from frame to frame, in the browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from .marks import WIDTH_PX, Box, Drawing, Mark, page
from .svg import frame_svg, mark_svg

_LEAD_S = 0.7  # before it plays
_HOLD_S = 2.5  # after it has played

# without scripts, where a person prefers reduced motion
STILL = (
    "<style>@media(prefers-reduced-motion:reduce){.playing{display:none!important}.still{display:inline!important}}"
    "</style>"
)
# Play starts all animations at the first press; step lets it play until the next frame, or jumps there.
_SCRIPT = (
    "const s=this.ownerSVGElement,T=[{times}],still=matchMedia('(prefers-reduced-motion:reduce)').matches;"
    "if(!s.dataset.on){{s.dataset.on=1;s.setCurrentTime(0);"
    "s.querySelectorAll('animate,animateTransform').forEach(a=>a.beginElement())}}"
    "const t=s.getCurrentTime()%T.at(-1),n=T.find(x=>x>t+.02)??0;clearTimeout(s.timer);"
    "const stop=()=>{{s.pauseAnimations();s.setCurrentTime(n)}};"
)
_ACTIONS = {
    "▶ play": "still?stop():s.unpauseAnimations()",
    "❚❚ pause": "s.pauseAnimations()",
    "» step": "if(still)stop();else{s.unpauseAnimations();s.timer=setTimeout(stop,(n-t)*1e3)}",
}


class _Run(NamedTuple):
    """A mark that looks the same in a run of frames: where it is in each of them."""

    mark: Mark
    first: int  # the number of its first frame
    places: list[tuple[float, float]]


def movie(frames: Sequence[tuple[float, Drawing]], seconds: float, buttons: bool) -> str:
    """Return frames, each with its time as a share of the whole, as an SVG of `seconds`; boxes with a key glide."""
    total_s = _LEAD_S + seconds + _HOLD_S
    keys = [(_LEAD_S + share * seconds) / total_s for share, _ in frames]
    begin = "indefinite" if buttons else "0s"
    timing = f'dur="{total_s:g}s" begin="{begin}" repeatCount="indefinite"'
    inside = "".join(_moving(run, keys, timing) for run in _runs([drawing for _, drawing in frames]))
    first = frames[0][1]
    if not buttons:
        still = "".join(mark_svg(mark) for mark in frames[2 * len(frames) // 5][1].marks)
        inside = f'{STILL}<g class="still" display="none">{still}</g><g class="playing">{inside}</g>'
    height = page(first).height_px + (28 if buttons else 0)
    if buttons:
        times = ",".join(f"{key * total_s:.3f}" for key in [*keys[1:], 1])
        inside += _buttons(first.height_px, _SCRIPT.format(times=times))
    return frame_svg(first, inside, height)


def _buttons(y: float, script: str) -> str:
    parts = []
    for number, (label, action) in enumerate(_ACTIONS.items()):
        parts.append(
            f'<text x="{WIDTH_PX - 270 + 90 * number:g}" y="{y + 16:g}" class="label f-ink" font-size="12" '
            f'role="button" style="cursor:pointer" onclick="{script}{action}">{label}</text>'
        )
    return "".join(parts)


def _runs(drawings: Sequence[Drawing]) -> list[_Run]:
    """Every mark with the frames in which it looks the same, in the order of painting."""
    open_runs: dict[Hashable, _Run] = {}
    runs: list[_Run] = []
    for number, drawing in enumerate(drawings):
        count = Counter[Hashable]()
        seen: dict[Hashable, _Run] = {}
        for mark in drawing.marks:
            identity: Hashable = mark
            place = 0.0, 0.0
            if isinstance(mark, Box) and mark.key is not None:
                identity = mark._replace(x=0, y=0)
                place = mark.x, mark.y
            identity = identity, count[identity]
            count[identity[0]] += 1
            run = open_runs.get(identity)
            if run is None:
                run = _Run(mark, number, [])
                runs.append(run)
            run.places.append(place)
            seen[identity] = run
        open_runs = seen
    return runs


def _moving(run: _Run, keys: Sequence[float], timing: str) -> str:
    svg = mark_svg(run.mark)
    stop = run.first + len(run.places)
    animations = ""
    if run.first > 0 or stop < len(keys):
        shown = [(0.0, "visible" if run.first == 0 else "hidden")]
        if run.first > 0:
            shown.append((keys[run.first], "visible"))
        if stop < len(keys):
            shown.append((keys[stop], "hidden"))
        animations += _animate('animate attributeName="visibility" calcMode="discrete"', shown, timing)
    if len(set(run.places)) > 1:
        x0, y0 = run.places[0]
        moves = [(keys[run.first + number], f"{x - x0:.1f} {y - y0:.1f}") for number, (x, y) in enumerate(run.places)]
        if stop < len(keys):  # on to where it is when it vanishes
            moves.append((keys[stop], moves[-1][1]))
        moves = [(0.0, moves[0][1]), *moves, (1.0, moves[-1][1])]
        kept = [move for number, move in enumerate(moves) if not _is_between(moves, number)]
        animations += _animate('animateTransform attributeName="transform" type="translate"', kept, timing)
    if not animations:
        return svg
    hidden = ' visibility="hidden"' if run.first > 0 else ""
    return f"<g{hidden}>{animations}{svg}</g>"


def _is_between(moves: Sequence[tuple[float, str]], number: int) -> bool:
    """Whether a place is equal to the one before and the one after it, so that it need not be written."""
    return 0 < number < len(moves) - 1 and moves[number - 1][1] == moves[number][1] == moves[number + 1][1]


def _animate(what: str, values: Sequence[tuple[float, str]], timing: str) -> str:
    tag = what.partition(" ")[0]
    times = ";".join(f"{time:.5f}".rstrip("0").rstrip(".") or "0" for time, _ in values)
    listed = ";".join(value for _, value in values)
    return f'<{what} values="{listed}" keyTimes="{times}" {timing}></{tag}>'
