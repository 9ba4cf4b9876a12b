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
    prompts = vectors[["class_pair", "query_class"]].reset_coords().to_dataframe()
    n_classes = prompts.groupby("class_pair")["query_class"].nunique()
    pairs = n_classes.index[n_classes == n_classes.max()]
    some = vectors.isel(prompt=vectors["class_pair"].isin(pairs).values)
    score = (some["query_vector"] * some["key_vector"]).sum("component")
    is_true = some["is_true_label"].astype(bool)
    true, false = (score.where(here).mean("demonstration") for here in (is_true, ~is_true))
    return str((true - false).groupby(some["class_pair"]).mean().idxmax().item())


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
    part = vectors.isel(prompt=(vectors["class_pair"] == pair).values)
    first, second = pair.split("/")
    other_class = xr.where(part["query_class"] == first, second, first)
    is_true = part["is_true_label"].astype(bool)
    key_classes = xr.where(is_true, part["query_class"], other_class)
    key_classes = key_classes.transpose("prompt", "demonstration").values.ravel()
    keys = part["key_vector"].stack(key=("prompt", "demonstration"))
    queries = part["query_vector"].transpose("prompt", "component").values
    towers = [queries, keys.transpose("key", "component").values]
    scaled = np.concatenate([(tower - tower.mean(0)) / tower.std() for tower in towers])
    components = np.linalg.svd(scaled, full_matrices=False)[2][:2]
    x, y = components @ scaled.T
    return pd.DataFrame(
        {
            "x": x,
            "y": y,
            "tower": ["query"] * len(queries) + ["key"] * len(key_classes),
            "class": [*part["query_class"].values, *key_classes],
        }
    )
