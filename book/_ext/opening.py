"""What the opening page shows of saved tables: Figure 1, and the ladder of models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from twotowers.errors import TwoTowersError
from twotowers.exhibits import drawings, scorecard
from twotowers.exhibits.claim import Verdict, code
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


def ladder(found: Iterable[scorecard.Model]) -> str:
    """Claim x model as signs, the signs that occur explained below; models on which some claim was judged."""
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
        verdict = own.set_index("model")["verdict"]
        lines.append(f"| {claim} | " + " | ".join(SIGNS[verdict[name]] for name in names) + " |")
    seen = set(table.loc[table["model"].isin(names), "verdict"])
    meaning = ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in seen)
    return "\n".join(lines) + f"\n\n{{.exhibit}}\n{meaning}. [How each was judged](scorecard.ipynb)."
