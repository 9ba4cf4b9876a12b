"""How much of what some heads do goes through the queries of others (path patching, Wang et al. 2022). Chapter 6.

    found = path_patching(model, encoded, comparers, {"writers": writers, "matched": others})
    found.log_prob_true.sel(variant=variant("writers", "direct"))          # (prompt,)
    found.attention.sel(path="direct", receiver="6-3")                     # (prompt, place)

Senders are ablated, receivers change their queries; both at the last position only. Over the variants:

- "none": the plain run;
- "senders ablated": all that comes after the senders responds, as in `ablations`;
- "writers, total": the writers' queries are those of the run with senders ablated. They differ by what the senders write
  and by what all heads and FFN blocks in between make of it;
- "writers, direct": the writers' queries differ only by what the senders themselves write. To the input of each
  writer's layer comes the change of the senders' attention blocks; all heads and FFN blocks in between stay as they were.

With these queries and the keys and values of the plain run, the receivers' outputs are `softmax(q k) v`; they take the
place of their own, and all that comes after the receivers responds. Receivers in the senders' layer or below keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from twotowers.heads import Head, check_inside
from twotowers.measure.ablations import NONE
from twotowers.measure.heads import check_labels_left
from twotowers.measure.observations import Answers, observations
from twotowers.model import query_key
from twotowers.model.ablated_runs import Ablation
from twotowers.model.attention_edits import last_position
from twotowers.model.attention_hooks import last_scores, reading_attention
from twotowers.model.capture import Capture, capture, label_log_probs
from twotowers.model.hooks import changing_z
from twotowers.model.memory import in_memory
from twotowers.model.model import Model
from twotowers.progress import progress
from twotowers.prompts.prompt import Encoded, batches

PATHS = ("total", "direct")
SENDERS_ABLATED = "senders ablated"

Queries = dict[int, Float[Tensor, "batch head d_head"]]
"""Layer -> queries of the last position, as the layer's attention is given them"""


def variant(receivers: str, path: str) -> str:
    """The variant in which a named set of receivers has the queries of a path of PATHS."""
    return f"{receivers}, {path}"


@torch.inference_mode()
def path_patching(
    model: Model,
    encoded: Sequence[Encoded],
    senders: Sequence[tuple[int, int]],
    receivers: Mapping[str, Sequence[tuple[int, int]]],
    replacement: Float[Tensor, "layer head d_head"] | None = None,
    answers_only: Sequence[str] = (),
    max_tokens: int = 2048,
) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says (variant, prompt): see the module.

    And `attention` (path, prompt, receiver, place): the weight of each receiver on each label, with its queries of the
    plain run ("none") and of each path; not for receivers named in `answers_only`. `replacement`: what senders feed to
    W_O when ablated, by default zero; their means are `mean_z(...)["last"]`. Cost: two plain runs, and one of the last
    position for every variant. Memory: keys and values of `max_tokens` tokens. Raises TwoTowersError on a head outside
    the model, and as `heads` on prompts.
    """
    check_labels_left(encoded)
    check_inside(
        [*senders, *(head for heads in receivers.values() for head in heads)], model.n_layers, model.n_heads, model.name
    )
    ablation = Ablation(frozenset(Head(*head) for head in senders), replacement)
    each = list(dict.fromkeys(Head(*h) for name, heads in receivers.items() if name not in answers_only for h in heads))
    layers = sorted({layer for heads in receivers.values() for layer, _ in heads})
    variants = [NONE, SENDERS_ABLATED, *(variant(name, path) for name in receivers for path in PATHS)]
    answers = Answers(encoded, len(variants))
    attention = np.empty((1 + len(PATHS), len(encoded), len(each), len(encoded[0].label_positions)), dtype=np.float32)

    def run(index: list[int], batch: list[Encoded]) -> None:
        def put(name: str, logits: Float[Tensor, "batch vocabulary"]) -> None:
            answers.put((variants.index(name),), index, *label_log_probs(logits, batch))

        with reading(model, layers) as plain:
            seen = capture(model, batch)
        put(NONE, seen.logits)
        run_last = last_position(model, batch)
        with changing_z(model, ablated_at_last(ablation)), reading(model, layers) as ablated:
            put(SENDERS_ABLATED, run_last())
        queries = {
            NONE: {layer: plain[layer].query for layer in layers},
            "total": {layer: ablated[layer].query for layer in layers},
            "direct": direct_queries(model, seen, ablation, plain),
        }
        z = {}
        for row, (path, of_layer) in enumerate(queries.items()):
            attended = {layer: attend(plain[layer], query) for layer, query in of_layer.items()}
            z[path] = {layer: output for layer, (_, output) in attended.items()}
            for i, (layer, head) in enumerate(each):
                weights = attended[layer][0][:, head].to(seen.label_positions.device)
                attention[row, index, i] = weights.gather(1, seen.label_positions).float().cpu().numpy()
        for name, heads in receivers.items():
            for path in PATHS:
                with changing_z(model, replaced_at_last(heads, z[path])):
                    put(variant(name, path), run_last())

    with progress("path patching", len(encoded)) as bar:
        for index, _ in in_memory(run, batches(encoded, max_tokens)):
            bar.update(len(index))
    return observations(
        encoded,
        {**answers.variables("variant"), "attention": (("path", "prompt", "receiver", "place"), attention, "share")},
        variant=variants, path=[NONE, *PATHS], receiver=[str(head) for head in each],
    )  # fmt: skip


class Attention(NamedTuple):
    """What one layer's attention was given: queries of the last position, keys and values of all, after any rotation."""

    query: Float[Tensor, "batch head d_head"]
    key: Float[Tensor, "batch kv_head position d_head"]
    value: Float[Tensor, "batch kv_head position d_head"]
    mask: Tensor | None
    scaling: float
    softcap: float | None


@contextmanager
def reading(model: Model, layers: Sequence[int]) -> Iterator[dict[int, Attention]]:
    """Layer -> what its attention is given in the run inside."""
    seen: dict[int, Attention] = {}

    def reader(layer: int) -> Callable:
        def read(query, key, value, mask, scaling, softcap):
            seen[layer] = Attention(query[:, :, -1].clone(), key.clone(), value.clone(), mask, scaling, softcap)

        return read

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(reading_attention(model, layer, reader(layer)))
        yield seen


def attend(
    plain: Attention, query: Float[Tensor, "batch head d_head"]
) -> tuple[Float[Tensor, "batch head position"], Float[Tensor, "batch head d_head"]]:
    """Weights and outputs of all heads of a layer with other queries at the last position."""
    weights = last_scores(query[:, :, None], plain.key, plain.mask, plain.scaling, plain.softcap).softmax(-1)
    value = plain.value.repeat_interleave(query.shape[1] // plain.value.shape[1], dim=1)
    return weights, torch.einsum("bhp,bhpd->bhd", weights.to(value), value)


def direct_queries(model: Model, seen: Capture, ablation: Ablation, plain: Mapping[int, Attention]) -> Queries:
    """Queries of the last position when the layer's input lacks only what the ablated heads themselves wrote."""
    change = {}
    for at in {at for at, _ in ablation.heads}:
        before = seen.attention_out_input[at]
        after = before.clone()
        ablation.apply(at, after)
        change[at] = attention_block_output(model, at, after) - attention_block_output(model, at, before)
    out, last = {}, torch.tensor(len(seen.prompts[0].ids) - 1)
    for layer, attention in plain.items():
        x = seen.resid_pre[layer] + sum(written for at, written in change.items() if at < layer)
        query = query_key.queries(model, layer, query_key.normed(model, layer, x))
        out[layer] = query_key.rotated(model, layer, query, last).to(attention.query) / attention.scaling
    return out


def attention_block_output(
    model: Model, layer: int, z: Float[Tensor, "batch head d_head"]
) -> Float[Tensor, "batch d_model"]:
    """What an attention block adds to the residual stream when its heads feed z to W_O."""
    written, norm = model.part(layer, "attention_out")(z.flatten(1)), model.norm_after(layer, "attention")
    return (written if norm is None else norm(written)).to(z.device)


def ablated_at_last(ablation: Ablation) -> dict[int, Callable]:
    """Changes of z (`model.hooks.changing_z`) that ablate heads at the last position."""

    def change(layer: int, z: Float[Tensor, "batch position head d_head"]) -> None:
        ablation.apply(layer, z[:, -1])

    return {layer: partial(change, layer) for layer, _ in ablation.heads}


def replaced_at_last(heads: Sequence[tuple[int, int]], z: Mapping[int, Tensor]) -> dict[int, Callable]:
    """Changes of z that give heads the outputs z[layer] (batch, head, d_head) at the last position."""

    def change(layer: int, own: Float[Tensor, "batch position head d_head"]) -> None:
        for head in (head for at, head in heads if at == layer):
            own[:, -1, head] = z[layer][:, head].to(own)

    return {layer: partial(change, layer) for layer, _ in heads}
