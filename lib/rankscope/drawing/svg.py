"""Paint a drawing as one SVG, without scripts: dark mode, phones, the pointer and motion are its style's."""

from __future__ import annotations

import re
from html import escape

from ..common.words import printable
from .marks import SIZES_PX, Box, Line, Mark, Text
from .palette import DARK, TONES

FONT = "Inter,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
OPACITY = {"tint": 0.4, "work": 0.52, "hole": 0.1, "solid": 1.0}
HATCH_EVERY_PX = 7
_HATCH_OPACITY = 0.34


def _variables(tones: dict[str, str], tint: float, work: float) -> str:
    colors = "".join(f"--{name}:{color};" for name, color in tones.items())
    return f"{colors}--tint:{tint};--work:{work};"


def _style() -> str:
    light = _variables(TONES, OPACITY["tint"], OPACITY["work"])
    dark = _variables(DARK, 0.46, 0.46)
    rules = [
        f".rs{{{light}--k:1;font-variant-numeric:tabular-nums}}",
        f"@media(prefers-color-scheme:dark){{.rs{{{dark}}}}}",
        # a page that knows its own theme wins over the system's
        f"[data-jp-theme-light=true] .rs,[data-theme=light] .rs{{{light}}}",
        f"[data-jp-theme-light=false] .rs,[data-theme=dark] .rs{{{dark}}}",
        "[data-jp-theme-light] .rs{--paper:var(--jp-layout-color0)}",
        "[data-theme] .rs{--paper:var(--pst-color-background)}",
        "@media(max-width:480px){.rs{--k:1.32}.rs .fine{display:none}}",
        ".rs .tint{fill-opacity:var(--tint)}.rs .work{fill-opacity:var(--work)}",
        ".rs .k,.rs .w{transition:opacity .12s}.rs .k:hover .w{opacity:1}",
        ".rs .all:hover .k:not(:hover){opacity:.28}",
        ".rs .k:hover :is(.tint,.work){stroke:var(--ink);stroke-width:1.5}",
        "@keyframes rs-move{from{transform:translate(var(--dx),var(--dy))}}@keyframes rs-new{from{opacity:0}}",
        "@media(prefers-reduced-motion:no-preference){",
        ".rs .mv{animation:rs-move .3s ease-in-out}.rs .new{animation:rs-new .3s ease-in}}",
    ]
    rules += [f".rs .{name}{{font-size:calc({px}px*var(--k))}}" for name, px in SIZES_PX.items()]
    rules += [f".rs .f-{tone}{{fill:var(--{tone})}}.rs .s-{tone}{{stroke:var(--{tone})}}" for tone in TONES]
    return "".join(rules)


STYLE = _style()


def _paint(kind: str, color: str) -> tuple[str, str]:
    """Return the class and the attribute of a fill ("f") or a stroke ("s") in a tone or another colour."""
    name = "fill" if kind == "f" else "stroke"
    if color in TONES:
        return f"{kind}-{color}", f'{name}="{TONES[color]}"'
    return "", f'{name}="{color}"'


def _hatching(box: Box) -> str:
    """The lines at 45 degrees over a box.

    A pattern would need an id, which belongs to the page, and is lost where the first picture with it is hidden.
    """
    lines = ""
    for k in range(4, int(box.width + box.height), HATCH_EVERY_PX):
        x0, y0 = box.x + min(k, box.width), box.y + max(0, k - box.width)
        x1, y1 = box.x + max(0, k - box.height), box.y + min(k, box.height)
        lines += f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"
    return f'<path d="{lines}" class="s-ink" stroke="{TONES["ink"]}" stroke-opacity="{_HATCH_OPACITY}"/>'


def _box(box: Box) -> str:
    rounded = ' rx="2"' if box.width > 8 else ""
    at = f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"{rounded}'
    tone, fill = _paint("f", box.fill)
    middle_y = box.y + box.height / 2
    if box.look == "wait":
        svg = _line(Line(((box.x, middle_y), (box.x + box.width, middle_y)), "mute", 1.7, "1.7 3"))
    else:
        svg = f'{at} class="{box.look} {tone}" {fill} fill-opacity="{OPACITY[box.look]}"/>'
    if box.hatched:
        svg += _hatching(box)
    if box.look == "work":
        edge = f'<path d="M{box.x + 1:.1f} {box.y:.1f}v{box.height:.1f}"'
        svg += f'{edge} {_paint("s", box.fill)[1]} stroke-width="2"/>'
    if box.edge:
        tone, stroke = _paint("s", box.edge)
        svg += f'{at} class="{tone}" fill="none" {stroke} stroke-width="1.5"/>'
    if box.text:
        tone = box.fill if box.look == "hole" else "ink"
        text = Text(box.x + box.width / 2, middle_y + 4, box.text, "number", tone, "middle", box.look == "wait")
        svg += _text(text, bold=bool(box.edge), fine=box.width < 8 * len(box.text) + 3)
    return svg


def _text(text: Text, bold: bool = False, fine: bool = False) -> str:
    tone, fill = _paint("f", text.tone)
    classes = f"{text.size} {tone}"
    more = ""
    if text.halo:
        classes += " s-paper"
        more += f' stroke="{TONES["paper"]}" stroke-width="6" paint-order="stroke" stroke-linejoin="round"'
    if fine:  # too wide for its box with the letters of a phone
        classes += " fine"
    if bold or text.size == "title":
        more += ' font-weight="650"'
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" class="{classes}" font-size="{SIZES_PX[text.size]}" {fill} '
        f'text-anchor="{text.anchor}"{more}>{_marked(text.text)}</text>'
    )


def _marked(words: str) -> str:
    """Words between asterisks have the tone of what they name."""
    alarm = rf'<tspan class="f-alarm" fill="{TONES["alarm"]}">\1</tspan>'
    return re.sub(r"\*([^*]+)\*", alarm, escape(printable(words)))


def _line(line: Line) -> str:
    classes, stroke = _paint("s", line.tone)
    more = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    if line.key is not None:
        classes += " w"
        more += ' opacity="0" pointer-events="none"'
    points = [f"{x:.1f} {y:.1f}" for x, y in line.points]
    path = f"M{'L'.join(points)}"
    if line.curved:
        path = f"M{points[0]}Q{points[1]} {points[2]}"
    if line.arrow:
        path += _head(*line.points[-2:])
    return (
        f'<path d="{path}" class="{classes}" fill="none" {stroke} stroke-width="{line.width:g}"'
        f' stroke-linejoin="round"{more}/>'
    )


def _head(before: tuple[float, float], end: tuple[float, float]) -> str:
    """The path of the head of an arrow."""
    tip = complex(*end)
    back = complex(*before) - tip
    back *= 8 / (abs(back) or 1)
    sides = tip + back * complex(0.87, 0.5), tip + back * complex(0.87, -0.5)
    return "".join(f"M{side.real:.1f} {side.imag:.1f}L{tip.real:.1f} {tip.imag:.1f}" for side in sides)


def mark_svg(mark: Mark) -> str:
    """Return a mark as SVG."""
    if isinstance(mark, Box):
        return _box(mark)
    if isinstance(mark, Text):
        return _text(mark)
    return _line(mark)
