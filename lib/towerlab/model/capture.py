"""One forward pass on a stock model, recording at the last position what the method needs.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> capture(model, batch, {"weights"}).weights.shape  # (layer, batch, head, position)
    torch.Size([4, 2, 8, 14])

`observations.read_prompts` does this with a bar and in what memory there is. Nothing in
transformers is edited: hooks read the residual stream, and `reading_attention` sees attention where
the model makes it. Hooks always come off again, also after an error.

Prompts of equal token length form a batch (`prompt.batches`), so there is no padding. Only vectors
of the last position are kept unless more is asked for with `record`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack
from types import SimpleNamespace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from towerlab.model import unembed
from towerlab.model.attention import Attention, reading_attention, split_call
from towerlab.model.model import Model, norm_eps, rms, widen
from towerlab.prompts.prompt import Encoded, Prompts


class Capture(SimpleNamespace):
    """What one batch (prompts of one length) left behind; all at the last position unless a shape
    says `position`.

    `resid_pre[l]` is the paper's Lin_l, `resid_mid[l]` the stream that the layer's FFN reads (in a
    parallel block `resid_pre[l]`), and `resid_final` the residual stream before the final norm;
    `z[l, b, h]` is the head's attention-weighted sum of value vectors, so `z @ W_O^h` is the head
    vector (paper, Definitions). `scores` are those before the softmax.

    Where a norm follows W_O (Gemma 2), `z` and `values` are divided by its scale at the last
    position of the same pass, and where one follows fc2 so are `neurons`. That scale frozen,
    everything here is linear, and with `Model.output_weight` / `ffn_weight` (which hold the norm's
    weight) adds up to what the block writes. `attention_out_input` and `ffn_out_input` are what the
    model itself feeds to W_O and fc2.

    `own_logits` are those that the model returns; `logits` are the same in float32 or wider.

    The parts of the attention, of the FFN and of the streams are there if they were asked for: see
    `capture`.
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
        return torch.tensor([e.true_id for e in self.prompts], device=self.resid_final.device)

    @property
    def label_positions(self) -> Int[Tensor, "batch label"]:
        """Needs the same number of demonstrations in every prompt of the batch."""
        return torch.tensor(
            [e.label_positions for e in self.prompts], device=self.resid_final.device
        )


class Site(NamedTuple):
    """The input or output of a part of every block, and whether all positions are read."""

    part: str  # "" is the block
    side: str
    record: str = ""  # what asks for it; "" is always read
    all_positions: bool = False


SITES = {
    "resid_pre": Site("", "input"),
    "attention_out_input": Site("attention_out", "input"),
    "attention_output": Site("attention_block", "output"),
    "ffn_output": Site("ffn_block", "output"),
    "ffn_out_input": Site("ffn_out", "input", "neurons"),
    "stream_inputs": Site("", "input", "streams", all_positions=True),
    "stream_attention": Site("attention_block", "output", "streams", all_positions=True),
}


@torch.inference_mode()
def capture(model: Model, encoded: Prompts, record: Collection[str] = ()) -> Capture:
    """Run prompts of one token length once, and record what is asked for.

    Args:
        model: Any model.
        encoded: Prompts of one token length.
        record: Further parts to record: "weights" (also `scores`), "values", "neurons" (also
            `ffn_out_input`), "streams" (`stream_inputs` and `stream_attention`).
    """
    entries: dict[str, list[Tensor]] = defaultdict(list)

    def read(name: str, module: nn.Module, site: Site) -> None:
        def keep(_, args: tuple, kwargs: dict, output: Tensor) -> None:
            tensor = split_call(args, kwargs)[0] if site.side == "input" else output
            # Some models flatten batch and position before their FFN.
            rows = tensor.reshape(len(encoded), -1, tensor.shape[-1])
            entries[name].append((rows if site.all_positions else rows[:, -1]).clone())

        stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))

    def attended(layer: int, attention: Attention, _) -> None:
        if "weights" in record:
            entries["scores"].append(attention.last().scores()[:, :, 0])
            entries["weights"].append(entries["scores"][-1].softmax(-1))
        if "values" in record:
            entries["values"].append(attention.value.clone())

    sites = {name: site for name, site in SITES.items() if site.record in ("", *record)}
    for kind in ("attention", "ffn"):
        if model.norm_after(0, kind) is not None:
            sites[f"{kind}_before_norm"] = Site(f"{kind}_out", "output")
    with ExitStack() as stack:
        for layer in range(model.n_layers):
            for name, site in sites.items():
                read(name, model.part(layer, site.part), site)
        if {"weights", "values"} & set(record):
            stack.enter_context(reading_attention(model, range(model.n_layers), attended))
        read("resid_final", model.final_norm, SITES["resid_pre"])
        own_logits = model.logits(encoded).to(model.device)
    # Layers may live on several devices (device_map); what is analysed together is brought
    # together.
    parts = {
        name: torch.stack([part.to(model.device) for part in layers])
        for name, layers in entries.items()
    }
    z = parts["attention_out_input"].unflatten(-1, (model.n_heads, model.d_head))
    parts |= {
        "attention_out_input": z,
        "z": z,
        "resid_mid": parts["resid_pre"]
        if model.parallel
        else parts["resid_pre"] + parts["attention_output"],
        "resid_final": parts["resid_final"][0],
        "own_logits": own_logits,
    }
    narrow = unembed.is_narrow(model)
    parts["logits"] = unembed.final_logits(model, parts["resid_final"]) if narrow else own_logits
    if "ffn_out_input" in parts:
        parts["neurons"] = parts["ffn_out_input"]
    for kind, names in (("attention", ("z", "values")), ("ffn", ("neurons",))):
        if (norm := model.norm_after(0, kind)) is not None:
            scale = 1 / rms(parts.pop(f"{kind}_before_norm"), norm_eps(norm))
            for name in parts.keys() & names:
                x = parts[name]
                parts[name] = (x * scale.reshape(*scale.shape, *[1] * (x.dim() - 2))).to(x.dtype)
    return Capture(prompts=list(encoded), **parts)


@torch.inference_mode()
def answer(
    model: Model, batch: Prompts
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch label"]]:
    """Run prompts of one token length, and return their `label_log_probs`."""
    if not unembed.is_narrow(model):
        return label_log_probs(model.logits(batch), batch)
    final: list[Tensor] = []
    with model.final_norm.register_forward_hook(
        lambda _, args, kwargs, output: final.append(split_call(args, kwargs)[0][:, -1]),
        with_kwargs=True,
    ):
        model.logits(batch)
    return label_log_probs(unembed.final_logits(model, final[0]), batch)


def label_log_probs(
    logits: Float[Tensor, "batch vocabulary"], batch: Prompts
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch label"]]:
    """Return the top token, and log-probabilities (nats) of the true label and of the other."""
    logits = widen(logits).log_softmax(-1)
    words = torch.tensor([e.label_pair for e in batch], device=logits.device)
    return logits.argmax(-1).cpu(), logits.gather(-1, words).cpu().double()


def logit_difference_rows(capture: Capture, model: Model) -> Float[Tensor, "batch d_model"]:
    """Rows whose product with a vector is what that vector adds to the logit difference (nats).

    The true label's row of E minus the other's, the final norm's weight and centring folded in,
    divided by the norm's scale at the last position.
    """
    unembedding = model.unembedding
    true, other = widen(unembedding.weight[torch.tensor([e.label_pair for e in capture.prompts]).T])
    rows = unembed.fold_norm(unembedding, true - other)
    return rows / unembed.norm_scale(capture.resid_final, unembedding).to(rows)[:, None]


def label_values(
    capture: Capture, model: Model, layer: int
) -> Float[Tensor, "batch head place d_head"]:
    """Every query head's value vector at every label position (grouped-query attention: shared ones
    repeated)."""
    at = capture.label_positions[:, None, :, None]
    return model.for_query_heads(capture.values[layer].take_along_dim(at, 2))


def own_label_sign(capture: Capture, like: Tensor) -> Float[Tensor, "batch place"]:
    """+1 at the positions of the true label, -1 at those of the other."""
    return torch.tensor(
        [[1.0 if true else -1.0 for true in e.prompt.is_true] for e in capture.prompts]
    ).to(like)
