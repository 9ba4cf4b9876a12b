"""A loaded causal language model, read through its row of the table `architectures`.

    >>> from towerlab.model.loading import load
    >>> model = load("mini-gpt2")
    >>> model.output_weight(0).shape  # W_O of every head of layer 0: (head, d_head, d_model)
    torch.Size([8, 12, 96])

What differs between architectures in more than names is hidden here, but for one thing:

- A norm between W_O (or fc2) and the residual stream (Gemma 2 and 3, OLMo 2). With its scale frozen
  at the last position it is linear, so its weight is part of `output_weight` / `ffn_weight` and its
  scale part of what `capture` records.
- How Q, K and V are stored, which layers rotate, which see through a window, what scores are
  multiplied by.

How a query meets a key is not: `query_key` rebuilds every score from the layer's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from towerlab.model.architectures import Architecture
from towerlab.prompts.prompt import Encoded, Prompt, Prompts, encode_all


@dataclass(frozen=True)
class Unembedding:
    """The final norm and the unembedding E, apart, so that a vector can be projected with any
    reading of the norm."""

    weight: Float[Tensor, "vocabulary d_model"]
    bias: Float[Tensor, "vocabulary"] | None
    gamma: Float[Tensor, "d_model"]
    norm_bias: Float[Tensor, "d_model"] | None
    centred: bool
    eps: float
    # the model's own logits are softcap * tanh(bs / softcap) (Gemma 2); bs-values are not
    softcap: float | None = None

    @property
    def vocabulary(self) -> int:
        return self.weight.shape[0]


def matrix_of(linear: nn.Module) -> Float[Tensor, "output input"]:
    """Weight of a linear map as (output, input); transformers' Conv1D (GPT-2) stores it the other
    way round."""
    return linear.weight.T if type(linear).__name__ == "Conv1D" else linear.weight


def _bias(module: nn.Module) -> Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach()


def norm_eps(norm: nn.Module) -> float:
    return norm.eps if hasattr(norm, "eps") else norm.variance_epsilon


def widen(x: Tensor) -> Tensor:
    """In at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def softcapped(x: Tensor, softcap: float | None) -> Tensor:
    """Return scores or logits bent by `softcap * tanh(x / softcap)` where the model does so."""
    return x if softcap is None else softcap * (x / softcap).tanh()


def rms(v: Float[Tensor, "*rows width"], eps: float) -> Float[Tensor, "*rows"]:
    """What RMSNorm divides by, in at least float32."""
    return (widen(v).square().mean(-1) + eps).sqrt()


@dataclass(repr=False)
class Model:
    """A loaded causal language model, its tokenizer, and its row of the table.

    Make one with `loading.load`, which also proves the row. `fingerprint` is the model id with a
    hash of all that defines it; it stands in every table made from this model.
    """

    name: str
    hf: Any
    tokenizer: Any
    architecture: Architecture
    fingerprint: str = ""

    def __repr__(self) -> str:
        name = self.fingerprint or self.name
        return f"Model({name}: {self.n_layers} layers of {self.n_heads} heads)"

    @property
    def config(self) -> Any:
        return self.hf.config

    @property
    def n_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        return self.config.num_attention_heads

    @property
    def n_key_value_heads(self) -> int:
        """Under grouped-query attention several query heads share one key and value head."""
        return getattr(self.config, "num_key_value_heads", None) or self.n_heads

    @property
    def d_model(self) -> int:
        return self.config.hidden_size

    @property
    def d_head(self) -> int:
        return getattr(self.config, "head_dim", None) or self.d_model // self.n_heads

    @property
    def context(self) -> int:
        """Longest prompt in tokens. Under LongRoPE (Phi-3) all angles change beyond the length of
        the pretraining, for positions below it too; only prompts up to it have one set of
        scores."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        longest = self.config.max_position_embeddings
        if rope.get("rope_type") != "longrope":
            return longest
        return min(longest, rope.get("original_max_position_embeddings") or longest)

    @property
    def device(self) -> torch.device:
        return self.unembedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.weight.dtype

    @cached_property
    def blocks(self) -> list[nn.Module]:
        return list(self.hf.get_submodule(self.architecture.blocks))

    @cached_property
    def final_norm(self) -> nn.Module:
        return self.hf.get_submodule(self.architecture.final_norm)

    @cached_property
    def unembedding(self) -> Unembedding:
        head, norm = self.hf.get_output_embeddings(), self.final_norm
        # tied to the embeddings, it may live away from the final norm (device_map)
        here = head.weight.device
        return Unembedding(
            head.weight.detach(),
            _bias(head),
            self.norm_gain(norm).to(here),
            None if (shift := _bias(norm)) is None else shift.to(here),
            self.architecture.centred,
            norm_eps(norm),
            getattr(self.config, "final_logit_softcapping", None),
        )

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Return prompts as tokens of this model: see `prompt.encode_all`."""
        return encode_all(prompts, self.tokenizer, self.context)

    def token_ids(self, batch: Prompts) -> Int[Tensor, "batch position"]:
        """Token ids of prompts of one length, where the model takes them."""
        return torch.tensor(
            [e.ids for e in batch], device=self.hf.get_input_embeddings().weight.device
        )

    def logits(self, batch: Prompts) -> Float[Tensor, "batch vocabulary"]:
        """One forward pass over prompts of one length: the logits of the last position, where the
        model leaves them."""
        return self.hf(input_ids=self.token_ids(batch), use_cache=False, logits_to_keep=1).logits[
            :, -1
        ]

    def norm_gain(self, norm: nn.Module) -> Float[Tensor, "width"]:
        """What a norm multiplies by: its weight, 1 + weight for Gemma (then in at least float32, as
        Gemma does it)."""
        weight, gain = norm.weight.detach(), self.architecture.gain
        return widen(weight) + gain if gain else weight

    def frozen_norm(
        self, norm: nn.Module, x: Float[Tensor, "*#rows width"], v: Float[Tensor, "*rows width"]
    ) -> Float[Tensor, "*rows width"]:
        """Return v after a norm whose scale is frozen at x, without its bias: linear in v."""
        x, v = widen(x), widen(v)
        if self.architecture.centred:
            x, v = (of - of.mean(-1, keepdim=True) for of in (x, v))
        return v * self.norm_gain(norm).to(v) / rms(x, norm_eps(norm)).to(v)[..., None]

    def part(self, layer: int, path: str) -> nn.Module:
        """The module at `path` inside block `layer`; `path` may be a field of the row, such as
        "attention_out"."""
        return self.blocks[layer].get_submodule(getattr(self.architecture, path, path))

    def norm_after(self, layer: int, block: str) -> nn.Module | None:
        """The norm between W_O ("attention") or fc2 ("ffn") and the residual stream; most
        architectures have none."""
        out, module = (getattr(self.architecture, f"{block}_{end}") for end in ("out", "block"))
        return None if out == module else self.part(layer, module)

    def _output_matrix(self, layer: int, block: str) -> Float[Tensor, "input d_model"]:
        matrix = matrix_of(self.part(layer, f"{block}_out")).detach().T
        norm = self.norm_after(layer, block)
        return matrix if norm is None else (matrix * self.norm_gain(norm)).to(matrix.dtype)

    def output_weight(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O^h of every head of a layer: a head's vector is `capture.z[..., h, :] @
        output_weight(layer)[h]`.

        A view of the weights, unless a norm follows (Gemma 2 and 3, OLMo 2): then times that norm's
        weight, so that the vectors are those added to the residual stream and still sum to the
        block's output.
        """
        return self._output_matrix(layer, "attention").reshape(
            self.n_heads, self.d_head, self.d_model
        )

    def output_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the attention output; it belongs to the block, to no head."""
        return _bias(self.part(layer, "attention_out"))

    def ffn_weight(self, layer: int) -> Float[Tensor, "neuron d_model"]:
        """fc2: row k is the value vector of neuron k (Geva et al. 2020; v1 appendix E), times the
        weight of a norm that follows (Gemma 2)."""
        return self._output_matrix(layer, "ffn")

    def ffn_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the FFN output; it belongs to the block, to no neuron."""
        return _bias(self.part(layer, "ffn_out"))

    def subkeys(
        self, layer: int
    ) -> tuple[Float[Tensor, "map neuron d_model"], Float[Tensor, "map neuron"] | None]:
        """fc1's rows and biases of all neurons, to be met by the FFN norm's output (v1 appendix E:
        FFN subkeys).

        One map, whose activation is the coefficient. A gated FFN has two: the coefficient is the
        activation of the first (the gate's) times the second.
        """
        maps = [self.part(layer, path) for path in self.architecture.ffn_in]
        size = matrix_of(self.part(layer, "ffn_out")).shape[1]
        keys = [matrix_of(linear).detach().unflatten(0, (-1, size)) for linear in maps]
        biases = [
            bias.unflatten(0, (-1, size)) for linear in maps if (bias := _bias(linear)) is not None
        ]
        return torch.cat(keys), torch.cat(biases) if biases else None

    @property
    def parallel(self) -> bool:
        """Whether an FFN reads the layer's input, and not what the layer's attention added to it
        (GPT-J, GPT-NeoX)."""
        row = self.architecture.parallel
        return bool(getattr(self.config, row)) if isinstance(row, str) else row

    def projection(
        self, layer: int, which: int
    ) -> tuple[Float[Tensor, "head d_head d_model"], Float[Tensor, "head d_head"] | None]:
        """Return W_Q (0), W_K (1) or W_V (2) of every head, and its bias.

        They come before the scaling, any norm of heads, and rotation: see `query_key`.
        """
        layout, maps = self.architecture.qkv, self.architecture.qkv_maps
        linear = self.part(layer, "attention").get_submodule(
            maps[which] if layout == "separate" else maps[0]
        )
        heads = [self.n_heads, self.n_key_value_heads, self.n_key_value_heads]

        def own(rows: Tensor) -> Tensor:
            """Rows of the map asked for, head by head."""
            if layout == "fused":
                rows = rows.split([n * self.d_head for n in heads])[which]
            elif layout == "by head":
                rows = rows.unflatten(0, (heads[which], 3, self.d_head))[:, which].flatten(0, 1)
            return rows.unflatten(0, (heads[which], self.d_head))

        bias = _bias(linear)
        return own(matrix_of(linear).detach()), None if bias is None else own(bias)

    def score_scaling(self, layer: int) -> float:
        """By what query-key products are multiplied: `d_head ** -0.5` in most architectures, 1 in
        GPT-Neo."""
        name = self.architecture.scaling
        number = float(getattr(self.part(layer, "attention"), name)) if name else 1.0
        return 1 / number if self.architecture.divides_scores else number

    def rotates(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys by their positions."""
        field = self.architecture.rotating_layers
        return self.architecture.positions == "rotary" and bool(
            not field or getattr(self.config, field)[layer]
        )

    def window(self, layer: int) -> int | None:
        """How many positions, its own included, a position sees in this layer; None = all up to its
        own."""
        length, field, kind = self.architecture.window
        kinds = getattr(self.config, field, None)
        return getattr(self.config, length, None) if kinds is None or kinds[layer] == kind else None

    def for_query_heads(
        self, x: Float[Tensor, "*batch kv_head position d_head"]
    ) -> Float[Tensor, "*batch head position d_head"]:
        """Return keys or values of every query head (grouped-query attention: repeated ones)."""
        return x.repeat_interleave(self.n_heads // self.n_key_value_heads, dim=-3)

    def value_head(self, head: int) -> int:
        """The key-value head that query head `head` reads (grouped-query attention)."""
        return head // (self.n_heads // self.n_key_value_heads)
