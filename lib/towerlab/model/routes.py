"""Routes of a head's message to the answer: by the output, by later queries, by MLPs.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> from towerlab.model.edits import zero_ablate
    >>> last, edit = LastPosition(model, batch), zero_ablate([(2, 0)])
    >>> routed(last, [(edit, Route(True, False, False)), (edit, Route(True, True, True))]).shape
    torch.Size([2, 2, 96])

An edit of the last position replaces z of some heads. The change in their layers' attention outputs
is their *message*. A route lists the readers of the residual stream that are given the message: the
final norm (*output*), the attention of later layers (*queries*: the last position's query, with its
own key and value), and MLPs.

Readers to which a route is closed are given the stream without the message, but with everything
that other readers have computed from it: first hops are cut, and everything after them responds.
With every route open this is the plain edit, and with no route open it is the plain run. Under a
norm after W_O (Gemma 2 and 3, OLMo 2) the message is the change by the edit in the plain run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from towerlab.model.attention import split_call
from towerlab.model.edits import Edit
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model


class Route(NamedTuple):
    """Readers of the residual stream that are given the message."""

    output: bool
    queries: bool
    mlps: bool


def message(last: LastPosition, edit: Edit, layer: int) -> Float[Tensor, "batch 1 d_model"]:
    """Return the change by an edit in the output of one layer's attention block.

    Everything else is as in the plain run.

    Args:
        last: Prompts, run once.
        edit: Edit of the last position.
        layer: Layer of the attention block.

    Returns:
        Changed output minus plain output (batch, 1, d_model).
    """
    plain = last.plain[layer]
    changed = plain._replace(z=plain.z.clone())
    edit.apply(layer, changed)
    linear = last.model.part(layer, "attention_out")
    norm = last.model.norm_after(layer, "attention") or torch.nn.Identity()

    def output(z: Tensor) -> Tensor:
        together = z.transpose(1, 2).flatten(-2)
        return norm(linear(together))

    return output(changed.z) - output(plain.z)


@torch.inference_mode()
def routed(
    last: LastPosition, versions: Sequence[tuple[Edit, Route]]
) -> Float[Tensor, "version batch d_model"]:
    """Return the input of the final norm at the last position in each version.

    Args:
        last: Prompts, run once.
        versions: Edits of the last position, each with the readers that are given its message.

    Returns:
        Final residual streams (version, batch, d_model), in the order of the versions.
    """
    first_layers = torch.tensor([edit.first_layer for edit, _ in versions])
    order = first_layers.argsort(stable=True)
    edits = [versions[i][0] for i in order]
    routes = [versions[i][1] for i in order]
    x = last.plain[0].x
    closed = ~torch.tensor(routes, device=x.device)
    messages = torch.zeros_like(x).repeat(1, len(edits), 1)  # of the layers below

    @contextmanager
    def around(layer: int, rows: Tensor) -> Iterator[None]:
        n = rows.shape[1]
        none = torch.zeros_like(rows[:, :1])
        sent_by_edit = [
            message(last, edit, layer) if edit.heads_of(layer) else none for edit in edits[:n]
        ]
        sent = torch.cat(sent_by_edit, 1)
        below = messages[:, :n].to(rows)
        read_by_mlps = below if last.model.parallel else below + sent
        is_closed = closed[:n].to(rows)
        from_queries = below * is_closed[:, 1:2]
        from_mlps = read_by_mlps * is_closed[:, 2:3]
        with _hiding(last.model, layer, rows, from_queries, from_mlps):
            yield
        messages[:, :n] += sent.to(messages)

    final = last.final(edits, around)
    to_output = closed[:, :1].to(messages)
    hidden = (messages * to_output).transpose(0, 1)
    visible = final - hidden.to(final)
    return visible[order.argsort()]


@contextmanager
def _hiding(
    model: Model,
    layer: int,
    x: Float[Tensor, "batch row d_model"],
    from_queries: Float[Tensor, "batch row d_model"],
    from_mlps: Float[Tensor, "batch row d_model"],
) -> Iterator[None]:
    """Run one block at x, whose attention and MLP read x without the messages of closed routes."""
    middle = [x]

    def attention(_, args, kwargs):
        states, args, kwargs = split_call(args, kwargs)
        normed = model.normed(layer, "attention", x - from_queries)
        return (normed.to(states), *args), kwargs

    def keep_middle(_, args, output) -> None:
        if not model.parallel:
            middle[0] = x + output

    def mlp(_, args):
        states, *others = args
        normed = model.normed(layer, "ffn", middle[0] - from_mlps)
        # Some models flatten batch and position before their FFN.
        normed = normed.reshape(states.shape)
        return (normed.to(states), *others)

    reader = model.part(layer, "attention")
    block = model.part(layer, "attention_block")
    with ExitStack() as stack:
        stack.enter_context(reader.register_forward_pre_hook(attention, with_kwargs=True))
        stack.enter_context(block.register_forward_hook(keep_middle))
        for path in model.architecture.ffn_in:
            linear = model.part(layer, path)
            stack.enter_context(linear.register_forward_pre_hook(mlp))
        yield
