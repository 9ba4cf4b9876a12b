"""The whole book as one PDF, printed by a headless Chromium: python book/_ext/pdf.py HTML PDF (`make pdf` calls it).

Every page is opened as a reader would, charts and all; then the pages are printed one behind the other.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

DRAWN = "() => [...document.querySelectorAll('[id^=altair-viz]')].every(e => e.querySelector('svg.marks'))"
# Names would be the same on several pages, and links lead to files that lie elsewhere.
TAKE = """() => {
  const article = document.querySelector('.bd-article');
  for (const e of article.querySelectorAll('script, .vega-embed details, .headerlink')) e.remove();
  return article.innerHTML;
}"""
PUT = """pages => {
  document.querySelector('.bd-article').innerHTML =
    pages.map(page => `<div style="break-before: page">${page}</div>`).join('');
}"""
WIDTH = 800  # of the window, so that charts are as wide as a printed page


def order(html: Path) -> list[Path]:
    """The pages as the links to the next one lead, from the first."""
    first = (html / "index.html").read_text("utf8").partition("url=")[2].partition('"')[0]
    found = [html / first]
    while True:
        begins = found[-1].read_text("utf8").partition('class="right-next"')[2]
        after = begins.partition('href="')[2].partition('"')[0]
        if not after or (page := (found[-1].parent / after).resolve()) in found:
            return found
        found.append(page)


def main(html: str, pdf: str) -> int:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("there is no Chromium on this machine: install one (Debian and Ubuntu: apt install chromium)")
        return 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme="light")
        page.set_default_timeout(120_000)
        taken, pages = [], order(Path(html).resolve())
        for one in pages:
            page.goto(one.as_uri())
            page.wait_for_function(DRAWN)
            taken.append(page.evaluate(TAKE))
        page.evaluate(PUT, taken)
        page.pdf(path=pdf, format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "15mm"))
        browser.close()
    print(f"{pdf}: {len(pages)} pages of the book")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
