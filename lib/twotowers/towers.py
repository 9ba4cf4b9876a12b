"""Queries and keys of one head on a plane: Figure 4.5, and the card "Its towers" of the page Heads.

pair = best_pair(vectors)     # vectors: "query_key_vectors" of one head
project(vectors, pair)        # one row for each query and each key
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr


def best_pair(vectors: xr.Dataset) -> str:
    """Return the class pair that a head separates best, by attention scores.

    Only class pairs with queries of both classes count, if there are any.

    Args:
        vectors: Measurement "query_key_vectors" of one head.
    """
    query_class = vectors["query_class"].to_series()
    pairs_of_prompts = vectors["class_pair"].to_series()
    n_classes = query_class.groupby(pairs_of_prompts).nunique()
    has_most = n_classes == n_classes.max()
    pairs = n_classes.index[has_most]
    is_some = vectors["class_pair"].isin(pairs)
    some = vectors.isel(prompt=is_some.values)
    products = some["query_vector"] * some["key_vector"]
    score = products.sum("component")
    is_true = some["is_true_label"].astype(bool)
    true = score.where(is_true).mean("demonstration")
    false = score.where(~is_true).mean("demonstration")
    difference = true - false
    by_pair = difference.groupby(some["class_pair"])
    means = by_pair.mean()
    best = means.idxmax()
    return str(best.item())


def project(vectors: xr.Dataset, pair: str) -> pd.DataFrame:
    """Return queries and keys of the prompts of one class pair on two principal components.

    Queries and keys are centred and scaled separately, and one principal component analysis is
    fitted to both. The signs of the components are arbitrary.

    Args:
        vectors: Measurement "query_key_vectors" of one head.
        pair: Class pair, such as "animal/food".

    Returns:
        Columns x, y, tower ("query" or "key") and class. Keys follow all queries.
    """
    is_of_pair = vectors["class_pair"] == pair
    part = vectors.isel(prompt=is_of_pair.values)
    queries = part["query_vector"].transpose("prompt", "component")
    keys = part["key_vector"].transpose("prompt", "demonstration", "component")
    n_components = part.sizes["component"]
    query_rows = _standardised(queries.values)
    by_key = keys.values.reshape(-1, n_components)
    key_rows = _standardised(by_key)
    rows = np.concatenate([query_rows, key_rows])
    _, _, components = np.linalg.svd(rows, full_matrices=False)
    first_two = components[:2]
    x, y = first_two @ rows.T
    query_classes = part["query_class"].values
    key_classes = _key_classes(part, pair)
    table = pd.DataFrame()
    table["x"] = x
    table["y"] = y
    n_rows = len(query_rows), len(key_rows)
    table["tower"] = np.repeat(["query", "key"], n_rows)
    table["class"] = [*query_classes, *key_classes]
    return table


def _standardised(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (row, component) around their mean, in units of one standard deviation."""
    centred = vectors - vectors.mean(0)
    return centred / vectors.std()


def _key_classes(vectors: xr.Dataset, pair: str) -> np.ndarray:
    """Return the class of each demonstration, prompt by prompt."""
    first, second = pair.split("/")
    query_class = vectors["query_class"]
    other_class = xr.where(query_class == first, second, first)
    is_true = vectors["is_true_label"].astype(bool)
    classes = xr.where(is_true, query_class, other_class)
    by_prompt = classes.transpose("prompt", "demonstration")
    return by_prompt.values.ravel()
