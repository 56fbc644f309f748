"""A page that `rankscope diagnose` wrote, in a browser that holds it to its Content-Security-Policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main
from tests.browser.jupyterlab import browser_page, find_browser
from tests.diagnose.made_traces import write_traces

ROOT = Path(__file__).parents[2]


@pytest.mark.browser
def test_the_page_loads_nothing_and_its_drawings_fit(tmp_path: Path) -> None:
    find_browser()
    traces = tmp_path / "traces"
    traces.mkdir()
    write_traces(traces, (0.0, 0.05))
    assert main(["diagnose", str(traces), "-o", str(tmp_path / "page.html")]) == 0
    said: list[str] = []
    asked: list[str] = []
    with browser_page(tmp_path / "browser", ROOT / "test-artifacts" / "diagnose-page.png") as page:
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        assert said == []
        assert asked == [page.url]
        assert page.locator("svg").count() == 1
        assert page.evaluate("() => getComputedStyle(document.body).maxWidth") != "none"
        width, room = page.evaluate("() => ['svg', 'section'].map(name => document.querySelector(name).clientWidth)")
        assert 200 < width <= room
