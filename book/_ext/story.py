"""Pictures of the story, most of which are those of the opening page and of claims.

MARK.sub(lambda match: drawn(Path("_build"), *match.groups()), text)
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import live_prompt
import matrix_picture
import numpy as np
import opening_page
import pandas as pd
import plain_words
from twotowers import axes, claims, evidence, matrices
from twotowers.colours import model_colours
from twotowers.paths import chapter_names

MARK = re.compile(r'<div data-(picture|claim)="([\w-]+)"></div>')
CLASS_PAIR = ("animal", "country")  # of the words that the story names
VERDICTS = ("same-word", "graded", "beyond-inputs")  # claims below the matrices
MIRRORED = {"nothing mirrored": (0, 0), "query mirrored": (-1, 0),
            "keys mirrored": (0, -1), "both mirrored": (-1, -1)}  # fmt: skip
"""Coefficients of query and keys: -1 mirrors the query at the middle between the classes, and the
difference between the keys of the classes"""


def drawn(build: Path, kind: str, name: str) -> str:
    """Return a picture on one line.

    Args:
        build: Folder of built files.
        kind: "claim" for the strip of a claim, or "picture".
        name: Id of the claim, or name of the picture.
    """
    rows = evidence.read(build / "evidence", {**claims.claims(), **claims.paper_results()})
    if kind == "claim":
        return f'<div class="claim">{plain_words.claim_strip(rows, name)}</div>'
    pictures = {
        "attention": lambda: live_prompt.still(build),
        "orders": lambda: opening_page.catch(build, rows),
        "matrix": lambda: matrix(build, rows),
        "product": lambda: product(build, rows),
    }
    return f'<div class="opening">{pictures[name]()}</div>'


def matrix(build: Path, rows: pd.DataFrame) -> str:
    """Return one head's similarities of words, next to those of a head that only knows classes.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    packed = opening_page.matrix_of(build)
    if not packed:
        return "<p>This picture was not made.</p>"
    scores = _one_class_pair(packed)
    classes = scores.index
    means = scores.T.groupby(level=0, sort=False).transform("mean").T
    means = means.groupby(level=0, sort=False).transform("mean")
    measured = matrices.pack(scores.values, classes, classes)
    same_colours = matrices.pack(means.values, classes, classes, measured["limit"])
    limit = measured["limit"] * packed["largest"] / matrices.SCORE_STEPS
    head = escape(f"{packed['title'].partition(',')[0]} of {packed['model']}")
    text = (
        f"{len(scores)} words, in one order in rows and columns. A head that only recognised "
        "classes would show nothing but the mean of each block (first picture). The head as "
        "measured also has a line where a word meets itself, and darker and lighter cells."
    )
    return (
        f'<section class="story-matrices">'
        f"{_figure('Classes only: the mean of each block', same_colours['picture'])}"
        f"{_figure(f'Measured: head {head}', measured['picture'], 'a word meets itself')}"
        '<p class="strip-key">both pictures: score minus the mean of its row, '
        f"{matrix_picture.scale(limit)}</p><p>{text}</p>"
        f"{plain_words.verdicts_in_words(rows, VERDICTS)}</section>"
    )


def _one_class_pair(packed: dict) -> pd.DataFrame:
    """Return the scores of a packed matrix for the words of CLASS_PAIR."""
    steps = [matrices.CHARACTERS.index(character) for character in packed["scores"]]
    scores = np.reshape(steps, (packed["n"], packed["n"])) - matrices.SCORE_STEPS
    classes = pd.Index(packed["classes"].split(" "))
    is_shown = classes.isin(CLASS_PAIR)
    shown = classes[is_shown]
    return pd.DataFrame(scores[np.ix_(is_shown, is_shown)], shown, shown)


def product(build: Path, rows: pd.DataFrame) -> str:
    """Return the answer of each model with query, keys, or both mirrored, with the claim's result.

    Args:
        build: Folder of built files.
        rows: Rows of evidence.
    """
    answers = _mirrored(build)
    if answers.empty:
        return "<p>This picture was not made.</p>"
    added = answers["query mirrored"] + answers["keys mirrored"] - answers["nothing mirrored"]
    reach = 1.1 * max(abs(answers.values).max(), abs(added).max())
    scale = axes.Scale(-reach, reach, is_share=True)
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td>'
        f"{_dots(scale, answers[name], added if name == 'both mirrored' else None)}</td></tr>"
        for name in MIRRORED
    )
    models = " &nbsp; ".join(
        f'<span><svg width="10" height="10"><circle cx="5" cy="5" r="5" fill="{colour}"/></svg> '
        f"{model}</span>"
        for model, colour in zip(answers.index, model_colours(answers.index), strict=True)
    )
    numbers = opening_page.axis(scale, scale.ticks)
    link = f'<a href="{chapter_names()["11"]}.html#fig-11-1">Figure 11.1</a>'
    return (
        f'<section class="story-product"><table class="strip"><thead><tr><td></td><td>'
        '<div class="ends"><span>← other label</span><span>right label →</span></div></td></tr>'
        "</thead>"
        f"<tbody>{lines}</tbody><tfoot><tr><td></td><td>{numbers}</td></tr></tfoot></table>"
        f'<p class="strip-key">{models} &nbsp; ◇ both mirrored, if '
        "the two effects were added<br>Logit difference, centred, as a share of each model's range "
        f"over all 98 conditions ({link}).</p><p>Minus times minus is plus: with both mirrored, "
        "query and keys match again. A sum would be wrong twice. "
        f"{opening_page.sentences(rows)['product']}</p></section>"
    )


def _mirrored(build: Path) -> pd.DataFrame:
    """Return the answers of models (lines) in the conditions of `MIRRORED` (columns).

    An answer is the mean logit difference of both classes, as a share of the model's range.
    """
    points = [row for row in opening_page.charted(build, "11") if row.get("axis") == "product"]
    if not points:
        return pd.DataFrame()
    table = pd.DataFrame(points)
    ranges = table.groupby("model", sort=False)["nats"].agg(np.ptp)
    # A positive coefficient moves every query towards the first class of its pair.
    sign = np.where(table["asked"].str.startswith("first"), 1, -1)
    table["query"] *= sign
    answers = table.groupby(["model", "query", "key"], sort=False)["nats"].mean()
    named = {name: answers.xs(at, level=("query", "key")) for name, at in MIRRORED.items()}
    return pd.DataFrame(named).loc[ranges.index].div(ranges, axis=0)


def _dots(scale: axes.Scale, answers: pd.Series, added: pd.Series | None) -> str:
    """Return the answers of all models on one line, and diamonds at the sums of effects."""
    marks = f'<line class="chance" x1="{scale.place(0)}" x2="{scale.place(0)}" y1="0" y2="100%"/>'
    colours = model_colours(answers.index)
    lines = np.linspace(15, 85, len(answers))  # of models, so that no dot covers another (percent)
    for name, value, colour, y in zip(answers.index, answers, colours, lines, strict=True):
        if added is not None:
            place = scale.place(added[name])
            path = f'<path d="M0 -5 5 0 0 5 -5 0Z" fill="none" stroke="{colour}"/>'
            marks += f'<svg x="{place}" y="{y:.0f}%" overflow="visible">{path}</svg>'
        marks += f'<circle cx="{scale.place(value)}" cy="{y:.0f}%" r="4" fill="{colour}"/>'
    label = "; ".join(f"{name} {scale.text(value)}" for name, value in answers.items())
    return (
        f'<svg class="track" width="100%" height="26" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{marks}</svg>"
    )


def _figure(title: str, picture: str, diagonal: str = "") -> str:
    """Return a matrix of the words of CLASS_PAIR with its title."""
    drawn = matrix_picture.drawn(title, picture, CLASS_PAIR, diagonal)
    return f"<figure><figcaption>{title}</figcaption>{drawn}</figure>"


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add the buttons of full screen, and the style of slides, to the story only."""
    if 'class="story"' in (context.get("body") or ""):
        app.add_css_file("book/opening-page.css")
        app.add_css_file("book/story.css")
        app.add_js_file("book/story.js", loading_method="defer")
