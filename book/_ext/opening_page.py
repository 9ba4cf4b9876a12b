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

import numpy as np
import pandas as pd
import playground_page
import verdict_map
import vl_convert
import xarray as xr
import yaml
from towerlab.effects import SCENES, SWITCH_OFF, strongest, zeroing_effect
from towerlab.model import loading
from towerlab.prompts.paper_sets import CASE as EXAMPLE
from twotowers import claims, evidence, files, strips
from twotowers.heads import Head
from twotowers.paths import chapter_number, data_folder
from twotowers.tables import shown_name

MARK = re.compile(r'<div id="opening-page">.*?</div>', re.DOTALL)
BUTTONS = {
    "Move the matching examples away": "put the numbers first",
    "Swap the labels": "swap the labels",
    SWITCH_OFF: "switch off {} heads",
}
"""Button of each scene of the playground"""
ENTRY_POINTS = {
    "playground-page.html": "Playground",
    "figure-by-figure.html": "Figure by figure",
    "#run": "Run your model",
}
ORDERS = ("words", "paper_changes")  # suite and measurement of the paper's prompts in both orders
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


def titles(*names: str) -> str:
    """Return titles of columns.

    Args:
        *names: The titles.
    """
    return "".join(f'<th scope="col">{name}</th>' for name in names)


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
        '</tbody><tbody><tr class="opening-head">'
        f"{titles('query', 'answer', 'its probability')}</tr>"
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
        f'<section class="opening-live" data-heads="{" ".join(map(str, heads))}" '
        f'data-scripts="{" ".join(LOADED)}"><h2>Try it: which label follows “{EXAMPLE.query}”?</h2>'
        f"<table><thead><tr>{titles('text', 'label', f'attention of {many} heads')}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
        f'<p class="opening-says" aria-live="polite">It says <b>{said}</b>: {escape(shares)}.</p>'
        '<div class="opening-buttons" role="group" aria-label="Change the prompt or the '
        f'model">{pressed}</div><p class="opening-told" role="status">{told}</p>'
        f"<noscript><style>.opening-buttons, .opening-told {{ display: none }}</style><p>What a "
        f"change of it does:</p><ul>{without}</ul></noscript></section>"
    )


def sentences(rows: pd.DataFrame) -> dict[str, str]:
    """Return the opening page's sentences of data/findings.csv, each with a link to its chapter.

    A sentence is "" if its verdicts are not the verdicts of `rows`: no sentence is better than a
    wrong one.

    Args:
        rows: Rows of evidence.

    Returns:
        Sentences by the first statement that each of them rests on.
    """
    verdicts = rows.set_index(["claim", "model"])["verdict"].to_dict()
    table = claims.written_findings()
    told = {}
    for (text, chapter), part in table[table["page"] == "intro"].groupby(
        ["sentence", "chapter"], sort=False
    ):
        stands = all(
            verdicts.get((row.claim, row.model)) == row.verdict for row in part.itertuples()
        )
        link = f'<a href="{chapter}.html">chapter&nbsp;{chapter_number(chapter)}</a>'
        sentence = f"{escape(text, quote=False).removesuffix('.')} ({link})."
        told[part["claim"].iloc[0]] = sentence if stands else ""
    return told


def answer(rows: pd.DataFrame) -> str:
    """Return the answer to the question in the title, below it.

    Args:
        rows: Rows of evidence.
    """
    told = sentences(rows)
    return (
        '<p class="opening-answer">A paper says yes (<a href="references.html">Yu and Ananiadou, '
        "EMNLP 2024</a>): query and key matrices of a few heads are two towers of a metric. "
        f"We rebuilt it in {rows['model'].nunique()} models and added controls. "
        f"<b>{told.get('word prompts', '')}</b> {told.get('exchange-query', '')}</p>"
    )


def accuracies(build: Path) -> pd.DataFrame:
    """Return the accuracy of models on the paper's prompts, for each order of the demonstrations.

    An answer is right if the true label is likelier than the other. Accuracies are means over both
    assignments of the labels.

    Args:
        build: Folder of built files.

    Returns:
        Columns first and last: the place of the true demonstrations. Lines are models.
    """
    built = sorted(build.glob("measurements/*/words*/paper_changes.nc"), key=os.path.getmtime)
    precomputed = files.precomputed_files().items()
    rates = {}
    for path in (*(path for key, path in precomputed if key[1:] == ORDERS), *built):
        with xr.open_dataset(path) as changes:
            is_right = changes["logit_difference"].sel(change=evidence.BALANCED) > 0
            share = is_right.mean("prompt").to_series()
        places = np.where(share.index.str.startswith("true first"), "first", "last")
        rates[path.parts[-3]] = share.groupby(places).mean()
    return pd.DataFrame(rates).T


def catch(build: Path, rows: pd.DataFrame) -> str:
    """Return a picture of both orders of the paper's prompts, with one line for each model.

    Args:
        build: Folder of built files.
        rows: Rows of evidence, whose marks say how a model answers.
    """
    rates = accuracies(build)
    lines = "".join(
        f'<tr><th scope="row">{escape(shown_name(row.model))}</th>'
        f"<td>{_both_orders(row.model, **rates.loc[row.model])}</td>"
        f"<td>{strips.MARKS.get(row.mark, '').removeprefix('model ')}</td></tr>"
        for row in rows[rows["claim"] == claims.TASK[0]].itertuples()
        if row.model in rates.index
    )
    key = (
        '<span class="first">right labels first</span> <span class="last">right labels last</span>'
    )
    return (
        '<section class="opening-catch"><h2>The catch: the same examples in the other order</h2>'
        f'<table class="strip"><thead><tr><td></td><td colspan="2">{key}</td></tr></thead><tbody>'
        f'{lines}</tbody></table><p class="strip-key">Prompts in which the right label is likelier '
        "than the other; the dashed line is chance. The paper has the right labels last. "
        '<a href="01-locate.html#paper-word-prompts">Chapter&nbsp;1</a></p></section>'
    )


def _both_orders(model: str, first: float, last: float) -> str:
    """Return the picture of a model's accuracies in both orders."""
    scale = strips.Scale(-0.12, 1.12, is_share=True)
    low, high = sorted((first, last))
    texts = {low: (-10, "end"), high: (10, "start")}
    ends = "".join(
        f'<circle class="{name}" cx="{scale.place(value)}" cy="50%" r="6"/><text class="{name}" '
        f'x="{scale.place(value)}" y="50%" dx="{texts[value][0]}" dy="0.35em" '
        f'text-anchor="{texts[value][1]}">{escape(percent(value))}</text>'
        for name, value in (("first", first), ("last", last))
    )
    label = f"{shown_name(model)}: {percent(last)} right labels last, {percent(first)} first"
    chance = scale.place(0.5)
    return (
        f'<svg class="track" width="100%" height="26" role="img" aria-label="{escape(label)}">'
        f'<line class="chance" x1="{chance}" x2="{chance}" y1="0" y2="100%"/><line class="order" '
        f'x1="{scale.place(low)}" x2="{scale.place(high)}" y1="50%" y2="50%"/>{ends}</svg>'
    )


def cards(build: Path, rows: pd.DataFrame) -> str:
    """Return three cards: a claim that holds, counts of results that say little, and a new result.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    told, judged = sentences(rows), verdict_map.tests(build)
    asked = judged[judged["verdict"] != claims.NOT_TESTABLE]
    agrees = asked[asked["verdict"].str.startswith(claims.AGREES)]
    n_unspecific = (agrees["verdict"] == claims.AGREES_UNSPECIFIC).sum()
    n_failing = (agrees["mark"] != "").sum()
    little = (
        f"Of {len(asked)} tests of {asked['claim'].nunique()} results of the paper, <b>"
        f"{len(agrees)} agree</b>. In {n_unspecific} of these random heads agree as well, and "
        f"{n_failing} are of models that fail the task on the paper's prompts "
        '(<a href="figure-by-figure.html">figure by figure</a>). '
    )
    parts = {
        "Holds": claim_strip(rows, "exchange-query"),
        "Does not hold, or says little": f"<p>{little}{told.get('texts-shallow', '')}</p>",
        "New, as far as we know": claim_strip(rows, "product")
        + f"<p>{told.get('product', '')}</p>",
    }
    sections = "".join(
        f'<section class="opening-card"><h2>{title}</h2>{body}</section>'
        for title, body in parts.items()
    )
    return f'<div class="opening-cards">{sections}</div>'


def claim_strip(rows: pd.DataFrame, claim: str) -> str:
    """Return a claim, its result in words, and its strip.

    Args:
        rows: Rows of evidence.
        claim: Id of the claim.
    """
    statement, own = claims.claims()[claim], [*rows[rows["claim"] == claim].itertuples()]
    words = f"{escape(statement.statement)} <b>{escape(strips.headline(statement, own))}</b>"
    return f"<p>{words}</p>{strips.strip(statement, own)}"


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
    statements = {**claims.claims(), **claims.paper_results()}
    rows = evidence.read(build / "evidence", statements)
    links = "".join(f'<a href="{link}">{text}</a>' for link, text in ENTRY_POINTS.items())
    return (
        f'<div id="opening-page" class="opening">{answer(rows)}{live(build)}{catch(build, rows)}'
        f'{cards(build, rows)}<nav class="opening-links" aria-label="Where to go">{links}</nav>'
        f'<p class="opening-by">{escape(_byline())}</p></div>'
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
