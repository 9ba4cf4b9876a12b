"""Increases of all blocks and heads of many prompts, in one walk over the vocabulary.

bs-values add up like the residual stream itself, so a stretch of the vocabulary (a slab) can be
followed upwards through all layers, and a value is divided by its row's norm scale only where the
softmax is taken:

    bs(Lin_l)  ->  + bs(vector) for each head's vector           the heads of layer l
               ->  + bs(all of them) + bs(output bias)           after the attention block
               ->  + bs(FFN block) = bs(Lin_l+1)                 after the FFN block

Only the embedding, the FFN outputs and the heads are ever projected. A head's vectors lie in its
d_head-dimensional output space, so `E gamma W_O^h` (slab x d_head) serves all prompts.

Operations for n prompts, V words, L layers of H heads: 2 n V d (L + 1) for the blocks; for the
heads the cheaper of 2 n V d L H (full width) and 2 V d^2 L + 2 n V d_head L H (factored); one
exponential for each of n V L (H + 3). Memory beside the arguments and results: two float32 copies
of the arguments, and at most LIMIT bytes each for vectors projected in full width and a slab of
their values.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.model.model import Model, widen
from towerlab.model.unembed import check_norm, direction, fold_norm, log_sum_exp, norm_scale

# On a GPU each step is one kernel over ROWS x SLAB numbers, so both are larger there (a quarter of
# a gigabyte), or starting kernels would cost more than running them. Nothing waits for the GPU
# before the walk's end.
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
) -> tuple[
    Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer"], Float[Tensor, "prompt layer head"]
]:
    """Increase (nats) of every attention block, FFN block and head (paper, Definitions).

    Args:
        resid_pre: each layer's input at the last position.
        z: what heads feed to W_O there.
        ffn: what each FFN block adds there.
        scale: of the final norm at the last position.
        words: ids of the words followed.
        norm: one of `unembed.NORMS`.

    Returns:
        That of attention blocks, of FFN blocks, and of heads.

    >>> from towerlab.model.capture import capture
    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> run, words = capture(model, batch), torch.tensor([e.true_id for e in batch])
    >>> scale = norm_scale(run.resid_final, model.unembedding)
    >>> of = increases_along(model, run.resid_pre, run.z, run.ffn_output, scale, words)
    >>> [tuple(part.shape) for part in of]
    [(2, 4), (2, 4), (2, 4, 8)]
    """
    check_norm(norm)
    # All of a prompt's vectors are divided by the frozen scale at the start, or every state by its
    # own as it comes.
    divide = widen(scale) if norm == "frozen" else torch.ones_like(widen(scale))
    walks, at_once = [], _prompts_at_once(model, z)
    for start in range(0, len(words), at_once):
        some = slice(start, start + at_once)
        x, own_z, own_ffn = (widen(part[:, some]) for part in (resid_pre, z, ffn))
        walks.append(
            _walk(model, x, own_z, own_ffn, divide[some], words[some], norm == "recomputed")
        )
    attention, of_ffn, heads = (torch.cat(parts) for parts in zip(*walks, strict=True))
    return attention, of_ffn, heads


def _full_width(prompts: int, d_model: int, d_head: int) -> bool:
    """Whether projecting each head's vector takes fewer operations than the factored way."""
    return prompts * (d_model - d_head) < d_model * d_head


def _prompts_at_once(model: Model, z: Float[Tensor, "layer prompt head d_head"]) -> int:
    """All prompts, or in full width as many as LIMIT allows; there nothing is shared, so splitting
    costs nothing."""
    layers, prompts, heads, d_head = z.shape
    if not _full_width(prompts, model.d_model, d_head):
        return prompts
    return max(1, LIMIT // (4 * layers * (heads + 1) * max(model.d_model, SLAB)))


def _sizes(device: torch.device) -> tuple[int, int]:
    """ROWS and SLAB where the tensors are."""
    times = ON_GPU if device.type != "cpu" else 1
    return times * ROWS, times * SLAB


def _walk(
    model: Model,
    resid_pre: Tensor,
    z: Tensor,
    ffn: Tensor,
    divide: Tensor,
    words: Tensor,
    recomputed: bool,
) -> list[Tensor]:
    """`increases_along` of prompts that fit in memory."""
    unembedding = model.unembedding
    target = fold_norm(unembedding, unembedding.weight[words])
    layers = [
        _Layer(model, layer, *of, divide[:, None], target, recomputed)
        for layer, of in enumerate(zip(resid_pre, z, ffn, strict=True))
    ]
    rows = [layers[0].x, *(layer.rows() for layer in layers)]
    together, sizes = torch.cat(rows), [len(r) for r in rows]
    _, size = _sizes(together.device)
    for start in range(0, unembedding.vocabulary, size):
        slab = fold_norm(unembedding, unembedding.weight[start : start + size])
        # One large product for all layers is faster than many small ones.
        values, *of_layers = (together @ slab.T).split(sizes)
        for layer, products in zip(layers, of_layers, strict=True):
            values = layer.accumulate(slab, products, values)
    return [
        torch.stack(parts, 1)
        for parts in zip(*(layer.increases() for layer in layers), strict=True)
    ]


class _Layer:
    """One layer of many prompts: its states are what stands before, between and after its blocks,
    and what enters it with each head.

    Sums of exponentials are kept relative to the followed word w: sum_j exp(bs_j - bs_w) = 1 /
    p(w). No pass for a maximum is needed: the sum holds the word itself, so it cannot vanish, and
    it overflows only where p(w) < e^-88 (float32). Vectors of heads are kept relative to bs_w of x,
    which needs no pass of their own; such a sum may come near the smallest numbers, which have few
    digits, where a vector takes 60 nats or more from every word. `increases` finds both and
    computes them again the careful way.
    """

    def __init__(
        self,
        model: Model,
        layer: int,
        x: Tensor,
        z: Tensor,
        ffn: Tensor,
        divide: Tensor,
        target: Tensor,
        recomputed: bool,
    ):
        self.unembedding = model.unembedding
        # The parameters stay where they are: a float32 copy of every layer at once would double the
        # model.
        self.weight, self._bias = model.output_weight(layer), model.output_bias(layer)
        self.divide = divide
        self.x = x / divide
        self.z = z / divide[..., None]
        self.ffn = ffn / divide
        n, self.heads, self.d_head = z.shape
        self.full_width, (most, _) = _full_width(n, x.shape[-1], self.d_head), _sizes(x.device)
        at_once = max(1, most // n) if self.full_width else 1
        self.chunks = [
            (slice(h, h + at_once), slice(at, at + most))
            for h in range(0, self.heads, at_once)
            for at in range(0, n, most)
        ]
        states = range(3 + self.heads)
        # bs-values of the followed words
        self.own = torch.stack([(self.state(i) * target).sum(-1) for i in states])
        self.scales = None
        if recomputed:
            self.scales = 1 / torch.stack(
                [norm_scale(self.state(i), self.unembedding) for i in states]
            )
            self.own *= self.scales
        self.sums = torch.zeros_like(self.own)

    @property
    def bias(self) -> Float[Tensor, "d_model"]:
        return torch.zeros_like(self.x[0]) if self._bias is None else self._bias.to(self.x)

    def state(self, i: int) -> Float[Tensor, "prompt d_model"]:
        """0: before, 1: between, 2: after the two blocks; 3 + h: before, and the vector of head
        h."""
        if i >= 3:
            return self.x + self.z[:, i - 3] @ self.weight[i - 3].to(self.x)
        state = self.x
        if i >= 1:
            state = (
                state
                + self.z.flatten(1) @ self.weight.flatten(0, 1).to(state)
                + self.bias / self.divide
            )
        return state + self.ffn if i == 2 else state

    def rows(self) -> Float[Tensor, "row d_model"]:
        """What is projected in full width: the FFN block, the bias, and heads where that is
        cheaper."""
        heads = (
            (self.z.transpose(0, 1) @ self.weight.to(self.x)).flatten(0, 1)
            if self.full_width
            else self.x[:0]
        )
        return torch.cat([self.ffn, self.bias[None], heads])

    def accumulate(
        self,
        slab: Float[Tensor, "word d_model"],
        products: Float[Tensor, "row word"],
        before: Float[Tensor, "prompt word"],
    ) -> Float[Tensor, "prompt word"]:
        """Take in one slab: from the values before this layer to those after it. `products` are the
        slab's values of `rows`."""
        n = len(self.x)
        ffn, bias = products[:n], products[n]
        # Rows of heads start from bs(x) relative to the word; with scales of their own that must
        # wait.
        level = self.own[0][:, None]
        base = before - level if self.scales is None else before
        if self.full_width:
            by_head = products[n + 1 :].view(self.heads, n, -1)
        else:
            factors = (slab @ self.weight.flatten(0, 1).to(slab).T).split(self.d_head, 1)
        sum_of_heads = torch.zeros_like(base)
        for heads, rows in self.chunks:
            if self.full_width:
                values = by_head[heads, rows].add_(base[rows])
            else:
                values = torch.addmm(base[rows], self.z[rows, heads.start], factors[heads.start].T)[
                    None
                ]
            # Every head's row holds the base once. A sum of one row would be a copy of it.
            sum_of_heads[rows] += values[0] if len(values) == 1 else values.sum(0)
            if self.scales is not None:
                values = values.mul_(self.scales[3:][heads, rows, None]).sub_(level[rows])
            self.sums[3:][heads, rows] += values.exp_().sum(-1)
        between = sum_of_heads - self.heads * base + before + bias / self.divide
        after = between + ffn
        for i, values in enumerate((before, between, after)):
            values = values if self.scales is None else values * self.scales[i][:, None]
            self.sums[i] += (values - self.own[i][:, None]).exp_().sum(-1)
        return after

    def increases(
        self,
    ) -> tuple[Float[Tensor, "prompt"], Float[Tensor, "prompt"], Float[Tensor, "prompt head"]]:
        """From the finished sums: the attention block's, the FFN block's, and each head's
        increase."""
        total = self.sums.log()
        total[:3] += self.own[:3]
        total[3:] += self.own[0]
        self.recompute_lost(total)
        before, between, after, *heads = self.own - total
        return between - before, after - between, torch.stack(heads, 1) - before[:, None]

    def recompute_lost(self, total: Float[Tensor, "state prompt"]) -> None:
        """Compute again, with a maximum taken out first, what overflowed or is too small to hold
        all its digits."""
        info = torch.finfo(self.x.dtype)
        # Each exponential below `tiny` may be off by as much; of all words together that must not
        # show.
        least = self.unembedding.vocabulary * info.tiny / info.eps
        lost = self.sums.isinf() | (self.sums < least)
        for i in lost.any(1).nonzero()[:, 0].tolist():
            rows = self.state(i)
            rows = (rows if self.scales is None else rows * self.scales[i][:, None])[lost[i]]
            total[i, lost[i]] = log_sum_exp(direction(rows, self.unembedding), self.unembedding)
