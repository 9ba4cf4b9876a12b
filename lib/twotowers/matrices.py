"""Charts of large matrices of scores, with the words and the score under the pointer.

A chart with a mark for each cell would be too heavy for a page. Here a matrix is a picture (PNG),
next to a text with one character for each score.

    >>> scores = np.array([[2.0, -1.0], [0.0, 1.0]])
    >>> matrix = pack(scores, ["dog", "cat"], ["animal", "animal"])
    >>> matrix["picture"][:22], matrix["scores"]
    ('data:image/png;base64,', '~>Si')
    >>> chart = draw(pd.DataFrame([{"model": "mini-gpt2", "title": "3-5"} | matrix]))
    >>> chart.to_dict()["params"][0]["bind"]["options"]
    ['mini-gpt2']

This module does not load torch.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from twotowers.colours import BROWN, VIOLET
from twotowers.figures import model_menu
from twotowers.tables import shown_name

COLOUR_STEPS = 7
"""Colours above zero (violet), and below (brown). In the middle the page shows through."""
CLIPPED = 0.02
"""Share of the cells beyond the ends of the scale of colours"""
CHARACTERS = "".join(chr(code) for code in range(40, 127) if chr(code) not in "<\\")
"""Characters of scores, from the lowest to the highest, which need no escape"""
SCORE_STEPS = len(CHARACTERS) // 2
SIZE = 290
"""Width and height of a matrix in pixels: two and the names of classes fit a page's column"""

Pixels = np.ndarray
"""Integers (row, column)"""


def pack(
    scores: np.ndarray, words: Sequence[str], classes: Sequence[str], limit: float | None = None
) -> dict[str, Any]:
    """Return a square matrix of scores as cells of a table that `draw` shows.

    Scores beyond `limit` have the strongest colour.

    Args:
        scores: Scores (asked word, demonstrated word). Zero has no colour.
        words: Words of the rows, and of the columns.
        classes: Class of each word. Words of a class are next to each other.
        limit: Score with the strongest colour. None takes the one above which `CLIPPED` of the
            scores are.
    """
    sizes = abs(scores)
    if limit is None:
        limit = float(np.quantile(sizes, 1 - CLIPPED)) or 1.0
    largest = float(sizes.max()) or 1.0
    steps = np.rint(COLOUR_STEPS * scores / limit)
    steps = np.clip(steps, -COLOUR_STEPS, COLOUR_STEPS)
    return {
        "picture": _picture(steps),
        "scores": encode(scores / largest),
        "limit": limit,
        "largest": largest,
        "words": " ".join(words),
        "n": len(words),
        "classes": " ".join(classes),
    }


def encode(shares: np.ndarray) -> str:
    """Return numbers from -1 to 1 as characters, row by row.

        >>> encode(np.array([-1.0, 0.0, np.nan, 1.0]))
        '(S ~'

    Args:
        shares: Numbers. A missing one becomes a space.
    """
    steps = np.rint(SCORE_STEPS * shares.ravel()) + SCORE_STEPS
    letters = np.array([*CHARACTERS, " "])
    missing = len(CHARACTERS)
    places = np.where(np.isnan(steps), missing, steps).astype(int)
    return "".join(letters[places])


def _picture(steps: Pixels) -> str:
    """Return steps of colour as the address of a picture."""
    rows, columns = steps.shape
    even = columns + columns % 2
    levels = np.full((rows, even), COLOUR_STEPS, dtype=np.uint8)
    levels[:, :columns] = steps + COLOUR_STEPS
    lines = 16 * levels[:, ::2] + levels[:, 1::2]  # two pixels in a byte
    lines = np.insert(lines, 0, 0, axis=1)  # 0: no filter
    colours = []
    opacities = []
    for step in range(-COLOUR_STEPS, COLOUR_STEPS + 1):
        colour = VIOLET if step > 0 else BROWN
        colours.append(bytes.fromhex(colour[1:]))
        opacities.append(round(255 * abs(step) / COLOUR_STEPS))
    header = struct.pack(">IIBBBBB", columns, rows, 4, 3, 0, 0, 0)  # 4 bits, with a palette
    parts = {
        b"IHDR": header,
        b"PLTE": b"".join(colours),
        b"tRNS": bytes(opacities),
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n"
    for name, content in parts.items():
        chunk = name + content
        length = struct.pack(">I", len(content))
        checksum = struct.pack(">I", zlib.crc32(chunk))
        png += length + chunk + checksum
    text = base64.b64encode(png).decode()
    return "data:image/png;base64," + text


class _Pointed(alt.ConcatChart):
    """A chart whose parameter `pointer` follows the pointer, which Altair's schema lacks."""

    def to_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the specification."""
        spec = super().to_dict(*args, **options)
        inside = "{x: x(group()) / group().width, y: y(group()) / group().height}"
        moves = {"events": "image:pointermove", "update": inside}
        for parameter in spec.get("params", ()):
            if parameter["name"] == "pointer":
                parameter["on"] = [moves]
        return spec


def draw(table: pd.DataFrame) -> alt.ConcatChart:
    """Draw the matrices of a model next to each other, with a menu of models.

    Below each matrix are the two words under the pointer and their score.

    Args:
        table: Columns model, title, and the cells of `pack`. Every model has as many matrices.
    """
    table = table.assign(model=table["model"].map(shown_name))
    side = table.groupby("model").cumcount()
    names = table["model"].unique().tolist()
    first = names[0] if names else ""
    chosen = model_menu(names, first)
    pointer = alt.param(name="pointer", value={"x": -1, "y": -1})
    panels = [_panel(table[side == number]) for number in side.unique()]
    if panels:
        first_side = table[side == 0]
        panels[0] += _class_names(first_side)
    chart = alt.concat(*panels, columns=2, spacing=20)
    chart = chart.add_params(chosen, pointer)
    return _Pointed(**chart._kwds)


def _panel(table: pd.DataFrame) -> alt.LayerChart:
    """Return the picture of a matrix with its title, and the line below it."""
    whole = {"type": "quantitative", "scale": alt.Scale(domain=[0, 1], nice=False)}
    base = alt.Chart(table).transform_filter("datum.model == model")
    image = base.mark_image(aspect=False).encode(
        alt.XDatum(0, axis=None, **whole),
        alt.YDatum(1, axis=None, **whole),
        alt.X2Datum(1),
        alt.Y2Datum(0),
        url="picture:N",
        description="title:N",
    )
    left = alt.value(0)
    title = base.mark_text(align="left", fontSize=13, fontWeight=600)
    title = title.encode(x=left, y=alt.value(-12), text="title:N")
    pointed = (
        base.transform_calculate(row="floor(pointer.y * datum.n)")
        .transform_calculate(column="floor(pointer.x * datum.n)")
        .transform_calculate(at="datum.row * datum.n + datum.column")
        .transform_calculate(step=f"indexof('{CHARACTERS}', datum.scores[datum.at])")
        .transform_calculate(score=f"datum.largest * (datum.step / {SCORE_STEPS} - 1)")
        .transform_calculate(words="split(datum.words, ' ')")
        .transform_calculate(
            line="pointer.x < 0 ? 'row: query; column: demonstration' : 'S[' + "
            "datum.words[datum.row] + ', ' + datum.words[datum.column] + '] = ' + "
            "format(datum.score, '+.1f') + ' nats'"
        )
    )
    line = pointed.mark_text(align="left", fontSize=13)
    line = line.encode(x=left, y=alt.value(SIZE + 14), text="line:N")
    panel = alt.layer(image, title, line)
    return panel.properties(width=SIZE, height=SIZE)


def _class_names(table: pd.DataFrame) -> alt.Chart:
    """Return the names of classes, to the left of their rows."""
    rows = []
    for row in table.itertuples():
        classes = pd.Series(row.classes.split(" "))
        numbers = classes.index.to_series()
        places = numbers.groupby(classes.values, sort=False).mean()
        middles = 1 - (places + 0.5) / row.n
        for name, y in middles.items():
            rows.append({"model": row.model, "class": name, "y": y})
    base = alt.Chart(pd.DataFrame(rows)).transform_filter("datum.model == model")
    names = base.mark_text(align="right", fontSize=11)
    return names.encode(x=alt.value(-6), y=alt.Y("y:Q"), text="class:N")
