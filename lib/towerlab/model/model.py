"""A loaded causal language model, read through its row of the table `architectures`.

    >>> from towerlab.model.loading import load
    >>> model = load("mini-gpt2")
    >>> model.output_weight(0).shape  # W_O of every head of layer 0: (head, d_head, d_model)
    torch.Size([8, 12, 96])

This module hides the differences between architectures that are more than names:

- A norm between W_O (or fc2) and the residual stream (Gemma 2 and 3, OLMo 2). With its scale frozen
  at the last position it is linear, so its weight is part of `output_weight` / `ffn_weight` and its
  scale part of the values that `capture` records.
- The storage of Q, K and V, the layers that rotate, the layers with a window, and the scaling of
  scores.

One difference is not hidden here: the product of query and key. `query_key` rebuilds every score
from the layer's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from twotowers.errors import TwoTowersError
from twotowers.heads import Head

from towerlab.model.architectures import Architecture
from towerlab.prompts.prompt import Encoded, Prompt, Prompts, encode_all


@dataclass(frozen=True)
class Norm:
    """A LayerNorm or RMSNorm as numbers: `gain * centre(v) / scale(v) + bias`.

    With its scale frozen, a norm without its bias is linear.
    """

    gain: Float[Tensor, "width"]
    bias: Float[Tensor, "width"] | None
    centred: bool
    eps: float

    def centre(self, v: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Subtract the mean for LayerNorm; for RMSNorm return v unchanged.

        Args:
            v: Vectors (*rows, width).

        Returns:
            Vectors (*rows, width).
        """
        return v - v.mean(-1, keepdim=True) if self.centred else v

    def scale(self, v: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows"]:
        """Return the scale s at v: `sqrt(mean(centre(v)^2) + eps)`.

        Args:
            v: Vectors (*rows, width).

        Returns:
            Scales (*rows,), in at least float32.
        """
        squares = self.centre(widen(v)).square()
        variance = squares.mean(-1) + self.eps
        return variance.sqrt()

    def normalise(
        self, v: Float[Tensor, "*rows width"], scale: Float[Tensor, "*#rows"] | None = None
    ) -> Float[Tensor, "*rows width"]:
        """Return the norm of v without its bias: `gain * centre(v) / s`.

        Args:
            v: Vectors (*rows, width).
            scale: Frozen scales (*#rows), or None to compute them from v.

        Returns:
            Vectors (*rows, width), in at least float32.
        """
        if scale is None:
            scale = self.scale(v)
        v = widen(v)
        gained = self.centre(v) * self.gain.to(v)
        return gained / scale.to(v)[..., None]

    def fold(self, rows: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
        """Return rows of a matrix with the gain and the centring folded in.

        Then `folded @ v / s` are the products of the rows with `normalise(v)`.

        Args:
            rows: Rows of a matrix (row, width).

        Returns:
            Folded rows (row, width), in at least float32.
        """
        rows = widen(rows)
        return self.centre(rows * self.gain.to(rows))


@dataclass(frozen=True)
class Unembedding:
    """The final norm and the unembedding E, kept apart to project vectors with any norm scale."""

    weight: Float[Tensor, "vocabulary d_model"]
    bias: Float[Tensor, "vocabulary"] | None
    norm: Norm
    softcap: float | None
    """The model's own logits are softcap * tanh(bs / softcap) (Gemma 2); bs-values are not"""

    @property
    def vocabulary(self) -> int:
        """Number of rows of E."""
        return self.weight.shape[0]


def _matrix_of(linear: nn.Module) -> Float[Tensor, "output input"]:
    """Return the weight of a linear map as (output, input); Conv1D (GPT-2) is transposed."""
    return linear.weight.T if type(linear).__name__ == "Conv1D" else linear.weight


def apply_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the norm of x, on the device of x.

    Under a device_map the norm may be on another device than captured values.

    Args:
        norm: Norm of a model.
        x: Vectors (*rows, width).

    Returns:
        Normalised vectors (*rows, width).
    """
    return norm(x.to(norm.weight.device)).to(x.device)


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return x plus a bias, on the device of x.

    Args:
        x: Any tensor.
        bias: Bias, which broadcasts to x, or None.

    Returns:
        The sum, or x itself if there is no bias.
    """
    return x if bias is None else x + bias.to(x.device)


def widen(x: Tensor) -> Tensor:
    """Return a tensor in at least float32.

    Args:
        x: Tensor of any floating type.

    Returns:
        The tensor in float32, or in its own dtype if that is wider.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def softcapped(x: Tensor, softcap: float | None) -> Tensor:
    """Return scores or logits with the model's soft cap, `softcap * tanh(x / softcap)`.

    Args:
        x: Scores or logits.
        softcap: Soft cap, or None if the model has none.

    Returns:
        Values of the shape of `x`.
    """
    return x if softcap is None else softcap * (x / softcap).tanh()


@dataclass(repr=False)
class Model:
    """A loaded causal language model, its tokenizer, and its row of the table.

    Make one with `loading.load`, which also proves the row. `fingerprint` is the model id with a
    hash of all that defines the model. Every table made from this model contains it.
    """

    name: str
    hf: Any
    tokenizer: Any
    architecture: Architecture
    fingerprint: str = ""

    def __repr__(self) -> str:
        """Return the name and the size of the model."""
        return f"Model({self.fingerprint}: {self.n_layers} layers of {self.n_heads} heads)"

    @property
    def config(self) -> Any:
        """Configuration of the model, as transformers loads it."""
        return self.hf.config

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.hf.parameters())

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        """Number of query heads of a layer."""
        return self.config.num_attention_heads

    @property
    def n_key_value_heads(self) -> int:
        """Number of key and value heads of a layer.

        Under grouped-query attention several query heads share one key and value head.
        """
        return getattr(self.config, "num_key_value_heads", None) or self.n_heads

    @property
    def all_heads(self) -> list[Head]:
        """Every head, layer by layer."""
        return [Head(*indices) for indices in np.ndindex(self.n_layers, self.n_heads)]

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden_size

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return getattr(self.config, "head_dim", None) or self.d_model // self.n_heads

    @property
    def context(self) -> int:
        """Maximum number of tokens of a prompt.

        Under LongRoPE (Phi-3) all angles change in prompts that are longer than the pretraining,
        also for positions below that length. Only prompts up to that length have one set of scores.
        """
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            return rope["original_max_position_embeddings"]
        return self.config.max_position_embeddings

    @property
    def device(self) -> torch.device:
        """Device of the unembedding, on which captured values are brought together."""
        return self.unembedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.unembedding.weight.dtype

    @property
    def is_narrow(self) -> bool:
        """Whether the model computes in less than float32."""
        return self.dtype.itemsize < 4

    @cached_property
    def layers(self) -> list[nn.Module]:
        """Module of each layer."""
        return list(self.hf.get_submodule(self.architecture.layers))

    @cached_property
    def final_norm(self) -> nn.Module:
        """Norm before the unembedding."""
        return self.hf.get_submodule(self.architecture.final_norm)

    @cached_property
    def unembedding(self) -> Unembedding:
        """Final norm and unembedding, whose matrix may be tied to the embeddings."""
        head = self.hf.get_output_embeddings()
        return Unembedding(
            head.weight,
            head.bias,
            self.norm(self.final_norm),
            getattr(self.config, "final_logit_softcapping", None),
        )

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Return prompts as tokens of this model.

        Args:
            prompts: Prompts of any length.

        Returns:
            Encoded prompts, in their order: see `prompt.encode_all`.

        Raises:
            TwoTowersError: If a prompt cannot be encoded.
        """
        return encode_all(prompts, self.tokenizer, self.context)

    def token_ids(self, batch: Prompts) -> Int[Tensor, "batch position"]:
        """Return the token ids of prompts, on the device where the model expects them.

        Args:
            batch: Prompts of one token length.

        Returns:
            Token ids (batch, position).
        """
        embeddings = self.hf.get_input_embeddings().weight
        return torch.tensor([e.ids for e in batch], device=embeddings.device)

    def logits(self, batch: Prompts) -> Float[Tensor, "batch vocabulary"]:
        """Run prompts of one token length, and return the logits of the last position.

        Args:
            batch: Prompts of one token length.

        Returns:
            Logits (batch, vocabulary), on the device where the model leaves them.
        """
        ids = self.token_ids(batch)

        def in_one_piece(_, args: tuple) -> tuple:
            # PyTorch multiplies the rows of a slice one by one, and reads E for each of them.
            (last,) = args
            return (last.contiguous(),)

        unembedding = self.hf.get_output_embeddings()
        with unembedding.register_forward_pre_hook(in_one_piece):
            output = self.hf(input_ids=ids, use_cache=False, logits_to_keep=1)
        return output.logits[:, -1]

    def norm(self, module: nn.Module) -> Norm:
        """Return a norm as numbers.

        The gain is the weight of the norm, or 1 + weight for Gemma.

        Args:
            module: LayerNorm or RMSNorm of this model.

        Returns:
            The norm, whose gain is in at least float32.

        Raises:
            TwoTowersError: If the norm has no weight, as in OLMo (1), whose row would need it.
        """
        if getattr(module, "weight", None) is None:
            raise TwoTowersError(
                f"cannot use a {type(module).__name__} of '{self.name}': expected a norm with a "
                "weight; choose another model"
            )
        gain = widen(module.weight) + self.architecture.gain
        eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
        return Norm(gain, getattr(module, "bias", None), self.architecture.centred, eps)

    def normed(
        self, layer: int, block: str, x: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows d_model"]:
        """Return the input of the maps of a block: its norm of the residual stream.

        The maps are W_Q, W_K and W_V, or fc1.

        Args:
            layer: Layer of the block.
            block: "attention" or "ffn".
            x: Residual stream that the block reads (*rows, d_model).

        Returns:
            Normalised vectors (*rows, d_model), or x itself if the block has no norm (OLMo 2).
        """
        path = getattr(self.architecture, f"{block}_norm")
        if not path:
            return x
        return apply_norm(self.part(layer, path), x)

    def part(self, layer: int, path: str) -> nn.Module:
        """Return a module inside a block.

        Args:
            layer: Layer of the block.
            path: Path of the module inside the block, or a field of the row, such as
                "attention_out".

        Returns:
            The module.
        """
        return self.layers[layer].get_submodule(getattr(self.architecture, path, path))

    def norm_after(self, layer: int, block: str) -> nn.Module | None:
        """Return the norm between W_O or fc2 and the residual stream.

        Args:
            layer: Layer of the norm.
            block: "attention" for W_O, "ffn" for fc2.

        Returns:
            The norm, or None, as in most architectures.
        """
        path = getattr(self.architecture, f"{block}_norm_after")
        if not path:
            return None
        return self.part(layer, path)

    def _output_matrix(self, layer: int, block: str) -> Float[Tensor, "input d_model"]:
        """Return W_O or fc2 (input, d_model), times the weight of a norm that follows."""
        matrix = _matrix_of(self.part(layer, f"{block}_out")).T
        norm = self.norm_after(layer, block)
        if norm is None:
            return matrix
        gained = matrix * self.norm(norm).gain
        return gained.to(matrix.dtype)

    def output_weight(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """Return W_O^h of every head of a layer.

        A head's vector is `capture.z[..., h, :] @ output_weight(layer)[h]`. The result is a view of
        the weights, unless a norm follows (Gemma 2 and 3, OLMo 2). Then it is multiplied by that
        norm's weight, so that the vectors are those added to the residual stream and still sum to
        the block's output.

        Args:
            layer: Layer of the heads.

        Returns:
            Weights (head, d_head, d_model).
        """
        matrix = self._output_matrix(layer, "attention")
        return matrix.reshape(self.n_heads, self.d_head, self.d_model)

    def output_bias(self, layer: int, block: str) -> Float[Tensor, "d_model"] | None:
        """Return the bias of W_O or fc2, which belongs to the block and to no head or neuron.

        Args:
            layer: Layer of the block.
            block: "attention" for W_O, "ffn" for fc2.

        Returns:
            Bias (d_model,), or None.
        """
        return self.part(layer, f"{block}_out").bias

    def ffn_weight(self, layer: int) -> Float[Tensor, "neuron d_model"]:
        """Return fc2, whose row k is the value vector of neuron k.

        Source: Geva et al. 2020; v1 appendix E. The rows are multiplied by the weight of a norm
        that follows (Gemma 2).

        Args:
            layer: Layer of the FFN.

        Returns:
            Value vectors (neuron, d_model).
        """
        return self._output_matrix(layer, "ffn")

    def subkeys(
        self, layer: int
    ) -> tuple[Float[Tensor, "map neuron d_model"], Float[Tensor, "map neuron"] | None]:
        """Return the rows and biases of fc1 of all neurons (v1 appendix E: FFN subkeys).

        Their products are with the output of the FFN norm. An FFN has one map, whose activation is
        the coefficient. A gated FFN has two maps: the coefficient is the activation of the first
        map (the gate) times the second.

        Args:
            layer: Layer of the FFN.

        Returns:
            Rows (map, neuron, d_model), and biases (map, neuron) or None.
        """
        _, n_neurons = _matrix_of(self.part(layer, "ffn_out")).shape
        by_map = -1, n_neurons
        maps = [self.part(layer, path) for path in self.architecture.ffn_in]
        rows = torch.cat([_matrix_of(linear) for linear in maps])
        rows = rows.unflatten(0, by_map)
        biases = [linear.bias for linear in maps if linear.bias is not None]
        if not biases:
            return rows, None
        bias = torch.cat(biases)
        return rows, bias.unflatten(0, by_map)

    @property
    def parallel(self) -> bool:
        """Whether an FFN reads the layer's input, without the attention's output.

        The FFNs of GPT-J, Phi and (depending on the config) GPT-NeoX do so.
        """
        row = self.architecture.parallel
        if isinstance(row, str):
            return bool(getattr(self.config, row))
        return row

    def projection(
        self, layer: int, which: int
    ) -> tuple[Float[Tensor, "head d_head d_model"], Float[Tensor, "head d_head"] | None]:
        """Return W_Q, W_K or W_V of every head, and its bias.

        They are applied before the scaling, before any norm of heads and before the rotation: see
        `query_key`.

        Args:
            layer: Layer of the heads.
            which: 0 for W_Q, 1 for W_K, 2 for W_V.

        Returns:
            Weights (head, d_head, d_model), and biases (head, d_head) or None. For W_K and W_V the
            heads are key and value heads.
        """
        layout = self.architecture.qkv
        maps = self.architecture.qkv_maps
        path = maps[which] if layout == "separate" else maps[0]
        linear = self.part(layer, "attention").get_submodule(path)
        n_heads = [self.n_heads, self.n_key_value_heads, self.n_key_value_heads]

        def by_head(rows: Tensor) -> Tensor:
            """Return the rows of the map, head by head."""
            if layout == "fused":
                sizes = [n * self.d_head for n in n_heads]
                rows = rows.split(sizes)[which]
            elif layout == "by head":
                of_heads = rows.unflatten(0, (n_heads[which], 3, self.d_head))
                rows = of_heads[:, which].flatten(0, 1)
            return rows.unflatten(0, (n_heads[which], self.d_head))

        bias = None if linear.bias is None else by_head(linear.bias)
        return by_head(_matrix_of(linear)), bias

    def score_scaling(self, layer: int) -> float:
        """Return the factor of query-key products.

        Args:
            layer: Layer of the attention.

        Returns:
            `d_head ** -0.5` in most architectures, 1 in GPT-Neo.
        """
        name = self.architecture.scaling
        if not name:
            return 1.0
        number = float(getattr(self.part(layer, "attention"), name))
        return 1 / number if self.architecture.divides_scores else number

    def rotates(self, layer: int) -> bool:
        """Return whether a layer rotates its queries and keys by their positions.

        Args:
            layer: Layer of the attention.

        Returns:
            False for learned positions, and for the layers that SmolLM3 leaves out.
        """
        if self.architecture.positions != "rotary":
            return False
        field = self.architecture.rotating_layers
        return not field or bool(getattr(self.config, field)[layer])

    def window(self, layer: int) -> int | None:
        """Return the number of positions that an attention method of its own attends to.

        Args:
            layer: Layer of the attention.

        Returns:
            Number of positions, the position itself included, or None for all positions up to it.
        """
        field = self.architecture.window_layers
        local = field and getattr(self.config, field)[layer] == "local"
        return self.config.window_size if local else None

    def for_query_heads(
        self, x: Float[Tensor, "*batch kv_head position d_head"]
    ) -> Float[Tensor, "*batch head position d_head"]:
        """Return the keys or values of every query head.

        Args:
            x: Keys or values (*batch, kv_head, position, d_head).

        Returns:
            Keys or values (*batch, head, position, d_head). Under grouped-query attention they are
            repeated.
        """
        return x.repeat_interleave(self.n_heads // self.n_key_value_heads, dim=-3)

    def value_head(self, head: int) -> int:
        """Return the key-value head that a query head reads (grouped-query attention).

        Args:
            head: Number of the query head.

        Returns:
            Number of the key-value head.
        """
        return head // (self.n_heads // self.n_key_value_heads)
