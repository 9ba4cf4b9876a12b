"""Properties of similarities of words: of a class, within a class, symmetric, first for itself.

A similarity S[w, v] has the asked word w as row and the demonstrated word v as column. Within a
class, S is fitted by a number for each row and one for each column, without same words; what is
left is *centred*. So neither the class nor the general attraction of a word counts.

    >>> same = np.array([[9.0, 1.0, 2.0], [1.0, 9.0, 4.0], [2.0, 4.0, 9.0]])
    >>> bool(np.allclose(centred(same), 0))              # three words leave nothing
    True
    >>> float(same_word_first(same))
    1.0
"""

from __future__ import annotations

import numpy as np

Square = np.ndarray
"""Similarities (..., asked, demonstrated)"""


def centred(similarity: Square) -> Square:
    """Return similarities of one class without what rows and columns explain.

    The fit by least squares leaves out same words. (Warner, Kenny and Stoto 1979 give the formula,
    for round robins.)

    Args:
        similarity: Over (..., asked, demonstrated), the same words.

    Returns:
        Over (..., asked, demonstrated), zero for same words.
    """
    row, column, mean = _attractions(similarity)
    rest = similarity - mean - row - column
    return rest * _different(similarity.shape[-1])


def _different(n: int) -> np.ndarray:
    """Return as booleans (n, n) which two of n words differ."""
    return ~np.eye(n, dtype=bool)


def _diagonal(similarity: Square) -> np.ndarray:
    """Return the similarities of same words, over (..., word)."""
    return np.diagonal(similarity, axis1=-2, axis2=-1)


def _attractions(similarity: Square) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fit (row, column, mean) of similarities of different words, to be added."""
    n = similarity.shape[-1]
    others = similarity * _different(n)
    rows = others.sum(-1) / (n - 1)
    columns = others.sum(-2) / (n - 1)
    mean = rows.mean(-1, keepdims=True)
    if n == 2:
        return 0 * rows[..., None], 0 * columns[..., None, :], mean[..., None]
    scale = (n - 1) / (n * (n - 2))
    of_all = n * scale * mean
    row = scale * ((n - 1) * rows + columns) - of_all
    column = scale * ((n - 1) * columns + rows) - of_all
    return row[..., None], column[..., None, :], mean[..., None]


def correlation(first: Square, second: Square) -> np.ndarray:
    """Return the correlation of centred similarities, 0 if one of them is constant.

    Args:
        first: Over (..., asked, demonstrated).
        second: Over the same dimensions.
    """
    words = -2, -1
    product = (first * second).sum(words)
    squares = (first**2).sum(words) * (second**2).sum(words)
    nothing = np.zeros_like(product)
    return np.divide(product, np.sqrt(squares), out=nothing, where=squares > 0)


def deviation(rest: Square) -> np.ndarray:
    """Return the standard deviation of centred similarities of different words.

    Args:
        rest: Over (..., asked, demonstrated).
    """
    n = rest.shape[-1]
    variance = (rest**2).sum((-2, -1)) / (n * (n - 1))
    return np.sqrt(variance)


def same_word_first(similarity: Square) -> np.ndarray:
    """Return the share of words for which their own word is first in their class.

    The attraction of columns is taken out. Words without a preference have a share of about
    1 / words.

    Args:
        similarity: Over (..., asked, demonstrated), the words of one class.
    """
    _, column, _ = _attractions(similarity)
    without = similarity - column
    others = np.where(_different(similarity.shape[-1]), without, -np.inf)
    is_first = _diagonal(without) > others.max(-1)
    return is_first.mean(-1)


def class_effects(similarity: Square) -> np.ndarray:
    """Return how much more similar words of a class are than words of two classes.

    Args:
        similarity: Over (..., asked, demonstrated), the words of a class and then as many words of
            another class.

    Returns:
        Over (..., class): mean of different words of the class minus mean of the other class's.
    """
    n = similarity.shape[-1] // 2
    effects = []
    for own, other in _classes(n):
        same = similarity[..., own, own]
        different = similarity[..., own, other]
        within = (same * _different(n)).sum((-2, -1)) / (n * (n - 1))
        effects.append(within - different.mean((-2, -1)))
    return np.stack(effects, -1)


def _classes(n: int) -> tuple[tuple[slice, slice], ...]:
    """Return the places of the words of each class, n each, and of the other class."""
    first, second = slice(n), slice(n, None)
    return (first, second), (second, first)


def class_auc(similarity: Square) -> np.ndarray:
    """Return the chance that a word of the class scores above one of the other class.

    Of each column the mean is taken out, each class of rows counting half, without same words.
    Equal scores count half.

    Args:
        similarity: As in `class_effects`.

    Returns:
        Over (..., class), the mean over queries of the class.
    """
    n = similarity.shape[-1] // 2
    without = without_attraction(similarity)
    shares = []
    for own, other in _classes(n):
        same = without[..., own, own, None]
        different = without[..., own, None, other]
        above = (1 + np.sign(same - different)) / 2
        of_pairs = above.mean(-1) * _different(n)  # (..., asked, demonstrated)
        shares.append(of_pairs.sum((-2, -1)) / (n * (n - 1)))
    return np.stack(shares, -1)


def without_attraction(similarity: Square) -> Square:
    """Return similarities without the mean of each column.

    Each class of rows counts half, and same words do not count.

    Args:
        similarity: As in `class_effects`.
    """
    different = _different(similarity.shape[-1])
    n = len(different) // 2
    others = similarity * different
    means = [others[..., own, :].sum(-2) / different[own].sum(0) for own, _ in _classes(n)]
    attraction = (means[0] + means[1]) / 2
    return similarity - attraction[..., None, :]
