"""The answers under the two mitigations of the EMNLP version (its section 6, as summarised; our reading). Chapter 8.

    found = mitigations(model, encoded, {"located": heads, "random 1": ...})

Remedies, each in every named set of heads:

- "none": the model as it is;
- "majority shortcut": what the heads write from the positions of the label with fewer demonstrations, `sum alpha vo`,
  times `a = a_c a_v`, is added to the last residual vector before the final norm. `a_v` is the count of the more
  frequent label divided by that of the other. A prompt with equal counts is left as it is;
- "recency shortcut": each head's output at the last position becomes `share[0]` times itself plus `share[1]` times the
  same values under attention whose scores lack the position's influence (`position_free_scores`). Later layers run on
  from there. The source says "a shortcut beside the original"; half and half is our reading, (1, 1) and (0, 1) others.

The biases are differences of answers between prompts: balanced and one demonstration fewer (majority), orders of the
demonstrations (recency). So contextual calibration and averages over orders need no run of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, check_inside
from twotowers.measure.observations import Answers, observations
from twotowers.model import query_key
from twotowers.model.attention_edits import last_position
from twotowers.model.attention_hooks import last_scores, reading_attention
from twotowers.model.capture import Capture, captures, label_log_probs
from twotowers.model.hooks import changing_z
from twotowers.model.model import Model, norm_eps
from twotowers.model.proof import finished
from twotowers.progress import progress
from twotowers.prompts.prompt import Encoded, Prompt

REMEDIES = ("none", "majority shortcut", "recency shortcut")
A_C = 0.03
SHARE = (0.5, 0.5)


def mitigations(
    model: Model,
    encoded: Sequence[Encoded],
    sets: Mapping[str, Sequence[Head]],
    a_c: float = A_C,
    share: tuple[float, float] = SHARE,
    max_tokens: int = 2048,
) -> xr.Dataset:
    """Answers (remedy, heads, prompt) under each remedy in each set, and the attention that acts.

    `attention` (remedy, heads, prompt, place): mean over the heads of a set of their weights on label positions; under
    the recency shortcut the mixture of both kinds of weights, which adds up to 1 over positions. Left out where prompts
    have different numbers of demonstrations. Cost: two forward passes, and one of the last position for each set. Memory:
    the streams of all layers and positions of a batch. Raises TwoTowersError for no prompts, an empty set and a head
    outside the model.
    """
    if not encoded or not sets or not all(sets.values()):
        raise TwoTowersError("nothing to mitigate: give at least one prompt, and a head in every set")
    for heads in sets.values():
        check_inside(heads, model.n_layers, model.n_heads, model.name)
    answers = Answers(encoded, len(REMEDIES), len(sets))
    places = {len(e.label_positions) for e in encoded}
    attention = np.full((len(REMEDIES), len(sets), len(encoded), max(places)), np.nan)

    @torch.inference_mode()
    def read(seen: Capture) -> int:
        plain, run = label_log_probs(seen.logits, seen.prompts), last_position(model, seen.prompts)
        for i, heads in enumerate(sets.values()):
            answers.put((0, i), seen.index, *plain)
            logits = finished(model, seen.resid_final + a_c * minority_shortcut(seen, model, heads))
            answers.put((1, i), seen.index, *label_log_probs(logits, seen.prompts))
            with position_free(model, heads, seen, share) as mixed:
                answers.put((2, i), seen.index, *label_log_probs(run(), seen.prompts))
            if len(places) == 1:
                own = {(layer, head): seen.weights[layer][:, head] for layer, head in heads}
                attention[:2, i, seen.index] = _mean_weights(seen, own)
                attention[2, i, seen.index] = _mean_weights(seen, mixed)
        return len(seen.index)

    with progress("mitigations", len(encoded)) as bar:
        for n in captures(model, encoded, {"weights", "values", "streams"}, max_tokens, read=read):
            bar.update(n)
    variables = answers.variables("remedy", "heads")
    if len(places) == 1:
        variables["attention"] = (("remedy", "heads", "prompt", "place"), attention, "share")
    return observations(encoded, variables, remedy=list(REMEDIES), heads=list(sets))


def _mean_weights(seen: Capture, weights: Mapping[tuple[int, int], Tensor]) -> np.ndarray:
    """Mean over heads of their weights (batch, position), at the label positions (batch, place)."""
    return torch.stack([w.gather(1, seen.label_positions) for w in weights.values()]).mean(0).cpu().numpy()


def minority(prompt: Prompt) -> tuple[str | None, float]:
    """The label with fewer demonstrations, and a_v = majority count / minority count; (None, 1) for equal counts.

    A label without demonstrations has no position to take anything from, so it is no minority.
    """
    counts = {label: sum(d.label == label for d in prompt.demonstrations) for label in prompt.labels}
    few, many = sorted(counts, key=counts.__getitem__)
    if counts[few] in (0, counts[many]):
        return None, 1.0
    return few, counts[many] / counts[few]


def minority_shortcut(seen: Capture, model: Model, heads: Sequence[Head]) -> Float[Tensor, "batch d_model"]:
    """a_v times what the heads write from the minority label's positions, sum of `alpha vo`. Zero for equal counts."""
    factor = torch.zeros_like(seen.weights[0, :, 0])
    for row, e in enumerate(seen.prompts):
        label, a_v = minority(e.prompt)
        for position, demonstration in zip(e.label_positions, e.prompt.demonstrations, strict=True):
            factor[row, position] = a_v * (demonstration.label == label)
    total = torch.zeros_like(seen.resid_final)
    for layer, head in dict.fromkeys(heads):
        values = seen.values[layer][:, model.value_head(head)]
        z = torch.einsum("bp,bpk->bk", (seen.weights[layer][:, head] * factor).to(values), values)
        total += z @ model.output_weight(layer)[head].to(total)
    return total


def position_free_scores(
    model: Model,
    layer: int,
    x: Float[Tensor, "batch position d_model"],
    position_part: Float[Tensor, "batch position d_model"] | None = None,
) -> Float[Tensor, "batch head position"]:
    """Scores of the last position (nats) without the position's influence, masked as the model masks.

    x is the layer's input. Rotary models: the query-key product as if all tokens stood at one place. Learned positions:
    `position_part`, the position embedding, is taken out of the inputs of W_Q and W_K; the norm between is linear once
    its scale is frozen at x, so they get `norm(x) - gamma * centre(position_part) / s(x)`. What earlier layers made of
    the position stays in x, in every architecture.
    """
    inputs = query_key.normed(model, layer, x)
    if position_part is not None:
        norm = model.part(layer, "attention_norm")  # every model with learned positions has LayerNorm
        centred = position_part - position_part.mean(-1, keepdim=True)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (wide.var(-1, correction=0) + norm_eps(norm)).sqrt()[..., None]
        inputs = inputs - (model.norm_gain(norm) * centred / scale).to(inputs.dtype)
    scores = query_key.last_scores(model, layer, inputs, torch.zeros(x.shape[1], dtype=torch.long, device=x.device))
    window = model.window(layer)
    if window is not None:
        scores[..., : max(0, x.shape[1] - window)] = float("-inf")
    return scores


@contextmanager
def position_free(
    model: Model, heads: Sequence[Head], seen: Capture, share: tuple[float, float] = SHARE
) -> Iterator[dict[tuple[int, int], Float[Tensor, "batch position"]]]:
    """The model with the recency shortcut in some heads, at the last position; restored afterwards, also on errors.

    The run inside is of the prompts of `seen`, whole or their last position (`last_position`); `seen` holds "streams",
    whose other positions are those of the run too, since only the last one changes. Yields (layer, head) -> the weights
    that act in the run that came last, a mixture of the head's own and the position-free ones.
    """
    by_layer = {layer: sorted({h for at, h in heads if at == layer}) for layer, _ in heads}
    inputs: dict[int, Tensor] = {}
    own: dict[int, Tensor] = {}
    mixed: dict[tuple[int, int], Tensor] = {}
    part = None
    if model.architecture.positions == "learned":
        words = model.hf.get_input_embeddings()(model.token_ids(seen.prompts))
        part = seen.stream_inputs[0] - words.to(seen.stream_inputs)

    def keep_input(layer: int) -> Callable:
        def hook(_, args, kwargs):
            inputs[layer] = (args[0] if args else kwargs["hidden_states"])[:, -1:]

        return hook

    def keep_weights(layer: int) -> Callable:
        def read(query, key, value, mask, scaling, softcap):
            own[layer] = last_scores(query, key, mask, scaling, softcap).softmax(-1)

        return read

    def change(layer: int) -> Callable:
        def mix(z: Float[Tensor, "batch position head d_head"]) -> None:
            x = torch.cat([seen.stream_inputs[layer][:, :-1].to(z), inputs[layer]], 1)
            free = position_free_scores(model, layer, x, part).softmax(-1)
            values = query_key.values(model, layer, query_key.normed(model, layer, x))
            for head in by_layer[layer]:
                shortcut = torch.einsum("bp,bpk->bk", free[:, head].to(values), values[:, :, model.value_head(head)])
                z[:, -1, head] = share[0] * z[:, -1, head] + share[1] * shortcut.to(z)
                mixed[layer, head] = (share[0] * own[layer][:, head] + share[1] * free[:, head]) / sum(share)

        return mix

    with ExitStack() as stack:
        for layer in by_layer:
            handle = model.blocks[layer].register_forward_pre_hook(keep_input(layer), with_kwargs=True)
            stack.callback(handle.remove)
            stack.enter_context(reading_attention(model, layer, keep_weights(layer)))
        stack.enter_context(changing_z(model, {layer: change(layer) for layer in by_layer}))
        yield mixed
