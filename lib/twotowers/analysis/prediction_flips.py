"""What heads write at label positions, label against label, and what changes in them when the prediction flips (EMNLP
2024 tables 4 to 6, as summarised; our reading of them).

    minus = logit_minus(model, encoded, heads, ("foo", "bar"))            # which label a head's value stands for
    pairs = compare(model, encoded, moved, heads)                         # the same prompts, one text exchanged
    flipped = pairs[(pairs.before == "foo") & (pairs.after == "bar")]
    relative_change(flipped, "weight")

Two towers say where a head looks, its value-output matrix what it says of it. When a text changes and the prediction
with it, the paper's account wants the attention weights to move and the value vectors to stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from twotowers.analysis import project
from twotowers.analysis.locate import Head, check_heads
from twotowers.analysis.logit_changes import logits, word_rows
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.capture import Capture, capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded, batches
from twotowers.stats.intervals import Interval, bootstrap_of_means


def logit_minus(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    labels: tuple[str, str],
    norm: str = "frozen",
    max_tokens: int = 4096,
    progress: str | None = None,
) -> pd.DataFrame:
    """Logit minus of `alpha * vo` at every label position: log p(first label) - log p(second), nats, under softmax(bs):
    the normaliser cancels, so bs of the first less bs of the second.

    One row per (prompt, head, demonstration): prompt, head ("22-0"), place, label (the word that stands there), weight,
    logit_minus. `alpha * vo` is what the head adds from there, so a place it does not look at has a value near zero.
    """
    heads = check_heads(heads, model)
    if len(set(labels)) != 2:
        raise TwoTowersError(f"labels {', '.join(labels)}: logit minus needs two different ones")

    def read(seen: Capture) -> list[pd.DataFrame]:
        parts = []
        scale = unembed.norm_scale(seen.resid_final, model.unembedding)
        words = torch.tensor([[p.label_ids[label] for label in labels] for p in seen.prompts])
        if len(words.unique(dim=0)) != 1:
            raise TwoTowersError("the labels' tokens differ between prompts: give prompts of one tokenizer and labels")
        rows = word_rows(model, words[:, 0], norm) - word_rows(model, words[:, 1], norm)
        for head in heads:
            weight, vectors = _label_values(seen, model, head)
            found = logits(weight[..., None].to(vectors.dtype) * vectors, rows, model.unembedding, norm, scale)
            parts.append(_rows(seen, head, weight=weight, logit_minus=found))
        return parts

    return _in_order(read_all(model, encoded, {"weights", "values"}, read, max_tokens, progress), heads)


def compare(
    model: Model,
    first: Sequence[Encoded],
    second: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    max_tokens: int = 4096,
    progress: str | None = None,
) -> pd.DataFrame:
    """Label positions of pairs of prompts that hold the same labels at the same places, in some heads.

    One row per (prompt, head, demonstration): prompt, head, place, label, weight_before, weight_after, norm_before,
    norm_after (of vo, in units of the residual stream), distance (between the two vo, same units), cosine (of the two),
    and before, after: the label word that the model predicts, "" when its top word is no label. Positions before the
    exchanged text cannot change their vo: attention is causal (their direction only where a norm follows W_O, Gemma 2:
    its scale is that of the last position). Raises TwoTowersError when pairs do not fit.
    """
    heads = check_heads(heads, model)
    for a, b in zip(first, second, strict=True) if len(first) == len(second) else [(None, None)]:
        if a is None or [d.label for d in a.prompt.demonstrations] != [d.label for d in b.prompt.demonstrations]:
            raise TwoTowersError("pairs of prompts must hold the same labels at the same places: see datasets.moved")

    def read(seen: Capture) -> list[pd.DataFrame]:
        parts = []
        # Not `captures`: where the others do not fit beside these, there must be fewer of these.
        for at, some in batches([second[i] for i in seen.index], max_tokens):
            other, word = capture(model, some, {"weights", "values"}), _predicted(seen)
            for head in heads:
                (alpha, vo), (alpha_2, vo_2) = _label_values(seen, model, head), _label_values(other, model, head)
                alpha, vo = alpha[at], vo[at]
                rows = _rows(
                    other, head, weight_before=alpha, weight_after=alpha_2, norm_before=vo.norm(dim=-1),
                    norm_after=vo_2.norm(dim=-1), distance=(vo_2 - vo).norm(dim=-1),
                    cosine=torch.cosine_similarity(vo, vo_2, -1),
                )  # fmt: skip
                places = len(other.prompts[0].label_positions)
                parts.append(
                    rows.assign(
                        prompt=np.repeat([seen.index[i] for i in at], places),
                        before=np.repeat([word[i] for i in at], places),
                        after=np.repeat(_predicted(other), places),
                    )
                )
        return parts

    return _in_order(read_all(model, first, {"weights", "values"}, read, max_tokens, progress), heads)


def _label_values(
    seen: Capture, model: Model, head: Head
) -> tuple[Float[Tensor, "batch place"], Float[Tensor, "batch place d_model"]]:
    """Attention weight of the last position on the label positions, and the value-output vectors there."""
    at = seen.label_positions
    vectors = project.value_outputs(seen, model, head[0], [head[1]], at)[:, 0]
    return seen.weights[head[0]][:, head[1]].gather(1, at), vectors


def _rows(seen: Capture, head: Head, **columns: Float[Tensor, "batch place"]) -> pd.DataFrame:
    batch, places = next(iter(columns.values())).shape
    table = {
        "prompt": np.repeat(seen.index, places), "head": f"{head[0]}-{head[1]}",
        "place": np.tile(np.arange(places), batch),
        "label": [d.label for e in seen.prompts for d in e.prompt.demonstrations],
    }  # fmt: skip
    return pd.DataFrame(table | {name: x.double().flatten().cpu().numpy() for name, x in columns.items()})


def _in_order(of_batches: list[list[pd.DataFrame]], heads: Sequence[tuple[int, int]]) -> pd.DataFrame:
    parts = [part for of_batch in of_batches for part in of_batch]
    if not parts:
        raise TwoTowersError("no prompts to read: draw at least one")
    order = {f"{layer}-{head}": i for i, (layer, head) in enumerate(heads)}
    table = pd.concat(parts, ignore_index=True)
    return table.iloc[np.lexsort((table["place"], table["head"].map(order), table["prompt"]))].reset_index(drop=True)


def _predicted(seen: Capture) -> list[str]:
    words = [{word: label for label, word in e.label_ids.items()} for e in seen.prompts]
    return [of.get(int(top), "") for of, top in zip(words, seen.logits.argmax(-1), strict=True)]


def relative_change(pairs: pd.DataFrame, column: str, seed: int = 0, over: pd.DataFrame | None = None) -> Interval:
    """Mean after / mean before - 1 of `column` ("weight" or "norm") of a table from `compare`.

    Sums of a prompt's rows are compared. A ratio of means: a prompt with hardly any weight before cannot run away with
    it. `over`: the same of another table (random heads) is taken off, prompt by prompt. n counts the different values
    of a column "query", where there is one, or prompts.
    """
    tables = [pairs] if over is None else [pairs, over]
    return _ratio([_sums(t, t[f"{column}_after"] - t[f"{column}_before"], column) for t in tables], seed)


def relative_shift(pairs: pd.DataFrame, column: str, seed: int = 0, less: str | None = None) -> Interval:
    """How far "weight" or "norm" of a table from `compare` moved, up or down: mean size of the change / mean before.

    For "norm" the size of the change is the distance between the two value-output vectors, so a turn counts as well as
    a change of length. Both are of the same kind, so that attention and values can be held against each other: `less`
    names a second column whose shift is taken off. n as in `relative_change`.
    """

    def size(name: str) -> pd.Series:
        return pairs["distance"] if name == "norm" else (pairs[f"{name}_after"] - pairs[f"{name}_before"]).abs()

    return _ratio([_sums(pairs, size(name), name) for name in ([column] if less is None else [column, less])], seed)


def _sums(pairs: pd.DataFrame, size: pd.Series, column: str) -> pd.DataFrame:
    """Per prompt: the sum of `size` and of what `column` was before."""
    query = pairs["query"] if "query" in pairs else pairs["prompt"]
    return pairs.assign(size=size, query=query).groupby(["query", "prompt"])[["size", f"{column}_before"]].sum()


def _ratio(parts: list[pd.DataFrame], seed: int) -> Interval:
    """Mean size / mean before of the first part, less that of the second where there is one; by cluster of query."""
    table = pd.concat(parts, axis=1, join="inner")
    of = (
        (lambda m: m[..., 0] / m[..., 1])
        if len(parts) == 1
        else lambda m: m[..., 0] / m[..., 1] - m[..., 2] / m[..., 3]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap_of_means(table.to_numpy(), of, seed=seed, clusters=table.index.get_level_values("query"))
