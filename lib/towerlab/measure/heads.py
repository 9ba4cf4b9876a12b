"""Every head of the model, one observation a prompt: where it looks, what it writes. Chapters 1, 3 to 5, appendices.

    data = heads(model, encoded)          # one forward pass and one walk over the vocabulary

Variables, all at the last position, of the heads (layer, head):

- `attention` (prompt, layer, head, place): attention on every label. Its logarithm is the score before the softmax (nats) but
  for a constant of the prompt and head, so scores are compared by it;
- `reading` (prompt, layer, head): logit of a label's own token minus that of the other label in the value-output vector
  of its position, mean over label positions (nats). Above zero the head would write the label that stands there.
- `writing` (prompt, layer, head): the same with each position weighted by its attention, `sum alpha reading` (nats): how much
  the head writes of whatever labels it looks at, right or wrong;
- `contribution` (prompt, layer, head): logit of the true label minus the other in what the head writes from all label
  positions, `sum alpha vo` (nats): label-position logit difference. Equals the difference of the paper's increases.
- `increase` (prompt, layer, head): the paper's log-probability increase of the true label (v1 section 3.1, appendix E).

Of the blocks (layer, kind = attention or FFN): `block_increase` (v1 fig 2) and `block_logit_difference` (true minus other).
And the model's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.recording import Recording

from towerlab.measure.chain import Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.registry import measurement
from towerlab.model import unembed
from towerlab.model.capture import Capture, captures
from towerlab.model.increase import increases_along
from towerlab.model.label_positions import check_labels_left, label_values, logit_difference_rows, own_label_sign
from towerlab.model.memory import halved
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded

GROUP_BYTES = 320 << 20  # captures held for one walk over the vocabulary, or a sixteenth of the model if that is more
KINDS = ("attention", "FFN")


def heads(model: Model, encoded: Sequence[Encoded], norm: str = "frozen", max_tokens: int | None = None) -> xr.Dataset:
    """See the module. `norm`: how `increase` reads the final norm (`model.unembed`); all else is read frozen.

    Raises TwoTowersError for no prompts, prompts without a true and a false demonstration, and unequal numbers of them.
    """
    unembed.check_norm(norm)
    check_labels_left(encoded)
    n, layers, n_heads, places = len(encoded), model.n_layers, model.n_heads, len(encoded[0].label_positions)
    attention = np.empty((n, layers, n_heads, places), dtype=np.float32)
    reading, writing, contribution, increase = np.empty((4, n, layers, n_heads))
    block_increase, block_difference = np.empty((2, n, layers, 2))
    answers = Answers(encoded)

    def read(capture: Capture) -> Capture:
        """What needs no walk; the capture goes on without its largest parts."""
        at, index = capture.label_positions[:, None].expand(-1, n_heads, -1), capture.index
        for layer in range(layers):
            attention[index, layer] = capture.weights[layer].gather(2, at).float().cpu().numpy()
        readings = label_readings(capture, model)
        reading[index] = readings.mean(-1).cpu().numpy()
        at_labels = label_weights(capture, model).to(readings) * readings
        writing[index] = at_labels.sum(-1).cpu().numpy()
        contribution[index] = (at_labels * own_label_sign(capture, readings)[:, None, None]).sum(-1).cpu().numpy()
        block_difference[index] = block_logit_differences(capture, model).cpu().numpy()
        answers.read(capture)
        empty = capture.logits.new_empty(len(index), 0)
        return replace(capture, logits=empty, weights=None, values=None)

    def walk(group: list[Capture]) -> tuple[Tensor, Tensor, Tensor]:
        return increases_along(
            model,
            torch.cat([capture.resid_pre for capture in group], 1),
            torch.cat([capture.z for capture in group], 1)[:, :, :, None],
            torch.cat([capture.ffn_output for capture in group], 1),
            unembed.norm_scale(torch.cat([capture.resid_final for capture in group]), model.unembedding),
            torch.cat([capture.true_ids for capture in group]),
            norm,
            tell=tell,
        )

    so_far = 0.0

    def tell(prompts: float) -> None:
        """One forward pass and one walk over the vocabulary are half of a prompt's work each, more or less."""
        nonlocal so_far
        so_far += prompts / 2
        bar.update(min(round(so_far), n) - bar.n)  # a walk that memory broke off counts twice

    def counting(stream: Iterable[Capture]) -> Iterator[Capture]:
        for capture in stream:
            tell(len(capture.index))
            yield capture

    max_tokens = max_tokens or (512 if model.device.type == "cpu" else 16_384)
    stream = captures(model, encoded, {"weights", "values"}, max_tokens, read=read)
    with progress("heads", n) as bar:
        for group, (of_attention, of_ffn, of_heads) in halved(walk, groups(counting(stream), max(GROUP_BYTES, model.bytes // 16))):
            index = [i for capture in group for i in capture.index]
            increase[index] = of_heads[..., 0].cpu().numpy()
            block_increase[index] = torch.stack([of_attention, of_ffn], -1).cpu().numpy()
    each, at_places, blocks = ("prompt", "layer", "head"), ("prompt", "layer", "head", "place"), ("prompt", "layer", "kind")
    return observations(
        encoded,
        {
            "attention": (at_places, attention, "share"),
            "reading": (each, reading, "nats"),
            "writing": (each, writing, "nats"),
            "contribution": (each, contribution, "nats"),
            "increase": (each, increase, "nats"),
            "block_increase": (blocks, block_increase, "nats"),
            "block_logit_difference": (blocks, block_difference, "nats"),
            **answers.variables(),
        },
        kind=list(KINDS),
        norm=norm,
    )


def label_readings(capture: Capture, model: Model) -> Float[Tensor, "batch layer head place"]:
    """Logit of each label position's own label minus the other label's, in its value-output vector (nats)."""
    rows, out = logit_difference_rows(capture, model), []
    own = own_label_sign(capture, rows)
    for layer in range(model.n_layers):
        # Linear in the vector, so the rows go through W_O once for all positions.
        through = torch.einsum("bd,hkd->bhk", rows, model.output_weight(layer).to(rows))
        out.append(torch.einsum("bhpk,bhk->bhp", label_values(capture, model, layer).to(rows), through) * own[:, None])
    return torch.stack(out, 1)


def label_weights(capture: Capture, model: Model) -> Float[Tensor, "batch layer head place"]:
    """Attention of the last position on every label position."""
    at = capture.label_positions[None, :, None].expand(model.n_layers, -1, model.n_heads, -1)
    return capture.weights.gather(3, at).transpose(0, 1)


def block_logit_differences(capture: Capture, model: Model) -> Float[Tensor, "batch layer kind"]:
    """What every attention block and FFN block adds to the logit difference (nats)."""
    rows = logit_difference_rows(capture, model)
    outputs = torch.stack([capture.attention_output, capture.ffn_output], -1).to(rows)
    return torch.einsum("lbdk,bd->blk", outputs, rows)


def groups(stream: Iterable[Capture], limit: int) -> Iterator[list[Capture]]:
    """Captures of several batches together, so that one walk over the vocabulary serves many prompts."""
    group: list[Capture] = []
    group_bytes = 0
    for capture in stream:
        size = sum(t.numel() * t.element_size() for t in (capture.resid_pre, capture.z, capture.ffn_output))
        if group and group_bytes + size > limit:
            yield group
            group, group_bytes = [], 0
        group.append(capture)
        group_bytes += size
    if group:
        yield group


@measurement("locating", needs=("forms",), version=1, on="locate", passes=3)
def _locating(run: Run) -> Recording:
    """Every head on the locating blocks: what the sets of heads are chosen from."""
    return run.in_parts("locating", run.locating(), lambda some: heads(run.model, some))


@measurement("heads", needs=("forms",), version=1, on="blocks", passes=3)
def _heads(run: Run) -> Recording:
    """Every head on the blocks that judge: where it looks, what it reads and writes."""
    return run.in_parts("heads", run.judging(), lambda some: heads(run.model, some))


@measurement("norms", needs=("forms",), version=1, on="locate", passes=3)
def _norms(run: Run) -> Recording:
    """The paper's increase with the final norm recomputed for each vector, on the locating blocks."""
    return run.in_parts("norms", run.locating(), lambda some: heads(run.model, some, norm="recomputed")[["increase"]])
