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
Values = np.ndarray | np.floating
"""Values (...), which is one number for similarities (asked, demonstrated)"""


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
    return rest * _different(similarity)


def _different(similarity: Square) -> np.ndarray:
    """Return as booleans (asked, demonstrated) which two words differ."""
    n = similarity.shape[-1]
    return ~np.eye(n, dtype=bool)


def _attractions(similarity: Square) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fit (row, column, mean) of similarities of different words, to be added."""
    n = similarity.shape[-1]
    others = similarity * _different(similarity)
    rows = others.sum(-1, keepdims=True) / (n - 1)
    columns = others.sum(-2, keepdims=True) / (n - 1)
    mean = rows.mean(-2, keepdims=True)
    if n == 2:
        return 0 * rows, 0 * columns, mean
    own = n - 1
    scale = own / (n * (n - 2))
    of_all = n * scale * mean
    weighted_rows = own * rows + np.swapaxes(columns, -1, -2)
    weighted_columns = own * columns + np.swapaxes(rows, -1, -2)
    row = scale * weighted_rows - of_all
    column = scale * weighted_columns - of_all
    return row, column, mean


def correlation(first: Square, second: Square) -> Values:
    """Return the correlation of centred similarities, 0 if one of them is constant.

    Args:
        first: Over (..., asked, demonstrated).
        second: Over the same dimensions.
    """
    product = _sum(first * second)
    first_squares = _sum(first**2)
    second_squares = _sum(second**2)
    size = np.sqrt(first_squares * second_squares)
    nothing = np.zeros_like(product)
    return np.divide(product, size, out=nothing, where=size > 0)


def deviation(rest: Square) -> Values:
    """Return the standard deviation of centred similarities of different words.

    Args:
        rest: Over (..., asked, demonstrated).
    """
    variance = _mean_of_different(rest**2)
    return np.sqrt(variance)


def _sum(similarity: Square) -> Values:
    """Return the sum over both dimensions of words."""
    return similarity.sum((-2, -1))


def _mean_of_different(similarity: Square) -> Values:
    """Return the mean over pairs of different words of similarities that are 0 for same words."""
    n = similarity.shape[-1]
    n_pairs = n * (n - 1)
    return _sum(similarity) / n_pairs


def same_word_first(similarity: Square) -> Values:
    """Return the share of words for which their own word is first in their class.

    The attraction of columns is taken out. Words without a preference have a share of about
    1 / words.

    Args:
        similarity: Over (..., asked, demonstrated), the words of one class.
    """
    _, column, _ = _attractions(similarity)
    without = similarity - column
    same = np.diagonal(without, axis1=-2, axis2=-1)
    different = _different(similarity)
    others = np.where(different, without, -np.inf)
    is_first = same > others.max(-1)
    return is_first.mean(-1)


def class_effects(similarity: Square) -> np.ndarray:
    """Return how much more similar words of a class are than words of two classes.

    Args:
        similarity: Over (..., asked, demonstrated), the words of a class and then as many words of
            another class.

    Returns:
        Over (..., class): mean of different words of the class minus mean of the other class's.
    """
    effects = []
    for own, other in _classes(similarity):
        same = similarity[..., own, own]
        within = _mean_of_different(same * _different(same))
        different = similarity[..., own, other]
        across = different.mean((-2, -1))
        effects.append(within - across)
    return np.stack(effects, -1)


def _classes(similarity: Square) -> tuple[tuple[slice, slice], ...]:
    """Return the places of the words of each class and of the other class, half of all words."""
    half = similarity.shape[-1] // 2
    first = slice(half)
    second = slice(half, None)
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
    without = without_attraction(similarity)
    shares = []
    for own, other in _classes(similarity):
        same = without[..., own, own, None]
        different = without[..., own, None, other]
        above = (1 + np.sign(same - different)) / 2
        of_pairs = above.mean(-1)  # (..., asked, demonstrated)
        share = _mean_of_different(of_pairs * _different(of_pairs))
        shares.append(share)
    return np.stack(shares, -1)


def without_attraction(similarity: Square) -> Square:
    """Return similarities without the mean of each column.

    Each class of rows counts half, and same words do not count.

    Args:
        similarity: As in `class_effects`.
    """
    different = _different(similarity)
    others = similarity * different
    means = []
    for own, _ in _classes(similarity):
        n_words = different[own].sum(0)
        total = others[..., own, :].sum(-2)
        means.append(total / n_words)
    first, second = means
    attraction = (first + second) / 2
    return similarity - attraction[..., None, :]
