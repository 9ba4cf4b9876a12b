"""Every head of the model, one observation a prompt: where it looks, what it writes, and the
paper's increase. Chapters 1, 3 to 5, 8.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(model="mini-gpt2", blocks=1, k=2, separator="space"))
    >>> data = heads(pipeline.model, pipeline.design.intervention())
    >>> dict(data["attention"].sizes)
    {'prompt': 4, 'layer': 4, 'head': 8, 'place': 4}
"""

from __future__ import annotations

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from towerlab.measure.observations import Tensors, answers_in, observations, read_prompts
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values, logit_difference_rows, own_label_sign
from towerlab.model.increase import increases_along
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts

KINDS = ("attention", "FFN")


def heads(model: Model, encoded: Prompts) -> xr.Dataset:
    """What every head does at the last position, from one forward pass; the final norm is frozen.

    Args:
        encoded: prompts with as many demonstrations each.

    Returns:
        `attention` (prompt, layer, head, place): attention on every label. Its logarithm is the
            score before the softmax (nats) but for a constant of the prompt and head, so scores are
            compared by it.
        `reading` (prompt, layer, head): logit of a label's own token minus that of the other label
            in the value-output vector of its position, mean over label positions (nats). Above zero
            the head would write the label that stands there.
        `writing` (prompt, layer, head): the same with each position weighted by its attention, `sum
            alpha reading` (nats): how much the head writes of whatever labels it looks at, right or
            wrong.
        `contribution` (prompt, layer, head): logit of the true label minus the other in what the
            head writes from all label positions, `sum alpha vo` (nats). It equals the difference of
            the paper's increases.
        `block_logit_difference` (prompt, layer, kind): what an attention or FFN block adds to the
            logit of the true label minus the other (nats). And the model's answers (prompt,).
    """

    def read(capture: Capture) -> Tensors:
        attention, readings = at_labels(capture, capture.weights), label_readings(capture, model)
        written = attention.to(readings) * readings
        outputs = torch.stack([capture.attention_output, capture.ffn_output], -1)
        rows = logit_difference_rows(capture, model)
        return {
            "attention": attention.float(),
            "reading": readings.mean(-1),
            "writing": written.sum(-1),
            "contribution": (written * own_label_sign(capture, readings)[:, None, None]).sum(-1),
            "block_logit_difference": torch.einsum("lbdk,bd->blk", outputs.to(rows), rows),
            **answers_in(capture),
        }

    record = {"weights", "values"}
    arrays = read_prompts("heads", model, encoded, record, read, tokens_at_once(model))
    return observations("heads", encoded, arrays, kind=list(KINDS))


def tokens_at_once(model: Model) -> int:
    """Where each prompt is run once, and much of it is kept."""
    return 512 if model.device.type == "cpu" else 16_384


def label_readings(capture: Capture, model: Model) -> Float[Tensor, "batch layer head place"]:
    """Logit of each label position's own label minus the other label's, in its value-output vector
    (nats).
    """
    rows, out = logit_difference_rows(capture, model), []
    own = own_label_sign(capture, rows)
    for layer in range(model.n_layers):
        # Linear in the vector, so the rows go through W_O once for all positions.
        through = torch.einsum("bd,hkd->bhk", rows, model.output_weight(layer).to(rows))
        values = label_values(capture, model, layer).to(rows)
        out.append(torch.einsum("bhpk,bhk,bp->bhp", values, through, own))
    return torch.stack(out, 1)


def at_labels(
    capture: Capture, x: Float[Tensor, "layer batch head position"]
) -> Float[Tensor, "batch layer head place"]:
    """Weights or scores of the last position, on every label position."""
    return x.take_along_dim(capture.label_positions[None, :, None], 3).transpose(0, 1)


def _locating(pipeline: Pipeline) -> Recipe:
    """Every head on the locating blocks: what the sets of heads are chosen from."""
    return Recipe(heads, pipeline.design.selection())


def _heads(pipeline: Pipeline) -> Recipe:
    """Every head on the blocks that judge: where it looks, what it reads and writes."""
    return Recipe(heads, pipeline.design.evaluation())


def increases(model: Model, encoded: Prompts, norm: str = "frozen") -> xr.Dataset:
    """The paper's measure: by how much every head and block raises log p(true label) (v1 section
    3.1, appendix E).

    One forward pass, and one walk over the vocabulary for all prompts.

    Args:
        norm: how the final norm is read, one of `unembed.NORMS`.

    Returns:
        `increase` (prompt, layer, head), and `block_increase` (prompt, layer, kind) of attention
            and FFN blocks (v1 fig 2), in nats.
    """

    def read(capture: Capture) -> Tensors:
        by_layer = {"x": capture.resid_pre, "z": capture.z, "ffn": capture.ffn_output}
        return {name: x.transpose(0, 1) for name, x in by_layer.items()} | {
            "scale": unembed.norm_scale(capture.resid_final, model.unembedding),
            "words": capture.true_ids,
        }

    arrays = read_prompts("increases", model, encoded, (), read, tokens_at_once(model))

    x, z, ffn, scale, words = (torch.from_numpy(of).to(model.device) for of in arrays.values())
    x, z, ffn = (of.transpose(0, 1) for of in (x, z, ffn))
    attention, ffn, heads = increases_along(model, x, z, ffn, scale, words, norm)
    blocks = torch.stack([attention, ffn], -1)
    increase = {"increase": heads.cpu(), "block_increase": blocks.cpu()}
    return observations("paper", encoded, increase, kind=list(KINDS))


def _increases(pipeline: Pipeline) -> Recipe:
    """The paper's increase of every head and block on the blocks that judge."""
    return Recipe(increases, pipeline.design.evaluation())


def of_norms(model: Model, encoded: Prompts) -> xr.Dataset:
    """`increase` (norm, prompt, layer, head)."""
    each = [increases(model, encoded, norm)[["increase"]] for norm in unembed.NORMS]
    names = xr.Variable("norm", list(unembed.NORMS))
    return xr.concat(each, names, coords="minimal", compat="override")


def _norms(pipeline: Pipeline) -> Recipe:
    """The paper's increase of every head on the locating blocks, with the final norm frozen and
    recomputed for each vector."""
    return Recipe(of_norms, pipeline.design.selection())
