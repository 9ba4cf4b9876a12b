"""No text becomes a script: escaped where it enters a page, and stopped by the page's own policy where it did not."""

import re

import pytest
from book_builder import add_cell, build, lay_out, model_folder, twotowers
from playwright.sync_api import sync_playwright
from test_pages import CHROMIUM, FLAGS, needs_browser, serving, until

HIT = "window.hit=(window.hit||0)+1"
HOSTILE = (
    f"</script><script>{HIT}</script><!--<script>",
    f"<img src=x onerror='{HIT}'>",
    f"`<svg onload={HIT}>` ``<svg onload={HIT}>",
    f"[click](javascript:{HIT})",
    f"![x](x\"onerror=\"{HIT})",
    f":::{{raw}} html\n<script>{HIT}</script>\n:::",
    f"{{raw}}`html <script>{HIT}</script>`",
    f"```{{raw}} html\n<script>{HIT}</script>\n```",
    f"| a | <script>{HIT}</script> |",
    f"$\\href{{javascript:{HIT}}}{{x}}$ \\(\\unicode{{x}}\\)",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"{{{{ ''.__class__ }}}} &lt;script&gt;{HIT}&lt;/script&gt;",
    "<style>@import 'http://example.org/'</style><base href='http://example.org/'>",
    f"\u202e\x1b[31m<script>{HIT}</script>\x00",
)  # fmt: skip

THROUGH_US = f"""
import altair as alt, pandas as pd
from IPython.display import Markdown, display
from twotowers.exhibits.claim import Claim, Verdict, code, listed
from twotowers.exhibits.scorecard import _table
texts = {HOSTILE!r}
for text in texts:
    display(Markdown(Claim(Verdict.HOLDS, f"Of {{code(text)}} and {{code(text)}}: 1.").markdown))
    display(Markdown(f"*Note.* {{code(text)}}"))
display(Markdown(listed(texts, 99)), Markdown(_table(["a", code(texts[0])], [[code(t), "b"] for t in texts])))
table = pd.DataFrame({{"word": texts, "n": range(len(texts))}})
display(table, table.set_index("word").T)
chart = alt.Chart(table, title=texts[0], description=texts[1]).mark_bar()
chart.encode(x="n:Q", y="word:N", color="word:N", tooltip=["word:N"])
"""
PAST_US = f"""
from IPython.display import HTML, display
display(HTML("<script>{HIT}</script><img src=x onerror='{HIT}'><svg onload='{HIT}'></svg>"))
display(HTML("<a id=trap href=\\"javascript:{HIT}\\">x</a><b id=bold onclick='{HIT}'>x</b>"))
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The trial book whose first chapter shows hostile texts as ours do, and whose second one shows raw markup."""
    folder = lay_out(tmp_path_factory.mktemp("hostile"), trial=True)
    add_cell(folder, "01-locate", THROUGH_US)
    add_cell(folder, "02-second", PAST_US)
    model = folder / "<img src=x onerror=hit()>"
    model_folder(model)
    done = twotowers(folder, "run", "--model", model.name, "--chapters", "01-locate")
    assert done.returncode == 0, done.stdout
    done = build(folder)
    assert done.returncode == 0, done.stdout
    return folder / "_build/html"


def opened(html, visit, start=None):
    """What `visit(page, home)` gives, from a server and, with `start`, from the folder; and what the console said."""
    said = []
    with serving(html) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
        return visit(page, start or home), said


def settle(page, address):
    page.goto(address)
    until(page, "[...document.querySelectorAll('[id^=altair-viz]')].every(e => e.querySelector('svg'))")
    return page.evaluate("window.hit || 0")


@needs_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_hostile_texts_are_shown_and_run_nothing(book, scheme):
    def visit(page, home):
        hits = settle(page, f"{home}book/01-locate.html")
        shown = page.inner_text("article")
        page.locator("path[aria-roledescription=bar]").last.hover(force=True)  # its tooltip
        other = next(book.glob("book/runs/*/01-locate.html")).relative_to(book).as_posix()
        return hits + settle(page, home + other), shown

    (hits, shown), said = opened(book, visit, f"file://{book}/" if scheme == "file" else None)
    assert (hits, said) == (0, [])
    for text in HOSTILE:
        plain = re.sub(r"\s+", " ", "".join(c for c in text if c.isprintable() or c.isspace()))
        assert re.sub(r"\s+", " ", shown).count(plain) >= 3, plain


@needs_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_what_is_not_escaped_meets_the_policy(book, scheme):
    def visit(page, home):
        settle(page, f"{home}book/02-second.html")
        page.click("#trap")
        page.click("#bold")
        page.wait_for_timeout(200)
        return page.evaluate("window.hit || 0")

    hits, said = opened(book, visit, f"file://{book}/" if scheme == "file" else None)
    assert hits == 0 and sum("Content Security Policy" in line for line in said) >= 4, said


@needs_browser
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_search_theme_and_formulas_work_under_the_policy(book, scheme):
    def visit(page, home):
        settle(page, f"{home}book/01-locate.html")
        page.wait_for_selector("math mi, math mo", state="attached")
        modes = []
        for _ in range(3):
            page.evaluate("document.querySelector('.theme-switch-button').click()")
            modes.append(page.evaluate("document.documentElement.dataset.mode"))
        page.goto(f"{home}search.html?q=inline")
        page.wait_for_selector("ul.search li a")
        if scheme == "http":
            page.wait_for_selector("ul.search li .context")
        return set(modes)

    modes, said = opened(book, visit, f"file://{book}/" if scheme == "file" else None)
    assert modes == {"auto", "light", "dark"}
    assert [line for line in said if scheme == "http" or "Content Security" in line] == []  # file: has no fetch


def test_every_page_has_its_policy_before_any_script(book):
    pages = [p.read_text("utf8") for p in book.rglob("*.html") if "_static" not in p.parts]
    pages = [page for page in pages if 'http-equiv="Refresh"' not in page]
    assert len(pages) > 4
    for page in pages:
        assert '<meta http-equiv="Content-Security-Policy"' in page.partition("<script")[0]
        (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', page)
        directives = dict(one.strip().split(" ", 1) for one in policy.split(";"))
        scripts = directives.get("script-src", directives["default-src"])
        assert "unsafe-inline" not in scripts and "unsafe-eval" not in policy
        assert "nonce" not in page and "http" not in policy
