"""The site as a reader meets it: built from what is here, opened from disk in a browser that has no network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from make_site import build
from pages import live, python
from pages.html import problems
from playwright.sync_api import Locator, Page

from rankscope.diagnose.pasted_examples import EXAMPLES
from rankscope.explorers import EXPLORERS
from tests.browser.jupyterlab import LOAD_MS, browser_page, isolated, running
from tests.tools.execute_notebooks import every_notebook

ROOT = Path(__file__).parents[2]
LEAST_CONTRAST = 4.5  # WCAG 2, level AA, for text of any size
LOOKS: list[tuple[Literal["light", "dark"], str, int]] = [("light", "#ffffff", 1280), ("dark", "#131416", 390)]

# Each text that is too faint, by the colours that a reader sees: those of the text over all that lies behind it.
FAINT_TEXTS = """least => {
  const rgba = color => { const parts = color.match(/[\\d.]+/g).map(Number); return [...parts, 1].slice(0, 4); };
  const over = (top, under) => under.map((value, i) => top[i] * top[3] + value * (1 - top[3]));
  const linear = value => value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const grounds = new Map([[null, [255, 255, 255]]]);
  const behind = element => {
    if (!grounds.has(element)) {
      const own = rgba(getComputedStyle(element).backgroundColor);
      grounds.set(element, over(own, behind(element.parentElement)));
    }
    return grounds.get(element);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  let seen = 0;
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || element.closest('script, style, svg')) continue;
    if (!element.checkVisibility({visibilityProperty: true})) continue;
    seen += 1;
    const back = behind(element), front = over(rgba(getComputedStyle(element).color), back);
    const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < least) faint.push(`${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  return {seen, faint};
}"""
# Code, tables and pictures may scroll by themselves; the page and its columns may not.
TOO_WIDE = """() => [...document.querySelectorAll("html, div.content, aside")]
  .filter(part => part.clientWidth && part.scrollWidth > part.clientWidth)
  .map(part => [part.localName, part.className].filter(Boolean).join("."))"""
SETTLED = "() => Promise.all(document.getAnimations().map(animation => animation.finished)).then(() => {})"
PAPER = """() => "#" + getComputedStyle(document.body).backgroundColor.match(/\\d+/g)
  .map(value => Number(value).toString(16).padStart(2, "0")).join("")"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    folder = tmp_path_factory.mktemp("inputs")
    try:
        python.fetch(folder)
    except ValueError:
        return None
    return folder


@pytest.fixture(scope="module")
def site(inputs: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build(folder / "pages", folder / "work", most_states=24, inputs=inputs) == 0, "Sphinx warns: see above"
    return folder / "pages"


@pytest.fixture(scope="module")
def page(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser"), ROOT / "test-artifacts" / "site.png") as opened:
        opened.context.set_offline(True)
        yield opened


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


@pytest.mark.oracle
def test_every_notebook_and_every_link_is_there(site: Path) -> None:
    for notebook in every_notebook():
        assert (site / notebook.relative_to(ROOT)).with_suffix(".html").exists()
    assert problems(site) == []
    assert [path.name for path in pages(site) if "ForwardRef" in path.read_text(encoding="utf-8")] == []


@pytest.mark.browser
def test_every_page(site: Path, page: Page) -> None:
    """It asks nothing of anybody, its script runs, its text can be read, and it is no wider than its window.

    Half of the pages are loaded in light and wide and then shown dark and narrow, the others the other way round.
    """
    asked: list[str] = []
    found: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: found.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    for number, path in enumerate(pages(site)):
        for turn, (scheme, paper, width) in enumerate(LOOKS[:: -1 if number % 2 else 1]):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            if turn == 0:
                page.goto(path.as_uri(), wait_until="load")
            else:
                page.evaluate(SETTLED)
            texts = page.evaluate(FAINT_TEXTS, LEAST_CONTRAST)
            assert texts["seen"] > 10
            assert page.evaluate(PAPER) == paper
            found += [f"{path.name}, {scheme}: text in a contrast of {text}" for text in texts["faint"]]
            found += [f"{path.name}, {width}: {part} is wider than the window" for part in page.evaluate(TOO_WIDE)]
    assert len(asked) > len(pages(site))
    assert [url for url in asked if urlsplit(url).scheme not in ("file", "data")] == []
    assert found == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_wrong_with_a_page_is_seen(site: Path, page: Page, scheme: Literal["light", "dark"]) -> None:
    asked: list[str] = []
    page.on("requestfailed", lambda request: asked.append(request.url))
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 900})  # a wide window has columns, which scroll the whole page
    page.goto((site / "index.html").as_uri())
    page.add_style_tag(content="article p { color: #777 !important; min-width: 3000px }")
    assert page.evaluate(FAINT_TEXTS, LEAST_CONTRAST)["faint"]
    assert page.evaluate(TOO_WIDE) == ["div.content"]
    with page.expect_event("requestfailed"):
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://example.org/a.png'}))")
    assert asked == ["https://example.org/a.png"]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("halving", "notebooks/04_collectives.html"),
        ("recommend", "api/rankscope.train.ddp.html#rankscope.train.ddp.recommend"),
    ],
)
def test_search_works_from_disk(site: Path, page: Page, words: str, found: str) -> None:
    page.goto((site / "index.html").as_uri())
    box = page.get_by_role("textbox", name="Search").first
    box.fill(words)
    box.press("Enter")
    page.locator("#search-results li a").first.wait_for()
    page.get_by_text(re.compile("Search finished")).wait_for()
    hrefs = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert found in {re.sub(r"\?[^#]*", "", href) for href in hrefs}


@pytest.mark.browser
def test_the_flagship_moves_from_disk(site: Path, page: Page) -> None:
    """Its controls and examples change what is shown, by keyboard, and the page keeps its height."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    place = page.locator(".explorer[data-ready]").first
    place.wait_for()
    shown = place.locator(".explorer-shown")
    before, height = shown.inner_html(), shown.bounding_box()
    drop_last = place.get_by_role("checkbox", name="drop_last")
    drop_last.press("Space")
    assert shown.inner_html() != before
    assert shown.bounding_box() == height
    drop_last.press("Space")
    assert shown.inner_html() == before
    place.get_by_label("example").select_option(label="3 samples, 8 ranks")
    assert shown.inner_html() != before
    assert shown.bounding_box() == height
    assert {urlsplit(url).scheme for url in asked} == {"file"}


@pytest.mark.browser
def test_every_explorer_opens(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    places = page.locator(".explorer").all()
    assert len(places) == len(EXPLORERS)
    for place in places:
        place.scroll_into_view_if_needed()
        place.and_(page.locator("[data-ready]")).wait_for()
        assert place.locator("svg").count() >= 1


@pytest.mark.browser
def test_without_a_script_an_explorer_is_a_picture(site: Path, page: Page) -> None:
    browser = page.context.browser
    assert browser
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto((site / "index.html").as_uri())
    assert still.locator(".explorer-shown svg").count() >= len(EXPLORERS)
    assert still.locator(".explorer input").count() == 0
    context.close()


@pytest.fixture
def server(inputs: Path | None, site: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of the site's files."""
    if inputs is None:
        pytest.skip("what inputs.json names cannot be fetched")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


class Handler(SimpleHTTPRequestHandler):
    requests: Queue[str] = Queue()

    def log_message(self, *words: Any) -> None:
        self.requests.put(self.path)


@pytest.fixture
def served(server: ThreadingHTTPServer, page: Page) -> Iterator[Page]:
    """A page in a new browser, for what the server has."""
    assert page.context.browser
    with page.context.browser.new_context(base_url=f"http://127.0.0.1:{server.server_port}") as context:
        context.set_default_timeout(LOAD_MS)
        yield context.new_page()


def explorer(page: Page, name: str = "samplers") -> Locator:
    return page.locator(f".explorer[data-name={name}][data-ready]")


def shows(page: Page, name: str = "samplers", **settings: Any) -> bool:
    """Whether an explorer shows what Python outside of the browser draws."""
    html = page.evaluate("name => panels.get(document.querySelector(`[data-name=${name}]`)).state.html", name)
    return bool(html == live.state_of(name, settings)["html"])


def make_live(page: Page, name: str = "samplers") -> Locator:
    explorer(page, name).get_by_label("example").press("Shift")
    explorer(page, name).and_(page.locator("[data-live=on]")).wait_for()
    return explorer(page, name)


@pytest.mark.browser
def test_a_touch_makes_all_settings_live(served: Page) -> None:
    """What was stored stays as it is, all values are offered, and nothing comes from elsewhere."""
    asked: list[str] = []
    served.on("request", lambda request: asked.append(request.url))
    served.goto("/index.html")
    place = make_live(served)
    assert shows(served)
    place.locator(".explorer-controls details").evaluate("more => { more.open = true; }")
    ranks = place.get_by_label("ranks, typed")
    ranks.fill("37")
    ranks.press("Enter")
    place.filter(has_text="37 ranks").wait_for()
    assert shows(served, num_ranks=37)
    assert served.url.endswith("/index.html#samplers&num_ranks=37")
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(served.url).netloc}


@pytest.mark.browser
def test_an_address_restores_its_state(served: Page, site: Path, page: Page) -> None:
    """Where Python runs, whatever the settings are; from disk, the nearest that are stored."""
    served.goto("/index.html#samplers&num_ranks=7&size=33&drop_last=1&unknown=2&seed=x")
    explorer(served).filter(has_text="33 samples").wait_for()
    assert shows(served, num_ranks=7, size=33, drop_last=True)
    page.goto(f"{(site / 'index.html').as_uri()}#samplers&size=33&drop_last=1")
    explorer(page).wait_for()
    assert shows(page, drop_last=True)
    assert explorer(page).locator(".explorer-controls details").is_hidden()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("own_sampler", "def mine(size, rank, world_size): return range(rank, size, world_size)", "mine"),
        ("own_sampler", "1 / 0", "ZeroDivisionError: division by zero (line 1)"),
        ("own_sampler", "raise ValueError(0)", "ValueError: 0 (line 1)"),
        ("own_sampler", "def mine(size, rank, world_size):\n    raise SystemExit", "SystemExit ends the code (line 2)"),
        ("paste", f"{EXAMPLES['a job that hangs']}\n# pasted", "Look at rank"),
    ],
)
def test_a_visitors_text_is_answered_in_the_page(served: Page, name: str, text: str, words: str) -> None:
    served.goto(f"/{name}.html")
    place = make_live(served, name)
    asked: list[str] = []
    served.on("request", lambda request: asked.append(request.url))
    place.locator("textarea").fill(text)
    place.get_by_role("button", name="show").click()
    place.locator(".explorer-shown").filter(has_text=words).wait_for()
    assert shows(served, name, **{live.explorer_of(name).settings[0].name: text})
    assert asked == []


@pytest.mark.browser
def test_code_that_does_not_end_is_stopped(served: Page) -> None:
    """The page says so, and the next code is drawn."""
    served.goto("/own_sampler.html")
    place = make_live(served, "own_sampler")
    for code, words in [
        ("while True: pass", "not the picture of your text: Python took more than 20 seconds"),
        ("def mine(size, rank, world_size): return range(rank, size, world_size)", "All settings are live"),
    ]:
        place.locator("textarea").fill(code)
        place.get_by_role("button", name="show").click()
        place.filter(has_text=words).wait_for()
    place.locator(".explorer-shown").filter(has_text="mine").wait_for()


# At a touch, Python starts; the page then asks its server for what says whether Python draws what is stored.
TOUCHED = """<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'self' 'unsafe-inline' 'unsafe-eval' data:">
<script>
  const found = async selector => {
    while (!document.querySelector(selector)) await new Promise(done => setTimeout(done, 50));
    return document.querySelector(selector);
  };
  onload = async () => {
    const place = await found(".explorer[data-name=samplers][data-ready]");
    place.querySelector("select").dispatchEvent(new Event("keydown", {bubbles: true}));
    await found(".explorer[data-live=on]");
    const {state, first} = panels.get(place);
    fetch(`answer?${state.html === (await ask("state", "samplers", first)).html}`);
  };
</script>"""


@pytest.mark.browser
def test_firefox_draws_what_is_stored(server: ThreadingHTTPServer, site: Path, tmp_path: Path) -> None:
    """Its page may ask nobody else."""
    firefox = shutil.which("firefox")
    if not firefox:
        pytest.skip("no Firefox on the PATH: apt-get install firefox-esr")
    html = (site / "index.html").read_text(encoding="utf-8")
    (site / "touched.html").write_text(TOUCHED + html, encoding="utf-8")
    url = f"http://127.0.0.1:{server.server_port}/touched.html"
    command = [firefox, "--headless", "--profile", str(tmp_path), url]
    path = ""
    with running(command, isolated(tmp_path), tmp_path / "log"):
        while "answer" not in path:
            path = Handler.requests.get(timeout=LOAD_MS / 1000)
    assert path == "/answer?true"


@pytest.mark.browser
@pytest.mark.parametrize("blocked", ["worker.js", "pyodide.mjs", "pyodide.asm.wasm", "standard.zip", "packages.gz", ""])
def test_a_page_that_cannot_run_python_stays_as_it_was(served: Page, blocked: str) -> None:
    if blocked:
        served.route(f"**/{blocked}", lambda route: route.abort())
    else:
        served.add_init_script("delete window.WebAssembly")
    served.goto("/index.html")
    place = explorer(served)
    ranks = place.locator("[name=num_ranks]")
    offered = ranks.get_attribute("max")
    place.get_by_label("example").press("Shift")
    place.filter(has_text="Only stored settings are shown").wait_for()
    assert ranks.get_attribute("max") == offered
    place.get_by_role("checkbox", name="drop_last").press("Space")
    assert shows(served, drop_last=True)


@pytest.mark.oracle
def test_32_bits_draw_what_64_bits_draw(inputs: Path | None, site: Path) -> None:
    if inputs is None:
        pytest.skip("what inputs.json names cannot be fetched")
    drawn = json.loads((inputs / "drawn.json").read_text())
    assert {name for name, _, _ in drawn} == EXPLORERS.keys() - set(live.STORED_ONLY) | live.ADDED.keys()
    for name, settings, digest in drawn:
        state = json.dumps(live.state_of(name, settings))
        assert sha256(state.encode()).hexdigest() == digest, (name, settings)
