"""Mitigate the two biases of in-context heads (EMNLP 2024 section 6, as summarised; our reading of it).

Majority label. The heads carry more of the label that has more demonstrations. What they write at the positions of the
minority label is added once more, a little of it, to the final residual vector x:

    x + a_c a_v sum_heads sum_p alpha_p W_O v_p        p over the minority label's positions,
                                                       a_v = majority count / minority count, a_c = 0.03

Recency. The scores of these heads depend on where a demonstration stands. Beside each head's output at the last
position stands a shortcut: the same values under weights whose scores lack the position's influence.

    with position_free(model, heads, "mean"):          # half the head as it is, half the shortcut
        predict(model, encoded)

What becomes of accuracy and of the biases is measured by `biases`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from twotowers.analysis.edit_heads import check_heads
from twotowers.errors import TwoTowersError
from twotowers.model import query_key, unembed
from twotowers.model.capture import Capture
from twotowers.model.hooks import changing_z
from twotowers.model.model import Model, norm_eps
from twotowers.prompts.prompt import Prompt

# Reading of "a shortcut beside the original" -> (share of the head as it is, share of the shortcut).
SHORTCUTS: dict[str, tuple[float, float]] = {"mean": (0.5, 0.5), "replace": (0.0, 1.0), "add": (1.0, 1.0)}

# --- majority label ---------------------------------------------------------------------------------------------------


def minority(prompt: Prompt) -> tuple[tuple[str, ...], float]:
    """The labels with the fewest demonstrations (of those that have any), and a_v = majority / minority count.

    Raises TwoTowersError when all labels have as many: there is no minority to help.
    """
    counts = {label: sum(d.label == label for d in prompt.demonstrations) for label in prompt.labels}
    counts = {label: count for label, count in counts.items() if count}
    if len(set(counts.values())) < 2:
        each = next(iter(counts.values()), 0)
        raise TwoTowersError(
            f"equal counts ({each} of each label), so no label is in the minority: "
            "take one demonstration away (datasets.imbalanced)"
        )
    least = min(counts.values())
    return tuple(label for label, count in counts.items() if count == least), max(counts.values()) / least


def minority_shortcut(
    capture: Capture, model: Model, heads: Sequence[tuple[int, int]]
) -> Float[Tensor, "batch d_model"]:
    """a_v times what the heads write from the minority label's positions: sum of `alpha * vo`. v1 notation.

    Needs want={"weights", "values"}. In units of the residual stream. Raises TwoTowersError as `minority`.
    """
    capture.require("weights", "values")
    ratio, at = [], torch.zeros_like(capture.weights[0, :, 0])
    for row, one in enumerate(capture.prompts):
        labels, a_v = minority(one.prompt)
        ratio.append(a_v)
        for position, demonstration in zip(one.label_positions, one.prompt.demonstrations, strict=True):
            at[row, position] = demonstration.label in labels
    total = torch.zeros_like(capture.resid_final)
    for layer, head in dict.fromkeys(check_heads(heads, model)):
        values = capture.values[layer][:, model.value_head(head)]
        z = torch.einsum("bp,bpk->bk", (capture.weights[layer][:, head] * at).to(values.dtype), values)
        total += z @ model.output_weight(layer)[head].to(total)
    return total * torch.tensor(ratio).to(total)[:, None]


def check_a_c(a_c: object) -> float:
    """Return a_c, also given as text; raise TwoTowersError when it is no finite number."""
    try:
        found = math.nan if isinstance(a_c, bool) else float(a_c)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise TwoTowersError(f"a_c={a_c!r}: give a finite number, such as 0.03")
    return found


# --- recency ----------------------------------------------------------------------------------------------------------


def free_scores(
    model: Model,
    layer: int,
    x: Float[Tensor, "batch position d_model"],
    position_part: Float[Tensor, "batch position d_model"] | None = None,
) -> Float[Tensor, "batch head position"]:
    """Scores of the last position without the position's influence, masked as the model masks, before the softmax.

    x is the layer's input at all positions. Rotary models: the query-key product as if all stood at one place. Learned
    positions: the position embedding's direct contribution leaves the inputs of W_Q and W_K. The norm stands between,
    so its scale is frozen at the unchanged x and the rest of it is linear: with n(x) the norm's output, W_Q and W_K get
    `n(x) - gamma * centre(position_part) / s(x)`. What earlier layers made of the position stays in x, in every
    architecture; values are untouched.
    """
    inputs = query_key.normed(model, layer, x)
    if position_part is not None:
        norm = model.part(layer, "attention_norm")
        part = position_part - position_part.mean(-1, keepdim=True)  # every model with learned positions has LayerNorm
        scale = (unembed._wide(x).var(-1, correction=0) + norm_eps(norm)).sqrt()[..., None]
        inputs = inputs - (model.norm_gain(norm) * part / scale).to(inputs.dtype)
    scores = query_key.last_scores(model, layer, inputs, torch.zeros(x.shape[1], dtype=torch.long, device=x.device))
    window = model.window(layer)
    if window is not None:
        scores[..., : max(0, x.shape[1] - window)] = float("-inf")
    return scores


def free_weights(
    capture: Capture, model: Model, heads: Sequence[tuple[int, int]]
) -> Float[Tensor, "head batch position"]:
    """Position-free attention weights of the last position. Needs want={"streams"}. See `free_scores`."""
    capture.require("stream_inputs")
    heads, part = check_heads(heads, model), None
    if model.architecture.positions == "learned":
        embed = model.hf.get_input_embeddings()
        ids = torch.tensor([e.ids for e in capture.prompts], device=embed.weight.device)
        part = capture.stream_inputs[0] - embed(ids).to(capture.stream_inputs)
    by_layer = {
        layer: free_scores(model, layer, capture.stream_inputs[layer], part).softmax(-1)
        for layer in {layer for layer, _ in heads}
    }
    return torch.stack([by_layer[layer][:, head] for layer, head in heads])


def shares_of(shortcut: str | tuple[float, float]) -> tuple[float, float]:
    """(share of the head as it is, share of the shortcut). Raises TwoTowersError on another name or no finite share."""
    if isinstance(shortcut, str):
        if shortcut not in SHORTCUTS:
            raise TwoTowersError(f"shortcut='{shortcut}': choose one of {', '.join(SHORTCUTS)}")
        return SHORTCUTS[shortcut]
    keep, share = (float(part) for part in shortcut)
    if not (math.isfinite(keep) and math.isfinite(share)):
        raise TwoTowersError(f"shortcut=({keep}, {share}): give two finite shares, such as (0.5, 0.5)")
    return keep, share


@contextmanager
def position_free(
    model: Model, heads: Sequence[tuple[int, int]], shortcut: str | tuple[float, float] = "mean"
) -> Iterator[None]:
    """The model with a position-free shortcut in some heads, at the last position; later layers run on from there.

    `shortcut`: "mean" (half the head as it is, half the shortcut), "replace", "add", or the two shares themselves;
    (1, 0) changes nothing, bit for bit. Composes with `edit_heads.edited`; restored on the way out, after errors too.
    """
    keep, share = shares_of(shortcut)
    heads = dict.fromkeys(check_heads(heads, model))  # a head named twice is changed once
    seen: dict[str | int, Tensor] = {}

    def reads_input(name: str | int):
        def hook(_, args, kwargs):
            seen[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    def mix(layer: int, z: Float[Tensor, "batch position head d_head"]) -> None:
        x, part, last = seen[layer], None, z[:, -1]
        if "first" in seen:
            part = (seen["first"] - seen["embedded"].to(seen["first"])).to(x)
        weights = free_scores(model, layer, x, part).softmax(-1)
        values = query_key.values(model, layer, query_key.normed(model, layer, x))
        for head in (head for at, head in heads if at == layer):
            free = torch.einsum("bp,bpk->bk", weights[:, head].to(values.dtype), values[:, :, model.value_head(head)])
            last[:, head] = last[:, head] * keep + free.to(z) * share

    with ExitStack() as stack:
        if model.architecture.positions == "learned":
            embedding = model.hf.get_input_embeddings()
            handle = embedding.register_forward_hook(lambda _, args, output: seen.update(embedded=output))
            stack.callback(handle.remove)
            handle = model.blocks[0].register_forward_pre_hook(reads_input("first"), with_kwargs=True)
            stack.callback(handle.remove)
        for layer in sorted({layer for layer, _ in heads}):
            handle = model.blocks[layer].register_forward_pre_hook(reads_input(layer), with_kwargs=True)
            stack.callback(handle.remove)
            stack.enter_context(changing_z(model, {layer: partial(mix, layer)}))
        yield
