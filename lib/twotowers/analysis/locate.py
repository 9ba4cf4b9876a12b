"""Locate the in-context heads: the log-probability increase of blocks, heads, (head, position) pairs and neurons.

For a vector v added to the residual stream x, and the followed word w (paper, Definitions; v1 section 3.1, app. E),

    I = log p(w | x + v) - log p(w | x)        in nats, p = softmax(bs(.))

x is `Lin_l` for the attention block, its heads and its (head, position) pairs, and `Lin_l + attention_l` for the FFN
block and its neurons. In a parallel block (GPT-J, GPT-NeoX) the FFN does not read attention_l, but both
are added to the same stream, so x stays what it is.

    found = increases(model, encoded)      # one forward pass for all prompts
    found.top_heads(20)                    # layer, head, increase
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from twotowers.analysis.increase import increases_along, increases_of_vectors
from twotowers.analysis.logit_changes import Changes, block_changes, margin_rows, word_rows
from twotowers.errors import TwoTowersError
from twotowers.heads import Head, check_inside
from twotowers.model import unembed
from twotowers.model.capture import Capture, captures, read_all
from twotowers.model.memory import halved
from twotowers.model.model import Model
from twotowers.prompts.prompt import ROLES, Encoded, roles
from twotowers.stats.agreement import top

GROUP_BYTES = 128 << 20  # captures held for one walk over the vocabulary, or a sixteenth of the model if that is more


def block_increases(
    capture: Capture, model: Model, words: Int[Tensor, "batch"] | None = None, norm: str = "frozen"
) -> tuple[Float[Tensor, "batch layer"], Float[Tensor, "batch layer"]]:
    """Increase of every attention block and every FFN block (v1 fig 2). `words` defaults to the true labels."""
    return _along(capture, model, capture.z[:, :, :, None], words, norm)[:2]


def head_increases(
    capture: Capture, model: Model, words: Int[Tensor, "batch"] | None = None, norm: str = "frozen"
) -> Float[Tensor, "batch layer head"]:
    """Increase of every head (v1 fig 3, 4)."""
    return _along(capture, model, capture.z[:, :, :, None], words, norm)[2][..., 0]


def position_increases(
    capture: Capture,
    model: Model,
    words: Int[Tensor, "batch"] | None = None,
    norm: str = "frozen",
    layers: Sequence[int] | None = None,
) -> Float[Tensor, "batch layer head position"]:
    """Increase of every subhead value `alpha * vo` (head, position). Needs want={"weights", "values"}.

    `layers` restricts the work; the layer axis of the result then follows it.
    """
    capture.require("weights", "values")
    layers = list(range(model.n_layers)) if layers is None else list(layers)
    shared = model.n_heads // model.n_key_value_heads
    values = capture.values[layers].repeat_interleave(shared, dim=2)  # grouped-query attention: heads share values
    z = capture.weights[layers][..., None].to(values.dtype) * values
    return _along(capture, model, z, words, norm, layers)[2]


def increases_by_role(
    model: Model, encoded: Sequence[Encoded], heads: Sequence[tuple[int, int]], norm: str = "frozen"
) -> pd.DataFrame:
    """How much of some heads' increase comes from which part of the prompt, the true label followed.

    One row per (prompt, head, role): prompt, head ("22-0"), role (see `prompts.roles`), increase (nats, summed over
    the positions of the role).
    """
    layers = sorted({layer for layer, _ in heads})

    def read(seen: Capture) -> list[dict[str, str | int | float]]:
        found, rows = position_increases(seen, model, norm=norm, layers=layers).cpu().numpy(), []
        for at, one, of_prompt in zip(seen.index, seen.prompts, found, strict=True):
            role = np.array(roles(one))
            for layer, head in heads:
                by_position = of_prompt[layers.index(layer), head]
                rows += [
                    {"prompt": at, "head": f"{layer}-{head}", "role": r, "increase": by_position[role == r].sum()}
                    for r in ROLES
                ]
        return rows

    return pd.DataFrame([row for rows in read_all(model, encoded, {"weights", "values"}, read) for row in rows])


def neuron_increases(
    capture: Capture,
    model: Model,
    layer: int,
    words: Int[Tensor, "batch"] | None = None,
    norm: str = "frozen",
    neurons: Sequence[int] | None = None,
) -> Float[Tensor, "batch neuron"]:
    """Increase of FFN neurons `m_k * fc2_k` of one layer, all or those named. Needs want={"neurons"}. v1 app. E."""
    capture.require("neurons")
    x = capture.resid_pre[layer] + capture.attention_output[layer]
    chosen = torch.arange(capture.neurons.shape[-1]) if neurons is None else torch.as_tensor(list(neurons))
    m, fc2 = capture.neurons[layer][:, chosen], model.ffn_weight(layer)[chosen].to(x.device)
    scale = unembed.norm_scale(capture.resid_final, model.unembedding)
    return increases_of_vectors(model, x, m, fc2, scale, _followed(capture, words), norm)


def cumulative_head_increases(
    capture: Capture, model: Model, words: Int[Tensor, "batch"] | None = None, norm: str = "frozen"
) -> Float[Tensor, "batch layer head"]:
    """Increase of every head when the heads before it in its layer were added first: x = Lin_l + heads 0 .. h-1.

    Beside `head_increases` it shows how little the order of adding matters (v1 appendix E). Over the heads of a layer
    these add up to the block's increase exactly, but for the output bias.
    """
    e, words = model.unembedding, _followed(capture, words)
    scale = unembed.norm_scale(capture.resid_final, e)
    found = []
    for layer in range(model.n_layers):
        weight = model.output_weight(layer).to(capture.z.device)
        vectors = torch.einsum("bhk,hkd->bhd", capture.z[layer], weight)
        steps = torch.cat([capture.resid_pre[layer][:, None], vectors], 1).cumsum(1)
        p = unembed.log_prob(steps, words[:, None], e, norm, scale[:, None])
        found.append(p.diff(dim=1))
    return torch.stack(found, 1)


def sum_of_parts(capture: Capture, model: Model) -> Float[Tensor, "batch d_model"]:
    """Embedding + every (layer, head, position) + every neuron + the blocks' biases: equals `capture.final` (app. E).

    Needs want={"weights", "values", "neurons"}.
    """
    capture.require("weights", "values", "neurons")
    total = capture.resid_pre[0].clone()
    for layer in range(model.n_layers):
        values = capture.values[layer].repeat_interleave(model.n_heads // model.n_key_value_heads, dim=1)
        weighted = capture.weights[layer][..., None].to(values.dtype) * values
        total += torch.einsum("bhpk,hkd->bd", weighted, model.output_weight(layer).to(total.device))
        total += capture.neurons[layer] @ model.ffn_weight(layer).to(total.device)
        for bias in (model.output_bias(layer), model.ffn_bias(layer)):
            if bias is not None:
                total += bias.to(total.device)
    return total


def _followed(capture: Capture, words: Tensor | None) -> Tensor:
    return capture.true_ids if words is None else words


def _along(
    capture: Capture, model: Model, z: Tensor, words: Tensor | None, norm: str, layers: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    chosen = slice(None) if layers is None else list(layers)
    scale = unembed.norm_scale(capture.resid_final, model.unembedding)
    return increases_along(
        model, capture.resid_pre[chosen], z, capture.ffn_output[chosen], scale, _followed(capture, words), norm,
        layers,
    )  # fmt: skip


@dataclass
class Increases(Changes):
    """Increases of all blocks and heads for n prompts, with what the model answered. Axes carry their names.

    `log_prob[label]` is the model's own log-probability (nats) of each label word; `correct` means that the true
    label is the top word of the whole vocabulary. `logit` is the change of the followed word's logit, `margin` that of
    the true label's logit less the other label's (`logit_changes`, which see; `increase_parts` puts them together).
    """

    predicted: Int[np.ndarray, "prompt"]
    correct: Bool[np.ndarray, "prompt"]
    log_prob: pd.DataFrame
    logit: Changes
    margin: Changes

    def top_heads(self, k: int) -> list[Head]:
        """The k heads with the largest mean increase, largest first (v1 section 4.2). Raises TwoTowersError as `top`."""
        return top(self.heads.mean(0), k)


def check_heads(heads: Sequence[tuple[int, int]], model: Model) -> tuple[Head, ...]:
    """Return the heads as `Head`s; raise TwoTowersError for an empty set or a head outside the model."""
    if not heads:
        raise TwoTowersError("no heads given: name at least one as layer-head, for example 2-5")
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    return tuple(Head(int(layer), int(head)) for layer, head in heads)


def increases(
    model: Model,
    encoded: Sequence[Encoded],
    norm: str = "frozen",
    max_tokens: int | None = None,
    progress: str | None = None,
) -> Increases:
    """Increases of all blocks and heads over a set of prompts: one forward pass, in a stream of batches.

    The true label is followed. The result is in the order of `encoded` and does not depend on the batch size:
    `max_tokens` in one forward pass, by default 512 on a CPU, where more would take memory and no less time, and 16,384
    elsewhere.
    """
    unembed.check_norm(norm)
    max_tokens = max_tokens or (512 if model.device.type == "cpu" else 16_384)
    if not encoded:
        raise TwoTowersError("no prompts to locate heads with: draw at least one")
    n, shape = len(encoded), (model.n_layers, model.n_heads)
    found, logit, margin = (Changes.empty(n, *shape) for _ in range(3))
    predicted, correct = np.empty(n, dtype=int), np.empty(n, dtype=bool)
    log_prob: list[dict[str, float]] = [{} for _ in encoded]

    def answered(seen: Capture) -> Capture:
        """The capture, once its logits have been read; these are most of what it holds."""
        first = seen.logits.argmax(-1)
        predicted[seen.index], correct[seen.index] = first.cpu().numpy(), (first == seen.true_ids).cpu().numpy()
        for i, row in label_log_probs(seen).items():
            log_prob[i] = row
        logit.put(seen.index, *block_changes(seen, model, word_rows(model, seen.true_ids, norm), norm))
        margin.put(seen.index, *block_changes(seen, model, margin_rows(seen, model, norm), norm))
        return replace(seen, logits=seen.logits.new_empty(len(seen.index), 0))  # a view would hold them all

    def walked(group: list[Capture]) -> tuple[Tensor, Tensor, Tensor]:
        return increases_along(
            model,
            torch.cat([seen.resid_pre for seen in group], 1),
            torch.cat([seen.z for seen in group], 1)[:, :, :, None],
            torch.cat([seen.ffn_output for seen in group], 1),
            unembed.norm_scale(torch.cat([seen.resid_final for seen in group]), model.unembedding),
            torch.cat([seen.true_ids for seen in group]),
            norm,
        )

    stream = captures(model, encoded, max_tokens=max_tokens, progress=progress, read=answered)
    for group, (attention, ffn, heads) in halved(walked, _groups(stream, max(GROUP_BYTES, model.bytes // 16))):
        found.put([i for seen in group for i in seen.index], attention, ffn, heads[..., 0])
    return Increases(**vars(found), predicted=predicted, correct=correct, log_prob=pd.DataFrame(log_prob),
                     logit=logit, margin=margin)  # fmt: skip


def increase_parts(found: Increases, heads: Sequence[tuple[int, int]] = ()) -> pd.DataFrame:
    """The increase (nats) of every block, and of the heads named, split: how much is "some label", how much "this one"?

    One row per prompt and part: prompt, layer, part ("attention", "FFN" or "22-0"), increase, logit_change (of the
    followed word), lse_change (of the log-sum-exp of all logits; increase = logit_change - lse_change), margin (what
    the part adds to the true label's logit less the other label's; equally, the difference of their increases).
    Raises TwoTowersError on a head outside the model.
    """
    prompts, layers, of_layer = found.heads.shape
    if wrong := [f"{a}-{b}" for a, b in heads if not (0 <= a < layers and 0 <= b < of_layer)]:
        raise TwoTowersError(f"head {wrong[0]} was not measured: layers go to {layers - 1}, heads to {of_layer - 1}")
    columns = {"increase": found, "logit_change": found.logit, "margin": found.margin}
    parts = [(name, kind, (i,)) for name, kind in (("attention", "attention"), ("FFN", "ffn")) for i in range(layers)]
    parts += [(f"{layer}-{head}", "heads", (layer, head)) for layer, head in heads]
    table = pd.concat(
        pd.DataFrame(
            {"prompt": np.arange(prompts), "layer": at[0], "part": name}
            | {column: getattr(of, kind)[:, *at] for column, of in columns.items()}
        )
        for name, kind, at in parts
    ).reset_index(drop=True)
    table.insert(4, "lse_change", table["logit_change"] - table["increase"])
    return table


def _groups(stream: Iterable[Capture], limit: int) -> Iterator[list[Capture]]:
    """Captures of several batches together, so that one walk over the vocabulary serves many prompts."""
    group, held = [], 0
    for seen in stream:
        size = sum(t.numel() * t.element_size() for t in (seen.resid_pre, seen.z, seen.ffn_output))
        if group and held + size > limit:
            yield group
            group, held = [], 0
        group.append(seen)
        held += size
    if group:
        yield group


def label_log_probs(capture: Capture) -> dict[int, dict[str, float]]:
    """The model's own log-probability (nats) of every label word, by the prompt's original index."""
    p = unembed._wide(capture.logits).log_softmax(-1)
    words = torch.tensor([list(encoded.label_ids.values()) for encoded in capture.prompts], device=p.device)
    found = p.gather(-1, words).tolist()  # in one piece: each number by itself would wait for the device
    return {
        i: dict(zip(encoded.label_ids, row, strict=True))
        for i, encoded, row in zip(capture.index, capture.prompts, found, strict=True)
    }
