"""One forward pass of a stock model, recorded at the last position.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> capture(model, batch, {"weights"}).weights.shape  # (layer, batch, head, position)
    torch.Size([4, 2, 8, 14])

`observations.read_prompts` captures many prompts, with a progress bar and in batches that fit in
memory. Nothing in transformers is edited: hooks read the residual stream, and `reading_attention`
reads the attention where the model computes it. Hooks are always removed, also after an error.

Prompts of equal token length form a batch (`prompt.batches`), so there is no padding. Only vectors
of the last position are kept, unless `include` asks for more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from towerlab.model import unembed
from towerlab.model.attention import Attention, reading_attention, split_call
from towerlab.model.last_layer import last_layer_at_last
from towerlab.model.model import Model, widen
from towerlab.prompts.prompt import Encoded, Prompts

TopAndLogProbs = tuple[Int[Tensor, "*versions batch"], Float[Tensor, "*versions batch label"]]
"""Answers to a batch, or to versions of it: top tokens, and log-probabilities (nats) of the true
label and the other label"""


class Capture(SimpleNamespace):
    """Values of one forward pass over a batch of prompts of one token length.

    All values are from the last position, unless their shape has a dimension `position`.
    `resid_pre[l]` is the paper's Lin_l. `resid_mid[l]` is the residual stream that the layer's FFN
    reads (in a parallel block `resid_pre[l]`). `resid_final` is the residual stream before the
    final norm. `z[l, b, h]` is the head's attention-weighted sum of value vectors, so `z @ W_O^h`
    is the head vector (paper, Definitions). `scores` are the attention scores before the softmax.

    Where a norm follows W_O (Gemma 2), `z` and `values` are divided by its scale at the last
    position of the same pass. Where a norm follows fc2, `neurons` are also divided by its scale.
    With that scale frozen, all values are linear, and with `Model.output_weight` and `ffn_weight`
    (which contain the norm's weight) they add up to the output of the block. `attention_out_input`
    and `ffn_out_input` are the inputs of W_O and fc2 in the model itself.

    `own_logits` are the logits that the model returns. `logits` are the same logits in float32 or
    wider.

    The parts of the attention, of the FFN and of the streams are present if `include` of `capture`
    asked for them.
    """

    prompts: list[Encoded]
    resid_pre: Float[Tensor, "layer batch d_model"]
    resid_mid: Float[Tensor, "layer batch d_model"]
    attention_output: Float[Tensor, "layer batch d_model"]
    ffn_output: Float[Tensor, "layer batch d_model"]
    attention_out_input: Float[Tensor, "layer batch head d_head"]
    z: Float[Tensor, "layer batch head d_head"]
    resid_final: Float[Tensor, "batch d_model"]
    logits: Float[Tensor, "batch vocabulary"]
    own_logits: Float[Tensor, "batch vocabulary"]
    weights: Float[Tensor, "layer batch head position"]
    scores: Float[Tensor, "layer batch head position"]
    values: Float[Tensor, "layer batch kv_head position d_head"]
    neurons: Float[Tensor, "layer batch neuron"]
    ffn_out_input: Float[Tensor, "layer batch neuron"]
    stream_inputs: Float[Tensor, "layer batch position d_model"]
    stream_attention: Float[Tensor, "layer batch position d_model"]

    @property
    def true_ids(self) -> Int[Tensor, "batch"]:
        """Ids of the followed tokens of the true labels (batch,)."""
        ids = [e.true_id for e in self.prompts]
        return torch.tensor(ids, device=self.resid_final.device)

    @property
    def label_positions(self) -> Int[Tensor, "batch label"]:
        """Positions of the labels (batch, label).

        All prompts of the batch must have the same number of demonstrations.
        """
        positions = [e.label_positions for e in self.prompts]
        return torch.tensor(positions, device=self.resid_final.device)


class Site(NamedTuple):
    """Input or output of a part of every block, at all positions or at the last."""

    part: str  # "" is the block
    side: str
    include: str = ""  # item of `include` for it; "" is always read, "streams" at all positions


SITES = {
    "resid_pre": Site("", "input"),
    "attention_out_input": Site("attention_out", "input"),
    "attention_output": Site("attention_block", "output"),
    "ffn_output": Site("ffn_block", "output"),
    "ffn_out_input": Site("ffn_out", "input", "neurons"),
    "stream_inputs": Site("", "input", "streams"),
    "stream_attention": Site("attention_block", "output", "streams"),
}
SCALED = {"attention": ("z", "values"), "ffn": ("neurons",)}
"""Block -> quantities that have the frozen scale of a norm after the block"""


@torch.inference_mode()
def capture(model: Model, encoded: Prompts, include: Collection[str] = ()) -> Capture:
    """Run prompts of one token length once, and record values at the last position.

    Args:
        model: Any model.
        encoded: Prompts of one token length.
        include: Additional parts: "weights" (also `scores`), "values", "neurons" (also
            `ffn_out_input`), "streams" (`stream_inputs` and `stream_attention`).

    Returns:
        The recorded values; see `Capture` for their dimensions.
    """
    entries: dict[str, list[Tensor]] = defaultdict(list)

    def record(name: str, module: nn.Module, site: Site) -> None:
        def keep(_, args: tuple, kwargs: dict, output) -> None:
            tensor = output
            if site.side == "input":
                tensor, *_ = split_call(args, kwargs)
            # Some models flatten batch and position before their FFN.
            width = tensor.shape[-1]
            rows = tensor.reshape(len(encoded), -1, width)
            if site.include != "streams":
                rows = rows[:, -1]
            entries[name].append(rows.clone())

        stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))

    def attended(layer: int, attention: Attention, _) -> None:
        if "weights" in include:
            scores = attention.last().scores()[:, :, 0]
            weights = scores.softmax(-1)
            entries["scores"].append(scores)
            entries["weights"].append(weights)
        if "values" in include:
            entries["values"].append(attention.value.clone())

    included = ("", *include)
    sites = {name: site for name, site in SITES.items() if site.include in included}
    for kind in ("attention", "ffn"):
        if model.norm_after(0, kind) is not None:
            sites[f"{kind}_before_norm"] = Site(f"{kind}_out", "output")
    layers = range(model.n_layers)
    with ExitStack() as stack:
        for layer in layers:
            for name, site in sites.items():
                module = model.part(layer, site.part)
                record(name, module, site)
        stack.enter_context(reading_attention(model, layers, attended))
        record("resid_final", model.final_norm, SITES["resid_pre"])
        of_all_positions = "streams" in include
        with nullcontext() if of_all_positions else last_layer_at_last(model):
            own_logits = model.logits(encoded)
    # Layers may be on several devices (device_map); the analysis needs all values on one device.
    parts = {}
    for name, tensors in entries.items():
        on_device = [tensor.to(model.device) for tensor in tensors]
        parts[name] = torch.stack(on_device)
    of_heads = model.n_heads, model.d_head
    z = parts["attention_out_input"].unflatten(-1, of_heads)
    parts["attention_out_input"] = z
    parts["z"] = z
    parts["resid_mid"] = parts["resid_pre"]
    if not model.parallel:
        parts["resid_mid"] = parts["resid_pre"] + parts["attention_output"]
    (final,) = parts["resid_final"]
    parts["resid_final"] = final
    parts["own_logits"] = own_logits.to(model.device)
    parts["logits"] = parts["own_logits"]
    if model.is_narrow:
        parts["logits"] = unembed.final_logits(model, final)
    if "ffn_out_input" in parts:
        parts["neurons"] = parts["ffn_out_input"]
    for kind, names in SCALED.items():
        norm = model.norm_after(0, kind)
        if norm is not None:
            before_norm = parts.pop(f"{kind}_before_norm")
            factor = 1 / model.norm(norm).scale(before_norm)
            for name in parts.keys() & names:
                parts[name] = _times(parts[name], factor)
    return Capture(prompts=list(encoded), **parts)


def _times(x: Tensor, factor: Float[Tensor, "layer batch"]) -> Tensor:
    """Return the values of each prompt (layer, batch, ...) times a number, in their dtype."""
    while factor.dim() < x.dim():
        factor = factor[..., None]
    product = x * factor
    return product.to(x.dtype)


@torch.inference_mode()
def answer(model: Model, batch: Prompts) -> TopAndLogProbs:
    """Run prompts of one token length, and return their `label_log_probs`.

    Args:
        model: Any model.
        batch: Prompts of one token length.

    Returns:
        Top tokens (batch,), and log-probabilities (nats) of the true label and the other label
        (batch, label). They are computed in float32 or wider.
    """
    finals: list[Tensor] = []

    def keep(_, args: tuple) -> None:
        finals.append(args[0][:, -1])

    with last_layer_at_last(model), model.final_norm.register_forward_pre_hook(keep):
        logits = model.logits(batch)
    if model.is_narrow:
        logits = unembed.final_logits(model, finals[0])
    return label_log_probs(logits, batch)


def label_log_probs(
    logits: Float[Tensor, "*versions batch vocabulary"], batch: Prompts
) -> TopAndLogProbs:
    """Return the top token, and the log-probabilities of the true and the other label.

    Args:
        logits: Logits of the last position (*versions, batch, vocabulary).
        batch: Prompts of these logits.

    Returns:
        Ids of the top tokens (*versions, batch), and log-probabilities (nats) of the true label and
        the other label (*versions, batch, label).
    """
    log_probs = widen(logits).log_softmax(-1)
    words = torch.tensor([e.label_pair_ids for e in batch], device=logits.device)
    versions = logits.shape[:-1]
    words = words.expand(*versions, -1)
    labels = log_probs.take_along_dim(words, -1)
    top = log_probs.argmax(-1)
    return top.cpu(), labels.cpu().double()


def logit_difference_rows(capture: Capture, model: Model) -> Float[Tensor, "batch d_model"]:
    """Return the rows that project vectors to their part of the logit difference.

    The product of a row with a vector is the vector's addition to the logit difference (nats). A
    row is the true label's row of E minus the other label's row, with the final norm's weight and
    centring folded in, divided by the norm's scale at the last position.

    Args:
        capture: Values of a batch.
        model: Model of the capture.

    Returns:
        Rows (batch, d_model).
    """
    unembedding = model.unembedding
    words = torch.tensor([e.label_pair_ids for e in capture.prompts])
    true, other = widen(unembedding.weight[words.T])
    rows = unembedding.norm.fold(true - other)
    scale = unembedding.norm.scale(capture.resid_final).to(rows)
    return rows / scale[:, None]


def label_values(
    capture: Capture, model: Model, layer: int
) -> Float[Tensor, "batch head demonstration d_head"]:
    """Return the value vector of every query head at every label position.

    Args:
        capture: Values of a batch, with "values".
        model: Model of the capture.
        layer: Layer of the heads.

    Returns:
        Value vectors (batch, head, demonstration, d_head). Under grouped-query attention, shared
        vectors are repeated.
    """
    positions = capture.label_positions[:, None, :, None]
    values = capture.values[layer].take_along_dim(positions, 2)
    return model.for_query_heads(values)


def own_label_sign(capture: Capture, like: Tensor) -> Float[Tensor, "batch demonstration"]:
    """Return +1 at demonstrations with the true label, and -1 at those with the other label.

    Args:
        capture: Values of a batch.
        like: Tensor that has the dtype and the device of the result.

    Returns:
        Signs (batch, demonstration).
    """
    is_true = torch.tensor([e.prompt.is_true for e in capture.prompts])
    signs = torch.where(is_true, 1, -1)
    return signs.to(like)
