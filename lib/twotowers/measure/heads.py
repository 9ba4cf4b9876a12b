"""Every head of the model, one observation a prompt: where it looks, what it writes. Chapters 1, 3 to 5, appendices.

    found = heads(model, encoded)          # one forward pass and one walk over the vocabulary

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

from twotowers.errors import TwoTowersError
from twotowers.measure.observations import Answers, observations
from twotowers.model import unembed
from twotowers.model.capture import Capture, captures
from twotowers.model.increase import increases_along
from twotowers.model.memory import halved
from twotowers.model.model import Model
from twotowers.progress import progress
from twotowers.prompts.prompt import Encoded

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

    def read(seen: Capture) -> Capture:
        """What needs no walk; the capture goes on without its largest parts."""
        at, index = seen.label_positions[:, None].expand(-1, n_heads, -1), seen.index
        for layer in range(layers):
            attention[index, layer] = seen.weights[layer].gather(2, at).float().cpu().numpy()
        readings = label_readings(seen, model)
        reading[index] = readings.mean(-1).cpu().numpy()
        written = label_weights(seen, model).to(readings) * readings
        writing[index] = written.sum(-1).cpu().numpy()
        contribution[index] = (written * own_label_sign(seen, readings)[:, None, None]).sum(-1).cpu().numpy()
        block_difference[index] = block_logit_differences(seen, model).cpu().numpy()
        answers.read(seen)
        empty = seen.logits.new_empty(len(index), 0)
        return replace(seen, logits=empty, weights=None, values=None)

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

    max_tokens = max_tokens or (512 if model.device.type == "cpu" else 16_384)
    stream = captures(model, encoded, {"weights", "values"}, max_tokens, read=read)
    with progress("heads", n) as bar:
        for group, (of_attention, of_ffn, of_heads) in halved(walked, groups(stream, max(GROUP_BYTES, model.bytes // 16))):
            index = [i for seen in group for i in seen.index]
            increase[index] = of_heads[..., 0].cpu().numpy()
            block_increase[index] = torch.stack([of_attention, of_ffn], -1).cpu().numpy()
            bar.update(len(index))
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


def check_labels_left(encoded: Sequence[Encoded]) -> None:
    """Raise TwoTowersError unless every prompt has both kinds of labels, and all have as many demonstrations."""
    if not encoded:
        raise TwoTowersError("no prompts to measure: draw at least one block")
    if any(len(set(e.prompt.is_true)) != 2 for e in encoded):
        raise TwoTowersError("a prompt lacks a true or a false demonstration: draw with k of at least 1")
    if len({len(e.label_positions) for e in encoded}) != 1:
        raise TwoTowersError("prompts with different numbers of demonstrations: measure them apart")


def logit_difference_rows(seen: Capture, model: Model) -> Float[Tensor, "batch d_model"]:
    """The true label's row of E minus the other's, the final norm's weight and centring folded in, divided by its scale
    at the last position: `row . v` is what a vector v adds to the logit difference (nats)."""
    e = model.unembedding
    wide = torch.promote_types(e.weight.dtype, torch.float32)
    ids = [(p.true_id, next(i for i in p.label_ids.values() if i != p.true_id)) for p in seen.prompts]
    true, other = torch.tensor(ids, device=e.weight.device).T
    rows = unembed.fold_norm(e, e.weight[true].to(wide) - e.weight[other].to(wide), "frozen", wide)
    return rows / unembed.norm_scale(seen.resid_final, e).to(wide)[:, None]


def label_values(seen: Capture, model: Model, layer: int) -> Float[Tensor, "batch head place d_head"]:
    """Every query head's value vector at every label position (grouped-query attention: shared ones repeated)."""
    at = seen.label_positions
    values = seen.values[layer].gather(2, at[:, None, :, None].expand(-1, seen.values.shape[2], -1, seen.values.shape[-1]))
    return values.repeat_interleave(model.n_heads // model.n_key_value_heads, dim=1)


def own_label_sign(seen: Capture, like: Tensor) -> Float[Tensor, "batch place"]:
    """+1 at the positions of the true label, -1 at those of the other."""
    return torch.tensor([[1.0 if true else -1.0 for true in p.prompt.is_true] for p in seen.prompts]).to(like)


def label_readings(seen: Capture, model: Model) -> Float[Tensor, "batch layer head place"]:
    """Logit of each label position's own label minus the other label's, in its value-output vector (nats)."""
    rows, out = logit_difference_rows(seen, model), []
    own = own_label_sign(seen, rows)
    for layer in range(model.n_layers):
        # Linear in the vector, so the rows go through W_O once for all positions.
        through = torch.einsum("bd,hkd->bhk", rows, model.output_weight(layer).to(rows))
        out.append(torch.einsum("bhpk,bhk->bhp", label_values(seen, model, layer).to(rows), through) * own[:, None])
    return torch.stack(out, 1)


def label_weights(seen: Capture, model: Model) -> Float[Tensor, "batch layer head place"]:
    """Attention of the last position on every label position."""
    at = seen.label_positions[None, :, None].expand(model.n_layers, -1, model.n_heads, -1)
    return seen.weights.gather(3, at).transpose(0, 1)


def block_logit_differences(seen: Capture, model: Model) -> Float[Tensor, "batch layer kind"]:
    """What every attention block and FFN block adds to the logit difference (nats)."""
    rows = logit_difference_rows(seen, model)
    written = torch.stack([seen.attention_output, seen.ffn_output], -1).to(rows)
    return torch.einsum("lbdk,bd->blk", written, rows)


def groups(stream: Iterable[Capture], limit: int) -> Iterator[list[Capture]]:
    """Captures of several batches together, so that one walk over the vocabulary serves many prompts."""
    group: list[Capture] = []
    held = 0
    for seen in stream:
        size = sum(t.numel() * t.element_size() for t in (seen.resid_pre, seen.z, seen.ffn_output))
        if group and held + size > limit:
            yield group
            group, held = [], 0
        group.append(seen)
        held += size
    if group:
        yield group
