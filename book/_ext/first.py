"""The first screen: the paper's prompt with the miniature's numbers, what holds of the paper, and
where to go.

All of it is computed when the pages are put together. The prompt's numbers stand until a button is
pressed: then `first.js` loads the playground's engine, and they are the engine's.

    MARK.sub(lambda _: drawn(Path("_build")), text)
"""

from __future__ import annotations

import os
import re
from html import escape, unescape
from pathlib import Path

import pandas as pd
import tinker
import vl_convert
import xarray as xr
import yaml
from towerlab.effects import SCENES, SWITCH_OFF, strongest, zeroing_effect
from towerlab.model import loading
from towerlab.prompts.paper_sets import CASE as EXAMPLE
from twotowers import claims, evidence
from twotowers.heads import Head
from twotowers.paths import chapter_number, data_folder, shipped_models
from twotowers.tables import shown_name

MARK = re.compile(r'<div id="first">.*?</div>', re.DOTALL)
BUTTONS = {
    "Swap the labels": "swap the labels",
    "Remove one": "remove one",
    SWITCH_OFF: "switch off {} heads",
}
"""Scene of the playground -> its button"""
SIGNS = {
    claims.AGREES: "✓",
    claims.UNSPECIFIC: "≈",
    claims.UNTESTED: "?",
    claims.IN_PART: "½",
    claims.DISAGREES: "✗",
    claims.NOT_TESTABLE: "–",
}
MARKS = {claims.BY_POSITION: "p", claims.BY_WORD: "w"}
FIRM = 0.95
"""Signs of verdicts and marks in the picture; a firm verdict stays in as many resamples"""
DOORS = {
    "tinker.html": "Try it",
    "figure-by-figure.html": "Does it reproduce?",
    "#run": "Run it on your model",
}
NUMBERS = ("no", "one", "two", "three", "four", "five")
LOADED = tinker.SCRIPTS[:5]  # by the first press of a button
DESCRIPTION = (
    "A language model labels a text after four examples. Yu and Ananiadou (EMNLP 2024) say that a "
    "few attention heads do it, as two towers of a metric. This executable paper tests that, live "
    "in the page and against controls."
)


def percent(p: float) -> str:
    """As `percent` of tinker-draw.js."""
    return "<1%" if 0 < p < 0.005 else f"{int(100 * p + 0.5)}%"


def bar(parts: dict[str, float]) -> str:
    """Shares side by side, each in the colour of its label. A picture: a policy may forbid styles
    in a tag."""
    rects, at = "", 0.0
    for label, part in parts.items():
        rects += f'<rect class="of-{label}" x="{at:.5f}" width="{part:.5f}" height="1"/>'
        at += part
    view = 'viewBox="0 0 1 1" preserveAspectRatio="none"'
    return f'<svg class="first-bar" {view} aria-hidden="true">{rects}</svg>'


def live(build: Path) -> str:
    """The paper's prompt: attention of the heads that write most on each label, the answer, and
    three buttons."""
    model = loading.load(tinker.MODEL)
    named, _ = tinker.heads(tinker.latest(build))
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
        f'<tr class="first-query"><th scope="row">{EXAMPLE.query}</th><td>: <b '
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
        '<section class="first-live" aria-label="The paper\'s prompt" '
        f'data-heads="{" ".join(map(str, heads))}" '
        f'data-scripts="{" ".join(LOADED)}"><table><thead><tr><th scope="col">text</th><th '
        f'scope="col">label</th><th scope="col">attention of {many} '
        f'heads</th></tr></thead><tbody>{rows}</tbody></table><p class="first-says" '
        f'aria-live="polite">It says <b>{said}</b>: '
        f"{escape(shares)}.</p>"
        '<div class="first-buttons" role="group" aria-label="Change the prompt or the '
        f'model">{pressed}</div><p class="first-told" role="status">{told}</p>'
        f"<noscript><style>.first-buttons, .first-told {{ display: none }}</style><p>What a "
        f"change of it does:</p><ul>{without}</ul></noscript></section>"
    )


def sentences(rows: pd.DataFrame) -> list[str]:
    """The opening page's sentences of data/findings.csv, each with its chapter; "" for one whose
    verdicts are not those of `rows`: better no sentence than a wrong one."""
    verdicts = rows.set_index(["claim", "model"])["verdict"].to_dict()
    table = claims.findings()
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
    """The counted results of the paper in each model in which they could be tested or not."""
    judged = evidence.read(build / "evidence", claims.paper_results())
    return judged[~judged["claim"].isin(claims.UNCOUNTED)]


def row_link(item: str) -> str:
    """The name of a result of the paper, as a link to its row."""
    about = claims.paper_results()[item]
    address = f"figure-by-figure.html#row-{about.anchor}"
    return f'<a href="{address}" title="{escape(about.statement)}">{item}</a>'


def counted(asked: pd.DataFrame) -> str:
    """How many tests have each verdict."""
    n = asked["verdict"].value_counts()
    agree, same, few, part, no = (n.get(name, 0) for name in [*SIGNS][:5])
    return (
        f"{agree} agree, {same} agree as random heads do, {few} agree untested for this, "
        f"{part} in part, {no} do not"
    )


def summary(judged: pd.DataFrame) -> str:
    """The counts of all and of pretrained models, and results that are firm in every model and
    that agree in none."""
    asked = judged[judged["verdict"] != claims.NOT_TESTABLE]
    specific = asked["verdict"].isin([claims.AGREES, claims.UNTESTED])
    firm = specific & ~(asked["firmness"] < FIRM)
    items, own = dict.fromkeys(asked["claim"]), asked["model"].isin(shipped_models())
    always, never = (
        ", ".join(row_link(item) for item in items if so[asked["claim"] == item].all()) or "none"
        for so in (firm, ~specific)
    )
    return (
        f"{len(asked)} tests: {counted(asked)}. Pretrained models alone, {(~own).sum()} tests: "
        f"{counted(asked[~own])}. Firm in every model: {always}. In no model fully and beyond "
        f"random heads: {never}."
    )


def findings(build: Path) -> str:
    """How many results of the paper agree, in how many of these the task is done, what agrees in no
    model, and what is new, counted from the verdicts of the chapters."""
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
        "all": f"<b>{len(agrees)} of {len(asked)}</b> tests agree, {n.get(claims.UNSPECIFIC, 0)} "
        f"of them as random heads do: {len(of_items)} results of the paper in up to "
        f'{judged["model"].nunique()} models (<a href="#first-map">picture</a>).{in_all}',
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
    return f'<ul class="first-findings">{items}</ul>'


def picture(build: Path) -> str:
    """Every test as a cell, a row a result of the paper and a column a model, in three tables side
    by side; each cell leads to its row."""
    judged = tests(build)
    models = dict.fromkeys(evidence.read(build / "evidence", claims.paper_results())["model"])
    cells = {(row.claim, row.model): row for row in judged.itertuples()}
    heads = "".join(f'<th scope="col"><span>{shown_name(m)}</span></th>' for m in models)
    lines = []
    for item in dict.fromkeys(judged["claim"]):
        line = f'<th scope="row">{row_link(item).replace(">appendix ", ">")}</th>'
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
        f'<span class="verdict {name_of(v)}">{of}</span> {v}' for v, of in SIGNS.items()
    )
    marks = "; ".join(f"<sup>{of}</sup> {mark}" for mark, of in MARKS.items())
    return (
        f'<div class="first-map" id="first-map"><p>{summary(judged)}</p><p>{signs}; empty: not '
        f"run. The model does not do the task: {marks}.</p><div>{tables}</div></div>"
    )


def name_of(verdict: str) -> str:
    """The class of a verdict in style sheets."""
    return re.sub(r"\W+", "-", verdict)


def cell(row) -> str:
    """One test: the sign of its verdict, that of its mark, and a link to its row."""
    says = f"{row.claim}, {shown_name(row.model)}: {row.verdict}" + f" ({row.mark})" * bool(
        row.mark
    )
    mark = f"<sup>{MARKS[row.mark]}</sup>" if row.mark else ""
    anchor = claims.paper_results()[row.claim].anchor
    return (
        f'<a class="verdict {name_of(row.verdict)}" href="figure-by-figure.html#row-{anchor}" '
        f'title="{escape(says)}" aria-label="{escape(says)}">{SIGNS[row.verdict]}{mark}</a>'
    )


def byline() -> str:
    """Authors, version, and the last day on which something was measured that the pages show."""
    about = yaml.safe_load((data_folder().parent / "CITATION.cff").read_text("utf8"))
    authors = ", ".join(author["name"].replace("The ", "the ", 1) for author in about["authors"])
    day = max(
        xr.open_dataset(file).attrs["date"] for file in data_folder().glob("measurements/*/*/*.nc")
    )
    return (
        f"By {authors}. Version {about['version']}, pretrained models last measured on {day[:10]}."
    )


def drawn(build: Path) -> str:
    """The first screen, on one line: Markdown takes an empty one for its end."""
    doors = "".join(f'<a href="{link}">{text}</a>' for link, text in DOORS.items())
    return (
        f'<div id="first" class="first">{live(build)}<div '
        f'class="first-holds">{findings(build)}<nav class="first-doors" aria-label="Where to '
        f'go">{doors}</nav></div>{picture(build)}<p class="first-by">{escape(byline())}</p></div>'
    )


def set_address(app, config) -> None:
    """Where the book will stand, where whoever builds it says so: previews of links need whole
    addresses."""
    config.html_baseurl = os.environ.get("BOOK_URL", config.html_baseurl)


def write_image(app, target: Path) -> None:
    """The picture that goes with a link to the book, where the book has an address."""
    if app.config.html_baseurl:
        svg = (Path(app.srcdir) / "book/paper.svg").read_text("utf8")
        (target / "first.png").write_bytes(vl_convert.svg_to_png(svg, scale=3))


def for_one_page(app, pagename, templatename, context, doctree) -> None:
    """Only the opening page loads the first screen's script; every page says what it is to who
    links to it."""
    base, root = app.config.html_baseurl, pagename == app.config.root_doc
    of = {
        "og:type": "article",
        "og:site_name": app.config.html_title or app.config.project,
        "og:title": context.get("title", ""),
    }
    of |= {"og:description": DESCRIPTION} if root else {}
    of |= (
        {
            "og:image": f"{base.rstrip('/')}/_static/book/first.png",
            "og:url": context.get("pageurl") or base,
        }
        if base
        else {}
    )
    plain = {name: escape(unescape(re.sub("<[^>]*>", "", text))) for name, text in of.items()}
    tags = "".join(f'<meta property="{name}" content="{text}">' for name, text in plain.items())
    tags += f'<meta name="description" content="{escape(DESCRIPTION)}">' if root else ""
    context["metatags"] = f"{context.get('metatags') or ''}\n{tags}"
    if 'id="first"' in (context.get("body") or ""):
        app.add_css_file("book/first.css")
        app.add_js_file("book/first.js", loading_method="defer")
