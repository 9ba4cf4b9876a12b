"""Style sheets and icon fonts without what no page uses."""

import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
import light

pytest.importorskip("pydata_sphinx_theme", reason="the book's packages are not installed: pip install -e .[book]")


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".a{b:c}.x{b:c}", ".a{b:c}"),
        (".a, .x , p{b:c}", ".a,p{b:c}"),
        (".a .x{b:c}.a.b{b:c}.a:hover::before{b:c}", ".a.b{b:c}.a:hover::before{b:c}"),
        ("p:not(.x){b:c}:is(.a,.x) p,.x:is(.a,.b){b:c}", "p:not(.x){b:c}:is(.a,.x) p{b:c}"),
        ('a[href=".x"],a[title="(,"].x{b:c}', 'a[href=".x"]{b:c}'),
        (r".a\:b{b:c}.a\:x{b:c}", r".a\:b{b:c}"),
        ("@media print{.x{b:c}}@media (a:b) and (c:d){.a{b:c}.x{d:e}}", "@media (a:b) and (c:d){.a{b:c}}"),
        (
            "@font-face{src:url(x.y)}@keyframes x{0%{b:c}to{d:e}}",
            "@font-face{src:url(x.y)}@keyframes x{0%{b:c}to{d:e}}",
        ),
        ('@charset "utf-8";@import "}.x{";.a{b:c}', '@charset "utf-8";@import "}.x{";.a{b:c}'),
        ('/*{*/.a{content:"}\\"";b:url(data:a;b/*})}/**/.x{}', '.a{content:"}\\"";b:url(data:a;b/*})}'),
        (".5x{b:1.5em}", ".5x{b:1.5em}"),
    ],
)
def test_a_rule_goes_when_each_of_its_selectors_asks_for_a_class_that_is_not_used(css, kept):
    assert light.fewer_rules(css, {"a", "b", "a:b", "5x"}) == kept


def test_classes_are_those_of_pages_and_every_word_of_scripts(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "a.html").write_text("""<p class="a b-c"><i class='d'>e</i>class="f""")
    (tmp_path / "_static/one.js").write_text("element.classList.add('sun-moon')")
    assert light.classes(tmp_path) == {"a", "b-c", "d", "element", "classList", "add", "sun-moon"}


def test_a_built_book_has_the_icons_of_its_pages_and_no_others(tmp_path):
    static = tmp_path / "_static"
    for folder in ("styles", "scripts", light.FONTS):
        (static / folder).mkdir(parents=True)
    fonts = light.shipped(*light.THEME) / light.FONTS
    for name in ("fa-solid-900.ttf", "fa-solid-900.woff2"):
        (static / light.FONTS / name).write_bytes(b"an older build's")
    (static / "styles/pydata-sphinx-theme.css").write_text("an older build's")
    (tmp_path / "a.html").write_text('<i class="fa-solid fa-moon"></i>')
    light.lighten(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path), None)
    (font,) = (static / light.FONTS).iterdir()
    sheet = (static / "styles/pydata-sphinx-theme.css").read_text("utf8")
    assert ".fa-moon:before" in sheet and ".fa-sun:before" not in sheet and ".woff2" not in sheet
    moon, sun = 0xF186, 0xF185
    with light.TTFont(font) as made, light.TTFont(fonts / font.name) as shipped:
        held, all_signs = set(made.getBestCmap()), set(shipped.getBestCmap())
    assert moon in held and sun in all_signs - held and held < all_signs
    assert font.stat().st_size < 20_000 < (fonts / font.name).stat().st_size
