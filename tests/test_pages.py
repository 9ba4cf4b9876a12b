"""Look at every page of the book that `make book` has built, in a headless browser that reaches no
other host."""

import contextlib
import re
from urllib.parse import unquote, urldefrag, urlsplit

import offline
import pytest
from browser import DRAWN, HTML, broken_rules, browser, needs_book, needs_browser
from conftest import ROOT, sources
from tags import Page
from twotowers import claims, colours, evidence, pages, tables

PAGES = "[!_]*/*.html"
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


@needs_book
def test_links_within_the_book_lead_somewhere_and_no_page_shows_a_traceback_or_nan():
    pages = {page.resolve(): Page(page.read_text("utf8")) for page in HTML.glob(PAGES)}
    faults = re.compile(r'class="output traceback|\[nan,')
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
    verdicts = evidence.verdicts(ROOT / "_build/evidence")
    table = claims.written_findings()
    keys = [*zip(table["claim"], table["model"], strict=True)]
    found = table.assign(now=[verdicts.get(key) for key in keys])
    wrong = found[found["verdict"] != found["now"]]
    assert wrong.empty, wrong.to_string()
    of_words = table[~table["page"].isin(["08-sentences", "09-llama"])]  # of pretrained models only
    assert {*of_words["claim"]} <= {claim for claim, model in verdicts if model == "mini-gpt2"}
    of_pages = table[table["page"] != "intro"].groupby("page")["sentence"].unique()
    for page, found_on_page in of_pages.items():
        path = ROOT / f"book/{page}.md"
        cells = [path.read_text("utf8")] if path.is_file() else sources(page, "markdown")
        first, *_ = text = [" ".join(cell.split()) for cell in cells]
        assert path.is_file() or f"**Finding.** {found_on_page[0]}" in first
        whole = " ".join(text)
        missing = [sentence for sentence in found_on_page if sentence not in whole]
        assert not missing, missing


@needs_book
def test_definitions_and_docstrings_are_shown_whole():
    """No definition in a tooltip ends in " .", and no list of a docstring is a box of code."""
    pages = {page.name: page.read_text("utf8") for page in HTML.glob(PAGES)}
    titles = [title for text in pages.values() for title in Page(text).values("title")]
    assert [title for title in titles if " ." in title[-2:]] == []
    boxes = re.findall(r"<pre><span></span>(.*?)</pre>", pages["api.html"], re.DOTALL)
    assert boxes and [box for box in boxes if re.match(r"(reach it|is attended)", box)] == []
    assert "model_config" not in pages["api.html"]


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
"""Pages that are looked at on a phone, and meet the rules of accessibility, on each push. Every
page does each night. The story and the explorer have tests of their own."""
MARK = "for (const svg of document.querySelectorAll('svg.marks')) svg.classList.add('of-before')"
DRAWN_AGAIN = f"() => !document.querySelector('.of-before') && ({DRAWN})()"


@needs_browser
@needs_book
@pytest.mark.parametrize("mode", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_pages_show_everything_on_a_wide_screen_and_on_a_phone(mode, home, request):
    """Without a network. Colours are read from what the browser draws."""
    wrong, seen, paths = [], {}, sorted(HTML.glob(PAGES))
    names = {path.stem for path in paths}
    on_phone = names if request.config.getoption("--nightly") else {*ONE_OF_EACH_KIND}
    assert on_phone <= names

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
            if path.stem in on_phone:
                page.evaluate(MARK)
                page.set_viewport_size(PHONE)
                look(path.stem, DRAWN_AGAIN)
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
