"""Which way what some heads send reaches the answer: by the output, by later queries, by MLPs.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> from towerlab.model.edits import zero
    >>> last, edit = LastPosition(model, batch), zero([(2, 0)])
    >>> routed(last, [(edit, Route(True, False, False)), (edit, Route(True, True, True))]).shape
    torch.Size([2, 2, 96])

An edit of the last position makes some heads feed other z to W_O. What that changes in their
layers' attention outputs is their *message*. A route says which readers of the residual stream are
given the message: the final norm (*output*), the attention of later layers (*queries*: the last
position's query, with its own key and value), and MLPs. Readers to which a route is closed are
given the stream without the message, but with everything that others have made of it: first hops
are cut, and all that comes after them responds. With every route open this is the plain edit, with
none it is the plain run. Under a norm after W_O (Gemma 2 and 3, OLMo 2) the message is what the
edit changes in the plain run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from towerlab.model import query_key
from towerlab.model.attention import split_call
from towerlab.model.edits import Edit
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model, widen
from towerlab.model.unembed import capped, final_normed
from towerlab.prompts.prompt import Encoded


class Route(NamedTuple):
    """Which readers are given the message."""

    output: bool
    queries: bool
    mlps: bool


def attention_block_output(
    model: Model, layer: int, z: Float[Tensor, "batch head row d_head"]
) -> Float[Tensor, "batch row d_model"]:
    """What an attention block adds to the residual stream when its heads feed z to W_O."""
    output = model.part(layer, "attention_out")(z.transpose(1, 2).flatten(-2))
    norm = model.norm_after(layer, "attention")
    return output if norm is None else norm(output)


def message(last: LastPosition, edit: Edit, layer: int) -> Float[Tensor, "batch 1 d_model"]:
    """What an edit of one layer changes in its attention block's output, all else as in the plain
    run."""
    plain = last.plain[layer]
    changed = plain._replace(z=plain.z.clone())
    edit.apply(layer, changed)
    return attention_block_output(last.model, layer, changed.z) - attention_block_output(
        last.model, layer, plain.z
    )


@torch.inference_mode()
def routed(
    last: LastPosition, versions: Sequence[tuple[Edit, Route]], max_rows: int = 1024
) -> Float[Tensor, "version batch d_model"]:
    """What the final norm is given at the last position in each version.

    Args:
        versions: edits of the last position, each with the readers that are given its message.
        max_rows: of prompts times versions at a time, which bounds the memory.
    """
    out: Tensor = last.plain[0].x.new_empty(len(versions), len(last.batch), last.model.d_model)
    begins = [edit.first_layer for edit, _ in versions]
    for chunk, final in last.in_chunks(
        begins, lambda chunk: _route(last, [versions[i] for i in chunk]), max_rows
    ):
        out[chunk] = final.to(out)
    return out


def _route(
    last: LastPosition, versions: Sequence[tuple[Edit, Route]]
) -> Float[Tensor, "version batch d_model"]:
    """Of versions sorted by their first layer."""
    edits = [edit for edit, _ in versions]
    closed = ~torch.tensor([route for _, route in versions])
    bottom = edits[0].first_layer
    rows = messages = last.plain[bottom].x[:, :0]
    for layer in range(bottom, last.model.n_layers):
        x = last.plain[layer].x
        begin = sum(edit.first_layer == layer for edit in edits)
        rows = torch.cat([rows.to(x.device), x.expand(-1, begin, -1)], 1)
        # of the layers below
        messages = torch.cat([messages.to(x.device), torch.zeros_like(x).expand(-1, begin, -1)], 1)
        begun = edits[: rows.shape[1]]
        here = torch.cat(
            [
                message(last, edit, layer) if edit.heads_of(layer) else torch.zeros_like(x)
                for edit in begun
            ],
            1,
        )
        with _hiding(last.model, layer, rows, messages, here, closed[: len(begun)].to(x.device)):
            rows = last.block(layer, rows, begun)
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
    """One block, given x, whose attention and MLP read what they are given without the messages of
    closed routes."""
    below_queries = below * closed[:, 1:2].to(x)
    below_mlps = (below if model.parallel else below + here) * closed[:, 2:3].to(x)
    middle = [x]

    def attention(_, args, kwargs):
        states, args, kwargs = split_call(args, kwargs)
        return (query_key.normed(model, layer, x - below_queries).to(states), *args), kwargs

    def keep_middle(_, args, output) -> None:
        if not model.parallel:
            middle[0] = x + output

    def mlp(_, args):
        state = middle[0] - below_mlps
        if model.architecture.ffn_norm:
            state = query_key.through_norm(model.part(layer, "ffn_norm"), state)
        # some flatten batch and position before their FFN
        return (state.reshape(args[0].shape).to(args[0]), *args[1:])

    with ExitStack() as stack:
        stack.enter_context(
            model.part(layer, "attention").register_forward_pre_hook(attention, with_kwargs=True)
        )
        stack.enter_context(model.part(layer, "attention_block").register_forward_hook(keep_middle))
        for path in model.architecture.ffn_in:
            stack.enter_context(model.part(layer, path).register_forward_pre_hook(mlp))
        yield


def logit_differences(
    model: Model, final: Float[Tensor, "*versions batch d_model"], batch: Sequence[Encoded]
) -> Float[Tensor, "*versions batch"]:
    """Logit of the true label minus that of the other (nats), from final residual streams: the
    norm's scale recomputed.

    Only these two words are unembedded.
    """
    unembedding = model.unembedding
    normed = final_normed(model, final)
    words = torch.tensor([e.label_pair for e in batch], device=model.device)
    rows = unembedding.weight[words].to(normed.dtype)
    logits = torch.einsum("...bd,bwd->...bw", normed, rows)
    logits = capped(
        logits if unembedding.bias is None else logits + unembedding.bias[words],
        unembedding.softcap,
    )
    true, other = widen(logits).unbind(-1)
    return true - other
