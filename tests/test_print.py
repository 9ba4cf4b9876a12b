"""What stands on paper, and where the charts' script does not come: in a headless browser, without
the book."""

import json

import pytest
from browser import PAGE, chromium, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]
DARK = """<style>html { --pst-color-text-base: #eee; --pst-color-background: #111 }
body { color: var(--pst-color-text-base) }</style>"""
BODY = """<body class="bd-article"><p>t</p>
<table><tr><td><span class="verdict holds">holds</span></td></tr></table>
<div id="heads" class="heads"><i class="heads-bar right"></i></div>
<div class="tinker"><i class="tinker-bar"></i></div>"""
COLOURS = """(names) => names.map((name) => getComputedStyle(document.querySelector(name)))
  .map((style) => [style.color, style.printColorAdjust])"""


@pytest.fixture
def page(tmp_path):
    """Opens a page of the book's styles, dark, with a body."""
    opened = chromium().new_page()

    def show(body):
        files = [PAGE / f"{name}.css" for name in ("book", "heads", "tinker")]
        styles = "".join(f'<link rel="stylesheet" href="{file.as_uri()}">' for file in files)
        (tmp_path / "page.html").write_text(
            f'<!doctype html><html data-theme="dark">{DARK}{styles}{body}', "utf8"
        )
        opened.goto((tmp_path / "page.html").as_uri())
        return opened

    yield show
    opened.close()


def test_paper_is_white_and_colours_that_say_something_print(page):
    opened = page(BODY)
    opened.emulate_media(media="print")
    (text, _), *coloured = opened.evaluate(COLOURS, ["p", ".verdict", ".heads-bar", ".tinker-bar"])
    assert text == "rgb(34, 40, 50)" and {exact for _, exact in coloured} == {"exact"}


@pytest.mark.parametrize(
    "vega",
    ["", "<script>window.vegaEmbed = async () => { throw new EvalError('a policy') }</script>"],
)
def test_where_a_chart_cannot_be_drawn_its_picture_stands(vega, page):
    """No vega.js, or a policy that forbids to evaluate text."""
    spec = json.dumps({"mark": "bar"})
    chart = '<div><div class="chart" data-name="c"></div>'
    chart += f'<script type="application/json">{spec}</script>'
    chart += '<noscript><img class="chart" alt="bars" src="x.svg"></noscript></div>'
    opened = page(f'<body>{chart}{vega}<script src="{(PAGE / "charts.js").as_uri()}"></script>')
    opened.wait_for_selector("div.chart img[alt=bars]", state="attached")
