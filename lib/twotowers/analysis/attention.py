"""Attention of the last position on the label positions, and the two towers behind it (v1 sections 4.4 and 5).

    reading = read(model, encoded, heads, increases=True)    # one forward pass
    reading.labels            # prompt, head, label, true, weight, increase: one row per label position
    reading.sums()            # prompt, head, true, false, difference, correct, margin: one row per prompt and head
    changes(reading, other)   # the same prompts in another form: what became of the sums

    tower = two_towers(model, encoded, heads)[22, 0]             # last queries and label keys of one head
    tower.separation()        # per prompt: how often a key of the query's class scores above one of another class

A head's score is the scaled product of query and key; its softmax over positions is the attention weight. Scores are in
nats: a difference of one nat between two keys makes their weights differ by a factor e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from twotowers.analysis import locate
from twotowers.analysis.increase import increases_along
from twotowers.errors import TwoTowersError
from twotowers.model import query_key, unembed
from twotowers.model.answers import Answers
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded


@dataclass
class Reading:
    """What some heads paid to the label positions of n prompts, and what the model answered.

    `labels`: prompt, head ("22-0"), label (which demonstration), true (does it carry the query's label?), weight, rest
    (weight on all tokens outside this demonstration), and increase (nats; its own label word followed) when asked for.
    `answers`: prompt, correct (true label is the top word of the vocabulary), margin (nats: log p of the true label
    less that of the best other label).
    """

    labels: pd.DataFrame
    answers: pd.DataFrame
    heads: Sequence[tuple[int, int]]

    def sums(self) -> pd.DataFrame:
        """Per prompt and head: weight on all true labels, on all false labels, their difference; correct, margin."""
        kind = np.where(self.labels["true"], "true", "false")
        wide = self.labels.pivot_table("weight", ["prompt", "head"], kind, aggfunc="sum", sort=False).reset_index()
        wide["difference"] = wide["true"] - wide["false"]
        return wide.rename_axis(columns=None).merge(self.answers, on="prompt")

    def matrix(self, head: tuple[int, int], column: str = "weight") -> Float[np.ndarray, "prompt label"]:
        """One column of `labels` for one head, prompts down and demonstrations across."""
        rows = self.labels[self.labels["head"] == f"{head[0]}-{head[1]}"]
        return rows.pivot(index="prompt", columns="label", values=column).to_numpy()


def read(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    *,
    increases: bool = False,
    norm: str = "frozen",
    max_tokens: int = 4096,
    progress: str | None = None,
) -> Reading:
    """Attention of the last position on every label position in some heads: one forward pass, a stream of batches.

    Raises TwoTowersError for no heads, a head outside the model, prompts without both a true and a false
    demonstration, and sets whose prompts differ in their number of demonstrations.
    """
    heads = locate.check_heads(heads, model)
    check_labels_left(encoded)
    n, k = len(encoded), len(encoded[0].label_positions)
    weights, rest, gains = np.empty((3, len(heads), n, k))
    answers = np.empty((n, 2))

    def take(seen: Capture) -> None:
        at = seen.label_positions
        edges = torch.tensor([_edges(e) for e in seen.prompts], device=at.device)
        for i, (layer, head) in enumerate(heads):
            row = seen.weights[layer][:, head]
            weights[i, seen.index] = row.gather(1, at).cpu().numpy()
            # Two sums, not one minus a sum: a head may give a demonstration nearly everything.
            row = torch.nn.functional.pad(row.double(), (1, 1))
            below, above = row.cumsum(1)[:, :-1], row.flip(1).cumsum(1).flip(1)[:, 1:]
            outside = below.gather(1, edges[:, :-1]) + above.gather(1, edges[:, 1:])
            rest[i, seen.index] = outside.cpu().numpy()
        if increases:
            gains[:, seen.index] = label_increases(seen, model, heads, norm).cpu().numpy()
        answered = Answers.of(seen)
        answers[seen.index] = np.stack([answered.correct, answered.margin], -1)

    read_all(model, encoded, {"weights", "values"} if increases else {"weights"}, take, max_tokens, progress)
    h, prompt, label = (axis.ravel() for axis in np.indices((len(heads), n, k)))
    true = np.array([e.prompt.is_true for e in encoded])
    names = np.array([f"{layer}-{head}" for layer, head in heads])
    labels = pd.DataFrame(
        {
            "prompt": prompt, "head": names[h], "label": label, "true": true[prompt, label],
            "weight": weights.ravel(), "rest": rest.ravel(),
        }
    )  # fmt: skip
    if increases:
        labels["increase"] = gains.ravel()
    out = pd.DataFrame({"prompt": np.arange(n), "correct": answers[:, 0].astype(bool), "margin": answers[:, 1]})
    return Reading(labels, out, list(heads))


def _edges(encoded: Encoded) -> list[int]:
    """Where each demonstration begins, and where the query does: the demonstrations lie between."""
    return [start for start, _ in (*encoded.text_spans, encoded.query_span)]


def label_increases(
    capture: Capture, model: Model, heads: Sequence[tuple[int, int]], norm: str = "frozen"
) -> Float[Tensor, "head batch label"]:
    """Increase of `alpha * vo` at every label position, each position's own label word followed (v1 fig 7).

    Needs want={"weights", "values"}, and as many demonstrations in every prompt of the batch.
    """
    capture.require("weights", "values")
    at, layers = capture.label_positions, sorted({layer for layer, _ in heads})
    (batch, k), shared = at.shape, model.n_heads // model.n_key_value_heads
    words = torch.tensor(
        [[p.label_ids[d.label] for d in p.prompt.demonstrations] for p in capture.prompts], device=at.device
    )
    scale = unembed.norm_scale(capture.resid_final, model.unembedding).repeat_interleave(k)
    found = {}
    for layer in layers:
        values = capture.values[layer].repeat_interleave(shared, dim=1)
        index = at[:, None].expand(-1, model.n_heads, -1)
        values = values.gather(2, index[..., None].expand(-1, -1, -1, values.shape[-1]))
        alpha = capture.weights[layer].gather(2, index)[..., None].to(values.dtype)
        # Each label position becomes a prompt of its own, so that it can follow its own word. One layer at a time: the
        # walk may not go on to the next from here, since these vectors are only a part of what a head writes.
        z = (alpha * values).transpose(1, 2).flatten(0, 1)[None, :, :, None]
        x, ffn = (rows[[layer]].repeat_interleave(k, 1) for rows in (capture.resid_pre, capture.ffn_output))
        found[layer] = increases_along(model, x, z, ffn, scale, words.flatten(), norm, [layer])[2][:, 0, :, 0]
    return torch.stack([found[layer][:, head].reshape(batch, k) for layer, head in heads])


def check_labels_left(encoded: Sequence[Encoded]) -> None:
    """Raise TwoTowersError unless every prompt has true and false demonstrations, and all have as many of them."""
    if not encoded:
        raise TwoTowersError("no prompts to read attention from: draw at least one")
    for one in encoded:
        if len(set(one.prompt.is_true)) != 2:
            missing = "false" if any(one.prompt.is_true) else "true"
            raise TwoTowersError(
                f"the prompt '{one.prompt.text[:40]}...' has no {missing} demonstration left, so there is nothing to "
                "compare: draw with k of at least 2 before removing any"
            )
    counts = sorted({len(e.label_positions) for e in encoded})
    if len(counts) > 1:
        raise TwoTowersError(f"prompts of {counts[0]} and {counts[-1]} demonstrations in one set: read them apart")


def changes(before: Reading, after: Reading) -> pd.DataFrame:
    """What became of each prompt's sums from one form of the prompts to another, `after - before`.

    One row per prompt and head: prompt, head, and the changes of true, false, difference, margin (nats) and correct
    (-1, 0 or 1). Raises TwoTowersError when the readings are not of the same heads and as many prompts.
    """
    if before.heads != after.heads or len(before.answers) != len(after.answers):
        raise TwoTowersError("two readings of different heads or prompts have no change: read the same ones twice")
    a, b = (r.sums().sort_values(["prompt", "head"], ignore_index=True) for r in (before, after))
    out = b[["prompt", "head"]].copy()
    for column in ("true", "false", "difference", "margin", "correct"):
        out[column] = b[column].astype(float) - a[column].astype(float)
    order = {f"{layer}-{head}": i for i, (layer, head) in enumerate(before.heads)}
    return out.sort_values(["head", "prompt"], key=lambda c: c.map(order) if c.name == "head" else c, ignore_index=True)


def renormalised(reading: Reading, drop: int = -1, kind: str = "true") -> pd.DataFrame:
    """What a softmax alone makes of the sums when one demonstration goes and every other score stays as it is.

    Columns: prompt, head, true, false. The weight that lay on the whole demonstration is shared out in proportion;
    `drop` and `kind` are those of `datasets.imbalanced`. What a real removal does beyond this, keys and queries do.
    NaN where a head gave the demonstration everything, down to the last bit: then scores do not say how to share.
    """
    rows = reading.labels
    gone = rows[rows["true"] == (kind == "true")].groupby(["prompt", "head"], sort=False).nth(drop)
    kept = Reading(rows.drop(gone.index), reading.answers, reading.heads).sums()
    both = kept.merge(gone[["prompt", "head", "rest"]], on=["prompt", "head"])
    rest = both["rest"].where(both["rest"] > 0)
    return both[["prompt", "head"]].assign(true=both["true"] / rest, false=both["false"] / rest)


@dataclass
class Towers:
    """Last-position queries and label-position keys of one head over n prompts, with k demonstrations each.

    `rotated` says which reading: as the model compares them (rotary models turn both by their positions), or before
    that turn, where only content counts. The two are the same thing in models with learned positions. Queries hold the
    scaling, so that `query . key` is the score (before a soft cap, where a model has one).
    """

    head: tuple[int, int]
    rotated: bool
    queries: Float[np.ndarray, "prompt d_head"]
    keys: Float[np.ndarray, "prompt label d_head"]
    query_class: np.ndarray  # (prompt,) names
    key_class: np.ndarray  # (prompt, label) names
    true: Bool[np.ndarray, "prompt label"]

    def scores(self) -> Float[np.ndarray, "prompt label"]:
        """Score (nats) of each prompt's query with each of its own label keys."""
        return np.einsum("nd,nkd->nk", self.queries, self.keys)

    def separation(self) -> Float[np.ndarray, "prompt"]:
        """Per prompt, the share of (true key, false key) pairs in which the true one scores higher; ties count half.

        Its mean is the area under the ROC curve within prompts (AUC): 0.5 is chance, 1 is a metric without mistakes.
        """
        s = self.scores()
        above = s[:, :, None] - s[:, None, :]
        pairs = self.true[:, :, None] & ~self.true[:, None, :]
        wins = (above > 0) + 0.5 * (above == 0)
        return (wins * pairs).sum((1, 2)) / pairs.sum((1, 2))

    def class_scores(self) -> pd.DataFrame:
        """Mean score of the queries of one class with the keys of another, over all pairs, across prompts too.

        Columns: query_class, key_class, score (nats), relative (score less the mean of its row: a softmax does not see
        what all keys have in common), n_queries, n_keys.
        """
        classes = list(dict.fromkeys([*self.query_class, *self.key_class.ravel()]))
        rows = []
        for a in (c for c in classes if (self.query_class == c).any()):
            # The score is bilinear, so the mean over all pairs is the score of the two means.
            q = self.queries[self.query_class == a].mean(0)
            keys = {b: self.keys[self.key_class == b] for b in classes}
            scores = {b: float(q @ k.mean(0)) for b, k in keys.items() if len(k)}
            middle = np.mean(list(scores.values()))
            rows += [
                {"query_class": a, "key_class": b, "score": s, "relative": s - middle,
                 "n_queries": int((self.query_class == a).sum()), "n_keys": len(keys[b])}
                for b, s in scores.items()
            ]  # fmt: skip
        return pd.DataFrame(rows)

    def plane(self) -> tuple[pd.DataFrame, float]:
        """Both towers in one plane, and the share of the variance that the plane shows.

        Each tower is centred on its own mean, both are brought to the same spread, and one PCA is fitted on queries and
        keys together. The spread multiplies all scores by one number. Centring keys changes no attention weight; centring
        queries takes away what the head prefers whatever is asked, so scores do change. Columns: prompt, tower
        ("query" / "key"), label (-1 for a query), class, x, y.
        """
        keys = self.keys.reshape(-1, self.keys.shape[-1])
        q, k = self.queries - self.queries.mean(0), keys - keys.mean(0)
        q_spread, k_spread = (np.sqrt(np.square(a).sum(1).mean()) or 1.0 for a in (q, k))
        both = np.concatenate([q / q_spread, k / k_spread])
        _, values, axes = np.linalg.svd(both, full_matrices=False)
        # A fixed sign, so that the same vectors always give the same picture.
        axes = axes[:2] * np.sign(axes[:2][np.arange(2), np.abs(axes[:2]).argmax(1)])[:, None]
        at = both @ axes.T
        n, labels = self.true.shape
        table = pd.DataFrame(
            {
                "prompt": np.r_[np.arange(n), np.repeat(np.arange(n), labels)],
                "tower": ["query"] * n + ["key"] * (n * labels),
                "label": np.r_[np.full(n, -1), np.tile(np.arange(labels), n)],
                "class": np.r_[self.query_class, self.key_class.ravel()],
                "x": at[:, 0], "y": at[:, 1],
            }
        )  # fmt: skip
        return table, float(np.square(values[:2]).sum() / max(np.square(values).sum(), 1e-300))


def two_towers(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    *,
    rotated: bool = True,
    max_tokens: int = 4096,
    progress: str | None = None,
) -> dict[tuple[int, int], Towers]:
    """The two towers of some heads: one forward pass. See `Towers`; `read` says what is refused.

    A class without a name goes by its label word. Keys, and for rotated=False whole residual streams, are recorded in
    all layers of a batch: lower `max_tokens` for a large model.
    """
    heads = locate.check_heads(heads, model)
    check_labels_left(encoded)
    n, k, d = len(encoded), len(encoded[0].label_positions), model.d_head
    queries, keys = np.empty((len(heads), n, d)), np.empty((len(heads), n, k, d))
    plain = not rotated and model.architecture.positions == "rotary"

    def take(seen: Capture) -> None:
        at = seen.label_positions
        for i, (layer, head) in enumerate(heads):
            group = model.value_head(head)
            if plain:
                normed = query_key.normed(model, layer, seen.stream_inputs[layer])
                q, key = (
                    query_key.unrotated(model, layer, query_key.queries(model, layer, normed[:, -1])),
                    query_key.unrotated(model, layer, query_key.keys(model, layer, normed)).transpose(1, 2),
                )
            else:
                q, key = seen.queries[layer] * seen.scaling[layer], seen.keys[layer]
            queries[i, seen.index] = q[:, head].cpu().double().numpy()
            index = at[..., None].expand(-1, -1, d)
            keys[i, seen.index] = key[:, group].gather(1, index).cpu().double().numpy()

    read_all(model, encoded, {"queries", "keys"} | ({"streams"} if plain else set()), take, max_tokens, progress)
    prompts = [e.prompt for e in encoded]
    common = (
        np.array([p.cls or p.true_label for p in prompts]),
        np.array([[x.cls or x.label for x in p.demonstrations] for p in prompts]),
        np.array([p.is_true for p in prompts]),
    )
    return {h: Towers(h, rotated, queries[i], keys[i], *common) for i, h in enumerate(heads)}
