"""Colours by meaning, in charts and on pages.

    >>> COLOURS["right label"] == RED
    True

Each of these has one meaning in the whole book: right and other labels, models, and verdicts.
Random heads and everything that is only context are grey. `book/_ext/offline.py` writes the same
colours as a style sheet for pages, so no page or chart has a colour of its own for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from twotowers import claims
from twotowers.tables import shown_names

# Okabe and Ito's palette, which colour-blind readers can distinguish on light and dark pages.
BLUE = "#2a87c4"
ORANGE = "#d9691e"
GREEN = "#1f9e77"
PINK = "#c678a8"
SKY = "#56b4c9"
OLIVE = "#b8a100"
GREY = "#8c8c8c"
OTHER_COLOURS = [BLUE, ORANGE, GREEN, PINK, SKY, OLIVE, GREY]
# Colours of everything except heads and labels.
VIOLET = "#7a5fb0"
LILAC = "#b59cd8"
BROWN = "#7d4f1d"
TAN = "#b5803f"
SAND = "#ddb98a"
RED = "#b8324c"  # of labels only
ROSE = "#e59aa8"  # of labels only
INK = "#343b45"  # of verdicts that decide nothing, which grey would show as random heads
CLEAR = "rgba(140, 140, 140, 0)"  # the middle of a scale with two ends: the page shows through
COLOURS = {
    "nonsense labels": VIOLET, "plain labels": LILAC, "by increase": PINK, "by attribution": GREEN,
    "by attention": BLUE, "other heads": GREY, "random heads": GREY, "right label": RED,
    "own label": RED, "other label": ROSE, "opposite label": ROSE, "attention": VIOLET,
    "FFN": SAND,
    "own class": VIOLET, "other class": LILAC, "kept": SAND, "taken out": BROWN,
    "first class of the pair": VIOLET, "second class": TAN, "both lists": VIOLET, "one list": TAN,
    "measured": VIOLET, "softmax alone": LILAC, "logit difference": VIOLET, "match": VIOLET,
    "order": BROWN, "query": LILAC, "preference": SAND, "the rest": GREY,
    "random head": GREY, "unlisted heads": GREY, "these heads": VIOLET, "the paper": TAN,
}  # fmt: skip
VERDICT_COLOURS = {
    claims.HOLDS: "#1f6fa3", claims.AGREES: "#1f6fa3", claims.AGREES_TOO_FEW: "#6d9fc9",
    claims.HOLDS_TOO_FEW: "#6d9fc9",
    claims.AGREES_UNSPECIFIC: "#3fa7ba", claims.NOT_SPECIFIC: "#3fa7ba", claims.SMALL: "#7fb2d9",
    claims.IN_PART: "#7fb2d9", claims.PART_UNSPECIFIC: "#8ccad6",
    claims.PART_TOO_FEW: "#a9c9e3", claims.DISAGREES: "#b4500f", claims.FAILS: "#b4500f",
    claims.ABSENT: "#98a5b3",
}  # fmt: skip
"""Colours of verdicts; the others have the colour of ink"""
MODEL_COLOURS = ["#5a55c9", "#17849a", "#6b9a2f", "#c79a12", "#5f6b78", "#a8328f", "#2e7d32"]
"""Colours of models in the order of data/models/names.csv; the last one is of the user's model"""


def model_colours(names: Iterable[str]) -> list[str]:
    """Return the colours of models, each of which has the same colour in all figures.

        >>> model_colours(["SmolLM2-135M"]), model_colours(["mini-gpt2", "SmolLM2-135M"])
        (['#17849a'], ['#5a55c9', '#17849a'])

    Args:
        names: Names of models as pages show them.
    """
    known = dict(zip(shown_names().values(), MODEL_COLOURS, strict=False))
    return [known.get(name, MODEL_COLOURS[-1]) for name in names]
