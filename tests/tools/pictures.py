"""How a figure stands in a notebook: as SVG where that is small, else as a PNG of twice the size.

matplotlib's SVG is long: a line per corner, a style and a group per mark, ten fonts per text. `compact` keeps a fifth
of it. The result is sharp at any size, its texts are texts, it follows the reader's theme, and it has no date. A figure
of thousands of marks stays a PNG.

JupyterLab drops every SVG of a notebook that it does not trust, so the first picture of a notebook has a PNG of the
same next to it (`copy_as_png`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, PngImagePlugin  # comes with matplotlib

from rankscope.drawing.charts import themed
from rankscope.drawing.svg import FONT

SVG, PNG = "image/svg+xml", "image/png"
MOST_SVG_BYTES = 58_000
# what the kernel is asked for: both formats, SVG with texts and with ids that depend on what is drawn alone
KERNEL = [
    f"--InlineBackend.figure_formats={ {'svg', 'retina'} }",
    f"--InlineBackend.rc={ {'svg.fonttype': 'none', 'svg.hashsalt': 'rankscope'} }",
]
_ZOOM = 2  # of a PNG, for screens with small pixels
_COPIED = "Copied from the SVG with this SHA-256"  # the name of a text in a PNG
_NS = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_SHARED = ("font-size", "font-family", "text-anchor")  # said once for all texts
_DRAWN = f"<svg xmlns='{_NS[1:-1]}' class='rs'"


def stored(data: dict[str, Any]) -> dict[str, Any]:
    """The data of an output with one picture in place of two; that of a picture already stored as it is."""
    if PNG not in data:
        return data
    data = dict(data)
    if SVG in data and len(svg := compact(data[SVG]).encode()) <= MOST_SVG_BYTES:
        return {kind: content for kind, content in data.items() if kind != PNG} | {SVG: svg.decode()}
    data.pop(SVG, None)
    return data | {PNG: small(data[PNG])}


def small(png: str) -> str:
    """A picture of flat colours in a palette of 256: a third of the size, small patches as true as large ones."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        if picture.mode == "P":
            return png
        return _in_few_colours(picture)


def _in_few_colours(picture: Image.Image, texts: PngImagePlugin.PngInfo | None = None) -> str:
    file = io.BytesIO()
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    flat = picture.convert("RGB").quantize(256, method=method, dither=dither, kmeans=1)  # large grounds stay true
    flat.save(file, "PNG", optimize=True, pnginfo=texts)
    return base64.b64encode(file.getvalue()).decode() + "\n"


def copy_as_png(svg: str, earlier: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return a picture as PNG of twice the size, and the metadata by which a page shows it in the size of the SVG.

    The PNG names the SVG from which it was made. If `earlier` is a copy of the same SVG, it is returned as it is, so
    that what one machine has stored no other machine changes.
    """
    source = hashlib.sha256(svg.encode()).hexdigest()
    if earlier is not None and _copied_from(earlier) == source:
        png = earlier
    else:
        texts = PngImagePlugin.PngInfo()
        texts.add_text(_COPIED, source)
        with Image.open(io.BytesIO(_drawn(svg))) as picture:
            png = _in_few_colours(picture, texts)
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        width_px = picture.width // _ZOOM
    return png, {PNG: {"width": width_px}}


def is_copy(png: str) -> bool:
    """Whether a PNG was made by `copy_as_png`."""
    return _copied_from(png) is not None


def _copied_from(png: str) -> str | None:
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        return picture.info.get(_COPIED)


def _drawn(svg: str) -> bytes:
    """Draw an SVG as PNG, with the fonts that matplotlib brings: no machine has others, or none.

    Its style is left out: resvg knows no variables, and would paint everything black that has one.
    """
    import resvg_py

    plain = re.sub(r"var\(--\w+,(#\w+)\)", r"\1", re.sub("<style>.*?</style>", "", svg))
    return resvg_py.svg_to_bytes(
        svg_string=plain,
        zoom=_ZOOM,
        background="#ffffff",
        skip_system_fonts=True,
        font_files=_fonts(),
        font_family="DejaVu Sans",
        sans_serif_family="DejaVu Sans",
    )


@functools.cache
def _fonts() -> list[str]:
    return sorted(str(path) for path in Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuSans*.ttf"))


def compact(svg: str) -> str:
    """matplotlib's SVG in few bytes; doing it twice changes nothing."""
    if svg.startswith(_DRAWN):
        return svg
    root = ET.fromstring(themed(svg))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_NS}metadata":
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.removeprefix(_NS)
        node.attrib |= dict(re.findall(r"([\w-]+): ([^;]+)", node.attrib.pop("style", "")))
        node.text, node.tail = (node.text if node.tag in ("text", "tspan", "style") else None), None
        if "d" in node.attrib:
            node.attrib["d"] = _path(node.attrib["d"])
        for name in ("x", "y", "transform", "stroke-width", "stroke-dasharray", "stroke-miterlimit"):
            if name in node.attrib:
                node.attrib[name] = _short(node.attrib[name])
        if _LINK in node.attrib:
            node.attrib["href"] = node.attrib.pop(_LINK)
    _texts(root)
    _flatten(root)
    wide, high = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
    for style in root.findall("defs/style"):
        style.text = None
    shared = "".join(f' {name}="{root.attrib[name]}"' for name in _SHARED if name in root.attrib)
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    whole = (
        f'{_DRAWN} width="{wide * 4 / 3:.0f}" height="{high * 4 / 3:.0f}" viewBox="0 0 {wide:.1f} {high:.1f}" '
        f'style="max-width:100%;height:auto" stroke-linejoin="round"{shared}>{body}</svg>'
    )
    whole = whole.replace(" />", "/>").replace('<style type="text/css"/>', "").replace("<defs/>", "")
    return re.sub("<[^>]*>", lambda tag: tag[0].replace('"', "'"), whole)  # which JSON does not have to escape


def _short(numbers: str) -> str:
    """The numbers with one decimal, none where it is 0."""
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), numbers)


def _path(corners: str) -> str:
    """A path in few letters: lines along an axis name one number."""
    parts, x, y = [], "", ""
    for command, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", _short(corners)):
        numbers = rest.split()
        if command == "L" and numbers == [x, y]:
            continue
        if command == "L" and numbers[0] == x:
            parts.append(f"V{numbers[1]}")
        elif command == "L" and numbers[1] == y:
            parts.append(f"H{numbers[0]}")
        else:
            parts.append(command + " ".join(numbers))
        x, y = numbers[-2:] if numbers else ("", "")
    return "".join(parts)


def _texts(root: ET.Element) -> None:
    """One stack of fonts for all; what most texts have is said once, at the root."""
    texts = list(root.iter("text"))
    for text in texts:
        if text.get("transform", "").startswith("rotate(-0"):
            del text.attrib["transform"]
        text.attrib["font-family"] = FONT.replace("'", "")  # in quotes already
        for part in text.iter("tspan"):  # of powers of ten: their family has quotes of its own
            part.attrib.pop("font-family", None)
    for name in _SHARED:
        default = {"text-anchor": "start"}.get(name, "")  # the parts of a power of ten have sizes of their own
        values = [text.get(name, default) for text in texts]
        most = max(filter(None, values), key=values.count, default="")
        if most:
            root.attrib[name] = most
        for text, value in zip(texts, values, strict=True):
            text.attrib.pop(name, None)
            if value not in ("", most):
                text.attrib[name] = value


def _flatten(node: ET.Element) -> None:
    """Groups that say nothing go, and neighbours that look the same become one path."""
    flat: list[ET.Element] = []
    for child in node:
        _flatten(child)
        if child.tag == "g":
            child.attrib.pop("id", None)
        if child.tag == "g" and not child.attrib:
            flat += child
        else:
            flat.append(child)
    node[:] = []
    for child in flat:
        last = node[-1] if len(node) else None
        if last is not None and _look(last) == _look(child) is not None:
            last.attrib["d"] += child.attrib["d"]
        else:
            node.append(child)


def _look(node: ET.Element) -> dict[str, str] | None:
    """What a path looks like; None for what cannot be joined: other marks, and what is seen through."""
    see_through = {"opacity", "fill-opacity", "stroke-opacity", "id", "stroke-dasharray"} & set(node.attrib)
    if node.tag != "path" or see_through:
        return None
    return {name: value for name, value in node.attrib.items() if name != "d"}
