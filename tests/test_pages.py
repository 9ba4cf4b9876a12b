"""Look at every page of the book that `make book` has built, in a headless browser that reaches no
other host."""

import contextlib
import functools
import gzip
import re
import threading
import zlib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urldefrag, urlsplit

import offline
import pytest
from browser import PAGE, broken_rules, browser, chromium, needs_browser
from conftest import ROOT, sources
from tags import Page
from twotowers import claims, colours, evidence, pages, tables

HTML, PAGES = ROOT / "_build/html", "[!_]*/*.html"
needs_book = pytest.mark.skipif(
    not (HTML / "index.html").is_file(), reason="a built book: make book"
)
DRAWN = """() =>
  [...document.querySelectorAll('div.chart')].every(e =>
    e.querySelector('svg.marks') && e.querySelector('summary'))
  && [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"""
LOOK = r"""() => {
  const faults = [];
  const rgb = (colour) => (colour.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
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
  for (const chart of document.querySelectorAll('div.chart')) {
    const name = chart.dataset.name;
    if (!chart.querySelector('svg.marks .role-mark *'))
      faults.push(`${name} is not drawn: ${chart.textContent.slice(0, 200)}`);
    const isFolded = chart.closest('details:not([open])');
    if (!isFolded && !chart.querySelector('summary')?.checkVisibility())
      faults.push(`${name} has no menu to save it`);
    const texts = '.role-axis text, .role-legend text, .role-title text';
    for (const text of chart.querySelectorAll(texts)) {
      const [a, b] = [light(rgb(getComputedStyle(text).fill)), light(behind(chart))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast >= 4.5) continue;
      faults.push(`${name}: "${text.textContent}" has contrast ${contrast.toFixed(1)}`);
      break;
    }
  }
  for (const formula of document.querySelectorAll('.math')) {
    if (!formula.querySelector('mjx-container')
        || formula.querySelector('mjx-merror, [data-mjx-error]'))
      faults.push(`formula is not drawn: ${formula.textContent.slice(0, 100)}`);
  }
  for (const image of document.querySelectorAll('.bd-article img')) {
    if (!image.alt.trim()) faults.push(`image without description: ${image.src.slice(0, 100)}`);
    if (image.complete && !image.naturalWidth)
      faults.push(`image not loaded: ${image.src.slice(0, 100)}`);
  }
  const controls = ':is(#opening-page, #heads, #playground-page) :is(button, input, select)';
  for (const control of document.querySelectorAll(controls)) {
    const { width, height } = control.getBoundingClientRect();
    if (control.checkVisibility() && Math.min(width, height) < 24)
      faults.push(`too small for a finger: ${control.outerHTML.slice(0, 100)}`);
  }
  for (const strip of document.querySelectorAll('table.strip')) {
    const shown = [...strip.querySelectorAll('td > svg')].filter(svg => svg.checkVisibility());
    const places = shown.map(svg => svg.getBoundingClientRect()).map(box => [box.left, box.right]);
    if (places.some(([left, right]) =>
        Math.abs(left - places[0][0]) > 1 || Math.abs(right - places[0][1]) > 1))
      faults.push(`axis and lines of a strip differ in width: ${strip.textContent.slice(0, 60)}`);
  }
  for (const table of document.querySelectorAll('.bd-article table:not(.strip)')) {
    if (window.innerWidth > 600 && table.offsetHeight > 900)
      faults.push(`a table is ${table.offsetHeight} high: ${table.textContent.slice(0, 60)}`);
  }
  const width = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
  if (width > window.innerWidth)
    faults.push(`the page is ${width} wide in a window of ${window.innerWidth}`);
  return faults;
}"""


@pytest.fixture
def home():
    """The address of a server of the book."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=HTML)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@needs_browser
@needs_book
@pytest.mark.parametrize(("width", "height", "mode"), [(1280, 800, "dark"), (390, 844, "light")])
def test_the_first_screen_shows_answer_demo_and_catch(width, height, mode, home):
    with browser(f"{home}book/intro.html", width, height, home, color_scheme=mode) as page:
        ends = {part: page.locator(f".opening-{part}")
                .evaluate("e => e.getBoundingClientRect().bottom")
                for part in ("answer", "buttons", *(["catch"] if width > 600 else []))}  # fmt: skip
        fragment = page.locator("#opening-page").evaluate("e => e.outerHTML")
        links = page.locator(".opening-links a")
        leads = links.evaluate_all("all => all.map((a) => a.getAttribute('href'))")
        pages = ["story.html", "playground-page.html", "figure-by-figure.html"]
        assert leads == [*pages, "#run-your-model"]
    assert max(ends.values()) <= height, ends
    files = [
        fragment.encode(),
        *((HTML / f"_static/book/opening-page.{kind}").read_bytes() for kind in ("js", "css")),
    ]
    assert sum(len(gzip.compress(file)) for file in files) < 90_000
    assert re.search(r"\d+ of \d+ tests agree", fragment)


@needs_browser
@needs_book
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


@needs_browser
@needs_book
def test_each_button_of_the_first_screen_runs_the_model_which_says_what_python_computed(home):
    with browser(f"{home}book/intro.html", home=home, java_script_enabled=False) as page:
        assert (
            page.locator(".opening-says").is_visible()
            and not page.locator(".opening-buttons").is_visible()
        )
        lines = page.locator(".opening-live noscript li")
        assert lines.count() == 3 and lines.first.is_visible()
        computed = [re.findall(r"(\w+) (\d+%)", line) for line in lines.all_text_contents()]
    with browser(f"{home}book/intro.html", home=home) as page:
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
        assert "neither label" in changed["text"] and changed["rows"][0].endswith("off")
        page.keyboard.press("Shift+Tab")
        # a second press takes the change back: now the engine's numbers stand there
        page.keyboard.press("Enter")
        page.wait_for_function(
            "(text) => document.querySelector('.opening-says').textContent === text",
            arg=static["text"],
        )
        again = page.evaluate(SHOWN)
        assert (
            again["parts"] == pytest.approx(static["parts"], abs=2e-5)
            and again["rows"] == static["rows"]
        )
        assert broken_rules(page) == []


@needs_browser
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


@needs_browser
@needs_book
def test_a_head_that_is_clicked_is_marked_in_every_chart_and_a_link_opens_it(home):
    with browser(f"{home}book/12-what-every-head-does.html", home=home) as page:
        page.wait_for_function(DRAWN)
        head, line = page.evaluate(PICK), page.locator(".picked-head")
        assert f"Head {head} of " in line.text_content()
        assert (
            page.locator('[data-name="fig-12-1"] .picked').count() == 2
        )  # its total and its direct effect
        line.locator("a").click()
        page.wait_for_selector("#heads.ready")
        assert page.evaluate("document.querySelector('.playground-error')?.textContent ?? ''") == ""
        assert page.locator("#heads select").nth(3).input_value() == head


@needs_book
def test_links_within_the_book_lead_somewhere_and_no_page_shows_a_traceback_or_nan():
    pages = {page.resolve(): Page(page.read_text("utf8")) for page in HTML.glob(PAGES)}
    faults = re.compile(r'class="output traceback|\[nan')
    wrong = [page.name for page in pages if faults.search(page.read_text("utf8"))]
    for page, parts in pages.items():
        for link in parts.values("href", "src"):
            address, fragment = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(urlsplit(address).path)).resolve() if address else page
            is_state = "=" in fragment  # of the explorer
            if not target.exists() or (
                fragment
                and not is_state
                and target in pages
                and unquote(fragment) not in pages[target].values("id", "name")
            ):
                wrong.append(f"{page.name}: {link}")
    assert wrong == []


@needs_book
def test_every_finding_rests_on_its_verdicts():
    """data/findings.csv names the verdicts under each sentence of the opening page and each finding
    of a chapter."""
    statements = {**claims.claims(), **claims.paper_results()}
    rows = (
        evidence.read(ROOT / "_build/evidence", statements)
        .set_index(["claim", "model"])["verdict"]
        .to_dict()
    )
    table = claims.written_findings()
    wrong = [
        tuple(f) for f in table.itertuples(index=False) if rows.get((f.claim, f.model)) != f.verdict
    ]
    assert not wrong
    of_words = table[~table["page"].isin(["08-sentences", "09-llama"])]  # of pretrained models only
    assert all((claim, "mini-gpt2") in rows for claim in of_words["claim"])
    for page, sentences in (
        table[table["page"] != "intro"].groupby("page")["sentence"].unique().items()
    ):
        text = [" ".join(cell.split()) for cell in sources(page, "markdown")]
        assert f"**Finding.** {sentences[0]}" in text[0]
        assert all(
            sentence in " ".join(text) for sentence in sentences[1:]
        )  # what was learnt, at the end


@needs_browser
@needs_book
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


@needs_browser
@needs_book
def test_the_search_of_a_page_that_is_a_file_breaks_nothing():
    with browser(f"{(HTML / 'search.html').as_uri()}?q=attention") as page:
        page.wait_for_selector("#search-results li")


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


@needs_browser
@needs_book
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


@needs_book
def test_definitions_and_docstrings_are_shown_whole():
    """No definition in a tooltip ends in " .", and no list of a docstring is a box of code."""
    pages = {page.name: page.read_text("utf8") for page in HTML.glob(PAGES)}
    titles = [title for text in pages.values() for title in Page(text).values("title")]
    assert [title for title in titles if " ." in title[-2:]] == []
    boxes = re.findall(r"<pre><span></span>(.*?)</pre>", pages["api.html"], re.DOTALL)
    assert boxes and [box for box in boxes if re.match(r"(reach it|is attended)", box)] == []
    assert "model_config" not in pages["api.html"]


@needs_browser
@needs_book
def test_bars_and_heads_keep_their_colours_in_high_contrast(home):
    colour = "part => getComputedStyle(part).backgroundColor"
    with browser(f"{home}book/playground-page.html", home=home, forced_colors="active") as page:
        bar = page.locator(".playground-bar:not(.before)").first
        bar.wait_for(state="attached")
        heads = page.locator(".playground-map button").evaluate_all(f"all => all.map({colour})")
        assert len({*heads}) > 3
        assert bar.evaluate(colour) != page.locator("body").evaluate(colour)


@needs_browser
@needs_book
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


@needs_browser
@needs_book
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


@needs_browser
@needs_book
def test_a_table_that_scrolls_fades_at_its_end_until_it_is_reached(home):
    with browser(f"{home}book/scorecard.html", 390, 844, home=home) as page:
        page.wait_for_selector("table.goes-on, .output.goes-on", state="attached")
        box = page.locator("table.goes-on, .output.goes-on").first.element_handle()
        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
        page.wait_for_function("box => !box.classList.contains('goes-on')", arg=box)


@needs_browser
@needs_book
def test_a_link_to_two_words_leads_to_them(home):
    with browser(f"{home}book/heads.html#two-words", 1400, 1000, home) as page:
        page.wait_for_selector("#heads.ready")
        page.wait_for_function(
            "document.querySelector('#two-words').getBoundingClientRect().top < innerHeight"
        )


@needs_browser
@needs_book
def test_on_a_phone_wide_tables_of_the_first_page_are_lists_with_titles(home):
    tables = ".bd-article :is(table.stacks, table.table:has(.verdict))"
    with browser(f"{home}book/intro.html", 390, 844, home) as page:
        page.wait_for_selector(".stacks td[data-title]", state="attached")
        page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        wide = "all => all.filter((table) => table.scrollWidth > table.clientWidth + 1).length"
        assert page.locator(tables).count() == 1 and page.locator(tables).evaluate_all(wide) == 0
        cells = page.locator(".stacks tbody td")
        titles = cells.evaluate_all("all => all.map((cell) => cell.dataset.title)")
        assert titles and all(titles)


TOO_TALL = """() => {
  const captions = [...document.querySelectorAll('.caption')];
  return [...document.querySelectorAll('div.chart[data-name^="fig-"]')].flatMap(chart => {
    const follows = c => chart.compareDocumentPosition(c) & Node.DOCUMENT_POSITION_FOLLOWING;
    const below = captions.find(follows);
    const height = below.getBoundingClientRect().bottom - chart.getBoundingClientRect().top;
    return height > 700 ? [`${chart.dataset.name}: ${Math.round(height)} pixels`] : [];
  });
}"""
DRAWN_COLOURS = """() => {
  const colour = (part) => {
    const { fill, stroke, fillOpacity } = getComputedStyle(part);
    return fill === 'none' || fillOpacity === '0' ? stroke : fill;
  };
  const named = [...document.querySelectorAll('svg.marks .role-legend-entry')].flatMap((legend) => {
    const symbols = [...legend.querySelectorAll('.role-legend-symbol path')];
    const labels = [...legend.querySelectorAll('.role-legend-label text')];
    return symbols.map((symbol, i) => [labels[i].textContent, colour(symbol)]);
  });
  const every = (name, parts, of = colour) =>
    [...document.querySelectorAll(parts)].forEach((part) => named.push([name, of(part)]));
  every('undecided', '.strip .dot.undecided');
  every('random heads', '.strip .random path', (part) => getComputedStyle(part).stroke);
  every('right label', '.opening-live tbody tr:nth-child(n + 3):not(.opening-query) rect');
  every('other label', '.opening-live tbody tr:nth-child(-n + 2):not(.opening-query) rect');
  for (const part of document.querySelectorAll('.strip .dot'))
    named.push([part.classList[1], colour(part)]);
  every('right label', '.heads-bar.right', (part) => getComputedStyle(part).backgroundColor);
  every('other label', '.heads-bar.other', (part) => getComputedStyle(part).backgroundColor);
  for (const part of document.querySelectorAll('.verdict'))
    named.push([`badge ${part.classList[1]}`, getComputedStyle(part).backgroundColor]);
  return named;
}"""
MEANT = ("right label", "own label", "other label", "random heads", "other heads")


def rgb(colour: str) -> str:
    return f"rgb({', '.join(map(str, bytes.fromhex(colour[1:])))})"


def check_colours(seen, mode):
    """`seen`: what is drawn -> its colours -> a page. All pages have one colour for each."""
    of_verdicts = {pages.verdict_class(v): c for v, c in colours.VERDICT_COLOURS.items()}
    meant = {name: colours.COLOURS[name] for name in MEANT} | of_verdicts
    if mode == "dark":
        meant = {name: offline.ON_DARK.get(colour, colour) for name, colour in meant.items()}
    undecided = offline.ON_DARK[colours.INK] if mode == "dark" else colours.INK
    meant["undecided"] = undecided
    meant |= {f"badge {name}": colour for name, colour in of_verdicts.items()}
    drawn = meant.keys() & seen.keys()
    wrong = {name: seen[name] for name in drawn if {*seen[name]} != {rgb(meant[name])}}
    assert not wrong and {*MEANT[:2], "random heads", "undecided", "holds", "badge agrees"} <= {
        *seen
    }
    models = {name: {*seen[name]} for name in tables.shown_names().values() if name in seen}
    assert all(len(drawn) == 1 for drawn in models.values()), models
    assert not set.union(*models.values()) & {*map(rgb, meant.values())}


WIDE, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}
ONE_OF_EACH_KIND = (
    "02-project",
    "12-what-every-head-does",
    "glossary",
    "intro",
    "playground-page",
    "scorecard",
)
"""Pages that meet the rules of accessibility on each push: these take long on a long page. The
story and the explorer have tests of their own."""
MARK = "for (const svg of document.querySelectorAll('svg.marks')) svg.classList.add('of-before')"
DRAWN_AGAIN = f"() => !document.querySelector('.of-before') && ({DRAWN})()"


@needs_browser
@needs_book
@pytest.mark.parametrize("mode", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_pages_show_everything_on_a_wide_screen_and_on_a_phone(mode, home, request):
    """Without a network. Colours are read from what the browser draws."""
    wrong, seen, paths = [], {}, sorted(HTML.glob(PAGES))
    names = {path.stem for path in paths}
    meet_rules = names if request.config.getoption("--nightly") else {*ONE_OF_EACH_KIND}
    assert meet_rules <= names

    def look(name, is_drawn):
        with contextlib.suppress(Exception):  # what is not drawn by then is named below
            page.wait_for_function(is_drawn, timeout=20_000)
        wrong.extend(f"{name}: {line}" for line in page.evaluate(LOOK))

    # The first address is not that of the home page, which goes on to another.
    with browser(f"{home}book/intro.html", home=home, color_scheme=mode) as page:
        for path in paths:
            page.set_viewport_size(WIDE)
            page.goto(home + path.relative_to(HTML).as_posix())
            look(path.stem, DRAWN)
            if path.stem[0].isdigit():
                wrong += [f"{path.stem}: {line}" for line in page.evaluate(TOO_TALL)]
            if path.stem == "heads":
                page.wait_for_selector("#heads.ready .heads-bar.right")
            for name, colour in page.evaluate(DRAWN_COLOURS):
                seen.setdefault(name, {}).setdefault(colour, path.stem)
            page.evaluate(MARK)
            page.set_viewport_size(PHONE)
            look(path.stem, DRAWN_AGAIN)
            if path.stem in meet_rules:
                wrong += [f"{path.stem}: {line}" for line in broken_rules(page)]
    assert not wrong, "\n".join(wrong)
    check_colours(seen, mode)


def test_a_colour_of_labels_models_or_verdicts_means_nothing_else():
    labels = {colours.RED: "label", colours.ROSE: "label"}
    assert all(labels.get(c, "") in name for name, c in colours.COLOURS.items() if c in labels)
    of_models, of_verdicts = {*colours.MODEL_COLOURS}, {*colours.VERDICT_COLOURS.values()}
    others = {*colours.COLOURS.values(), *colours.OTHER_COLOURS}
    assert len(of_models) == len(colours.MODEL_COLOURS)
    assert not of_models & of_verdicts and not (of_models | of_verdicts) & others
