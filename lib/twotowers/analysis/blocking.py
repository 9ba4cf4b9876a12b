"""Claim 2 and section 5.2 by intervention: attention blocked along edges, in the lower, middle or upper layers.

    thirds = layer_thirds(model)
    table = blocked_margins(model, encoded, EDGES, thirds)           # margin with nothing blocked, and with each block
    lost(table)                                                      # nats lost, with intervals resampled by query
    lost(class_in_keys(model, encoded, heads, EDGES, thirds), chance=0.5)

v1 claims that shallow layers merge each demonstration's features into its label position and the query's into the last
position; then labels that may not see their texts there lose the class, and the margin with it. Section 5.2 explains
the effect of order by features of neighbouring texts that get mixed in: blocking those should not cost the class. The
colon between text and label sees the text too and can hand it on, so edges from labels alone are a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.analysis.attention import check_labels_left
from twotowers.analysis.interchange import share_of
from twotowers.analysis.locate import check_heads
from twotowers.errors import TwoTowersError
from twotowers.model import query_key
from twotowers.model.answers import Answers
from twotowers.model.attention_edits import blocked
from twotowers.model.capture import answer, capture
from twotowers.model.memory import in_memory
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded, batches
from twotowers.stats.intervals import bootstrap
from twotowers.stats.resample import group_sums

Edges = list[tuple[Sequence[int], Sequence[int]]]
"""(from positions, to positions): every position of the first may attend to none of the second"""
NONE = "none"


def labels_and_colons_to_texts(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to its own text."""
    pairs = zip(encoded.label_positions, encoded.text_spans, strict=True)
    return [(range(span[1], label + 1), range(*span)) for label, span in pairs]


def labels_and_colons_to_previous_text(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to the text before: the control of own texts."""
    spans = encoded.text_spans
    pairs = zip(encoded.label_positions[1:], spans[1:], spans, strict=False)
    return [(range(span[1], label + 1), range(*before)) for label, span, before in pairs]


def labels_to_earlier_demonstrations(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to all demonstrations before."""
    begin = encoded.text_spans[0][0]
    pairs = zip(encoded.label_positions, encoded.text_spans, strict=True)
    return [(range(span[1], label + 1), range(begin, span[0])) for label, span in pairs]


def last_to_query(encoded: Encoded) -> Edges:
    """From the last position to the query's text."""
    return [([encoded.last], range(*encoded.query_span))]


def last_to_previous_text(encoded: Encoded) -> Edges:
    """From the last position to the text of the demonstration before the query."""
    return [([encoded.last], range(*encoded.text_spans[-1]))]


def last_to_demonstrations(encoded: Encoded) -> Edges:
    """From the last position to all of the demonstrations but their labels, which it must read to answer."""
    inside = set(range(encoded.text_spans[0][0], encoded.query_span[0])) - set(encoded.label_positions)
    return [([encoded.last], sorted(inside))]


EDGES: dict[str, Callable[[Encoded], Edges]] = {
    "labels and colons to own text": labels_and_colons_to_texts,
    "labels and colons to previous text": labels_and_colons_to_previous_text,
    "labels to earlier demonstrations": labels_to_earlier_demonstrations,
    "last to query": last_to_query,
    "last to previous text": last_to_previous_text,
    "last to demonstrations": last_to_demonstrations,
}
"""Claim 2, and section 5.2's mixing; edges to previous texts are also the control of those to own texts"""


def layer_thirds(model: Model) -> dict[str, list[int]]:
    """Lower, middle and upper third of the layers. Raises TwoTowersError for a model of fewer than three."""
    if model.n_layers < 3:
        raise TwoTowersError(f"{model.name} has {model.n_layers} layers and no thirds: name the layers yourself")
    names = ("lower", "middle", "upper")
    return {name: part.tolist() for name, part in zip(names, np.array_split(range(model.n_layers), 3), strict=True)}


def closed_edges(batch: Sequence[Encoded], edges: Callable[[Encoded], Edges]) -> Bool[Tensor, "batch query position"]:
    """Which attention the edges close, for prompts of one length: see `attention_edits.blocked`."""
    closed = torch.zeros(len(batch), len(batch[0].ids), len(batch[0].ids), dtype=torch.bool)
    for row, encoded in enumerate(batch):
        for begin, end in edges(encoded):
            if len(begin) and len(end):
                closed[row][torch.tensor(list(begin))[:, None], torch.tensor(list(end))] = True
    return closed


def _runs(
    model: Model,
    encoded: Sequence[Encoded],
    edges: Mapping[str, Callable[[Encoded], Edges]],
    layers: Mapping[str, Sequence[int]],
    max_tokens: int,
    progress: str | None,
    measure: Callable[[list[Encoded]], np.ndarray],
) -> Iterator[tuple[list[int], list[Encoded], np.ndarray, dict[tuple[str, str], np.ndarray]]]:
    """(index, batch, measure with nothing blocked, {(edges, layers): measure}) of every batch."""
    if not encoded:
        raise TwoTowersError("no prompts to block attention in: draw at least one")

    def run(_, batch: list[Encoded]) -> tuple[np.ndarray, dict[tuple[str, str], np.ndarray]]:
        found = {}
        for name, maker in edges.items():
            closed = closed_edges(batch, maker)
            for part, some in layers.items():
                with blocked(model, some, closed) if closed.any() else nullcontext():
                    found[name, part] = measure(batch)
        return measure(batch), found

    with tqdm(total=len(encoded), desc=progress, disable=progress is None, unit="prompt", leave=False) as bar:
        for index, (plain, found) in in_memory(run, batches(encoded, max_tokens)):
            yield index, [encoded[i] for i in index], plain, found
            bar.update(len(index))


@torch.inference_mode()
def blocked_margins(
    model: Model,
    encoded: Sequence[Encoded],
    edges: Mapping[str, Callable[[Encoded], Edges]],
    layers: Mapping[str, Sequence[int]],
    max_tokens: int = 4096,
    progress: str | None = None,
) -> pd.DataFrame:
    """The margin of the true label over the best other (nats), with nothing blocked and with each edge in each layers.

    One row per prompt, edges and layers: prompt, query (its text), edges, layers (their names), plain, blocked. One run
    for each edges and layers and one beside. Raises TwoTowersError as `blocked`.
    """

    def measure(batch: list[Encoded]) -> np.ndarray:
        top, labels = answer(model, batch)
        return Answers.read(top.numpy(), labels.numpy(), batch).margin

    parts = []
    for index, batch, plain, found in _runs(model, encoded, edges, layers, max_tokens, progress, measure):
        common = {"prompt": index, "query": [e.prompt.query for e in batch]}
        parts += [
            pd.DataFrame({**common, "edges": name, "layers": part, "plain": plain, "blocked": values})
            for (name, part), values in found.items()
        ]
    return pd.concat(parts, ignore_index=True)


@torch.inference_mode()
def class_in_keys(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    edges: Mapping[str, Callable[[Encoded], Edges]],
    layers: Mapping[str, Sequence[int]],
    max_tokens: int = 1024,
    progress: str | None = None,
) -> pd.DataFrame:
    """How well a head's keys at label positions tell the classes of their texts, with nothing blocked and with each.

    One row per prompt, head, edges and layers: prompt, query, head ("22-0"), edges, layers, plain, blocked: the area
    under the ROC curve within the prompt, of `class_auc`. Keys are those before rotation; what place and label word
    have in common is taken out of them. Raises TwoTowersError when place and label word tell the class (give
    counterbalanced prompts), for other than two named classes, and as `read`.
    """
    heads = check_heads(heads, model)
    check_labels_left(encoded)
    demonstrations = [e.prompt.demonstrations for e in encoded]
    classes = sorted({d.cls for row in demonstrations for d in row})
    if len(classes) != 2 or "" in classes:
        raise TwoTowersError(f"keys of {len(classes)} classes: give prompts of two named classes")
    groups = list(dict.fromkeys((layer, model.value_head(head)) for layer, head in heads))

    def measure(batch: list[Encoded]) -> np.ndarray:
        seen = capture(model, batch, {"streams"})
        return np.stack([_label_keys(model, seen.stream_inputs[layer], layer, group, seen.label_positions)
                         for layer, group in groups], 1)  # fmt: skip

    shape = (len(encoded), len(groups), len(demonstrations[0]), model.d_head)
    keys = {(NONE, NONE): np.empty(shape)} | {(name, part): np.empty(shape) for name in edges for part in layers}
    for index, _, plain, found in _runs(model, encoded, edges, layers, max_tokens, progress, measure):
        for cell, values in (((NONE, NONE), plain), *found.items()):
            keys[cell][index] = values
    cls = np.array([[classes.index(d.cls) for d in row] for row in demonstrations])
    texts = np.array([[d.text for d in row] for row in demonstrations])
    strata = np.array([[f"{place} {d.label}" for place, d in enumerate(row)] for row in demonstrations])
    auc = {
        cell: [class_auc(found[:, g], cls, texts, strata) for g in range(len(groups))] for cell, found in keys.items()
    }
    common = {"prompt": np.arange(len(encoded)), "query": [e.prompt.query for e in encoded]}
    return pd.concat(
        [
            pd.DataFrame({
                **common, "head": f"{layer}-{head}", "edges": name, "layers": part,
                "plain": auc[NONE, NONE][g], "blocked": auc[name, part][g],
            })
            for name in edges for part in layers for layer, head in heads
            for g in [groups.index((layer, model.value_head(head)))]
        ],
        ignore_index=True,
    )  # fmt: skip


def _label_keys(
    model: Model, x: Float[Tensor, "batch position d_model"], layer: int, group: int, at: Int[Tensor, "batch label"]
) -> Float[np.ndarray, "batch label d_head"]:
    """Keys of one key head at the label positions, before rotation."""
    rows = x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
    return query_key.keys(model, layer, query_key.normed(model, layer, rows))[:, :, group].double().cpu().numpy()


def class_auc(
    keys: Float[np.ndarray, "prompt label d_head"],
    cls: Int[np.ndarray, "prompt label"],
    texts: np.ndarray,
    strata: np.ndarray,
) -> Float[np.ndarray, " prompt"]:
    """Per prompt, how often a key of class 1 lies further along the direction of class 1 than one of class 0 (AUC).

    The direction is the difference of the two classes' mean keys, for each key from other prompts and other texts only:
    neither the prompt nor the word can be recognised. The mean of each stratum is taken out first, so that a stratum of
    one class says nothing. 0.5 is chance; ties count half. Raises TwoTowersError when every stratum holds one class
    only, for a prompt without both classes, and when a key has nothing to be compared with.
    """
    n, k, d = keys.shape
    c, prompt = cls.ravel(), np.repeat(np.arange(n), k)
    stratum = np.unique(strata.ravel(), return_inverse=True)[1]
    size = np.bincount(stratum)
    share = np.bincount(stratum, weights=c) / size
    if not ((share > 0) & (share < 1)).any():
        raise TwoTowersError("place and label word tell the class of every text: give counterbalanced prompts")
    if ((cls.mean(1) == 0) | (cls.mean(1) == 1)).any():
        raise TwoTowersError("a prompt shows one class only: give prompts with demonstrations of both")
    x = keys.reshape(-1, d)
    x = x - group_sums(x, stratum)[stratum] / size[stratum][:, None]
    text = np.unique(texts.ravel(), return_inverse=True)[1]
    both = np.unique(prompt * (text.max() + 1) + text, return_inverse=True)[1]
    direction = np.zeros_like(x)
    for one, sign in ((1, 1.0), (0, -1.0)):
        rows = np.column_stack([x, np.ones(len(x))]) * (c == one)[:, None]
        left = (
            rows.sum(0) - group_sums(rows, prompt)[prompt] - group_sums(rows, text)[text] + group_sums(rows, both)[both]
        )
        if (left[:, -1].round() < 1).any():
            raise TwoTowersError("too few prompts to tell classes from other prompts and texts: draw more")
        direction += sign * left[:, :-1] / left[:, -1:]
    score = (x * direction).sum(1).reshape(n, k)
    above = score[:, :, None] - score[:, None, :]
    pairs = (cls[:, :, None] == 1) & (cls[:, None, :] == 0)
    return (((above > 0) + 0.5 * (above == 0)) * pairs).sum((1, 2)) / pairs.sum((1, 2))


def lost(table: pd.DataFrame, chance: float = 0.0, **settings) -> pd.DataFrame:
    """What each block costs: mean of plain - blocked, with its interval resampled by query; n is different queries.

    One row per (head,) edges and layers: plain, blocked (means), lost, low, high, n, share (of plain - chance), with
    share_low and share_high, NaN where the interval of plain - chance holds zero. `settings`: level, draws, seed.
    """
    by, rows = [name for name in ("head", "edges", "layers") if name in table], []
    for key, cell in table.groupby(by, sort=False):
        change, drawn = cell["plain"] - cell["blocked"], {"clusters": cell["query"], **settings}
        rows.append(
            dict(zip(by, key, strict=True)) | cell[["plain", "blocked"]].mean().to_dict()
            | bootstrap(change, **drawn).as_row("lost") | share_of(change, cell["plain"] - chance, "share", **drawn)
        )  # fmt: skip
    return pd.DataFrame(rows)
