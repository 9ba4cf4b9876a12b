"""Vectors projected to the vocabulary: bs-values, log-probabilities, ranks and top words.

    >>> from towerlab.model.model import Norm
    >>> E = Unembedding(torch.eye(3), None, Norm(torch.ones(3), None, False, 0.0), None)
    >>> v = torch.tensor([[3.0, 1.0, 2.0]])
    >>> rank(v, torch.tensor([[1, 0]]), E), top_words(v, 2, E, None, torch.tensor([0]))[1]
    (tensor([[3, 1]]), tensor([[2, 1]]))

The bs-values (before-softmax values, v1 appendix E) of a vector v are `E (gamma * centre(v) / s)`;
the final norm's bias is left out. There are two readings of the scale s:

- "frozen": s of the final norm at the last position of the same forward pass. bs is then linear,
  `bs(x + v) = bs(x) + bs(v)`, which the paper's argument needs.
- "recomputed": the norm applied to each vector by itself, s from the projected vector.

Functions with an argument `scale` use the frozen reading if it is given, and the recomputed reading
if not. The vocabulary is streamed: memory for rows x `SLAB` numbers at a time, never rows x
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.model.model import Model, Unembedding, add_bias, apply_norm, softcapped, widen
from towerlab.prompts.prompt import Prompts

NORMS = ("frozen", "recomputed")
SLAB = 4096  # number of words projected at a time
ROWS = 4096  # number of vectors ranked at a time


def bs_values(
    v: Float[Tensor, "*rows d_model"],
    unembedding: Unembedding,
    scale: Float[Tensor, "*#rows"] | None = None,
) -> Float[Tensor, "*rows vocabulary"]:
    """Return all bs-values at once (v1 appendix E).

    They need memory for rows x vocabulary, so use this function for a few vectors.

    Args:
        v: Vectors (*rows, d_model).
        unembedding: Unembedding of the model.
        scale: Frozen scales (*#rows), or None to recompute them from v.

    Returns:
        bs-values (nats; *rows, vocabulary).
    """
    normalised = unembedding.norm.normalise(v, scale)
    weight = widen(unembedding.weight)
    return normalised @ weight.T


def products(
    rows: Float[Tensor, "*rows d"],
    unembedding: Unembedding,
    read: Callable[[Tensor], Tensor] = lambda slab: slab,
) -> Iterator[tuple[Int[Tensor, "word"], Float[Tensor, "*rows word"]]]:
    """Yield the products of vectors with the rows of E, for SLAB words at a time.

    Args:
        rows: Vectors (*rows, d) from `Norm.normalise`, or vectors that fit the result of `read`.
        unembedding: Unembedding of the model.
        read: Function that is applied to rows of E before the product.

    Yields:
        Ids of some words (word,), and products with them (*rows, word), until all words are done.
    """
    ids = torch.arange(unembedding.vocabulary, device=rows.device)
    slabs = unembedding.weight.split(SLAB)
    for words, slab in zip(ids.split(SLAB), slabs, strict=True):
        columns = read(widen(slab)).T
        yield words, rows @ columns


def rank(
    v: Float[Tensor, "*rows d"],
    words: Int[Tensor, "*rows word"],
    unembedding: Unembedding,
    through: Float[Tensor, "d d_model"] | None = None,
) -> Int[Tensor, "*rows word"]:
    """Return the ranks of each row's words by bs-value, 1 = highest (v1 4.3).

    The scale does not matter. Operations for V words: 2 rows V d_model, or with `through` 2 V
    d_model d + 2 rows V d; several words of a row cost little more than one. Memory: ROWS x SLAB.

    Args:
        v: Vectors (*rows, d_model), or with `through` their coordinates (*rows, d).
        words: Ids of each row's own words (*rows, word).
        unembedding: Unembedding of the model.
        through: W_O of a head (d, d_model), or None. The vectors are `v @ through`.

    Returns:
        Ranks (*rows, word). Words with an equal value share the best rank.
    """
    norm = unembedding.norm
    folded_through = None
    if through is not None:
        # Folding W_O once gives the same products as folding all rows of E.
        centred = norm.centre(widen(through))
        folded_through = centred * norm.gain.to(centred)

    def read_rows(rows: Tensor) -> Tensor:
        if folded_through is None:
            return norm.fold(rows)
        return widen(rows) @ folded_through.to(rows.device).T

    # Contiguous, so that its chunks are views.
    ranks = torch.ones_like(words, memory_format=torch.contiguous_format)
    for vectors, targets, chunk in _chunks(widen(v), words, ranks):
        of_targets = []
        for rank_of_target, target in zip(chunk.T, targets.T, strict=True):
            rows = read_rows(unembedding.weight[target])
            value = (vectors * rows).sum(-1)
            columns = target[:, None], value[:, None]
            of_targets.append((rank_of_target, *columns))
        for ids, product in products(vectors, unembedding, read_rows):
            for rank_of_target, target, value in of_targets:
                # Numbers instead of truth values, because their sum is three times as fast.
                is_above = torch.gt(product, value, out=torch.empty_like(product))
                # A word must not outrank itself by the rounding of another product.
                place = (target - ids[0]).clamp(0, len(ids) - 1)
                is_there = ids[place] == target
                is_larger = product.gather(-1, place) > value
                itself = is_there & is_larger
                n_above = is_above.sum(-1).long()
                rank_of_target += n_above - itself[:, 0].long()
    return ranks


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows of each tensor (*rows, width) at a time, as views."""
    rows = [x.flatten(0, -2) for x in tensors]
    split = [x.split(ROWS) for x in rows]
    return zip(*split, strict=True)


def top_words(
    v: Float[Tensor, "*rows d_model"],
    k: int,
    unembedding: Unembedding,
    scale: Float[Tensor, "*#rows"] | None,
    without: Int[Tensor, "word"],
) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """Return the k highest bs-values of each row and their words, best first (v1 table 1).

    Equal rows are projected once.

    Args:
        v: Vectors (*rows, d_model).
        k: Number of words.
        unembedding: Unembedding of the model.
        scale: Frozen scales of the final norm (*#rows), or None to recompute each row's own.
        without: Ids of words to leave out (word,), such as `Lexicon.stopword_ids`. If fewer than k
            words are left, the result has only these.

    Returns:
        bs-values (nats; *rows, k) and ids of the words (*rows, k).
    """
    normalised = unembedding.norm.normalise(v, scale)
    flat = normalised.flatten(0, -2)
    p, index = flat.unique(dim=0, return_inverse=True)
    # Added to bs-values: 0, or minus infinity for words to leave out.
    mask = p.new_zeros(unembedding.vocabulary)
    mask[without.to(p.device)] = -torch.inf
    n_allowed = int(mask.isfinite().sum())
    k = min(k, n_allowed)
    shape = (*p.shape[:-1], k)
    values = p.new_full(shape, -torch.inf)
    ids = torch.zeros_like(values, dtype=torch.long)
    for rows, best, best_ids in _chunks(p, values, ids):
        for words, product in products(rows, unembedding):
            product.add_(mask[words])
            candidates = torch.cat([best, product], -1)
            new_ids = words.expand_as(product)
            candidate_ids = torch.cat([best_ids, new_ids], -1)
            best[:], order = candidates.topk(k, -1)
            best_ids[:] = candidate_ids.gather(-1, order)
    shape = normalised.shape[:-1]
    index = index.view(shape)
    of_rows = values[index]
    ids_of_rows = ids[index]
    return of_rows, ids_of_rows


def final_normed(
    model: Model, final: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows d_model"]:
    """Return final residual vectors after the final norm.

    Args:
        model: Any model.
        final: Final residual vectors (*rows, d_model).

    Returns:
        Vectors (*rows, d_model): from the model's own norm, or in float32 if the model is narrower.
    """
    final = final.to(model.device)
    if not model.is_narrow:
        return apply_norm(model.final_norm, final)
    norm = model.unembedding.norm
    normalised = norm.normalise(final)
    return add_bias(normalised, norm.bias)


def final_logits(
    model: Model, final: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows vocabulary"]:
    """Return the logits of final residual vectors, in float32 or wider, with the soft cap.

    In bfloat16 the model's own logits are rounded so much that two labels may have equal logits.

    Args:
        model: Any model.
        final: Final residual vectors (*rows, d_model).

    Returns:
        Logits (*rows, vocabulary).
    """
    normed = final_normed(model, final)
    unembedding = model.unembedding
    if model.is_narrow:
        slabs = [product for _, product in products(normed, unembedding)]
        logits = torch.cat(slabs, -1)
        logits = add_bias(logits, unembedding.bias)
    else:
        logits = model.hf.get_output_embeddings()(normed)
    return softcapped(logits, unembedding.softcap)


def logit_differences(
    model: Model, final: Float[Tensor, "*versions batch d_model"], batch: Prompts
) -> Float[Tensor, "*versions batch"]:
    """Return the logit of the true label minus that of the other label.

    The scale of the final norm is recomputed. Only these two words are unembedded.

    Args:
        model: Any model.
        final: Final residual streams (*versions, batch, d_model).
        batch: Prompts of the streams.

    Returns:
        Logit differences (nats; *versions, batch), in float64 on the CPU.
    """
    unembedding = model.unembedding
    normed = final_normed(model, final)
    ids = [e.label_pair_ids for e in batch]
    words = torch.tensor(ids, device=model.device)
    rows = unembedding.weight[words].to(normed.dtype)
    logits = torch.einsum("...bd,bwd->...bw", normed, rows)
    if unembedding.bias is not None:
        logits = logits + unembedding.bias[words]
    logits = softcapped(logits, unembedding.softcap)
    true, other = widen(logits).unbind(-1)
    difference = true - other
    return difference.cpu().double()
