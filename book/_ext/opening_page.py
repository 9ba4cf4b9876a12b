"""The first screen of the opening page: the answer, a live prompt, the results, and links.

    MARK.sub(lambda _: drawn(Path("_build")), text)

All of it is computed when the pages are put together, from measurements and verdicts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path

import live_prompt
import matrix_picture
import numpy as np
import pandas as pd
import plain_words
import verdict_map
import vl_convert
import xarray as xr
import yaml
from live_prompt import percent
from twotowers import agreements, axes, claims, evidence, files, identity, intervals
from twotowers.paths import chapter_names, chapter_number, data_folder, included_models
from twotowers.settings import Settings
from twotowers.tables import shown_name
from twotowers.theme import VEGA

MARK = re.compile(r'<div id="opening-page">.*?</div>', re.DOTALL)
ENTRY_POINTS = {
    "story.html": "The story in six pictures",
    "playground-page.html": "Playground",
    "figure-by-figure.html": "Figure by figure",
    "#run-your-model": "Run your model",
}
ORDER_SCALE = axes.Scale(-0.16, 1.28, is_share=True)  # with room for texts at both ends
ORDERS = ("words", "paper_balance")  # suite and measurement of the paper's prompts in both orders
METRIC = ("same-word", "symmetric", "graded", "beyond-inputs")  # claims below the matrix
DESCRIPTION = (
    "A language model labels a text after four demonstrations. Yu and Ananiadou (EMNLP 2024) say "
    "that a few attention heads do it, as two towers of a metric. This executable paper tests "
    "that, live in the page and against controls."
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
    findings = claims.written_findings()
    models = findings[findings["claim"] == "used"]["model"].unique()
    n_pretrained = sum(model not in included_models() for model in models)
    depends, on_word = told.get("exchange-query", ""), told.get("used", "")
    limits = [told[name] for name in ("beyond-inputs", "word prompts") if told.get(name)]
    limited = ("they do", "with a limit", "with two limits")[len(limits)]
    extent = f"{len(models)} models that we tested, {n_pretrained} of them pretrained. "
    found = f"<b>Yes, {limited}</b>, in all {extent}{depends} {on_word}"
    listed = "".join(f"<li>{limit}</li>" for limit in limits)
    return (
        '<div class="opening-answer"><p>Show a language model four labelled words '
        "(<i>demonstrations</i>), and it labels a fifth (the <i>query</i>). "
        '<a href="references.html">A paper of 2024</a> says that a few <a '
        'href="glossary.html#term-head">attention heads</a> compare the '
        "query with the demonstrations, and copy the label of similar ones. "
        f"{found if depends and on_word else ''} "
        f'<a href="story.html"><b>See it in six pictures</b></a>.</p><ul>{listed}</ul></div>'
    )


def measured(build: Path, suite: str, measurement: str) -> dict[str, Path]:
    """Return the files of a measurement by model, precomputed or of the last build.

    A book that was built before with another seed has a folder of its own, which may be newer.

    Args:
        build: Folder of built files.
        suite: Suite of prompts.
        measurement: Name of the measurement.
    """
    folder, path = f"{suite}*", build / "settings.json"
    if path.is_file():
        values = json.loads(path.read_text("utf8"))
        values.pop("threads", None)
        settings = Settings.from_values(values | {"suite": suite})
        folder = identity.folder_of(settings, "any model", measurement).name
    built = build.glob(f"measurements/*/{folder}/{measurement}.nc")
    precomputed = files.precomputed_files().items()
    paths = [path for key, path in precomputed if key[1:] == (suite, measurement)]
    paths += sorted(built, key=os.path.getmtime)
    return {path.parts[-3]: path for path in paths}


def accuracies(build: Path) -> pd.DataFrame:
    """Return the accuracy of models on the paper's prompts, for each order of the demonstrations.

    An answer is right if the right label is likelier than the other. Accuracies are means over both
    assignments of the labels.

    Args:
        build: Folder of built files.

    Returns:
        Columns first and last: the place of the true demonstrations. Lines are models.
    """
    rates = {}
    for model, path in measured(build, *ORDERS).items():
        with xr.open_dataset(path) as balance:
            share = (balance["logit_difference"] > 0).mean("prompt").to_series()
        places = np.where(share.index.str.startswith("true first"), "first", "last")
        rates[model] = share.groupby(places).mean()
    return pd.DataFrame(rates).T


def catch(build: Path, rows: pd.DataFrame, below: str = "") -> str:
    """Return a picture of both orders of the paper's prompts, with one line for each model.

    Args:
        build: Folder of built files.
        rows: Rows of evidence, whose marks say how a model answers.
        below: HTML below the picture.
    """
    rates = accuracies(build)
    lines = "".join(
        f'<tr><th scope="row">{escape(shown_name(row.model))}</th>'
        f"<td>{_both_orders(row.model, **rates.loc[row.model])}</td>"
        f"<td>{claims.MARK_NAMES.get(row.mark, '')}</td></tr>"
        for row in rows[rows["claim"] == claims.TASK[0]].itertuples()
        if row.model in rates.index
    )
    key = (
        '<span class="first">right labels first</span> <span class="last">right labels last</span>'
    )
    numbers = axis(ORDER_SCALE, (0, 0.5, 1))
    return (
        '<section class="opening-catch"><h2>The catch: the same demonstrations in the other order'
        "</h2>"
        f'<table class="strip"><thead><tr><td></td><td colspan="2">{key}</td></tr></thead><tbody>'
        f"{lines}</tbody><tfoot><tr><td></td><td>{numbers}</td><td></td></tr>"
        "</tfoot></table>"
        '<p class="strip-key">Share of prompts in which the right label is likelier than the '
        "other; the dashed line is chance. The paper has the right labels last. "
        f'<a href="01-locate.html#paper-word-prompts">Chapter&nbsp;1</a></p>{below}</section>'
    )


def kinds_of_prompts(build: Path, rows: pd.DataFrame) -> str:
    """Return a table of how often models are right on each kind of prompts.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    task = claims.TASK[0]
    bar = claims.paper_results()[task].agrees
    on_paper = rows[rows["claim"] == task].set_index("model")["effect"]
    solved = evidence.read(build / "evidence", [task], solved=True)
    on_blocks = solved.set_index("model")["effect"]
    last = accuracies(build)["last"].reindex(on_paper.index)
    shares = {
        "the paper's prompts, right labels last": last,
        f"the same prompts in both orders ({bar:.0%}: a model <i>solves</i> the task)": on_paper,
        "counterbalanced prompts: both orders and label assignments, best format (clearly above "
        "50%: it <i>learns</i> the task), for the answer above": on_blocks,
    }
    is_own = [model in included_models() for model in on_paper.index]
    own = on_paper.index[is_own]
    lines = ""
    for prompts, share in shares.items():
        cells = ""
        for part in (share.drop(own, errors="ignore"), share.reindex(own)):
            ends = dict.fromkeys(percent(x) for x in (part.min(), part.max()) if x == x)
            cells += f"<td>{'–'.join(ends)}</td>"
        lines += f'<tr><th scope="row">{prompts}</th>{cells}</tr>'
    names = ", ".join(shown_name(model) for model in own)
    return (
        '<table class="opening-prompts"><thead><tr><th>share of right answers</th>'
        f"<th>pretrained</th><th>{names}</th></tr></thead><tbody>{lines}</tbody></table>"
    )


def axis(scale: axes.Scale, values: Iterable[float]) -> str:
    """Return the numbers below a strip.

    Args:
        scale: Axis of the strip.
        values: Values that have a number.
    """
    ticks = "".join(
        f'<text x="{scale.place(value)}" y="12" text-anchor="middle">{scale.text(value)}</text>'
        for value in values
    )
    return f'<svg width="100%" height="16" overflow="visible" aria-hidden="true">{ticks}</svg>'


def _both_orders(model: str, first: float, last: float) -> str:
    """Return the picture of a model's accuracies in both orders."""
    scale = ORDER_SCALE
    low, high = sorted((first, last))
    texts = {low: (-10, "end"), high: (10, "start")}
    values = {"first": first, "last": last}
    ends = "".join(
        f'<text x="{scale.place(value)}" y="50%" dx="{texts[value][0]}" dy="0.35em" '
        f'text-anchor="{texts[value][1]}">{escape(percent(value))}</text>'
        for value in values.values()
    )
    ends += "".join(
        f'<circle class="{name}" cx="{scale.place(value)}" cy="50%" r="6"/>'
        for name, value in values.items()
    )
    shares = f"{percent(last)} right labels last, {percent(first)} first"
    label = f"{shown_name(model)}: {shares}"
    chance = scale.place(0.5)
    return (
        f'<svg class="track" width="100%" height="26" role="img" aria-label="{escape(label)}">'
        f'<line class="chance" x1="{chance}" x2="{chance}" y1="0" y2="100%"/><line class="order" '
        f'x1="{scale.place(low)}" x2="{scale.place(high)}" y1="50%" y2="50%"/>{ends}</svg>'
    )


def cards(build: Path, rows: pd.DataFrame) -> str:
    """Return three cards: a claim that holds, results that say little, and a new result.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    told = sentences(rows)
    on_paper = escape(agreements.beyond_random_heads(verdict_map.tests(build)))
    solved = escape(agreements.without_comparison(verdict_map.tests(build, solved=True)))
    link = '<a href="figure-by-figure.html">figure by figure</a>'
    parts = {
        "Holds": plain_words.claim_strip(rows, "exchange-query")
        + f"<p>{share_of_the_way(build)} {told.get('values-beyond-attention', '')}</p>",
        "Does not hold, or says little": f"<p>{told.get('figure 6' + claims.SECOND, '')}</p>"
        f"<p>{on_paper}</p><p>{solved.removesuffix('.')} ({link}).</p>",
        "New, as far as we know": plain_words.claim_strip(rows, "product"),
    }
    sections = "".join(
        f'<section class="opening-card"><h2>{title}</h2>{body}</section>'
        for title, body in parts.items()
    )
    return f'<div class="opening-cards">{sections}</div>'


def share_of_the_way(build: Path) -> str:
    """Return how far the answer moves with another prompt's query, of the way to its answer.

    Args:
        build: Folder of built files.
    """
    shares = []
    for path in measured(build, "words", "interchanges").values():
        with xr.open_dataset(path) as ds:
            is_judged = (ds["pair_kind"] == "query") & (ds["label_pair"] != ds["class_pair"])
            pairs = ds.sel(head_set="by attention").isel(prompt=is_judged.values).load()
        pairs = pairs.drop_vars("head_set")
        moved = pairs["base_logit_difference"] - pairs["logit_difference"]
        whole = pairs["base_logit_difference"] - pairs["source_logit_difference"]
        shares.append(intervals.ratio(moved, whole).estimate)
    if not shares:
        return ""
    return (
        f"The answer moves {min(shares):.0%} to {max(shares):.0%} of the way to the answer of the "
        "other prompt."
    )


def charted(build: Path, chapter: str) -> list[dict]:
    """Return the rows of all tables behind the charts of an executed chapter.

    Args:
        build: Folder of built files.
        chapter: Number of the chapter.
    """
    path = build / f"chapters/{chapter_names().get(chapter, '')}.ipynb"
    cells = json.loads(path.read_text("utf8"))["cells"] if path.is_file() else []
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    charts = [data[VEGA] for data in outputs if VEGA in data]
    return [row for chart in charts for table in chart["datasets"].values() for row in table]


def matrix_of(build: Path) -> dict:
    """Return the first pretrained model's matrix of Figure 13.1, {} if it was not made.

    Args:
        build: Folder of built files.

    Returns:
        Fields of `matrices.pack`, with model and title.
    """
    own = {shown_name(model) for model in included_models()}
    rows = charted(build, "13")
    pictures = [row for row in rows if "picture" in row and "selected" in row["title"]]
    made = [row for row in pictures if row["model"] not in own]
    return made[0] if made else {}


def metric(build: Path, rows: pd.DataFrame) -> str:
    """Return the picture of one head's similarities, with the verdicts of chapter 13.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    matrix = matrix_of(build)
    if not matrix:
        return ""
    page = f"{chapter_names()['13']}.html"
    caption = (
        f"Head {escape(matrix['title'].partition(',')[0])} of {escape(matrix['model'])} "
        f"(layer-head): the score of {matrix['n']} query words (rows) with as many words of "
        "demonstrations (columns), sorted by class. On the diagonal a word meets itself, and "
        "around it the words of its class. Colours: score minus the mean of its row, "
        f"{matrix_picture.scale(matrix['limit'])} nats. "
        "Figure 13.1 has the scores under the pointer."
    )
    classes = list(dict.fromkeys(matrix["classes"].split(" ")))
    title = f"Matrix of scores of {matrix['n']} words with each other"
    picture = matrix_picture.drawn(title, matrix["picture"], classes)
    return (
        '<section class="opening-metric"><h2>Is it a metric? One head, word by word</h2>'
        f'<a href="{page}#fig-13-1">{picture}</a>'
        f"<div><p>{caption}</p>{plain_words.verdicts_in_words(rows, METRIC)}</div></section>"
    )


def _byline() -> str:
    """Return authors, version, and the date of the last measurement that the pages show."""
    about = yaml.safe_load((data_folder().parent / "CITATION.cff").read_text("utf8"))
    authors = ", ".join(author["name"].replace("The ", "the ", 1) for author in about["authors"])
    paths = files.precomputed_files().values()
    day = max(xr.open_dataset(path, decode_cf=False).attrs["date"] for path in paths)
    return (
        f"By {authors}. Version {about['version']}, pretrained models last measured on {day[:10]}."
    )


def drawn(build: Path) -> str:
    """Return the first screen on one line, because an empty line would end it in Markdown.

    Args:
        build: Folder of built files.
    """
    results = claims.paper_results()
    second = evidence.read(build / "evidence", results, solved=True)
    second["claim"] += claims.SECOND
    rows = pd.concat([evidence.read(build / "evidence", {**claims.claims(), **results}), second])
    links = "".join(f'<a href="{link}">{text}</a>' for link, text in ENTRY_POINTS.items())
    return (
        f'<div id="opening-page" class="opening">{answer(rows)}{live_prompt.drawn(build)}'
        f"{catch(build, rows, kinds_of_prompts(build, rows))}"
        f"{cards(build, rows)}{metric(build, rows)}"
        f'<nav class="opening-links" aria-label="Where to go">{links}</nav>'
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
