"""Increases of all blocks and heads of many prompts, in one walk over the vocabulary.

bs-values add up like the residual stream itself, so a stretch of the vocabulary (a slab) can be followed upwards
through all layers, and a value is divided by its row's norm scale only where the softmax is taken:

    bs(Lin_l)  ->  + bs(vector) for each head's vector           the heads of layer l
               ->  + bs(all of them) + bs(output bias)           after the attention block
               ->  + bs(FFN block) = bs(Lin_l+1)                 after the FFN block

Only the embedding, the FFN outputs and the heads are ever projected. A head's vectors lie in its d_head-dimensional
output space, so `E gamma W_O^h` (slab x d_head) serves all prompts.

Operations for n prompts, V words, L layers of H heads: 2 n V d (L + 1) for the blocks; for the heads the cheaper of
2 n V d L H (full width) and 2 V d^2 L + 2 n V d_head L H (factored); one exponential for each of n V L (H + 3).

Memory beside the arguments and results: two float32 copies of the arguments, and at most LIMIT bytes each for the
vectors projected in full width and for a slab of their values.

On a GPU nothing is different but the sizes: each step is one kernel over ROWS x SLAB numbers, so both are larger there
(64 times as many numbers, a quarter of a gigabyte), or starting kernels would cost more than running them. Weights stay
in the model's dtype, a stretch at a time is made float32, and products and sums are float32: PyTorch leaves TF32 off
unless asked. Nothing waits for the GPU before the walk's end.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.model.model import Model, Unembedding
from towerlab.model.unembed import check_norm, direction, fold_norm, log_sum_exp, norm_scale

SLAB = 1024  # words at a time
ROWS = 512  # vectors of heads at a time: ROWS x SLAB numbers stay in a processor's second cache
ON_GPU = 8  # times as many of each
LIMIT = 128 << 20  # bytes


def increases_along(
    model: Model,
    resid_pre: Float[Tensor, "layer prompt d_model"],
    z: Float[Tensor, "layer prompt head d_head"],
    ffn: Float[Tensor, "layer prompt d_model"],
    scale: Float[Tensor, "prompt"],
    words: Int[Tensor, "prompt"],
    norm: str = "frozen",
) -> tuple[Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer head"]]:
    """Increase (nats) of every attention block, FFN block and head (paper, Definitions).

    `scale` is the final norm's at the last position, `words` the words followed.
    """
    at_once = _prompts_at_once(model, z)
    if at_once < len(scale):
        parts = [t.split(at_once, 1) for t in (resid_pre, z, ffn)] + [t.split(at_once) for t in (scale, words)]
        results = [increases_along(model, *five, norm) for five in zip(*parts, strict=True)]  # type: ignore[call-arg]
        return tuple(torch.cat(pieces) for pieces in zip(*results, strict=True))
    wide, divide = _scales(resid_pre.dtype, scale, norm)
    steps = []
    for layer in range(model.n_layers):
        x, own_z, own_ffn = (part[layer].to(wide) for part in (resid_pre, z, ffn))
        weight, bias = model.output_weight(layer), model.output_bias(layer)
        steps.append(_Layer(model.unembedding, weight, bias, x, own_z, own_ffn, divide, norm, continues_layer=layer > 0))
    increases = stream_vocabulary(steps, model.unembedding, words, wide)
    return tuple(torch.stack(parts, 1) for parts in zip(*increases, strict=True))


def _full_width(prompts: int, d_model: int, d_head: int) -> bool:
    """Whether projecting each head's vector takes fewer operations than the factored way."""
    return prompts * (d_model - d_head) < d_model * d_head


def _prompts_at_once(model: Model, z: Float[Tensor, "layer prompt head d_head"]) -> int:
    """All prompts, or in full width as many as LIMIT allows; there nothing is shared, so splitting costs nothing."""
    layers, prompts, heads, d_head = z.shape
    if not _full_width(prompts, model.d_model, d_head):
        return prompts
    return max(1, LIMIT // (4 * layers * (heads + 1) * max(model.d_model, SLAB)))


def _sizes(device: torch.device) -> tuple[int, int]:
    """ROWS and SLAB where the tensors are."""
    times = ON_GPU if device.type != "cpu" else 1
    return times * ROWS, times * SLAB


def _scales(dtype: torch.dtype, scale: Tensor, norm: str) -> tuple[torch.dtype, Float[Tensor, "prompt"]]:
    """The dtype to work in, and what all of a prompt's vectors are divided by at the start: the frozen scale, or 1."""
    check_norm(norm)
    wide = torch.promote_types(dtype, torch.float32)
    return wide, scale.to(wide) if norm == "frozen" else torch.ones_like(scale, dtype=wide)


def stream_vocabulary(steps: list[_Layer], unembedding: Unembedding, words: Tensor, wide: torch.dtype) -> list[tuple]:
    target = fold_norm(unembedding, unembedding.weight[words], wide)
    for step in steps:
        step.set_targets(target)
    rows = [step.rows() for step in steps]
    together, sizes = torch.cat(rows), [len(r) for r in rows]
    _, size = _sizes(together.device)
    for start in range(0, unembedding.vocabulary, size):
        slab, values = fold_norm(unembedding, unembedding.weight[start : start + size], wide), None
        # One large product for all layers is faster than many small ones.
        for step, products in zip(steps, (together @ slab.T).split(sizes), strict=True):
            values = step.accumulate(slab, products, values)
    return [step.increases() for step in steps]


class _Layer:
    """One layer of many prompts: what stands before, between and after its blocks, and with each head.

    Sums of exponentials are kept relative to the followed word w: sum_j exp(bs_j - bs_w) = 1 / p(w). No pass for a
    maximum is needed: the sum holds the word itself, so it cannot vanish, and it overflows only where p(w) < e^-88
    (float32). Vectors of heads are kept relative to bs_w of x, which needs no pass of their own; such a sum may come
    near the smallest numbers, which have few digits, where a vector takes 60 nats or more from every word. `increases`
    finds both and computes them again the careful way.
    """

    def __init__(self, unembedding, weight, bias, x, z, ffn, divide, norm, continues_layer):
        self.unembedding, self.continues_layer = unembedding, continues_layer
        self.x, self.z, self.ffn = x / divide[:, None], z / divide[:, None, None], ffn / divide[:, None]
        # The parameters stay where they are: a float32 copy of every layer at once would double the model.
        self._weight, self._bias, self.divide = weight, bias, divide
        n, self.heads, self.d_head = z.shape
        self.full_width, (most, _) = _full_width(n, x.shape[-1], self.d_head), _sizes(x.device)
        at_once = max(1, most // n) if self.full_width else 1
        self.chunks = [
            (slice(h, h + at_once), slice(at, at + most)) for h in range(0, self.heads, at_once) for at in range(0, n, most)
        ]
        self.scales = None
        if norm == "recomputed":
            by_head = torch.stack([norm_scale(self._head(h), unembedding) for h in range(self.heads)], 1)
            self.scales = [1 / s for s in (*(norm_scale(v, unembedding) for v in self._states()), by_head)]
        self.sums = [x.new_zeros(n) for _ in range(3)] + [x.new_zeros(n, self.heads)]

    @property
    def weight(self) -> Float[Tensor, "head d_head d_model"]:
        return self._weight.to(self.x)

    @property
    def bias(self) -> Float[Tensor, "prompt d_model"]:
        bias = torch.zeros_like(self.x[0]) if self._bias is None else self._bias.to(self.x)
        return bias / self.divide[:, None]

    def _head(self, h: int) -> Float[Tensor, "prompt d_model"]:
        """x plus the vector of one head."""
        return self.x + self.z[:, h] @ self.weight[h]

    def _states(self) -> list[Float[Tensor, "prompt d_model"]]:
        """The residual stream before, between and after the two blocks."""
        between = self.x + torch.einsum("nhk,hkd->nd", self.z, self.weight) + self.bias
        return [self.x, between, between + self.ffn]

    def set_targets(self, target: Float[Tensor, "prompt d_model"]) -> None:
        """Set the followed word of each prompt; `own` holds its bs-values, unscaled, as the sums will need them."""
        self.target = target
        heads = torch.einsum("nhk,hkd,nd->nh", self.z, self.weight, target)
        x = (self.x * target).sum(-1)
        between = x + heads.sum(1) + (self.bias * target).sum(-1)
        own = [x, between, between + (self.ffn * target).sum(-1), x[:, None] + heads]
        self.own = own if self.scales is None else [a * s for a, s in zip(own, self.scales, strict=True)]

    def rows(self) -> Float[Tensor, "row d_model"]:
        """What is projected in full width: the FFN block, the bias, x unless the layer below ends there, and heads."""
        out = [self.ffn, torch.zeros_like(self.x[:1]) if self._bias is None else self._bias.to(self.x)[None]]
        out += [] if self.continues_layer else [self.x]
        if self.full_width:
            out.append((self.z.transpose(0, 1) @ self.weight).flatten(0, 1))
        return torch.cat(out)

    def accumulate(
        self, slab: Float[Tensor, "word d_model"], products: Float[Tensor, "row word"], below: Tensor | None
    ) -> Float[Tensor, "prompt word"]:
        """Take in one slab: from the values before this layer (`below`, of the layer under it) to those after it.

        `products` are the slab's values of `rows`.
        """
        n = len(self.x)
        ffn, bias, products = products[:n], products[n], products[n + 1 :]
        before, products = (below, products) if self.continues_layer else (products[:n], products[n:])
        # Rows of heads start from bs(x) relative to the word; with scales of their own that must wait.
        level = self.own[0][:, None]
        base = before - level if self.scales is None else before
        by_head = products.view(self.heads, n, -1) if self.full_width else None
        factors = None if self.full_width else (slab @ self.weight.flatten(0, 1).T).split(self.d_head, 1)
        sum_of_heads = torch.zeros_like(base)
        for heads, rows in self.chunks:
            if self.full_width:
                values = by_head[heads, rows].add_(base[rows])
            else:
                values = torch.addmm(base[rows], self.z[rows, heads.start], factors[heads.start].T)[None]
            # Every head's row holds the base once. A sum of one row would be a copy of it.
            sum_of_heads[rows] += values[0] if len(values) == 1 else values.sum(0)
            if self.scales is not None:
                scales = self.scales[3][rows, heads].transpose(0, 1)[..., None]
                values = values.mul_(scales).sub_(level[rows])
            self.sums[3][rows, heads] += values.exp_().sum(-1).transpose(0, 1)
        between = sum_of_heads - self.heads * base + before + bias / self.divide[:, None]
        after = between + ffn
        for i, values in enumerate((before, between, after)):
            values = values if self.scales is None else values * self.scales[i][:, None]
            self.sums[i] += (values - self.own[i][:, None]).exp_().sum(-1)
        return after

    def increases(self) -> tuple[Float[Tensor, "prompt"], Float[Tensor, "prompt"], Float[Tensor, "prompt head"]]:
        """From the finished sums: the attention block's, the FFN block's, and each head's increase."""
        level = [*self.own[:3], self.own[0][:, None]]
        total = [s.log() + a for s, a in zip(self.sums, level, strict=True)]
        self.recompute_lost(total)
        before, between, after, heads = (own - t for own, t in zip(self.own, total, strict=True))
        return between - before, after - between, heads - before[:, None]

    def recompute_lost(self, total: list[Tensor]) -> None:
        """Compute again, with a maximum taken out first, what overflowed or is too small to hold all its digits."""
        info = torch.finfo(self.x.dtype)
        # Each exponential below `tiny` may be off by as much; of all words together that must not show.
        least = self.unembedding.vocabulary * info.tiny / info.eps
        imprecise = [s.isinf() | (s < least) for s in self.sums]
        for i, rows in enumerate(self._states() if any(bad.any() for bad in imprecise[:3]) else ()):
            self._again(total[i], rows, imprecise[i], None if self.scales is None else self.scales[i])
        for h in range(self.heads) if imprecise[3].any() else ():
            scales = None if self.scales is None else self.scales[3][:, h]
            self._again(total[3][:, h], self._head(h), imprecise[3][:, h], scales)

    def _again(self, total: Tensor, rows: Tensor, bad: Tensor, scales: Tensor | None) -> None:
        if bad.any():
            rows = rows[bad] if scales is None else rows[bad] * scales[bad][:, None]
            total[bad] = log_sum_exp(direction(rows, self.unembedding), self.unembedding)
