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
    n_prompts, d_head = z.shape[1], model.d_head
    # Whether projecting each head's vector takes fewer operations than E W_O^h for all prompts.
    as_vectors = n_prompts * (model.d_model - d_head) < model.d_model * d_head
    resid_pre, z, ffn = widen(resid_pre), widen(z), widen(ffn)
    frozen = scale if norm == "frozen" else None
    # Sums of exponentials are kept relative to the followed word w: sum_j exp(bs_j - bs_w) = 1 /
    # p(w). No pass for a maximum is needed: the sum holds the word itself, so it cannot vanish. It
    # overflows where p(w) < e^-88 (float32), and is then computed again with a maximum taken out.
    unembedding, layers = model.unembedding, range(model.n_layers)
    final_norm, followed = unembedding.norm, unembedding.norm.fold(unembedding.weight[words])
    word_values, inverse_scales, rows = [], [], [resid_pre[0]]
    for layer in layers:
        states, vectors, bias = _states(model, layer, resid_pre[layer], z[layer], ffn[layer])
        scales = final_norm.scale(states) if frozen is None else frozen
        inverse_scales.append((1 / scales).expand(states.shape[:2])[..., None])
        word_values.append((states * followed).sum(-1, keepdim=True) * inverse_scales[-1])
        rows += [ffn[layer], bias[None], vectors.flatten(0, 1)[: None if as_vectors else 0]]
    together, sizes = torch.cat(rows), [len(part) for part in rows]
    sums = torch.zeros_like(torch.stack(word_values)[..., 0])

    size = SLAB * (1 if together.device.type == "cpu" else ON_GPU)
    for weight in unembedding.weight.split(size):
        slab = final_norm.fold(weight).T
        # One large product for all layers is faster than many small ones.
        before, *projected = (together @ slab).split(sizes)
        for layer in layers:

            def add_exponentials(
                states: Any, values: Tensor, out: Tensor | None = None, layer=layer
            ) -> None:
                """Add the exponentials of the values of some states to their sums."""
                word_value, inverse = word_values[layer][states], inverse_scales[layer][states]
                exponents = torch.addcmul(-word_value, values, inverse, out=out)
                sums[layer, states] += exponents.exp_().sum(-1)

            ffn_values, bias, head_values = projected[3 * layer : 3 * layer + 3]
            between = before + bias
            if as_vectors:
                parts = iter([head_values.view(model.n_heads, *before.shape)])
            else:
                factors = model.output_weight(layer).to(slab) @ slab
                parts = (z[layer][None, :, h] @ factor for h, factor in enumerate(factors))
            first = 3
            for values in parts:
                between += values[0] if len(values) == 1 else values.sum(0)
                values += before
                add_exponentials(slice(first, first + len(values)), values, out=values)
                first += len(values)
            after = between + ffn_values
            for state, values in enumerate((before, between, after)):
                add_exponentials(state, values)
            before = after

    log_p = -sums.log()
    for layer in sums.isinf().flatten(1).any(1).nonzero()[:, 0].tolist():
        states, *_ = _states(model, layer, resid_pre[layer], z[layer], ffn[layer])
        normalised = final_norm.normalise(states, frozen).flatten(0, 1)
        slabs = [values.logsumexp(-1) for _, values in products(normalised, unembedding)]
        total = torch.stack(slabs).logsumexp(0).view_as(log_p[layer])
        log_p[layer] = word_values[layer][..., 0] - total
    before, between, after, *_ = log_p.unbind(1)
    with_head = log_p[:, 3:] - log_p[:, :1]
    return (between - before).T, (after - between).T, with_head.permute(2, 0, 1)


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
    vectors = torch.einsum("nhk,hkd->hnd", z, model.output_weight(layer).to(z))
    bias = model.output_bias(layer, "attention")
    bias = vectors.new_zeros(model.d_model) if bias is None else bias.to(vectors)
    between = x + vectors.sum(0) + bias
    return torch.cat([torch.stack([x, between, between + ffn]), x + vectors]), vectors, bias
