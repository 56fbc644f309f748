"""Pages after Sphinx has made them: drawings become part of them, and a check of what they link to and load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlsplit

_IMAGE = re.compile(r"""<img\b[^>]*?\bsrc="([^":?]+\.svg)"[^>]*>""")
_NAME = re.compile(r"""(\bid=["']|url\(#|href=["']#)([\w-]+)""")
_ADDRESS = re.compile(r"""<(\w+)\b[^>]*?\b(href|src|data)=["']([^"']+)["']""")
_OWN_NAME = re.compile(r"""\b(?:id|name)=["']([^"']+)["']""")
_STYLE_URL = re.compile(r"""(?:url\(|@import)\s*['"]?([^'")]+)""")


def inlined(html: str, folder: Path) -> str:
    """Return a page of this folder in which each SVG that it loads as an image stands in the page itself.

    There the page's theme colours it. Names in it get a number, so that no other drawing has them.
    """
    numbers = count()

    def svg_of(image: re.Match[str]) -> str:
        path = folder / unquote(image[1])
        if not path.exists():
            return image[0]
        alt = re.search(r'\balt="([^"]*)"', image[0])
        svg = _NAME.sub(rf"\g<1>\g<2>-{next(numbers)}", path.read_text(encoding="utf-8").strip())
        svg = re.sub(r"^<\?xml.*?(?=<svg)", "", svg, flags=re.DOTALL)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{alt[1] if alt else ""}" ', 1)

    return _IMAGE.sub(svg_of, html)


def problems(folder: Path) -> list[str]:
    """Return a sentence for each link that leads nowhere and for each file that is loaded from elsewhere."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))}
    names = {path: set(_OWN_NAME.findall(html)) for path, html in pages.items()}
    found = []
    for path, html in pages.items():
        for tag, _, address in _ADDRESS.findall(html):
            is_outside = address.startswith("//") or urlsplit(address).scheme not in ("", "data")
            if is_outside and tag != "a":
                found.append(f"{path.relative_to(folder)}: loads {address} from elsewhere")
            elif not is_outside and leads_nowhere(path, address, names):
                found.append(f"{path.relative_to(folder)}: {address} leads nowhere")
    return found + [f"{path.relative_to(folder)}: loads {address}" for path, address in loaded_by_styles(folder)]


def leads_nowhere(path: Path, address: str, names: dict[Path, set[str]]) -> bool:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    anchor = unquote(parts.fragment)
    return not target.is_file() or bool(anchor and target in names and anchor not in names[target])


def loaded_by_styles(folder: Path) -> Iterator[tuple[Path, str]]:
    """Give what style sheets load from elsewhere."""
    for path in sorted(folder.rglob("*.css")):
        for address in _STYLE_URL.findall(path.read_text(encoding="utf-8")):
            if address.startswith("//") or urlsplit(address).scheme not in ("", "data"):
                yield path, address
