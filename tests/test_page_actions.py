"""What a reader does on single pages of the built book: click, tap, print, read without scripts."""

import gzip
import re
import zlib

import pytest
from browser import DRAWN, HTML, PAGE, broken_rules, browser, chromium, needs_book, needs_browser

pytestmark = [needs_browser, needs_book]


@pytest.fixture(scope="module")
def first_page(home):
    """The first page on a wide screen, dark."""
    with browser(f"{home}book/intro.html", home=home, color_scheme="dark") as page:
        yield page


@pytest.fixture(scope="module")
def first_page_on_phone(home):
    with browser(f"{home}book/intro.html", 390, 844, home) as page:
        yield page


def lowest(page, *parts):
    """The lower end of the lowest of some parts of the first page (pixels)."""
    bottom = "e => e.getBoundingClientRect().bottom"
    return max(page.locator(f".opening-{part}").evaluate(bottom) for part in parts)


def test_the_first_screen_shows_answer_demo_and_catch(first_page):
    assert lowest(first_page, "answer", "buttons", "catch") <= 800
    fragment = first_page.locator("#opening-page").evaluate("e => e.outerHTML")
    links = first_page.locator(".opening-links a")
    leads = links.evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    pages = ["story.html", "playground-page.html", "figure-by-figure.html"]
    assert leads == [*pages, "#run-your-model"]
    files = [
        fragment.encode(),
        *((HTML / f"_static/book/opening-page.{kind}").read_bytes() for kind in ("js", "css")),
    ]
    assert sum(len(gzip.compress(file)) for file in files) < 90_000
    assert re.search(r"\d+ of \d+ tests agree", fragment)


def test_the_first_screen_of_a_phone_shows_answer_and_demo(first_page_on_phone):
    assert lowest(first_page_on_phone, "answer", "buttons") <= 844


def test_buttons_stay_in_their_place_on_a_phone(first_page_on_phone):
    live = first_page_on_phone.locator(".opening-live")
    for button in live.locator("button").all():
        height = live.bounding_box()["height"]
        button.click()
        live.page.wait_for_selector(".opening-live:not([aria-busy])")
        assert live.bounding_box()["height"] == height and button.bounding_box()["height"] >= 44


def test_each_picture_of_the_story_is_a_slide_with_an_answer(home):
    with browser(f"{home}book/story.html", 1400, 1000, home) as page:
        page.wait_for_function(DRAWN)
        slides = page.locator(".bd-article > section > section:has(details)")
        answers = page.locator(".bd-article > section > section > details:not([open])")
        assert slides.count() == answers.count() == 6
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        slides.nth(0).locator(".full-screen").click()
        sizes = {}
        for name in ("task", "head", "catch", "fair-test", "metric", "product"):
            page.wait_for_function(f"document.fullscreenElement?.id.includes('{name}')")
            page.wait_for_function(DRAWN)
            sizes[name] = page.evaluate("document.fullscreenElement.scrollHeight")
            page.keyboard.press("ArrowRight")
        assert max(sizes.values()) <= 1000, sizes
        assert broken_rules(page) == []


SHOWN = """() => ({
  parts: [...document.querySelectorAll('.opening-live rect')]
    .map((rect) => +rect.getAttribute('width')),
  text: document.querySelector('.opening-says').textContent,
  rows: [...document.querySelectorAll('.opening-live tbody tr')]
    .map((row) => row.innerText.replace(/\\s+/g, ' ')),
})"""


def test_each_button_of_the_first_screen_runs_the_model_which_says_what_python_computed(
    home, first_page
):
    with browser(f"{home}book/intro.html", home=home, java_script_enabled=False) as page:
        assert page.locator(".opening-says").is_visible()
        assert not page.locator(".opening-buttons").is_visible()
        lines = page.locator(".opening-live noscript li")
        assert lines.count() == 3 and lines.first.is_visible()
        computed = [re.findall(r"(\w+) (\d+%)", line) for line in lines.all_text_contents()]
    page = first_page
    static, buttons = page.evaluate(SHOWN), page.locator(".opening-buttons button")
    buttons.first.focus()
    for i, answers in enumerate(computed):
        page.keyboard.press("Enter" if i % 2 else "Space")
        shown = [f"{label} {share}" for label, share in answers]
        page.wait_for_function(f"({SHOWN})().rows.join().includes('{shown[0]}')")
        page.wait_for_selector(".opening-live:not([aria-busy])")
        changed = page.evaluate(SHOWN)
        assert [row.split(": ")[1] for row in changed["rows"][-2:]] == shown
        assert changed["parts"] != static["parts"]
        assert page.locator(".opening-buttons [aria-pressed=true]").count() == 1
        page.keyboard.press("Tab")
    assert re.search(r"It says \w+, neither label", changed["text"]) and changed["rows"][
        0
    ].endswith("off")
    page.keyboard.press("Shift+Tab")
    # a second press takes the change back: now the engine's numbers stand there
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(text) => document.querySelector('.opening-says').textContent === text", arg=static["text"]
    )
    again = page.evaluate(SHOWN)
    assert again["parts"] == pytest.approx(static["parts"], abs=2e-5)
    assert again["rows"] == static["rows"]
    assert broken_rules(page) == []


@pytest.mark.parametrize(
    "policy",
    ["", "<script>window.vegaEmbed = async () => { throw new EvalError('a policy') }</script>"],
)
def test_where_a_chart_cannot_be_drawn_its_picture_stands(policy, tmp_path):
    """No vega.js, or a policy that forbids to evaluate text."""
    chart = """<div><div class="chart" data-name="c"></div>
      <script type="application/json">{"mark": "bar"}</script>
      <noscript><img class="chart" alt="bars" src="x.svg"></noscript></div>"""
    script = f'<script src="{(PAGE / "charts.js").as_uri()}"></script>'
    (tmp_path / "page.html").write_text(f"<!doctype html><body>{chart}{policy}{script}", "utf8")
    page = chromium().new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("div.chart img[alt=bars]", state="attached")
    page.close()


PICK = """() => {
  const point = [...document.querySelectorAll('[data-name="fig-12-2"] .mark-symbol path')]
    .find(path => path.__data__.datum.head);
  point.scrollIntoView({ block: 'center' });
  point.dispatchEvent(new MouseEvent('click', { bubbles: true }));
  return point.__data__.datum.head;
}"""


def test_a_head_that_is_clicked_is_marked_in_every_chart_and_a_link_opens_it(home):
    with browser(f"{home}book/12-what-every-head-does.html", home=home) as page:
        page.wait_for_function(DRAWN)
        head, line = page.evaluate(PICK), page.locator(".picked-head")
        assert f"Head {head} of " in line.text_content()
        # its total and its direct effect
        assert page.locator('[data-name="fig-12-1"] .picked').count() == 2
        line.locator("a").click()
        page.wait_for_selector("#heads.ready")
        assert page.evaluate("document.querySelector('.playground-error')?.textContent ?? ''") == ""
        assert page.locator("#heads select").nth(3).input_value() == head


def test_a_link_to_a_figure_shows_its_top_and_a_tap_shows_titles_and_tooltips(home):
    """The top also where charts above it are drawn later."""
    address = f"{home}book/04-attention-weights.html#fig-4-4"
    with browser(address, 390, 844, home=home, has_touch=True) as page:
        page.wait_for_function(DRAWN)
        top = "document.getElementById('fig-4-4').getBoundingClientRect().top"
        page.wait_for_function(f"{top} > 0 && {top} < 200")
        link = page.locator(".bd-article p a[href*='glossary'][title]").first
        words = link.get_attribute("title")
        link.tap()
        assert words in page.locator(".tip").text_content() and page.url == address
        page.locator("div.chart .mark-symbol path").first.tap(force=True)
        page.wait_for_selector("#vg-tooltip-element.visible")
        assert page.locator(".tip").count() == 0
        link.scroll_into_view_if_needed()
        link.tap()
        page.wait_for_selector(".tip")
        link.tap()
        page.wait_for_url("**/glossary.html#*")


def test_the_search_of_a_page_that_is_a_file_breaks_nothing():
    with browser(f"{(HTML / 'search.html').as_uri()}?q=attention") as page:
        page.wait_for_selector("#search-results li")
        assert all(page.evaluate("Search._index.titles"))  # also of a page with functions alone


def printed_pages(pdf: bytes) -> list[int]:
    """The number of texts on each page of a PDF file of Chromium."""
    parts = dict(re.findall(rb"(\d+) 0 obj\s(.*?)endobj", pdf, re.DOTALL))
    texts = []
    for part in parts.values():
        if re.search(rb"/Type\s*/Page\b", part):
            content = parts[re.search(rb"/Contents (\d+) 0 R", part)[1]]
            stream = re.search(rb"stream\r?\n(.*?)endstream", content, re.DOTALL)[1]
            texts.append(len(re.findall(rb"T[jJ]\b", zlib.decompress(stream))))
    return texts


@pytest.mark.parametrize(
    ("name", "paper", "width"),
    [
        ("figure-by-figure", "A4", 717),
        pytest.param("figure-by-figure", "Letter", 739, marks=pytest.mark.nightly),
        pytest.param("scorecard", "A4", 717, marks=pytest.mark.nightly),
        pytest.param("record", "A4", 717, marks=pytest.mark.nightly),
    ],
)
def test_wide_pages_print_whole(name, paper, width, home):
    """No column is cut, and no page is blank. `width`: of the paper between its margins."""
    with browser(f"{home}book/{name}.html", width, home=home) as page:
        texts = printed_pages(page.pdf(format=paper))
        assert len(texts) > 3 and min(texts) > 0, texts
        page.emulate_media(media="print")
        cut = "[...document.querySelectorAll('.bd-article :is(table, svg)')]"
        cut += ".filter((part) => part.getBoundingClientRect().right > innerWidth + 1).length"
        assert page.evaluate(cut) == 0


def test_bars_and_heads_keep_their_colours_in_high_contrast(home):
    colour = "part => getComputedStyle(part).backgroundColor"
    with browser(f"{home}book/playground-page.html", home=home, forced_colors="active") as page:
        bar = page.locator(".playground-bar:not(.before)").first
        bar.wait_for(state="attached")
        heads = page.locator(".playground-map button").evaluate_all(f"all => all.map({colour})")
        assert len({*heads}) > 3
        assert bar.evaluate(colour) != page.locator("body").evaluate(colour)


def test_a_long_table_shows_the_model_that_is_chosen_and_prints_whole(home):
    with browser(f"{home}book/02-project.html", home=home) as page:
        rows, select = page.locator(".one-model tbody tr"), page.locator(".model-chooser select")
        shown = "all => all.filter((row) => row.checkVisibility()).length"
        assert "mini-gpt2" not in select.input_value() and rows.evaluate_all(shown) == 9
        page.emulate_media(media="print")
        assert rows.evaluate_all(shown) == rows.count() > 40
        page.emulate_media(media="screen")
        select.select_option("all")
        assert rows.evaluate_all(shown) == rows.count()


def test_on_paper_a_menu_says_what_is_shown_and_charts_are_low(home):
    with browser(f"{home}book/04-attention-weights.html", home=home) as page:
        page.wait_for_function("document.querySelectorAll('svg.marks').length > 3")
        page.emulate_media(media="print")
        menu = page.locator(".vega-bind:has(select)").first
        content = "(box, end) => getComputedStyle(box, end).content"
        words = [menu.evaluate(content, end) for end in ("::before", "::after")]
        assert words == ['"shown: "', '"; the others are online"']
        assert not menu.locator(".vega-bind-name").is_visible()
        heights = "all => all.map((chart) => chart.getBoundingClientRect().height)"
        assert max(page.locator("svg.marks").evaluate_all(heights)) < 350  # a third of a page


def test_a_table_that_scrolls_fades_at_its_end_until_it_is_reached(home):
    with browser(f"{home}book/scorecard.html", 390, 844, home=home) as page:
        page.wait_for_selector("table.goes-on, .output.goes-on", state="attached")
        box = page.locator("table.goes-on, .output.goes-on").first.element_handle()
        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
        page.wait_for_function("box => !box.classList.contains('goes-on')", arg=box)


def test_a_link_to_two_words_leads_to_them(home):
    with browser(f"{home}book/heads.html#two-words", 1400, 1000, home) as page:
        page.wait_for_selector("#heads.ready")
        page.wait_for_function(
            "document.querySelector('#two-words').getBoundingClientRect().top < innerHeight"
        )


def test_on_a_phone_wide_tables_of_the_first_page_are_lists_with_titles(first_page_on_phone):
    tables = ".bd-article :is(table.stacks, table.table:has(.verdict))"
    page = first_page_on_phone
    page.wait_for_selector(".stacks td[data-title]", state="attached")
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    wide = "all => all.filter((table) => table.scrollWidth > table.clientWidth + 1).length"
    assert page.locator(tables).count() == 1 and page.locator(tables).evaluate_all(wide) == 0
    cells = page.locator(".stacks tbody td")
    titles = cells.evaluate_all("all => all.map((cell) => cell.dataset.title)")
    assert titles and all(titles)


@pytest.mark.parametrize("name", ["intro", "playground-page", "heads", "glossary"])
def test_the_contents_of_a_page_open_on_a_phone_and_lead_on(name, home):
    with browser(f"{home}book/{name}.html", 390, 844, home=home, has_touch=True) as page:
        page.locator(".secondary-toggle").tap()
        page.locator("dialog[open] nav a").first.tap()
        page.wait_for_url("**#*")
        page.wait_for_function("!document.querySelector('dialog[open]')")
        page.locator(".secondary-toggle").tap(timeout=5000)  # nothing lies over the page


def test_the_first_page_is_as_wide_as_each_window(home, first_page):
    wide = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - innerWidth"
    for width in (900, 1000, 1024, 1100, 1180, 1280):
        first_page.set_viewport_size({"width": width, "height": 800})
        assert first_page.evaluate(wide) <= 0, width
