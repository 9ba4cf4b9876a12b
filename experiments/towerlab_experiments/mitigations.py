"""Answers under the two mitigations of the EMNLP version.

Source: section 6, as summarised; our reading. Chapter 7.

The numbers of labels in a changed prompt decide which mitigation it needs:

- The majority shortcut, if the numbers are unequal. The heads' output from the positions of the
  label with fewer demonstrations, `sum alpha vo`, times `a = a_c a_v`, is added to the last
  residual vector before the final norm. `a_v` is the number of demonstrations of the more frequent
  label divided by the number of the other label.
- The recency shortcut, if the numbers are equal. Each head's output at the last position becomes
  SHARE[0] times itself plus SHARE[1] times the same values under attention whose scores lack the
  position's influence. The source says "a shortcut beside the original"; half and half is our
  reading.

The biases are differences of answers between prompts, so contextual calibration and averages over
orders need no run of their own.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from functools import partial
from itertools import chain
from typing import Any

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from towerlab.measure.observations import Tensors, answer_variables, observations, read_batches
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import AT_LAST, draw_random_sets, present
from towerlab.model import query_key
from towerlab.model.capture import Capture, label_values
from towerlab.model.edits import Edit, LayerState
from towerlab.model.label_attention import places_of
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompt, Prompts
from twotowers.heads import Head, Heads, HeadSets, head_names

from towerlab_experiments.conditions import CONDITIONS, Changes, check_one_can_go, in_changes
from towerlab_experiments.head_values import label_attention

A_C = 0.03
SHARE = (0.5, 0.5)


@torch.inference_mode()
def remedied(model: Model, encoded: Prompts, sets: HeadSets, changes: Changes) -> xr.Dataset:
    """Compute answers to the prompts in each change, without and with the mitigation.

    Cost: for each change a forward pass, and one pass of the last position for each set. Memory:
    streams, keys and values of all layers and positions of a batch.

    Args:
        model: Any model.
        encoded: Prompts.
        sets: Name -> heads in which the mitigation works.
        changes: Name -> function that changes a prompt.

    Returns:
        Dataset of answers over (change, remedy, head_set, prompt), with `remedy` "none" or
        "remedy", and of `attention_true` (change, remedy, prompt, selected_head), the attention on
        true labels of each head in the first set that contains it.
    """
    heads_of_sets = list(sets.values())
    in_order = chain(*reversed(heads_of_sets))
    selected = dict.fromkeys(Head(*head) for head in in_order)

    def run(_, batch: Prompts) -> Tensors:
        last = LastPosition(model, batch, {"weights", "values", "streams"})
        plain = last.capture
        replaced = [dict[Head, Tensor]() for _ in sets]
        label, _ = minority(batch[0].prompt)
        if label:
            shortcuts = [_minority_shortcut(plain, model, heads) for heads in heads_of_sets]
            final = plain.resid_final + A_C * torch.stack(shortcuts)
            answered = last.final_answers(final)
        else:
            pairs = zip(heads_of_sets, replaced, strict=True)
            edits = [_recency_shortcut(model, *pair, plain) for pair in pairs]
            answered = last.answers(edits)
        both = []
        for before, after in zip(last.plain_answer(), answered, strict=True):
            before = before.expand_as(after)
            both.append(torch.stack([before, after]))
        weights = []
        weights_after = ChainMap(*replaced)  # the first set that has a head
        for head in selected:
            layer, number = head
            before = plain.weights[layer, :, number]
            after = weights_after.get(head, before)
            weights.append(torch.stack([before, after.to(before)]))
        is_true = places_of(batch) > 0
        on_true = torch.stack(weights, 1) * is_true.to(plain.weights)
        attention_true = on_true.sum(-1).float()
        answers = answer_variables(batch, *both)
        return answers | {"attention_true": attention_true.movedim(-1, 0)}

    read = partial(read_batches, "remedies", max_tokens=2048, run=run)
    arrays: dict[str, Any] = in_changes(model, encoded, changes, read)
    dims = "prompt", "change", "remedy", "selected_head"
    arrays["attention_true"] = dims, arrays["attention_true"]
    return observations(
        "mitigations",
        encoded,
        arrays,
        change=list(changes),
        remedy=["none", "remedy"],
        head_set=list(sets),
        selected_head=head_names(selected),
    )


def minority(prompt: Prompt) -> tuple[str | None, float]:
    """Return the label with fewer demonstrations, and a_v = majority count / minority count.

    A label without demonstrations has no position to take anything from, so it is no minority.

        >>> from towerlab.prompts.prompt import Demonstration
        >>> foo, bar = (Demonstration("a", label) for label in ("foo", "bar"))
        >>> def of(*shown): return minority(Prompt(shown, "d", "foo", ("foo", "bar")))
        >>> of(foo, foo, bar), of(foo, bar), of(foo)
        (('bar', 2.0), (None, 1.0), (None, 1.0))

    Args:
        prompt: A prompt with two labels.

    Returns:
        Label and a_v, or None and 1 for equal counts.
    """
    counts = Counter(d.label for d in prompt.demonstrations)
    few, many = sorted(prompt.labels, key=counts.__getitem__)
    if counts[few] in (0, counts[many]):
        return None, 1.0
    return few, counts[many] / counts[few]


def _minority_shortcut(
    capture: Capture, model: Model, heads: Heads
) -> Float[Tensor, "batch d_model"]:
    """Return a_v times the heads' output from the minority label's positions, `sum alpha vo`.

    It is zero for equal counts.
    """
    factors = []
    for e in capture.prompts:
        label, a_v = minority(e.prompt)
        is_few = [d.label == label for d in e.prompt.demonstrations]
        factors.append([a_v * few for few in is_few])
    attention = label_attention(capture)
    by_label = torch.tensor(factors).to(attention)[:, None, None]
    weights = attention * by_label
    total = torch.zeros_like(capture.resid_final)
    for layer, head in heads:
        values = label_values(capture, model, layer)[:, head]
        of_head = weights[:, layer, head].to(values)
        z = torch.einsum("bd,bdk->bk", of_head, values)
        total += z @ model.output_weight(layer)[head].to(total)
    return total


def _recency_shortcut(
    model: Model,
    heads: Heads,
    replaced: dict[Head, Float[Tensor, "batch position"]],
    capture: Capture,
) -> Edit:
    """Return an edit with the recency shortcut in some heads; later layers respond to it.

    Queries and keys lack the position's influence. In rotary models they are computed as if all
    tokens were at one position (LongRoPE and YaRN still lengthen the vectors that they rotate). For
    learned positions, the position embedding is taken out of the inputs of W_Q and W_K. The norm
    between is linear once its scale is frozen at x, so the inputs are `norm(x) - gamma *
    centre(position embedding) / s(x)`. The influence of the position on the output of earlier
    layers stays in x, in every architecture. `replaced` is filled with the weights that replace
    each head's own. `capture` needs "streams".
    """
    part = None
    if model.architecture.positions == "learned":
        words = model.hf.get_input_embeddings()(model.token_ids(capture.prompts))
        part = capture.stream_inputs[0] - words.to(capture.stream_inputs)

    def compute_z(
        layer: int, in_layer: list[int], state: LayerState
    ) -> Float[Tensor, "batch head 1 d_head"]:
        before = capture.stream_inputs[layer][:, :-1].to(state.x)
        x = torch.cat([before, state.x], 1)
        inputs = model.normed(layer, "attention", x)
        if part is not None:
            norm = model.norm(model.part(layer, "attention_norm"))
            normed_part = norm.normalise(part.to(x), norm.scale(x))
            inputs = inputs - normed_part.to(inputs.dtype)
        start = torch.tensor(0)
        query = query_key.queries(model, layer, inputs).transpose(1, 2)
        key = query_key.keys(model, layer, inputs).transpose(1, 2)
        free = state.attention._replace(
            query=query_key.rotated(model, layer, query, start),
            key=query_key.rotated(model, layer, key, start),
            scaling=1.0,
        )
        free = free.last().select_heads(in_layer)
        original = state.attention.select_heads(in_layer)
        of_original, of_free = SHARE
        weights = of_original * original.weights() + of_free * free.weights()
        for i, head in enumerate(in_layer):
            replaced[Head(layer, head)] = weights[:, i, 0]
        return original.z(weights)

    return Edit(heads, compute_z)


def recipe_mitigations(pipeline: Pipeline) -> Recipe:
    """Measure answers under each mitigation, in heads by attribution and in random sets.

    The prompts have one demonstration fewer, or one of two orders.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    design = pipeline.design
    check_one_can_go(design)
    sets = present(pipeline.head_sets, "by attribution")
    changes = {**CONDITIONS}
    del changes["plain"]
    control = draw_random_sets(pipeline, sets, AT_LAST)
    return Recipe(remedied, design.intervention(), (changes,), sets, control)


RECIPES = {"mitigations": recipe_mitigations}
"""Measurement -> function of a pipeline that makes it"""
