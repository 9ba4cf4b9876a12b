"""A Sphinx extension: style sheets and icon fonts hold only what a page of this book can use.

Each build takes the sheets and fonts anew from the packages that ship them; `tests/test_pages.py` holds the pages to a
size.
"""

import re
from importlib.util import find_spec
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

THEME = ("pydata_sphinx_theme", "theme/pydata_sphinx_theme/static")
SHEETS = {  # where a sheet lies in _static -> the package and its folder that ship it
    "styles/pydata-sphinx-theme.css": THEME,
    "styles/sphinx-book-theme.css": ("sphinx_book_theme", "theme/sphinx_book_theme/static"),
    "sphinx-design.min.css": ("sphinx_design", "static"),
    "mystnb.*.css": ("myst_nb", "static"),
}
FONTS = "vendor/fontawesome/webfonts"
HELD = re.compile(r"""/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|url\([^)"']*\)|\\.|[^"'/\\{};u]+|.""", re.DOTALL)
NESTED = ("@media", "@supports", "@layer", "@container")


def blocks(css: str) -> list[tuple[str, str | None]]:
    """A style sheet as (what stands before the braces, what stands in them); a statement has None for the second."""
    found, before, inside, depth = [], "", "", 0
    for token in HELD.findall(css):
        if token.startswith("/*"):
            continue
        if token == "}":
            depth -= 1
            if not depth:
                found.append((before.strip(), inside))
                before = inside = ""
                continue
        if depth:
            inside += token
        elif token == ";":
            found.append((before.strip(), None))
            before = ""
        elif token != "{":
            before += token
        depth += token == "{"
    return found


def matches(selector: str, used: set[str]) -> bool:
    """Whether a selector can match where only these classes are given: all that it asks for are among them.

    What stands in brackets, such as `:not(.a)` or `[href=".b"]`, asks for nothing here.
    """
    while (outside := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", selector)) != selector:
        selector = outside
    return {name.replace("\\", "") for name in re.findall(r"\.((?:[\w-]|\\.)+)", selector)} <= used


def fewer_rules(css: str, used: set[str]) -> str:
    """A style sheet without the rules whose selectors all ask for a class that is not used."""
    kept = []
    for before, inside in blocks(css):
        if inside is None:
            kept.append(f"{before};")
        elif before.startswith(NESTED):
            kept.append(f"{before}{{{rest}}}" if (rest := fewer_rules(inside, used)) else "")
        elif before.startswith("@"):
            kept.append(f"{before}{{{inside}}}")
        else:
            selectors = [one.strip() for one in re.split(r",(?![^(\[]*[)\]])", before) if matches(one, used)]
            kept.append(f"{','.join(selectors)}{{{inside.strip()}}}" if selectors else "")
    return "".join(kept)


def classes(out: Path) -> set[str]:
    """The classes of every page, and every word of the scripts, which may set one later."""
    used = set()
    for page in out.rglob("*.html"):
        for words in re.findall(r"""\bclass=(?:"([^"]*)"|'([^']*)')""", page.read_text("utf8")):
            used |= set("".join(words).split())
    for script in (out / "_static").rglob("*.js"):
        if script.name not in ("fontawesome.js", "tinker-data.js"):
            used |= set(re.findall(r"[\w-]+", script.read_text("utf8")))
    return used


def signs(css: str) -> set[int]:
    """The characters that a style sheet shows: icons among them."""
    return {int(code, 16) for code in re.findall(r"\\([0-9a-fA-F]{2,6})", css)} | set(map(ord, css))


def fewer_signs(font: Path, wanted: set[int]) -> TTFont:
    """A font with these characters only."""
    whole = TTFont(font, recalcTimestamp=False)
    only = subset.Subsetter(subset.Options(layout_features=[]))
    only.populate(unicodes=wanted)
    only.subset(whole)
    return whole


def shipped(package: str, folder: str) -> Path:
    return Path(find_spec(package).origin).parent / folder


def lighten(app, failed) -> None:
    """No script of icons; sheets without what is not used; fonts with the icons that the sheets name, in one format."""
    static = Path(app.outdir) / "_static"
    if app.builder.format != "html" or failed or not (static / FONTS).exists():
        return
    (static / "scripts/fontawesome.js").write_text("// The icons are drawn with the font of the style sheet.\n", "utf8")
    used, wanted = classes(Path(app.outdir)), set()
    for name, source in SHEETS.items():
        for path in static.glob(name):
            whole = (shipped(*source) / name.replace(".*", "")).read_text("utf8")
            one_format = re.sub(r"url\([^()]*\.woff2\) ?format\(\"woff2\"\),", "", whole)
            path.write_text(css := fewer_rules(one_format, used), "utf8")
            wanted |= signs(css)
    for font in (static / FONTS).iterdir():
        if font.suffix == ".ttf":
            fewer_signs(shipped(*THEME) / FONTS / font.name, wanted).save(font)
        else:
            font.unlink()


def setup(app) -> dict:
    app.connect("build-finished", lighten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
