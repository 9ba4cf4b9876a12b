"""What the opening page shows of saved tables: Figure 1, and the ladder of models. And Figure 1 as a picture to share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import vl_convert
from twotowers.errors import TwoTowersError
from twotowers.exhibits import drawings, scorecard
from twotowers.exhibits.claim import Verdict, code
from twotowers.paths import slug
from twotowers.stats import tables

TABLE = "01-locate-apart"
SHORT = (  # the scorecard's claims, in its order
    "The task is learned", "Texts gather at labels", "Values say the label", "Query and key compare classes",
    "More and nearer weigh more",
)  # fmt: skip
SIGNS = {
    Verdict.HOLDS: "✓", Verdict.CONTROL: "=", Verdict.FAILS: "✗", Verdict.UNDECIDED: "?",
    Verdict.UNTESTABLE: "–", scorecard.NOT_RUN: "·",
}  # fmt: skip


def figure_1(folder: Path) -> str:
    """The drawing, as Markdown with its caption; a sentence where there is no table to draw it from."""
    try:
        table = tables.load(folder, TABLE)
        drawn = drawings.in_context_head(table)
    except TwoTowersError:
        return "*Figure 1 is drawn here from a table of [chapter 1](01-locate.ipynb), once that has run.*"
    model = code(table.attrs["provenance"].get("about", {}).get("name", "the model of this book"))
    svg = drawn.svg.replace("`", "&#96;")  # nothing in it may end the block
    return (
        f"```{{raw}} html\n{svg}\n```\n\n{{.exhibit}}\n**Figure 1.** One in-context head of {model} on the paper's example. "
        "Bars: attention. Numbers: nats that a label adds to the lead of the true one. [More](01-locate.ipynb)."
    )


CARD = """<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="630" color="#1f2328" font-family="sans-serif">
<rect width="1200" height="630" fill="#ffffff"/>{title}<svg x="600" y="45" width="560" height="540">{drawn}</svg></svg>"""


def card(folder: Path, title: str) -> bytes | None:
    """The drawing beside the book's title as a PNG of 1200 x 630, the size that sites show; None without its table."""
    try:
        drawn = drawings.in_context_head(tables.load(folder, TABLE)).svg
    except TwoTowersError:
        return None
    lines = enumerate(textwrap.wrap(title, 20))
    said = "".join(f'<text x="48" y="{230 + 66 * i}" font-size="52">{escape(line)}</text>' for i, line in lines)
    return vl_convert.svg_to_png(CARD.format(title=said, drawn=drawn))


def ladder(found: Iterable[scorecard.Model], linked: Mapping[tuple[str, str], str] | None = None) -> str:
    """Claim x model as signs, the signs that occur explained below; models on which some claim was judged.

    `linked`: (slug of a model, table) -> the name of its exhibit. A sign leads to the exhibit that decides it.
    """
    table = scorecard.ladder(found)
    if table.empty:
        return "*No model has saved tables yet.*"
    judged = table[table["verdict"] != scorecard.NOT_RUN]
    names = list(dict.fromkeys(judged["model"])) or list(dict.fromkeys(table["model"]))
    lines = [
        "| | " + " | ".join(code(name).replace("|", "\\|") for name in names) + " |",
        "|---|" + ":-:|" * len(names),
    ]
    for (_, own), claim in zip(table.groupby("claim", sort=False), SHORT, strict=True):
        cells = []
        for one in own.set_index("model").loc[names].itertuples():
            sign, at = SIGNS[one.verdict], (linked or {}).get((slug(one.Index), one.decides))
            cells.append(f"{{ref}}`{sign} <{at}>`" if at else sign)
        lines.append(f"| {claim} | " + " | ".join(cells) + " |")
    seen = set(table.loc[table["model"].isin(names), "verdict"])
    meaning = ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in seen)
    return "\n".join(lines) + f"\n\n{{.exhibit}}\n{meaning}. [How each was judged](scorecard.ipynb)."
