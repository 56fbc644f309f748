"""One HTML file that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ...common.words import printable
from ...figures.palette import INK, PAPER

_STYLE = f"""
body {{ font: 16px/1.5 "DejaVu Sans", Verdana, sans-serif; color: {INK}; background: {PAPER};
  max-width: 68rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.3rem; }} h2 {{ font-size: 1rem; }} p {{ margin: .5rem 0; }} p:first-of-type {{ font-weight: bold; }}
section {{ overflow-x: auto; margin-top: 1.5rem; }} td, th {{ padding: .1rem .6rem; text-align: right; }}
svg {{ max-width: 100%; height: auto; }}
"""


def page(title: str, lines: Iterable[str], sections: Iterable[tuple[str, str]]) -> str:
    """Return the HTML of a page: a title, lines of text, and sections, each with a heading and its HTML."""
    text = "".join(f"<p>{escape(printable(line))}</p>" for line in lines)
    body = "".join(f"<section><h2>{escape(heading)}</h2>{html}</section>" for heading, html in sections)
    title = escape(printable(title))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{text}{body}</body></html>\n"
    )
