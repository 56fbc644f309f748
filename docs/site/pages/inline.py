"""Figures as parts of their page, where its style sheet scales them and its theme colours them."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from urllib.parse import unquote

_IMAGE = re.compile(r"""<img\b[^>]*?\bsrc="([^":?]+\.svg)"[^>]*>""")
_ALT = re.compile(r'\balt="([^"]*)"')
_NAME = re.compile(r"""(\bid=["']|url\(#|href=["']#)([\w-]+)""")


def inlined(html: str, folder: Path) -> str:
    """Return a page of this folder in which each SVG that is loaded as an image stands in the page itself."""
    numbers = count()

    def svg_of(image: re.Match[str]) -> str:
        path = folder / unquote(image[1])
        if not path.exists():
            return image[0]
        svg = path.read_text(encoding="utf-8").strip()
        alt = _ALT.search(image[0])
        return described(with_own_names(svg, next(numbers)), alt[1] if alt else "")

    return _IMAGE.sub(svg_of, html)


def with_own_names(svg: str, number: int) -> str:
    """Return a picture, the page's `number`th, with names that no other picture of the page has.

    >>> with_own_names("<svg><clipPath id='a'/><g clip-path='url(#a)'/></svg>", 3)
    "<svg><clipPath id='a-3'/><g clip-path='url(#a-3)'/></svg>"
    """
    return _NAME.sub(rf"\g<1>\g<2>-{number}", svg)


def described(svg: str, alt: str) -> str:
    """Return a picture with words for readers who cannot see it.

    >>> described("<svg class='figure' width='9'/>", "Two ranks")
    '<svg role="img" aria-label="Two ranks" class=\\'figure\\' width=\\'9\\'/>'
    """
    role = "" if re.match(r"<svg[^>]*\brole=", svg) else 'role="img" '
    return svg.replace("<svg ", f'<svg {role}aria-label="{alt}" ', 1)
