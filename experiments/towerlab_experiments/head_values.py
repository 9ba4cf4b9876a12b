"""Attention, logit differences and increase of every head of the model.

Each prompt is one observation. Chapters 1, 3 to 5, 8.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=2, separator="space"))
    >>> data = heads(pipeline.model, pipeline.design.intervention())
    >>> dict(data["attention"].sizes)
    {'prompt': 4, 'layer': 4, 'head': 8, 'demonstration': 4}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from towerlab.measure.observations import Tensors, captured_answers, observations, read_prompts
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model.capture import Capture, label_values, logit_difference_rows, own_label_sign
from towerlab.model.increase import increases_along
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts

KINDS = ["attention", "FFN"]
SUMS = ("attention_true", "attention_other")
"""Variables of `attention_sums`"""
STATES = ("resid_pre", "z", "ffn", "scale", "words")
"""Arguments of `increases_along` that one pass gives"""


def heads(model: Model, encoded: Prompts) -> xr.Dataset:
    """Compute the attention and the output of every head at the last position.

    All values are from one forward pass, with the final norm frozen.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.

    Returns:
        Dataset of the model's answers (prompt), and of these variables.

        - `attention` (prompt, layer, head, demonstration). Attention on every label. Its logarithm
          is the score before the softmax (nats), except for a constant of the prompt and head, so
          scores are compared by it.
        - `ov_logit_difference` (prompt, layer, head). Logit of a label's own token minus that of
          the other label in the value-output vector of its position, mean over label positions
          (nats). Above zero, the head would write the label at that position.
        - `written_logit_difference` (prompt, layer, head). The same logit difference with each
          position weighted by its attention, `sum alpha ov` (nats): the amount that the head writes
          of the labels that it attends to, right or wrong.
        - `attribution` (prompt, layer, head). Logit of the true label minus the other label in the
          head's output from all label positions, `sum alpha vo` (nats). It equals the difference of
          the paper's increases.
        - `block_logit_difference` (prompt, layer, kind). Addition of an attention or FFN block to
          the logit of the true label minus the other label (nats).
    """
    read = partial(_values_of_heads, model)
    max_tokens = tokens_at_once(model)
    arrays = read_prompts("heads", model, encoded, {"weights", "values"}, read, max_tokens)
    return observations("heads", encoded, arrays, kind=KINDS)


def _values_of_heads(model: Model, capture: Capture) -> Tensors:
    """Return the variables of `heads` for a batch."""
    attention = label_attention(capture)
    differences = ov_logit_differences(capture, model)
    written = attention.to(differences) * differences
    signs = own_label_sign(capture, differences)[:, None, None]
    towards_true = written * signs
    outputs = torch.stack([capture.attention_output, capture.ffn_output], -1)
    rows = logit_difference_rows(capture, model)
    of_blocks = torch.einsum("lbdk,bd->blk", outputs.to(rows), rows)
    return {
        "attention": attention.float(),
        "ov_logit_difference": differences.mean(-1),
        "written_logit_difference": written.sum(-1),
        "attribution": towards_true.sum(-1),
        "block_logit_difference": of_blocks,
        **captured_answers(capture),
    }


def tokens_at_once(model: Model) -> int:
    """Return the maximum number of tokens of a batch that keeps much of each prompt's run.

    Args:
        model: Any model.
    """
    return 512 if model.device.type == "cpu" else 16_384


def ov_logit_differences(
    capture: Capture, model: Model
) -> Float[Tensor, "batch layer head demonstration"]:
    """Return the logit difference of each label in the value-output vector of its position.

    The difference is the logit of the position's own label minus that of the other label.

    Args:
        capture: Values of a batch, with "values".
        model: Model of the capture.

    Returns:
        Logit differences (nats; batch, layer, head, demonstration).
    """
    rows = logit_difference_rows(capture, model)
    own = own_label_sign(capture, rows)
    layers = []
    for layer in range(model.n_layers):
        weight = model.output_weight(layer).to(rows)
        # Linear in the vector, so the rows go through W_O once for all positions.
        through = torch.einsum("bd,hkd->bhk", rows, weight)
        values = label_values(capture, model, layer).to(rows)
        differences = torch.einsum("bhpk,bhk,bp->bhp", values, through, own)
        layers.append(differences)
    return torch.stack(layers, 1)


def label_attention(capture: Capture) -> Float[Tensor, "batch layer head demonstration"]:
    """Return the attention of the last position on every label position.

    Args:
        capture: Values of a batch, with "weights".

    Returns:
        Weights (batch, layer, head, demonstration).
    """
    positions = capture.label_positions[None, :, None]
    at_labels = capture.weights.take_along_dim(positions, 3)
    return at_labels.transpose(0, 1)


def attention_sums(capture: Capture) -> Tensors:
    """Return the attention of the last position on all true and on all other labels.

    Args:
        capture: Values of a batch, with "weights".

    Returns:
        SUMS (batch, layer, head).
    """
    weights = label_attention(capture).float()
    is_true = own_label_sign(capture, weights)[:, None, None] > 0
    on_true = weights * is_true
    on_other = weights * ~is_true
    sums = on_true.sum(-1), on_other.sum(-1)
    return dict(zip(SUMS, sums, strict=True))


def increases(model: Model, encoded: Prompts, norm: str = "frozen") -> xr.Dataset:
    """Compute the paper's increase of log p(true label) by every head and block.

    Source: v1 section 3.1, appendix E. Cost: one forward pass, and one pass over the vocabulary for
    all prompts.

    Args:
        model: Any model.
        encoded: Prompts.
        norm: Reading of the final norm, one of `unembed.NORMS`.

    Returns:
        Dataset of `increase` (prompt, layer, head), and of `block_increase` (prompt, layer, kind)
        of attention and FFN blocks (v1 figure 2), in nats.
    """
    read = partial(read_states, model)
    arrays = read_prompts("increases", model, encoded, (), read, tokens_at_once(model))
    return increases_from(model, encoded, arrays, norm)


def read_heads(model: Model, encoded: Prompts) -> dict[str, np.ndarray]:
    """Return the variables of `heads`, and what `increases` needs, from the same passes.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.

    Returns:
        Variables of `heads` and STATES, over (prompt, ...).
    """

    def read(capture: Capture) -> Tensors:
        values = _values_of_heads(model, capture)
        states = read_states(model, capture)
        return values | states

    max_tokens = tokens_at_once(model)
    return read_prompts("heads", model, encoded, {"weights", "values"}, read, max_tokens)


def heads_from(encoded: Prompts, arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return the dataset of `heads`.

    Args:
        encoded: Prompts.
        arrays: Result of `read_heads`.
    """
    values = {name: array for name, array in arrays.items() if name not in STATES}
    return observations("heads", encoded, values, kind=KINDS)


def heads_and_increases(
    model: Model, encoded: Prompts, arrays: Mapping[str, np.ndarray] | None = None
) -> xr.Dataset:
    """Compute `heads` and `increases` from the same forward passes.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        arrays: Result of `read_heads`, or None to run the prompts.

    Returns:
        Dataset of the variables of both.
    """
    if arrays is None:
        arrays = read_heads(model, encoded)
    increases_of_heads = increases_from(model, encoded, arrays)
    return heads_from(encoded, arrays).assign(increases_of_heads)


def read_states(model: Model, capture: Capture) -> Tensors:
    """Return STATES of a batch, over (batch, ...).

    Args:
        model: Model of the capture.
        capture: Values of a batch.
    """
    states = (
        capture.resid_pre.transpose(0, 1),
        capture.z.transpose(0, 1),
        capture.ffn_output.transpose(0, 1),
        model.unembedding.norm.scale(capture.resid_final),
        capture.true_ids,
    )
    return dict(zip(STATES, states, strict=True))


def increases_from(
    model: Model, encoded: Prompts, arrays: Mapping[str, np.ndarray], norm: str = "frozen"
) -> xr.Dataset:
    """Return the dataset of `increases`, without a forward pass.

    Args:
        model: Any model.
        encoded: Prompts.
        arrays: STATES of the prompts. Other arrays are not used.
        norm: Reading of the final norm, one of `unembed.NORMS`.
    """
    tensors = {}
    for name in STATES:
        tensor = torch.from_numpy(arrays[name]).to(model.device)
        is_of_prompts = name in ("scale", "words")
        tensors[name] = tensor if is_of_prompts else tensor.transpose(0, 1)
    attention, ffn, heads = increases_along(model, **tensors, norm=norm)
    blocks = torch.stack([attention, ffn], -1)
    increase = {"increase": heads.cpu(), "block_increase": blocks.cpu()}
    return observations("paper", encoded, increase, kind=KINDS)


def selection_runs(pipeline: Pipeline) -> Mapping[str, np.ndarray] | None:
    """Return `read_heads` of the selection blocks, if the choice of the template has run them.

    Args:
        pipeline: Pipeline of the model.
    """
    if "selection runs" not in pipeline.shared:
        return None
    template, arrays = pipeline.shared["selection runs"]
    is_chosen = template == pipeline.design.template
    return arrays if is_chosen else None


def recipe_selection(pipeline: Pipeline) -> Recipe | xr.Dataset:
    """Measure every head on the selection blocks, from which the sets of heads are chosen.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement, or the measurement if other recipes have run its prompts.
    """
    if "selection" in pipeline.shared:
        return pipeline.shared.pop("selection")
    encoded = pipeline.design.selection()
    if (arrays := selection_runs(pipeline)) is not None:
        return heads_from(encoded, arrays)
    return Recipe(heads, encoded)


def recipe_heads(pipeline: Pipeline) -> Recipe:
    """Measure attention and logit differences of every head on the evaluation blocks.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    return Recipe(heads, pipeline.design.evaluation())


def recipe_increases(pipeline: Pipeline) -> Recipe:
    """Measure the paper's increase of every head and block on the evaluation blocks.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    return Recipe(increases, pipeline.design.evaluation())


def recipe_selection_increases(pipeline: Pipeline) -> xr.Dataset:
    """Measure the paper's increase of every head on the selection blocks.

    The same passes give the measurement "selection".

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    encoded = pipeline.design.selection()
    if (arrays := selection_runs(pipeline)) is not None:
        data = heads_and_increases(pipeline.model, encoded, arrays)
    else:
        data = pipeline.run("selection_increases", Recipe(heads_and_increases, encoded))
    pipeline.shared["selection"] = data
    return data


def recipe_recomputed_increases(pipeline: Pipeline) -> Recipe | xr.Dataset:
    """Measure the increase of every head on the selection blocks, with a recomputed final norm.

    The scale of the final norm is recomputed for each vector.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement, or the measurement if the choice of the template has run its
        prompts.
    """
    encoded = pipeline.design.selection()
    if (arrays := selection_runs(pipeline)) is not None:
        return increases_from(pipeline.model, encoded, arrays, "recomputed")
    return Recipe(increases, encoded, ("recomputed",))


RECIPES = {
    "selection": recipe_selection,
    "heads": recipe_heads,
    "increases": recipe_increases,
    "selection_increases": recipe_selection_increases,
    "recomputed_increases": recipe_recomputed_increases,
}
"""Measurement -> function of a pipeline that makes it"""
