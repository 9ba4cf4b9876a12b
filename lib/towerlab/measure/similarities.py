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
    return rest * ~np.eye(similarity.shape[-1], dtype=bool)


def _attractions(similarity: Square) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the fit (row, column, mean) of similarities of different words, to be added."""
    n = similarity.shape[-1]
    others = similarity * ~np.eye(n, dtype=bool)
    rows, columns = others.sum(-1) / (n - 1), others.sum(-2) / (n - 1)
    mean = rows.mean(-1, keepdims=True)
    scale = (n - 1) / (n * (n - 2)) if n > 2 else 0.0
    of_all = (n - 1) / (n - 2) * mean if n > 2 else 0.0
    row = scale * ((n - 1) * rows + columns) - of_all
    column = scale * ((n - 1) * columns + rows) - of_all
    return row[..., None], column[..., None, :], mean[..., None]


def correlation(first: Square, second: Square) -> np.ndarray:
    """Return the correlation of centred similarities, 0 if one of them is constant.

    Args:
        first: Over (..., asked, demonstrated).
        second: Over the same dimensions.
    """
    product = (first * second).sum((-2, -1))
    size = np.sqrt((first**2).sum((-2, -1)) * (second**2).sum((-2, -1)))
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)


def deviation(rest: Square) -> np.ndarray:
    """Return the standard deviation of centred similarities of different words.

    Args:
        rest: Over (..., asked, demonstrated).
    """
    n = rest.shape[-1]
    return np.sqrt((rest**2).sum((-2, -1)) / (n * (n - 1)))


def same_word_first(similarity: Square) -> np.ndarray:
    """Return the share of words for which their own word is first in their class.

    The attraction of columns is taken out. Words without a preference have a share of 1 / words.

    Args:
        similarity: Over (..., asked, demonstrated), the words of one class.
    """
    without = similarity - _attractions(similarity)[1]
    own = np.diagonal(without, axis1=-2, axis2=-1)
    others = np.where(np.eye(similarity.shape[-1], dtype=bool), -np.inf, without)
    return (own > others.max(-1)).mean(-1)


def class_effects(similarity: Square) -> np.ndarray:
    """Return how much more similar words of a class are than words of two classes.

    Args:
        similarity: Over (..., asked, demonstrated), the words of a class and then as many words of
            another class.

    Returns:
        Over (..., class): mean of different words of the class minus mean of the other class's.
    """
    n = similarity.shape[-1] // 2
    parts = similarity.reshape(*similarity.shape[:-2], 2, n, 2, n)
    means = parts.mean((-3, -1))  # (..., class of the query, class of the demonstration)
    own = np.diagonal(similarity, axis1=-2, axis2=-1).reshape(*similarity.shape[:-2], 2, n)
    within = (np.diagonal(means, axis1=-2, axis2=-1) * n - own.mean(-1)) / (n - 1)
    return within - np.stack([means[..., 0, 1], means[..., 1, 0]], -1)


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
    outside = ~np.eye(2 * n, dtype=bool)
    rows = (similarity * outside).reshape(*similarity.shape[:-2], 2, n, 2 * n).sum(-2)
    counts = outside.reshape(2, n, 2 * n).sum(-2)
    without = similarity - (rows / counts).mean(-2)[..., None, :]
    shares = []
    for own, other in ((slice(n), slice(n, None)), (slice(n, None), slice(n))):
        same, different = without[..., own, own], without[..., own, other]
        difference = same[..., :, None] - different[..., None, :]
        above = (np.sign(difference).mean(-1) + 1) / 2  # (..., asked, demonstrated)
        shares.append((above * ~np.eye(n, dtype=bool)).sum((-2, -1)) / (n * (n - 1)))
    return np.stack(shares, -1)
