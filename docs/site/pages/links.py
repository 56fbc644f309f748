"""A check of built pages: every link and anchor leads somewhere, nothing comes from elsewhere, pictures have words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NO_TEXT = ("a", "script", "style")
_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
_ISSUE = re.compile(r"\b[\w.-]+(?:/[\w.-]+)?#\d{2,}\b")  # of a repository: pytorch#36650
_STYLE_URL = re.compile(r"""(?:url\(|@import)\s*['"]?([^'")]+)""")


@dataclass
class Page(HTMLParser):
    """What a page has that can be linked to, what it links to, what it loads, and what lacks words or a link."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    wordless: list[str] = field(default_factory=list)
    issues: list[str] = field(default_factory=list)  # that are no links
    _no_text: int = 0  # how many links and scripts are open
    _svg: list[bool] = field(default_factory=list)  # of each open svg: does it need words, and has none yet?

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.anchors |= {has[name] for name in ("id", "name") if name in has}
        self._no_text += tag in _NO_TEXT
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if tag in _LOADS and _LOADS[tag] in has:
            self.loads.append(has[_LOADS[tag]])
        words = has.get("alt", "") + has.get("aria-label", "") + has.get("title", "")
        if tag == "img" and not words.strip():
            self.wordless.append(has.get("src", "img"))
        if tag == "svg":
            self._svg.append(not words.strip() and has.get("aria-hidden") != "true")
        if tag == "title" and self._svg:
            self._svg[-1] = False

    def handle_data(self, data: str) -> None:
        self.issues += [] if self._no_text else _ISSUE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._no_text -= tag in _NO_TEXT
        if tag == "svg" and self._svg and self._svg.pop():
            self.wordless.append("svg")


def read(folder: Path) -> dict[Path, Page]:
    """Every page below a folder."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def problems(folder: Path) -> list[str]:
    """A sentence for each link that leads nowhere, file loaded from elsewhere, picture without words, bare issue."""
    pages = read(folder)
    on_pages = [
        f"{path.relative_to(folder)}: {problem}"
        for path, page in pages.items()
        for problem in [
            *(_broken(path, link, pages) for link in page.links if not _elsewhere(link)),
            *(f"loads {load} from elsewhere" for load in page.loads if _elsewhere(load)),
            *(_broken(path, load, pages) for load in page.loads if not _elsewhere(load)),
            *(f"{picture} has no words for readers who cannot see it" for picture in page.wordless),
            *(f"{issue} is no link" for issue in page.issues),
        ]
        if problem
    ]
    return on_pages + [f"{path.relative_to(folder)}: {problem}" for path, problem in _style_problems(folder)]


def elsewhere(folder: Path) -> list[str]:
    """Every address outside that a page links to; nothing here asks whether it is there."""
    return sorted({link for page in read(folder).values() for link in page.links if _elsewhere(link)})


def _elsewhere(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme not in ("", "data")


def _broken(path: Path, link: str, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"{link} leads nowhere"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{link}: there is no such place on that page"
    return None


def _style_problems(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.css")):
        for address in _STYLE_URL.findall(path.read_text(encoding="utf-8")):
            if _elsewhere(address):
                yield path, f"loads {address} from elsewhere"
