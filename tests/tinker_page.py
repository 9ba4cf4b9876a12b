"""The playground in the page for its tests: its files in a page of their own, and a headless browser."""

import contextlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "book/_page"
sys.path.insert(0, str(ROOT / "book/_ext"))
import tinker  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
AXE = Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js"
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium: apt install chromium")
HEADS = ["3-1", "3-2", "3-0", "3-5", "3-7"]
PUSHED = ["3-5", *HEADS[:3], "3-7"]
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src file:; style-src file:">"""  # no inline script, handler or eval


def written(folder: Path) -> str:
    """The playground's own files, and the site's script, in a page without the book around it, as a file."""
    (folder / "data.js").write_text(tinker.script(ROOT / "data/models/mini-gpt2", HEADS, PUSHED))
    sources = [folder / "data.js", *(PAGE / name for name in (*tinker.SCRIPTS[1:], "page.js"))]
    head = "".join(f'<script defer src="{source.as_uri()}"></script>' for source in sources)
    head += "".join(f'<link rel="stylesheet" href="{(PAGE / n).as_uri()}">' for n in ("book.css", "tinker.css"))
    body = f"<body class='bd-article'><main><h1>t</h1><h2>t</h2>{(PAGE / 'tinker.html').read_text('utf8')}</main></body>"
    (folder / "page.html").write_text(HEAD + head + body)
    return (folder / "page.html").as_uri()


@contextlib.contextmanager
def browser(address: str, width: int = 1280, height: int = 800, **how):
    """The page in a browser that reaches no network; what its console says wrong fails the test."""
    with sync_playwright() as playwright:  # closed before the test ends: pytest cannot report beside an open one
        chromium, wrong = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS), []
        page = chromium.new_context(viewport={"width": width, "height": height}, offline=True, **how).new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        yield page
        chromium.close()
    assert wrong == []


def text(page, kind: str) -> str:
    return re.sub("[\u2068\u2069]", "", page.text_content(f".tinker-{kind}"))


def fields(page) -> list[str]:
    return page.locator("#tinker input[type=text]").evaluate_all("all => all.map((field) => field.value)")
