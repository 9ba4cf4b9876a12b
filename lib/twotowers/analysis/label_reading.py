"""Label reading with a sign: does a head's value write the label that stands there, or write it down?

    readings = label_readings(model, encoded)          # own label less the other, nats: > 0 writes, < 0 suppresses
    centred_readings(readings, encoded)                # less what the head always has for one of the two words
    signed_rank(ranks["rank"], vocabulary)             # of `word_ranks.label_ranks`: 1 top word, -1 bottom word

The paper's measure (MRR, v1 section 4.3) sees only the top of the vocabulary: a head that puts a label last looks like
a head that does not know it. These measures are ours.

Also: vectors with a mean taken out, since what is the same in every prompt tells no class (`mean_readings`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from twotowers.analysis import project
from twotowers.analysis.locate import check_heads
from twotowers.analysis.logit_changes import logits, margin_rows
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.capture import Capture, captures, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded


def check_labels(encoded: Sequence[Encoded]) -> None:
    """Raise TwoTowersError unless all prompts have the same two labels and as many demonstrations."""
    if not encoded:
        raise TwoTowersError("no prompts to read labels from: draw at least one")
    if len({e.prompt.labels for e in encoded}) != 1 or len(encoded[0].prompt.labels) != 2:
        raise TwoTowersError("a label is read against one other: give prompts of the same two labels")
    counts = sorted({len(e.label_positions) for e in encoded})
    if len(counts) > 1:
        raise TwoTowersError(f"prompts of {counts[0]} and {counts[-1]} demonstrations in one set: read them apart")


def label_readings(
    model: Model, encoded: Sequence[Encoded], norm: str = "frozen", max_tokens: int = 2048, progress: str | None = None
) -> Float[np.ndarray, "prompt layer head label"]:
    """bs-value of the own label less that of the other in `vo` at every label position, of every head (nats).

    Above zero the head would write the label that stands there, below zero it would suppress it; times the attention
    weight it is what the position adds to the lead of the own label. One forward pass. Raises TwoTowersError for no
    prompts, other than two labels, and unequal numbers of demonstrations.
    """
    check_labels(encoded)
    out = np.empty((len(encoded), model.n_layers, model.n_heads, len(encoded[0].label_positions)))

    def read(seen: Capture) -> None:
        rows, scale = margin_rows(seen, model, norm), unembed.norm_scale(seen.resid_final, model.unembedding)
        own = torch.tensor([[1.0 if true else -1.0 for true in p.prompt.is_true] for p in seen.prompts]).to(rows)
        for layer in range(model.n_layers):
            vo = project.value_outputs(seen, model, layer, range(model.n_heads), seen.label_positions)
            true_less_other = logits(vo, rows, model.unembedding, norm, scale)
            out[seen.index, layer] = (own[:, None] * true_less_other).cpu().numpy()

    read_all(model, encoded, {"values"}, read, max_tokens, progress)
    return out


def centred_readings(
    readings: Float[np.ndarray, "prompt layer head label"], encoded: Sequence[Encoded]
) -> Float[np.ndarray, "prompt layer head label"]:
    """Readings less the head's preference for one label word, wherever it stands: both labels then have the same mean.

    That mean is half the way the head's value moves from one label's positions to the other's; a head that always
    writes "foo" gets zero. Raises TwoTowersError when one of the two labels stands nowhere.
    """
    check_labels(encoded)
    first = np.array([[d.label == e.prompt.labels[0] for d in e.prompt.demonstrations] for e in encoded])
    if first.all() or not first.any():
        raise TwoTowersError("one label stands at every label position, so nothing can be centred: draw both classes")
    sign = np.where(first, 1.0, -1.0)[:, None, None]
    by_head = np.moveaxis(readings, -1, 1)  # (prompt, label, layer, head)
    preference = (by_head[first].mean(0) - by_head[~first].mean(0)) / 2
    return readings - sign * preference[..., None]


def signed_rank(rank: Num[np.ndarray, " n"], vocabulary: int) -> Float[np.ndarray, " n"]:
    """Ranks (1 = top word of the vocabulary) with a sign, in [-1, 1], on a logarithmic scale from either end.

    1 is the top word, -1 the bottom word, 0 the middle; each factor by which a word is nearer to an end counts alike.
    With 49,152 words, rank 10 is 0.77 and rank 10 from the bottom -0.77. Raises TwoTowersError on a rank outside the
    vocabulary.
    """
    rank = np.asarray(rank, dtype=float)
    if vocabulary < 3 or (rank < 1).any() or (rank > vocabulary).any():
        raise TwoTowersError(f"ranks must lie in 1 to {vocabulary} (at least 3 words): give the model's vocabulary")
    middle = (vocabulary + 1) / 2
    from_end = np.minimum(rank, vocabulary + 1 - rank)
    return np.sign(middle - rank) * (1 - np.log(from_end) / np.log(middle))


def mean_readings(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[tuple[int, int]],
    max_tokens: int = 2048,
    progress: str | None = None,
) -> dict[tuple[str, str], Float[Tensor, "place d_model"]]:
    """Mean over prompts of every reading of `project.readings`, by (kind, of), at each of its places.

    For `project.related_words(..., means=...)`: queries and keys hold much that is the same in every prompt, which
    fills their top words and tells no class. The paper projects them as they are. Raises TwoTowersError for unequal
    numbers of demonstrations, and where the query or a place is always of one class: the mean would take it out too.
    """
    heads = check_heads(heads, model)
    check_labels(encoded)
    for what, classes in _classes_by_place(encoded).items():
        if len(classes) < 2:
            raise TwoTowersError(
                f"{what} is always of one class, which the mean would take out too: give prompts in several orders, "
                "and queries of both classes"
            )

    def read(seen: Capture) -> dict[tuple[str, str], Tensor]:
        return {(r.kind, r.of): r.vectors.double().sum(0) for r in project.readings(seen, model, heads)}

    total: dict[tuple[str, str], Tensor] = {}
    for sums in captures(model, encoded, project.WANT, max_tokens, progress, read):
        total = {key: total.get(key, 0) + some for key, some in sums.items()}
    return {key: vectors / len(encoded) for key, vectors in total.items()}


def _classes_by_place(encoded: Sequence[Encoded]) -> dict[str, set[str]]:
    found = {"the query": {e.prompt.cls for e in encoded}}
    for i in range(len(encoded[0].label_positions)):
        found[f"demonstration {i + 1}"] = {e.prompt.demonstrations[i].cls for e in encoded}
    return found
