"""Look at every page of the book that `make book` has built, in a headless browser that reaches no other host."""

import contextlib
import csv
import functools
import importlib.util
import json
import shutil
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import numpy as np
import pytest
from conftest import ROOT
from playwright.sync_api import sync_playwright
from twotowers import claims, evidence

HTML, PAGES = ROOT / "_build/html", "[!_]*/*.html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without these Chromium looks up hosts of its own; a container's root needs the first.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium: apt install chromium")
needs_book = pytest.mark.skipif(not (HTML / "index.html").is_file(), reason="a built book: make book")
# Deque's rules for accessibility.
AXE = Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js"
BROKEN_RULES = """async () => (await axe.run({preload: false, resultTypes: ['violations']})).violations
  .map(found => `${found.id} (${found.nodes.length} places): ${found.nodes[0].html.slice(0, 200)}`)"""
DRAWN = """() => [...document.querySelectorAll('div.chart')].every(e => e.querySelector('svg.marks'))
  && [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"""
TEXT = """() => [...document.querySelectorAll('div.chart svg .role-axis text')].map(e => e.getBoundingClientRect().height)"""
FOLDED = """() => [...document.querySelectorAll('details.above-input')].filter(e => e.checkVisibility()).length"""
LOOK = r"""() => {
  const found = [];
  const rgb = (colour) => (colour.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  function behind(element) {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  }
  for (const chart of document.querySelectorAll('div.chart')) {
    const name = chart.dataset.name;
    if (!chart.querySelector('svg.marks .role-mark *')) found.push(`${name} is not drawn: ${chart.textContent.slice(0, 200)}`);
    if (!chart.querySelector('summary')?.checkVisibility()) found.push(`${name} has no menu to save it`);
    for (const text of chart.querySelectorAll('.role-axis text, .role-legend text, .role-title text')) {
      const [a, b] = [light(rgb(getComputedStyle(text).fill)), light(behind(chart))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast >= 4.5) continue;
      found.push(`${name}: "${text.textContent}" has contrast ${contrast.toFixed(1)}`);
      break;
    }
  }
  for (const formula of document.querySelectorAll('.math')) {
    if (!formula.querySelector('mjx-container') || formula.querySelector('mjx-merror, [data-mjx-error]'))
      found.push(`formula is not drawn: ${formula.textContent.slice(0, 100)}`);
  }
  for (const image of document.querySelectorAll('.bd-article img')) {
    if (!image.alt.trim()) found.push(`image without description: ${image.src.slice(0, 100)}`);
    if (image.complete && !image.naturalWidth) found.push(`image not loaded: ${image.src.slice(0, 100)}`);
  }
  const width = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
  if (width > window.innerWidth) found.push(`the page is ${width} wide in a window of ${window.innerWidth}`);
  return found;
}"""


@contextlib.contextmanager
def serving(html: Path):
    """The address of a server of that folder."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def look(html: Path, width: int, mode: str) -> list[str]:
    """What is wrong with the pages, one line each."""
    # The browser is closed before this returns: pytest on Python 3.11 cannot report beside an open one.
    with serving(html.resolve()) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=mode)
        names = [p.relative_to(html).as_posix() for p in sorted(html.glob(PAGES))]
        return [f"{name}: {line}" for name in names for line in look_at(context, home, name)]


def look_at(context, home: str, name: str) -> list[str]:
    page, wrong = context.new_page(), []

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
    with contextlib.suppress(Exception):  # what is not drawn by then is named below
        page.wait_for_function(DRAWN, timeout=20_000)
    wrong += page.evaluate(LOOK)
    page.evaluate(AXE.read_text("utf8"))
    wrong += page.evaluate(BROKEN_RULES)
    page.close()
    return wrong


@needs_browser
@needs_book
@pytest.mark.parametrize(("width", "mode"), [(1280, "light"), (390, "dark")])
def test_pages_show_everything_without_a_network(width, mode):
    wrong = look(HTML, width, mode)
    assert not wrong, "\n".join(wrong)


@needs_browser
@needs_book
def test_charts_are_drawn_again_when_a_window_is_resized_and_folded_source_is_not_printed():
    with serving(HTML.resolve()) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 844})
        page.goto(f"{home}book/06-one-step-or-a-relay.html")
        page.wait_for_function(DRAWN, timeout=20_000)
        page.wait_for_timeout(500)
        before = page.evaluate(TEXT)
        for width in (700, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            page.wait_for_timeout(1500)
        after = page.evaluate(TEXT)
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        folded = page.evaluate(FOLDED)
    assert before and np.allclose(before, after, atol=2) and folded == 0


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


@needs_book
def test_links_within_the_book_lead_somewhere_and_no_page_shows_a_traceback():
    read = {page.resolve(): Links(page.read_text("utf8")) for page in HTML.glob(PAGES)}
    wrong = [page.name for page in read if 'class="output traceback' in page.read_text("utf8")]
    for page, links in read.items():
        for link in (link for link in links.targets if not urlsplit(link).scheme and not link.startswith("//")):
            address, fragment = urldefrag(link)
            target = (page.parent / unquote(urlsplit(address).path)).resolve() if address else page
            if not target.exists() or (fragment and target in read and unquote(fragment) not in read[target].ids):
                wrong.append(f"{page.name}: {link}")
    assert wrong == []


@needs_book
def test_every_finding_rests_on_its_verdicts():
    """data/findings.csv names the verdicts under each sentence of the opening page and each finding of a chapter."""
    rows, table = evidence.read(ROOT / "_build/evidence").set_index(["claim", "model"])["verdict"].to_dict(), claims.findings()
    wrong = [tuple(f) for f in table.itertuples(index=False) if rows.get((f.claim, f.model)) != f.verdict]
    assert not wrong
    assert all((claim, "mini-gpt2") in rows for claim in table["claim"])
    for page, sentences in table[table["page"] != "intro"].groupby("page")["sentence"].unique().items():
        cells = json.loads((ROOT / f"book/{page}.ipynb").read_text("utf8"))["cells"]
        text = [" ".join("".join(cell["source"]).split()) for cell in cells if cell["cell_type"] == "markdown"]
        assert f"**Finding.** {sentences[0]}" in text[0]
        assert all(sentence in " ".join(text) for sentence in sentences[1:])  # what was learnt, at the end
    judged = {row["chapter"] for row in csv.DictReader((ROOT / "data/claims.csv").open())}
    assert judged == {page.partition("-")[0].lstrip("0") for page in table["page"]} - {"intro"}
