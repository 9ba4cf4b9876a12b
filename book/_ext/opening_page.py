"""The first screen of the opening page: the paper's prompt, the results, and links to pages.

    MARK.sub(lambda _: drawn(Path("_build")), text)

All of it is computed when the pages are put together. The numbers of the prompt are computed with
the included model. When a button is pressed, `opening-page.js` loads the playground's engine, which
then computes the numbers.
"""

from __future__ import annotations

import os
import re
from html import escape, unescape
from pathlib import Path

import pandas as pd
import playground_page
import vl_convert
import xarray as xr
import yaml
from towerlab.effects import SCENES, SWITCH_OFF, strongest, zeroing_effect
from towerlab.model import loading
from towerlab.prompts.paper_sets import CASE as EXAMPLE
from twotowers import claims, evidence, files, pages
from twotowers.heads import Head
from twotowers.paths import chapter_number, data_folder, included_models
from twotowers.tables import shown_name

MARK = re.compile(r'<div id="opening-page">.*?</div>', re.DOTALL)
BUTTONS = {
    "Swap the labels": "swap the labels",
    "Remove one": "remove one",
    SWITCH_OFF: "switch off {} heads",
}
"""Button of each scene of the playground"""
SIGNS = {
    claims.AGREES: "✓",
    claims.AGREES_UNSPECIFIC: "≈",
    claims.AGREES_UNTESTED: "?",
    claims.IN_PART: "½",
    claims.DISAGREES: "✗",
    claims.NOT_TESTABLE: "–",
}
MARKS = {claims.BY_POSITION: "p", claims.BY_WORD: "w"}
STABLE = 0.95
"""Signs of verdicts and of marks in the picture, and the share of resamples in which a stable
verdict stays the same"""
ENTRY_POINTS = {
    "playground-page.html": "Try it",
    "figure-by-figure.html": "Does it reproduce?",
    "#run": "Run your model",
}
NUMBERS = ("no", "one", "two", "three", "four", "five")
LOADED = playground_page.SCRIPTS[:5]  # scripts that the first press of a button loads
DESCRIPTION = (
    "A language model labels a text after four examples. Yu and Ananiadou (EMNLP 2024) say that a "
    "few attention heads do it, as two towers of a metric. This executable paper tests that, live "
    "in the page and against controls."
)


def percent(p: float) -> str:
    """Return a percentage as `percent` of playground-draw.js does.

    Args:
        p: Share.
    """
    return "<1%" if 0 < p < 0.005 else f"{int(100 * p + 0.5)}%"


def bar(parts: dict[str, float]) -> str:
    """Return shares side by side as a picture, each in the colour of its label.

    It is a picture because a policy may forbid styles in a tag.

    Args:
        parts: Shares by label.
    """
    rects, at = "", 0.0
    for label, part in parts.items():
        rects += f'<rect class="of-{label}" x="{at:.5f}" width="{part:.5f}" height="1"/>'
        at += part
    view = 'viewBox="0 0 1 1" preserveAspectRatio="none"'
    return f'<svg class="opening-bar" {view} aria-hidden="true">{rects}</svg>'


def live(build: Path) -> str:
    """Return the paper's prompt with attention on each label, the answer, and three buttons.

    The attention is the mean over the heads that write most.

    Args:
        build: Folder of built files.
    """
    model = loading.load(playground_page.MODEL)
    named, _ = playground_page.heads(playground_page.latest(build))
    heads = tuple(map(Head.parse, named)) or strongest(zeroing_effect(model, EXAMPLE).heads)
    effects = {
        scene: zeroing_effect(model, SCENES[scene](EXAMPLE))
        if scene in SCENES
        else zeroing_effect(model, EXAMPLE, heads)
        for scene in BUTTONS
    }
    plain, many = effects[SWITCH_OFF], NUMBERS[len(heads)]
    p = plain.answer.set_index("token")["before"]
    answers = p[sorted(EXAMPLE.labels)].to_dict()
    said, answers["other"] = p.idxmax(), max(0.0, 1 - sum(answers.values()))
    shares = ", ".join(f"{word} {percent(share)}" for word, share in answers.items()).replace(
        "other", "other words"
    )
    rows = "".join(
        f'<tr><th scope="row">{d.text}</th><td>: <b class="of-{d.label}">{d.label}</b></td>'
        f"<td>{bar({d.label: look})}<span>{escape(percent(look))}</span></td></tr>"
        for d, look in zip(EXAMPLE.demonstrations, plain.attention["before"], strict=True)
    )
    rows += (
        f'<tr class="opening-query"><th scope="row">{EXAMPLE.query}</th><td>: <b '
        f'class="of-{said}">{said}</b></td>'
        f"<td>{bar(answers)}<span>{escape(percent(p[said]))}</span></td></tr>"
    )
    buttons = {scene: text.format(many) for scene, text in BUTTONS.items()}
    pressed = "".join(
        f'<button type="button" aria-pressed="false" data-scene="{s}">{text}</button>'
        for s, text in buttons.items()
    )
    without = "".join(
        f"<li>{text}: {escape(effects[scene].sentence)}</li>" for scene, text in buttons.items()
    )
    told = "Press a button: a small model runs in this page."
    return (
        '<section class="opening-live" aria-label="The paper\'s prompt" '
        f'data-heads="{" ".join(map(str, heads))}" '
        f'data-scripts="{" ".join(LOADED)}"><table><thead><tr><th scope="col">text</th><th '
        f'scope="col">label</th><th scope="col">attention of {many} '
        f'heads</th></tr></thead><tbody>{rows}</tbody></table><p class="opening-says" '
        f'aria-live="polite">It says <b>{said}</b>: '
        f"{escape(shares)}.</p>"
        '<div class="opening-buttons" role="group" aria-label="Change the prompt or the '
        f'model">{pressed}</div><p class="opening-told" role="status">{told}</p>'
        f"<noscript><style>.opening-buttons, .opening-told {{ display: none }}</style><p>What a "
        f"change of it does:</p><ul>{without}</ul></noscript></section>"
    )


def sentences(rows: pd.DataFrame) -> list[str]:
    """Return the opening page's sentences of data/findings.csv, each with its chapter.

    A sentence is "" if its verdicts are not the verdicts of `rows`: no sentence is better than a
    wrong one.

    Args:
        rows: Rows of evidence.
    """
    verdicts = rows.set_index(["claim", "model"])["verdict"].to_dict()
    table = claims.written_findings()
    out = []
    for (text, chapter), part in table[table["page"] == "intro"].groupby(
        ["sentence", "chapter"], sort=False
    ):
        stands = all(
            verdicts.get((row.claim, row.model)) == row.verdict for row in part.itertuples()
        )
        link = f'<a href="{chapter}.html">chapter&nbsp;{chapter_number(chapter)}</a>'
        out.append(f" {escape(text, quote=False).removesuffix('.')} ({link})." if stands else "")
    return out


def tests(build: Path) -> pd.DataFrame:
    """Return the counted results of the paper in each model, tested or not testable.

    Args:
        build: Folder of built files.
    """
    judged = evidence.read(build / "evidence", claims.paper_results())
    return judged[~judged["claim"].isin(claims.UNCOUNTED)]


def _row_link(item: str) -> str:
    """Return the name of a result of the paper as a link to its row.

    Args:
        item: Name of the result.
    """
    about = claims.paper_results()[item]
    address = f"figure-by-figure.html#row-{about.anchor}"
    return f'<a href="{address}" title="{escape(about.statement)}">{item}</a>'


def counted(asked: pd.DataFrame) -> str:
    """Return the number of tests with each verdict, in words.

    Args:
        asked: Rows of evidence of tests.
    """
    n = asked["verdict"].value_counts()
    agree, same, few, part, no = (n.get(name, 0) for name in [*SIGNS][:5])
    return (
        f"{agree} agree, {same} agree as random heads do, {few} agree without a test against "
        f"random heads, {part} in part, {no} do not"
    )


def summary(judged: pd.DataFrame) -> str:
    """Return the counts of all and of pretrained models, with results that always or never hold.

    Results that always hold are stable in every model. Results that never hold agree in no model
    fully and beyond random heads.

    Args:
        judged: Rows of evidence of the counted results.
    """
    asked = judged[judged["verdict"] != claims.NOT_TESTABLE]
    specific = asked["verdict"].isin([claims.AGREES, claims.AGREES_UNTESTED])
    stable = specific & ~(asked["stability"] < STABLE)
    items, own = dict.fromkeys(asked["claim"]), asked["model"].isin(included_models())
    always, never = (
        ", ".join(_row_link(item) for item in items if so[asked["claim"] == item].all()) or "none"
        for so in (stable, ~specific)
    )
    return (
        f"{len(asked)} tests: {counted(asked)}. Pretrained models alone, {(~own).sum()} tests: "
        f"{counted(asked[~own])}. Stable in every model: {always}. Results that "
        f"agree fully and beyond random heads in no model: {never}."
    )


def findings(build: Path) -> str:
    """Return the findings of the opening page, counted from the verdicts of the chapters.

    These are the number of results that agree, the number of these in models that do not do the
    task, the results that agree in no model, and the new result.

    Args:
        build: Folder of built files.
    """
    rows, judged = evidence.read(build / "evidence", claims.claims()), tests(build)
    if rows.empty or judged.empty:
        return "<p>No chapter has written evidence yet.</p>"
    asked = judged[judged["verdict"] != claims.NOT_TESTABLE]
    agrees = asked[asked["verdict"].str.startswith(claims.AGREES)]
    n = asked["verdict"].value_counts()
    of_items = agrees.groupby("claim")["model"].size().reindex(asked["claim"].unique())
    nearest, word = ((agrees["mark"] == m).sum() for m in MARKS)
    product = rows[rows["claim"] == "product"]["verdict"]
    in_all, in_some, new = sentences(rows)
    new = f"{new[:1]}{new[1:2].lower()}{new[2:]}" or " see chapter 11."
    lines = {
        "all": f"<b>{len(agrees)} of {len(asked)}</b> tests of {len(of_items)} results of the "
        f"paper agree; random heads agree in {n.get(claims.AGREES_UNSPECIFIC, 0)} of these "
        f'(<a href="#opening-map">picture</a>).{in_all}',
        "some": f"<b>{nearest + word} of the {len(agrees)}</b> are of models that fail the task "
        f"on the paper's prompts: they mostly say the nearest label ({nearest}) or one word "
        f"({word}) "
        '(<a href="01-locate.html#paper-word-prompts">chapter&nbsp;1</a>).',
        "none": f"<b>{of_items.isna().sum()}</b> agree fully "
        f'<a href="figure-by-figure.html#what-does-not-agree">in no model</a>.{in_some}',
        "new": f"<b>New</b>, as far as we know, in {sum(product == claims.HOLDS)} of "
        f"{len(product)} models:{new}",
        "not": "<b>Not tested</b>: the paper's own models "
        '(<a href="#not-tested-and-why">why</a>).',
    }
    items = "".join(f"<li class={name}>{line}</li>" for name, line in lines.items())
    return f'<ul class="opening-findings">{items}</ul>'


def picture(build: Path) -> str:
    """Return a picture of every test, with a row for each result and a column for each model.

    It has three tables side by side, and each cell leads to its row.

    Args:
        build: Folder of built files.
    """
    judged = tests(build)
    models = dict.fromkeys(evidence.read(build / "evidence", claims.paper_results())["model"])
    cells = {(row.claim, row.model): row for row in judged.itertuples()}
    heads = "".join(f'<th scope="col"><span>{shown_name(m)}</span></th>' for m in models)
    lines = []
    for item in dict.fromkeys(judged["claim"]):
        line = f'<th scope="row">{_row_link(item).replace(">appendix ", ">")}</th>'
        for row in (cells.get((item, model)) for model in models):
            line += "<td></td>" if row is None else f"<td>{cell(row)}</td>"
        lines.append(f"<tr>{line}</tr>")
    third = -(-len(lines) // 3) or 1
    tables = "".join(
        f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(lines[i : i + third])}"
        "</tbody></table>"
        for i in range(0, len(lines), third)
    )
    signs = "; ".join(
        f'<span class="verdict {pages.verdict_class(v)}">{of}</span> {v}' for v, of in SIGNS.items()
    )
    marks = "; ".join(f"<sup>{of}</sup> {mark}" for mark, of in MARKS.items())
    return (
        f'<div class="opening-map" id="opening-map"><p>{summary(judged)}</p><p>{signs}; empty: not '
        f"run. The model does not solve the task: {marks}.</p><div>{tables}</div></div>"
    )


def cell(row) -> str:
    """Return one test: the signs of its verdict and mark, and a link to its row.

    Args:
        row: Row of evidence.
    """
    says = f"{row.claim}, {shown_name(row.model)}: {row.verdict}" + f" ({row.mark})" * bool(
        row.mark
    )
    mark = f"<sup>{MARKS[row.mark]}</sup>" if row.mark else ""
    anchor = claims.paper_results()[row.claim].anchor
    name = pages.verdict_class(row.verdict)
    return (
        f'<a class="verdict {name}" href="figure-by-figure.html#row-{anchor}" '
        f'title="{escape(says)}" aria-label="{escape(says)}">{SIGNS[row.verdict]}{mark}</a>'
    )


def _byline() -> str:
    """Return authors, version, and the date of the last measurement that the pages show."""
    about = yaml.safe_load((data_folder().parent / "CITATION.cff").read_text("utf8"))
    authors = ", ".join(author["name"].replace("The ", "the ", 1) for author in about["authors"])
    day = max(xr.open_dataset(file).attrs["date"] for file in files.precomputed_files().values())
    return (
        f"By {authors}. Version {about['version']}, pretrained models last measured on {day[:10]}."
    )


def drawn(build: Path) -> str:
    """Return the first screen on one line, because an empty line would end it in Markdown.

    Args:
        build: Folder of built files.
    """
    links = "".join(f'<a href="{link}">{text}</a>' for link, text in ENTRY_POINTS.items())
    return (
        f'<div id="opening-page" class="opening">{live(build)}<div '
        f'class="opening-holds">{findings(build)}<nav class="opening-links" aria-label="Where to '
        f'go">{links}</nav></div>{picture(build)}<p class="opening-by">{escape(_byline())}</p>'
        "</div>"
    )


def set_address(app, config) -> None:
    """Set the address of the book if the build has one: previews of links need whole addresses.

    Args:
        app: Application of Sphinx.
        config: Configuration of Sphinx.
    """
    config.html_baseurl = os.environ.get("BOOK_URL", config.html_baseurl)


def write_image(app, target: Path) -> None:
    """Write the picture of a link to the book, if the book has an address.

    Args:
        app: Application of Sphinx.
        target: Folder of the scripts.
    """
    if app.config.html_baseurl:
        svg = (Path(app.srcdir) / "book/paper.svg").read_text("utf8")
        (target / "opening-page.png").write_bytes(vl_convert.svg_to_png(svg, scale=3))


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add tags for previews to every page, and the first screen's script to the opening page."""
    base, root = app.config.html_baseurl, pagename == app.config.root_doc
    of = {
        "og:type": "article",
        "og:site_name": app.config.html_title or app.config.project,
        "og:title": context.get("title", ""),
    }
    of |= {"og:description": DESCRIPTION} if root else {}
    of |= (
        {
            "og:image": f"{base.rstrip('/')}/_static/book/opening-page.png",
            "og:url": context.get("pageurl") or base,
        }
        if base
        else {}
    )
    plain = {name: escape(unescape(re.sub("<[^>]*>", "", text))) for name, text in of.items()}
    tags = "".join(f'<meta property="{name}" content="{text}">' for name, text in plain.items())
    tags += f'<meta name="description" content="{escape(DESCRIPTION)}">' if root else ""
    context["metatags"] = f"{context.get('metatags') or ''}\n{tags}"
    if 'id="opening-page"' in (context.get("body") or ""):
        app.add_css_file("book/opening-page.css")
        app.add_js_file("book/opening-page.js", loading_method="defer")
