"""Slow references for edits of heads: stock runs of one prompt with plain hooks, and attention by its definition."""

from contextlib import ExitStack

import numpy as np
import torch
from towerlab.model.attention_hooks import reading_attention


def run(model, e, z=None, ffn=None):
    """A stock run of one prompt: its logits and their difference, and layer -> z, FFN output and what attention was given.

    `z(layer, z, value)` returns what W_O is fed instead, `ffn[layer]` is put in place of an FFN block's output.
    """
    plain = {"z": {}, "ffn": {}, "attention": {}}
    with ExitStack() as stack:
        for layer in range(model.n_layers):

            def before(_, args, layer=layer):
                own = args[0].clone()
                plain["z"][layer] = own if z is None else z(layer, own, plain["attention"][layer][2][0])
                return (plain["z"][layer],)

            def after(_, args, output, layer=layer):
                plain["ffn"][layer] = output
                return None if ffn is None else ffn[layer]

            def read(*arguments, layer=layer):
                plain["attention"][layer] = arguments

            stack.callback(model.part(layer, "attention_out").register_forward_pre_hook(before).remove)
            stack.callback(model.part(layer, "ffn_block").register_forward_hook(after).remove)
            stack.enter_context(reading_attention(model, layer, read))
        logits = model.logits([e])[0]
    true, other = e.label_pair
    return plain | {"logits": logits, "difference": float(logits[true] - logits[other])}


def weights_of(model, plain, layer, head, q, query_of=None, key_of=None):
    """Attention of position q, by its definition, in a run of `run`; query and keys may be those of other runs."""
    query, key = ((of or plain)["attention"][layer][i] for i, of in ((0, query_of), (1, key_of)))
    _, _, _, mask, scaling, softcap = plain["attention"][layer]
    scores = key[0, model.value_head(head), : q + 1] @ query[0, head, q] * scaling
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    if mask is not None:
        row = mask[0, 0, q, : q + 1]
        scores = scores.masked_fill(~row, -np.inf) if row.dtype == torch.bool else scores + row
    return scores.softmax(-1)


def z_of(model, weights, value, head):
    return weights @ value[model.value_head(head), : len(weights)]


def put(model, heads, new, q=-1):
    """A change of z for `run`: some heads replaced at a position by new[layer, head]."""

    def change(layer, z, value):
        for head in (h for at, h in heads if at == layer):
            z[0, q, head * model.d_head : (head + 1) * model.d_head] = new[layer, head]
        return z

    return change


def every_head(model):
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
