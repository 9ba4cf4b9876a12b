"""A headless browser that reaches no other host, and the playground and the explorer in pages of
their own, and a server of the built book."""

import atexit
import contextlib
import functools
import importlib.util
import re
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from notebooks import ROOT
from playwright.sync_api import sync_playwright

PAGE = ROOT / "book/_page"

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Without these Chromium looks up hosts of its own; a container's root needs the first.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium: apt install chromium")
HTML = ROOT / "_build/html"
needs_book = pytest.mark.skipif(
    not (HTML / "index.html").is_file(), reason="a built book: make book"
)
# Deque's rules for accessibility
AXE = Path(importlib.util.find_spec("axe_playwright_python").origin).with_name("axe.min.js")
BROKEN_RULES = """async () =>
  (await axe.run({ preload: false, resultTypes: ['violations'] })).violations
  .map(rule => `${rule.id} (${rule.nodes.length} places): ${rule.nodes[0].html.slice(0, 200)}`)"""
DRAWN = """() =>
  [...document.querySelectorAll('div.chart')].every(e =>
    e.querySelector('svg.marks') && e.querySelector('summary'))
  && [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"""
"""Whether all charts and formulas of a page are drawn"""
HEADS = ["3-1", "3-2", "3-0", "3-5", "3-7"]
STEERED = ["3-5", *HEADS[:3], "3-7"]
# No inline script, handler or eval.
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src file:; style-src file:">"""


def page_of(folder: Path, data: str, scripts, styles, body: str) -> str:
    """The address of a page of the site's own files, `data` their first script."""
    (folder / "data.js").write_text(data, "utf8")
    sources = [folder / "data.js", *(PAGE / name for name in (*scripts, "page.js"))]
    head = "".join(f'<script defer src="{source.as_uri()}"></script>' for source in sources)
    head += "".join(
        f'<link rel="stylesheet" href="{(PAGE / name).as_uri()}">'
        for name in ("book.css", "playground-page.css", *styles)
    )
    (folder / "page.html").write_text(
        f"{HEAD}{head}<body class='bd-article'><main><h1>t</h1>{body}</main></body>", "utf8"
    )
    return (folder / "page.html").as_uri()


def playground(folder: Path) -> str:
    import playground_page  # it loads much, as `explorer` does

    data = playground_page.script(ROOT / "data/models/mini-gpt2", HEADS, STEERED)
    return page_of(
        folder,
        data,
        playground_page.SCRIPTS[1:],
        [],
        "<h2>t</h2>" + (PAGE / "playground-page.html").read_text("utf8"),
    )


def explorer_page(folder: Path, script: str) -> str:
    import explorer

    fragment = (
        (ROOT / "book/heads.md").read_text("utf8").split("```{raw} html\n")[1].split("```")[0]
    )
    return page_of(folder, script, explorer.SCRIPTS[1:], ["heads.css"], fragment)


@contextlib.contextmanager
def served():
    """The address of a server of the built book."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=HTML)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@functools.cache
def chromium():
    """One browser for all tests of this process, whose start costs as much as a test. From then on
    the process can run a loop of its own (`asyncio.run`) in another thread only."""
    playwright = sync_playwright().start()
    opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    atexit.register(playwright.stop)
    atexit.register(opened.close)
    return opened


@contextlib.contextmanager
def browser(address: str, width: int = 1280, height: int = 800, home: str = "", **how):
    """The page in a browser; what its console says wrong, or what it asks another host than `home`
    for, fails the test."""
    wrong = []
    with contextlib.closing(
        chromium().new_context(viewport={"width": width, "height": height}, **how)
    ) as context:
        page = context.new_page()

        def guard(route):
            if route.request.url.startswith(home or address):
                route.continue_()
            else:
                wrong.append(f"{page.url} asks another host for {route.request.url}")
                route.abort()

        def listen(message):
            if message.type == "error":
                wrong.append(f"{page.url}: {message.text}")

        page.route(re.compile("^(https?|wss?):"), guard)
        page.on("console", listen)
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        page.goto(address)
        yield page
    assert wrong == []


def broken_rules(page) -> list[str]:
    """Rules of accessibility that a page breaks, one line each."""
    page.evaluate(AXE.read_text("utf8"))
    return page.evaluate(BROKEN_RULES)


def text(page, kind: str) -> str:
    return re.sub("[\u2068\u2069]", "", page.text_content(f".playground-{kind}"))


def fields(page) -> list[str]:
    return page.locator("#playground-page input[type=text]").evaluate_all(
        "all => all.map((field) => field.value)"
    )


def refuses(page, fragment: str) -> None:
    """An address that holds no state of the page gives a line."""
    page.evaluate("(hash) => { location.hash = hash; }", fragment)
    page.wait_for_function("document.querySelector('.playground-error').textContent")
    assert "cannot read" in text(page, "error")
