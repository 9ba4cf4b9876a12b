"""The whole book as one PDF, printed by a headless Chromium: python book/_ext/pdf.py HTML PDF (`make pdf` calls it).

Every page is opened as a reader would, charts and all; then the pages are printed one behind the other.
"""

import shutil
import sys
from html import unescape
from pathlib import Path

from playwright.sync_api import sync_playwright

DRAWN = "() => [...document.querySelectorAll('[id^=altair-viz]')].every(e => e.querySelector('svg.marks'))"
# Names would be the same on several pages (also those of what clips a chart or fills its legend), and links would lead
# to files that lie elsewhere: page n gets its number before every name, and links lead within the document.
TAKE = """([n, pages]) => {
  const article = document.querySelector('.bd-article');
  for (const e of article.querySelectorAll('script, .vega-embed details, .headerlink, details.hide')) e.remove();
  for (const e of article.querySelectorAll('details')) e.open = true;
  for (const e of article.querySelectorAll('[id]')) e.id = `p${n}-${e.id}`;
  for (const e of article.querySelectorAll('svg *'))
    for (const given of e.attributes) given.value = given.value.replace(/url\\([^#)]*#/g, `url(#p${n}-`);
  for (const link of article.querySelectorAll('a[href]')) {
    const [file, name] = link.href.split('#'), at = pages.indexOf(file);
    if (at >= 0) link.setAttribute('href', name ? `#p${at}-${name}` : `#p${at}`);
    else if (file.startsWith('file:')) link.removeAttribute('href');
  }
  return article.innerHTML;
}"""
PUT = """pages => {
  const whole = document.querySelector('.bd-article');
  whole.innerHTML = pages.map((page, n) => `<div id="p${n}" style="break-before: ${n ? 'page' : 'auto'}">${page}</div>`).join('');
  for (const table of whole.querySelectorAll('table'))
    table.style.zoom = Math.min(1, table.parentElement.clientWidth / table.scrollWidth);
}"""
SCALE = 0.75  # of a printed page: twelve points become nine
WIDTH = 900  # of the window, so that charts and tables are about as wide as a printed page at that scale
NUMBER = '<div style="width: 100%; text-align: center; font-size: 8px"><span class="pageNumber"></span></div>'


def title(html: Path) -> str:
    """The book's, as the page says it that sends on to the first one."""
    return unescape((html / "index.html").read_text("utf8").partition("<title>")[2].partition("</title>")[0])


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
        page.route("**/tinker*.js*", lambda script: script.abort())  # of the playground its picture is printed
        taken, pages = [], order(Path(html).resolve())
        for one in pages:
            page.goto(one.as_uri())
            page.wait_for_function(DRAWN)
            taken.append(page.evaluate(TAKE, [len(taken), [other.as_uri() for other in pages]]))
        page.emulate_media(media="print")
        page.evaluate(PUT, taken)
        page.add_style_tag(path=Path(html, "_static/book/tinker.css"))
        page.evaluate("title => { document.title = title; }", title(Path(html)))
        margin = dict.fromkeys(("top", "bottom", "left", "right"), "15mm")
        page.pdf(
            path=pdf, format="A4", scale=SCALE, margin=margin, tagged=True, outline=True, display_header_footer=True,
            header_template="<i></i>", footer_template=NUMBER,
        )  # fmt: skip
        browser.close()
    print(f"{pdf}: {len(pages)} pages of the book")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
