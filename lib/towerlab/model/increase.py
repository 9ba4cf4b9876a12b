"""Increases of all blocks and heads of many prompts, in one pass over the vocabulary.

bs-values add up like the residual stream itself. So the bs-values of a part of the vocabulary (a
slab) can be followed upwards through all layers, and a value is divided by its row's norm scale
only for the softmax:

    bs(Lin_l)  ->  + bs(vector) for each head's vector           the heads of layer l
               ->  + bs(all of them) + bs(output bias)           after the attention block
               ->  + bs(FFN block) = bs(Lin_l+1)                 after the FFN block

Only the embedding, the FFN outputs and the heads are ever projected. A head's vectors are in its
d_head-dimensional output space, so `E gamma W_O^h` (slab x d_head) serves all prompts.

Operations for n prompts, V words, L layers of H heads: 2 n V d (L + 1) for the blocks; for the
heads the cheaper of 2 n V d L H (as vectors) and 2 V d^2 L + 2 n V d_head L H (factored); one
exponential for each of n V L (H + 3). Memory, in addition to the arguments and results: a float32
copy of the arguments, the states of one layer, and for few prompts all heads' vectors and a slab of
their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.model.model import Model, widen
from towerlab.model.unembed import products

SLAB = 1024  # number of words at a time: values of one layer stay in a processor's second cache
ON_GPU = 8  # factor of SLAB on a GPU, where starting kernels would cost more than running them


def increases_along(
    model: Model,
    resid_pre: Float[Tensor, "layer prompt d_model"],
    z: Float[Tensor, "layer prompt head d_head"],
    ffn: Float[Tensor, "layer prompt d_model"],
    scale: Float[Tensor, "prompt"],
    words: Int[Tensor, "prompt"],
    norm: str = "frozen",
) -> tuple[
    Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer head"]
]:
    """Compute the increase (nats) of every attention block, FFN block and head.

    The increase is defined in the paper, Definitions.

        >>> from towerlab.model.capture import capture
        >>> from towerlab.model.loading import load
        >>> from towerlab.prompts.paper_sets import paper_prompts
        >>> from towerlab.prompts.prompt import encode_all
        >>> model = load("mini-gpt2")
        >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
        >>> run, words = capture(model, batch), torch.tensor([e.true_id for e in batch])
        >>> scale = model.unembedding.norm.scale(run.resid_final)
        >>> parts = increases_along(model, run.resid_pre, run.z, run.ffn_output, scale, words)
        >>> [tuple(part.shape) for part in parts]
        [(2, 4), (2, 4), (2, 4, 8)]

    Args:
        model: Any model.
        resid_pre: Input of each layer at the last position (layer, prompt, d_model).
        z: Inputs of W_O at the last position (layer, prompt, head, d_head).
        ffn: Output of each FFN block at the last position (layer, prompt, d_model).
        scale: Scale of the final norm at the last position (prompt,).
        words: Ids of the followed words (prompt,).
        norm: Reading of the norm scale, one of `unembed.NORMS`.

    Returns:
        Increases (nats) of attention blocks (prompt, layer), of FFN blocks (prompt, layer), and of
        heads (prompt, layer, head).
    """
    resid_pre = widen(resid_pre)
    z = widen(z)
    ffn = widen(ffn)
    unembedding = model.unembedding
    final_norm = unembedding.norm
    followed = final_norm.fold(unembedding.weight[words])
    # Whether projecting each head's vector takes fewer operations than E W_O^h for all prompts.
    n_prompts = z.shape[1]
    as_vectors = n_prompts * (model.d_model - model.d_head) < model.d_model * model.d_head
    layers = range(model.n_layers)
    word_products = []
    own_scales = []
    rows = [resid_pre[0]]
    for layer in layers:
        states, vectors, bias = _states(model, layer, resid_pre[layer], z[layer], ffn[layer])
        word_products.append((states * followed).sum(-1))
        own_scales.append(final_norm.scale(states))
        projected_vectors = vectors.flatten(0, 1) if as_vectors else vectors[0, :0]
        rows += [ffn[layer], bias[None], projected_vectors]
    together = torch.cat(rows)
    sizes = [len(part) for part in rows]
    of_words = torch.stack(word_products)
    recomputed = torch.stack(own_scales)
    is_frozen = norm == "frozen"
    scales = scale.expand_as(recomputed) if is_frozen else recomputed
    sums = _Sums(of_words, 1 / scales)

    size = SLAB if together.device.type == "cpu" else SLAB * ON_GPU
    for weight in unembedding.weight.split(size):
        slab = final_norm.fold(weight).T
        # One large product for all layers is faster than many small ones.
        before, *projected = (together @ slab).split(sizes)
        for layer in layers:
            first = 3 * layer
            ffn_values, bias, vector_values = projected[first : first + 3]
            if as_vectors:
                of_heads = vector_values.view(1, model.n_heads, *before.shape)
            else:
                of_heads = _factored(model, layer, slab, z[layer])
            before = _follow_layer(sums, layer, before, bias, of_heads, ffn_values)

    log_p = -sums.total.log()
    for layer in sums.overflowing():
        states, *_ = _states(model, layer, resid_pre[layer], z[layer], ffn[layer])
        normalised = final_norm.normalise(states, scale if is_frozen else None).flatten(0, 1)
        slabs = [values.logsumexp(-1) for _, values in products(normalised, unembedding)]
        total = torch.stack(slabs).logsumexp(0)
        log_p[layer] = sums.word_values[layer][..., 0] - total.view_as(log_p[layer])
    before, between, after, *_ = log_p.unbind(1)
    attention = between - before
    ffn_blocks = after - between
    heads = log_p[:, 3:] - log_p[:, :1]
    return attention.mT, ffn_blocks.mT, heads.permute(2, 0, 1)


class _Sums:
    """Sums of exponentials over the vocabulary, relative to the followed word.

    For word w the sum is sum_j exp(bs_j - bs_w) = 1 / p(w). No pass for a maximum is needed: the
    sum holds the word itself, so it cannot vanish. It overflows where p(w) < e^-88 (float32), and
    is then computed again with a maximum taken out.
    """

    def __init__(
        self,
        word_products: Float[Tensor, "layer state prompt"],
        inverse_scales: Float[Tensor, "layer state prompt"],
    ):
        """Begin with zero."""
        self.inverse_scales = inverse_scales[..., None]
        self.word_values = word_products[..., None] * self.inverse_scales
        self.total = torch.zeros_like(word_products)

    def add(self, layer: int, states: Any, values: Tensor, out: Tensor | None = None) -> None:
        """Add the exponentials of the values of some states of a layer."""
        word_value = self.word_values[layer, states]
        inverse = self.inverse_scales[layer, states]
        exponents = torch.addcmul(-word_value, values, inverse, out=out)
        self.total[layer, states] += exponents.exp_().sum(-1)

    def overflowing(self) -> list[int]:
        """Return the layers in which a sum overflowed."""
        has_overflow = self.total.isinf().flatten(1).any(1)
        return has_overflow.nonzero()[:, 0].tolist()


def _factored(
    model: Model, layer: int, slab: Float[Tensor, "d_model word"], z: Tensor
) -> Iterator[Float[Tensor, "1 prompt word"]]:
    """Yield the values of each head of a layer, from its output space."""
    factors = model.output_weight(layer).to(slab) @ slab
    for head, factor in enumerate(factors):
        yield z[None, :, head] @ factor


def _follow_layer(
    sums: _Sums,
    layer: int,
    before: Float[Tensor, "prompt word"],
    bias: Float[Tensor, "1 word"],
    of_heads: Iterable[Float[Tensor, "head prompt word"]],
    ffn_values: Float[Tensor, "prompt word"],
) -> Float[Tensor, "prompt word"]:
    """Add a layer's states to the sums, and return the values after it: see the module."""
    between = before + bias
    first = 3
    for values in of_heads:
        between += values[0] if len(values) == 1 else values.sum(0)
        values += before
        states = slice(first, first + len(values))
        sums.add(layer, states, values, out=values)
        first += len(values)
    after = between + ffn_values
    for state, values in enumerate((before, between, after)):
        sums.add(layer, state, values)
    return after


def _states(
    model: Model,
    layer: int,
    x: Float[Tensor, "prompt d_model"],
    z: Float[Tensor, "prompt head d_head"],
    ffn: Float[Tensor, "prompt d_model"],
) -> tuple[
    Float[Tensor, "state prompt d_model"],
    Float[Tensor, "head prompt d_model"],
    Float[Tensor, "d_model"],
]:
    """Return a layer's states, the vectors of its heads, and the bias of its attention output.

    The states are the residual stream before, between and after the layer's blocks, followed by the
    first state plus the vector of each head.
    """
    weight = model.output_weight(layer).to(z)
    vectors = torch.einsum("nhk,hkd->hnd", z, weight)
    bias = model.output_bias(layer, "attention")
    bias = vectors.new_zeros(model.d_model) if bias is None else bias.to(vectors)
    between = x + vectors.sum(0) + bias
    after = between + ffn
    states = torch.cat([torch.stack([x, between, after]), x + vectors])
    return states, vectors, bias
