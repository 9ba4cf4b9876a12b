"""Which way what some heads send reaches the answer: by the output, by later queries, by MLPs.

    versions = [(Senders(heads, z), Route(output=True, queries=False, mlps=False)), ...]
    final = routed(last, versions)                # (version, batch, d_model): what the final norm is given

Senders feed other z to W_O at the last position. What that changes in their layers' attention outputs is their
*message*. A route says which readers of the residual stream are given the message: the final norm (*output*), the
attention of later layers (*queries*: the last position's query, with its own key and value, which are read from the
same vector), and MLPs. Readers to which a route is closed are given the stream without the message, but with everything
that others have made of it: first hops are cut, and all that comes after them responds. With every route open this is the
plain edit, with none it is the plain run.

Under a norm after W_O (Gemma 2 and 3, OLMo 2) the message is what the senders change in the plain run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from twotowers.heads import Heads

from towerlab.model import query_key
from towerlab.model.hooks import split_call
from towerlab.model.last_position import Edit, LastPosition
from towerlab.model.memory import halved
from towerlab.model.model import Model
from towerlab.model.unembed import capped
from towerlab.prompts.prompt import Encoded

Outputs = Mapping[int, Float[Tensor, "batch head d_head"]]
"""Layer -> what all its heads feed to W_O at the last position"""


class Senders(NamedTuple):
    """Heads (at least one), and what they feed to W_O at the last position; z of other heads is not used."""

    heads: Heads
    z: Outputs

    def edit(self) -> Edit:
        return Edit(self.heads, lambda layer, heads, state: self.z[layer][:, heads])


class Route(NamedTuple):
    """Which readers are given the message."""

    output: bool
    queries: bool
    mlps: bool


def attention_block_output(model: Model, layer: int, z: Float[Tensor, "*rows head d_head"]) -> Float[Tensor, "*rows d_model"]:
    """What an attention block adds to the residual stream when its heads feed z to W_O."""
    output, norm = model.part(layer, "attention_out")(z.flatten(-2)), model.norm_after(layer, "attention")
    return output if norm is None else norm(output)


def message(last: LastPosition, senders: Senders, layer: int) -> Float[Tensor, "batch d_model"]:
    """What the senders of one layer change in its attention block's output, all else as in the plain run."""
    z = last.plain[layer].z.clone()
    heads = [head for at, head in senders.heads if at == layer]
    z[:, heads] = senders.z[layer][:, heads].to(z)
    return attention_block_output(last.model, layer, z) - attention_block_output(last.model, layer, last.plain[layer].z)


@torch.inference_mode()
def routed(
    last: LastPosition, versions: Sequence[tuple[Senders, Route]], max_rows: int = 1024
) -> Float[Tensor, "version batch d_model"]:
    """What the final norm is given at the last position in each version. Memory: `max_rows` rows at a time."""
    out: Tensor = last.plain[0].x.new_empty(len(versions), *last.plain[0].x.shape)
    order = sorted(range(len(versions)), key=lambda i: versions[i][0].edit().first_layer)
    size = max(1, max_rows // len(last.batch))
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    for chunk, final in halved(lambda chunk: _route(last, [versions[i] for i in chunk]), chunks):
        out[chunk] = final.to(out)
    return out


def _route(last: LastPosition, versions: Sequence[tuple[Senders, Route]]) -> Float[Tensor, "version batch d_model"]:
    """Of versions sorted by their first layer."""
    edits = [senders.edit() for senders, _ in versions]
    closed = ~torch.tensor([route for _, route in versions])
    bottom, width = edits[0].first_layer, last.model.d_model
    rows = messages = last.plain[bottom].x[:, None][:, :0]
    for layer in range(bottom, last.model.n_layers):
        x = last.plain[layer].x
        begin = sum(edit.first_layer == layer for edit in edits)
        rows = torch.cat([rows.to(x.device), x[:, None].expand(-1, begin, -1)], 1)
        messages = torch.cat([messages.to(x.device), x.new_zeros(len(x), begin, width)], 1)  # messages of the layers below
        n = rows.shape[1]
        pairs, nothing = zip(versions[:n], edits, strict=False), torch.zeros_like(x)
        parts = [message(last, senders, layer) if edit.heads_of(layer) else nothing for (senders, _), edit in pairs]
        here = torch.stack(parts, 1)
        with _hiding(last.model, layer, rows, messages, here, closed[:n].to(x.device)):
            rows = last.block(layer, rows, edits[:n])
        messages = messages + here.to(messages)
    return (rows - messages * closed[:, :1].to(rows)).transpose(0, 1)


@contextmanager
def _hiding(
    model: Model,
    layer: int,
    x: Float[Tensor, "batch row d_model"],
    below: Float[Tensor, "batch row d_model"],
    here: Float[Tensor, "batch row d_model"],
    closed: Bool[Tensor, "row route"],
) -> Iterator[None]:
    """One block, given x, whose attention and MLP read what they are given without the messages of closed routes."""
    below_queries = below * closed[:, 1:2].to(x)
    below_mlps = (below if model.parallel else below + here) * closed[:, 2:3].to(x)
    middle = [x]

    def attention(_, args, kwargs):
        states, args, kwargs = split_call(args, kwargs)
        return (query_key.normed(model, layer, x - below_queries).to(states), *args), kwargs

    def keep_middle(_, args, output) -> None:
        middle[0] = x + output

    def mlp(_, args):
        state = (x if model.parallel else middle[0]) - below_mlps
        if model.architecture.ffn_norm:
            state = query_key.through_norm(model.part(layer, "ffn_norm"), state)
        return (state.reshape(args[0].shape).to(args[0]), *args[1:])  # some flatten batch and position before their FFN

    with ExitStack() as stack:
        if below_queries.any():
            stack.enter_context(model.part(layer, "attention").register_forward_pre_hook(attention, with_kwargs=True))
        if below_mlps.any():
            stack.enter_context(model.part(layer, "attention_block").register_forward_hook(keep_middle))
            for path in model.architecture.ffn_in:
                stack.enter_context(model.part(layer, path).register_forward_pre_hook(mlp))
        yield


def logit_differences(
    model: Model, final: Float[Tensor, "*versions batch d_model"], batch: Sequence[Encoded]
) -> Float[Tensor, "*versions batch"]:
    """Logit of the true label minus that of the other (nats), from final residual streams: the norm's scale recomputed.

    Only these two words are unembedded.
    """
    unembedding = model.unembedding
    true, other = torch.tensor([e.label_pair for e in batch], device=unembedding.weight.device).T
    normed = model.final_norm(final.to(next(model.final_norm.parameters()).device)).to(unembedding.weight.device)

    def logit(word: Tensor) -> Tensor:
        product = torch.einsum("...bd,bd->...b", normed, unembedding.weight[word])
        return capped(product if unembedding.bias is None else product + unembedding.bias[word], unembedding.softcap)

    wide = torch.promote_types(normed.dtype, torch.float32)
    return logit(true).to(wide) - logit(other).to(wide)
