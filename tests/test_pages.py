"""Open every page in a headless browser that reaches no other host, and look.

`make pages` points this at the book it built (`TWOTOWERS_HTML`); otherwise a small book is built first.
"""

import contextlib
import functools
import importlib.util
import os
import shutil
import threading
import time
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from book_builder import build, lay_out
from playwright.sync_api import Error, sync_playwright

BUILT = os.environ.get("TWOTOWERS_HTML")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without these Chromium looks up hosts of its own; a container's root needs the first.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
LARGEST_PAGE = 3_000_000  # bytes; a chart of Altair's 5,000 rows is about 0.3 MB
LARGEST_LOAD = 2_000_000  # bytes of a page with all that it loads, uncompressed; chapter 4 of 270 heads has most
OWN_ENGINE = {"tinker.html"}  # pages that load a model
# Deque's rules for accessibility, as the package has them; one that is off by default is wanted here.
AXE = importlib.util.find_spec("axe_playwright_python")
BROKEN_RULES = """async () => (await axe.run({
  preload: false, resultTypes: ['violations'], rules: {'label-content-name-mismatch': {enabled: true}},
})).violations.filter(found => ['serious', 'critical'].includes(found.impact))
  .map(found => `${found.id} (${found.impact}, ${found.nodes.length} places): ${found.nodes[0].html.slice(0, 200)}`)"""

DRAWN = """() => {
  const all = (what, drawn) => [...document.querySelectorAll(what)].every(e => e.querySelector(drawn));
  return all('[id^="altair-viz"]', 'svg.marks, canvas.marks') && all('.math', 'math');
}"""

# A chart that fills its box is drawn again when the box changes; one of several panels scrolls in it.
FITS = """() => [...document.querySelectorAll('[data-fills]')].every(
  chart => chart.querySelector('svg.marks').clientWidth <= chart.parentElement.clientWidth)"""

LOOK = """() => {
  const found = [];
  const rgb = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (c) => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  function behind(element) {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  }
  for (const chart of document.querySelectorAll('[id^="altair-viz"]')) {
    const marks = chart.querySelector('svg.marks, canvas.marks');
    if (!marks || (marks.tagName === 'svg' && !marks.querySelector('.role-mark *'))) {
      found.push(`chart ${chart.id} is not drawn: ${chart.textContent.slice(0, 200)}`);
      continue;
    }
    // Vega names the chart's own element where there is no menu beside it, else the box within.
    const named = [chart, ...chart.querySelectorAll('div')].find(e => e.getAttribute('role') === 'graphics-document');
    const name = named?.getAttribute('aria-label');
    if (!name) found.push(`chart ${chart.id} has no description`);
    const box = marks.getBoundingClientRect();
    for (const text of chart.querySelectorAll('.role-axis text, .role-legend text, .role-title text')) {
      const { left, right, width } = text.getBoundingClientRect();
      if (width && (left < box.left - 1 || right > box.right + 1)) found.push(`chart ${name}: "${text.textContent}" is cut`);
    }
    if (!chart.querySelector('summary')?.checkVisibility()) found.push(`chart ${chart.id} has no menu to save it`);
    for (const text of chart.querySelectorAll('.role-axis text, .role-legend text, .role-title text')) {
      const [a, b] = [light(rgb(getComputedStyle(text).fill)), light(behind(chart))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast >= 4.5) continue;
      found.push(`chart ${name}: "${text.textContent}" has contrast ${contrast.toFixed(1)}`);
      break;
    }
  }
  for (const formula of document.querySelectorAll('.math')) {
    if (!formula.querySelector('math') || formula.querySelector('merror'))
      found.push(`formula is not drawn: ${formula.textContent.slice(0, 100)}`);
  }
  for (const image of document.querySelectorAll('.bd-article img')) {
    if (!image.alt.trim()) found.push(`image without description: ${image.src}`);
    if (image.complete && !image.naturalWidth) found.push(`image not loaded: ${image.src}`);
  }
  const width = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
  if (width > window.innerWidth) found.push(`the page is ${width} wide in a window of ${window.innerWidth}`);
  return found;
}"""


@pytest.fixture(scope="session", params=["built"] if BUILT else ["trial", "book"])
def html(request, tmp_path_factory) -> Path:
    """The folder of pages: the one named, or a trial book and the real one with few prompts."""
    if BUILT:
        return Path(BUILT)
    if request.param == "trial":
        return request.getfixturevalue("trial_book").pages
    if os.environ.get("CI"):
        pytest.skip("CI looks at the book it builds: make pages")
    folder = lay_out(tmp_path_factory.mktemp("book"), trial=False)
    done = build(folder)
    assert done.returncode == 0, done.stdout
    return folder / "_build/html"


needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian and Ubuntu: apt install chromium)"
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def pages(html: Path) -> list[Path]:
    return sorted(p for p in html.rglob("*.html") if "_static" not in p.parts)


def names(html: Path) -> list[str]:
    """The addresses of the pages; index.html only sends on to the first one."""
    return [p.relative_to(html).as_posix() for p in pages(html) if 'http-equiv="Refresh"' not in p.read_text()]


@contextlib.contextmanager
def serving(html: Path):
    """The address of a server of that folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def look(html: Path, *, width: int, mode: str) -> list[str]:
    """What is wrong with the pages, one line each. Pages of runs are made as the book's own: seen wide and light, and narrow
    and dark, where those are seen in all four ways."""
    # The browser is closed before this returns: pytest on Python 3.11 cannot report beside an open one.
    with serving(html) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=mode)
        seen = [page for page in names(html) if "/runs/" not in page or (width > 1000) == (mode == "light")]
        return [f"{page}: {line}" for page in seen for line in look_at(context, home, page)]


def until(page, true: str, seconds: float = 10) -> bool:
    """Whether an expression comes true in a page. Playwright's own waiting needs eval, which the pages forbid."""
    end = time.monotonic() + seconds
    while not (found := page.evaluate(true)) and time.monotonic() < end:
        page.wait_for_timeout(50)
    return bool(found)


def axe() -> str:
    """The script that looks for violations of accessibility rules."""
    return (Path(AXE.origin).parent / "axe.min.js").read_text("utf8")


def look_at(context, home: str, name: str) -> list[str]:
    """What is wrong with one page."""
    page, wrong, loaded = context.new_page(), [], []
    page.on("response", lambda response: loaded.append(response))

    def guard(route):
        if route.request.url.startswith((home, "data:", "blob:")):
            route.continue_()
        else:
            wrong.append(f"asks another host for {route.request.url}")
            route.abort()

    page.route("**/*", guard)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(home + name)
    until(page, DRAWN)  # what is not drawn by then is named below
    wrong += page.evaluate(LOOK)
    if (weight := sum(map(size_of, loaded))) > LARGEST_LOAD and Path(name).name not in OWN_ENGINE:
        wrong.append(f"loads {weight:,} bytes")
    if AXE:
        page.evaluate(axe())
        wrong += page.evaluate(BROKEN_RULES)
    size = page.viewport_size
    if size["width"] > 1000:
        for width in (390, size["width"]):
            page.set_viewport_size({**size, "width": width})
        if not until(page, FITS, 5):
            wrong.append("a chart stays wider than its box when the window changes")
    page.close()
    return wrong


def size_of(response) -> int:
    try:
        return len(response.body())
    except Error:  # a redirection, or what the guard stopped
        return 0


@needs_browser
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_show_everything_without_a_network(html, width, mode):
    assert pages(html)
    wrong = look(html, width=width, mode=mode)
    assert not wrong, "\n".join(wrong)


class Links(HTMLParser):
    """The names a page can be entered by, and what it points to."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        self.targets += [given[key] for key in ("href", "src") if given.get(key)]
        if given.get("http-equiv", "").lower() == "refresh":
            self.targets.append(given["content"].partition("url=")[2])


def test_links_within_the_book_lead_somewhere(html):
    read = {page.resolve(): Links(page.read_text("utf8")) for page in pages(html)}
    broken = []
    for page, links in read.items():
        for link in links.targets:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            address, fragment = urldefrag(link)
            address = unquote(urlsplit(address).path)
            target = (page.parent / address).resolve() if address else page
            lost = not target.exists() or (fragment and target in read and unquote(fragment) not in read[target].ids)
            if lost:
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_no_page_shows_a_traceback_or_a_missing_number_or_is_too_large(html):
    texts = {page.name: page.read_text("utf8") for page in pages(html)}
    signs = ("Traceback (most recent call last)", 'class="output traceback', "ModuleNotFoundError", ">NaN<")
    assert [name for name, text in texts.items() if any(sign in text for sign in signs)] == []
    assert [name for name, text in texts.items() if len(text) > LARGEST_PAGE] == []


BROKEN = """<html><body class="bd-article" style="margin: 0; background: #111">
<script src="https://example.org/lost.js"></script><script>console.error("a cry"); nothing.here</script>
<div class="math">x^2</div><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><div id="altair-viz-1"></div>
<div id="altair-viz-2"><svg class="marks"><g class="role-mark"><path/></g>
<g class="role-axis"><text y="20">layer</text><text x="299" y="50">a name</text></g></svg></div>
<div style="width: 900px">wide</div></body></html>"""


@needs_browser
def test_the_look_notices_what_is_wrong(tmp_path):
    (tmp_path / "index.html").write_text(BROKEN)
    wrong = "\n".join(look(tmp_path, width=390, mode="dark"))
    assert "asks another host for https://example.org/lost.js" in wrong
    assert "a cry" in wrong and "nothing is not defined" in wrong
    assert "formula is not drawn: x^2" in wrong and "image without description" in wrong
    assert "chart altair-viz-1 is not drawn" in wrong and "chart altair-viz-2 has no description" in wrong
    assert "chart altair-viz-2 has no menu to save it" in wrong
    assert AXE is None or "document-title (serious" in wrong
    assert '"a name" is cut' in wrong and '"layer" is cut' not in wrong
    assert '"layer" has contrast 1.' in wrong and "the page is 900 wide" in wrong
