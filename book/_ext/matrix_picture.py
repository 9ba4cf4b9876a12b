"""A matrix of scores of words as a picture with the names of its classes, and its scale of colours.

    matrix_picture.drawn("Head 18-6", packed["picture"], ["animal", "country"])

The story and the opening page show such pictures. In chapter 13, `twotowers.matrices` draws them as
charts.
"""

from collections.abc import Sequence
from html import escape

import numpy as np
from twotowers import matrices
from twotowers.colours import BROWN, VIOLET

SIZE = 300  # side of the matrix
LETTER = 8.2  # width of a letter of a name
TITLE = 24  # room for the title of an axis
LEAST_WIDTH = 60  # of a column with an upright name


def drawn(title: str, picture: str, classes: Sequence[str], diagonal: str = "") -> str:
    """Return a matrix with its classes at its left and above it.

    Args:
        title: What is shown, for screen readers.
        picture: Address of the picture.
        classes: Names of the classes, each of which has as many words.
        diagonal: Words of an arrow that points at the end of the diagonal from outside.
    """
    step = SIZE / len(classes)
    length = LETTER * max(map(len, classes))
    height = 16 if step >= LEAST_WIDTH else length
    turn = ' transform="rotate(-90)"' if step < LEAST_WIDTH else ' text-anchor="middle"'
    names = ""
    for i, name in enumerate(classes):
        at = (i + 0.5) * step
        names += f'<text x="-6" y="{at:.1f}" dy="0.35em" text-anchor="end">{escape(name)}</text>'
        names += f'<g transform="translate({at:.1f} -6)"><text{turn}>{escape(name)}</text></g>'
    left, top = length + TITLE, height + TITLE
    middle = SIZE / 2
    titles = (
        f'<text x="{middle}" y="{-height - 10:.0f}" text-anchor="middle">word of a demonstration'
        f'</text><text transform="translate({-length - 10:.0f} {middle}) rotate(-90)" '
        'text-anchor="middle">word of the query</text>'
    )
    pointer = ""
    if diagonal:
        arrow = f"M{SIZE - 20} {SIZE + 18}H{SIZE + 12}L{SIZE + 3} {SIZE + 4}m-1 9v-9h9"
        place = f'x="{SIZE - 26}" y="{SIZE + 22}" text-anchor="end"'
        pointer = f'<text class="pointed" {place}>{diagonal}</text><path d="{arrow}"/>'
    side = f'width="{SIZE}" height="{SIZE}"'
    view = f"{-left:.0f} {-top:.0f} {left + SIZE + 16:.0f} {top + SIZE + 28:.0f}"
    return (
        f'<svg class="matrix" viewBox="{view}" role="img" aria-label="{escape(title)}">'
        f'<rect class="sheet" {side}/><image href="{picture}" {side}/><rect {side}/>'
        f"{names}{titles}{pointer}</svg>"
    )


def scale(limit: float) -> str:
    """Return the scale of colours.

    Args:
        limit: Score with the strongest colour.
    """
    steps = np.linspace(-1, 1, 2 * matrices.COLOUR_STEPS + 1)
    cells = "".join(
        f'<rect x="{8 * i}" width="8" height="12" fill="{VIOLET if step > 0 else BROWN}" '
        f'fill-opacity="{abs(step):.2f}"/>'
        for i, step in enumerate(steps)
    )
    width = 8 * len(steps)
    picture = f'<svg class="matrix-scale" width="{width}" height="12" aria-hidden="true">'
    return f"<span>−{limit:.2g} or less {picture}{cells}</svg> +{limit:.2g} or more</span>"
