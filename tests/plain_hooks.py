"""Slow references for edits of heads: stock runs of one prompt with plain hooks, and attention by
its definition."""

from contextlib import ExitStack

import numpy as np
from towerlab.model.attention import reading_attention


def run(model, e, z=None, ffn=None):
    """A stock run of one prompt: its logits and their difference, and layer -> z, FFN output and
    arguments of attention.

    `z(layer, z, attention)` returns what W_O is fed instead, `ffn[layer]` is put in place of an FFN
    block's output.
    """
    plain = {"z": {}, "ffn": {}, "attention": {}}

    def read(layer, attention, _):
        plain["attention"][layer] = attention

    with ExitStack() as stack:
        stack.enter_context(reading_attention(model, range(model.n_layers), read))
        for layer in range(model.n_layers):

            def before(_, args, layer=layer):
                own = args[0].clone()
                plain["z"][layer] = own if z is None else z(layer, own, plain["attention"][layer])
                return (plain["z"][layer],)

            def after(_, args, output, layer=layer):
                plain["ffn"][layer] = output
                return None if ffn is None else ffn[layer]

            stack.callback(
                model.part(layer, "attention_out").register_forward_pre_hook(before).remove
            )
            stack.callback(model.part(layer, "ffn_block").register_forward_hook(after).remove)
        logits = model.logits([e])[0]
    true, other = e.label_pair_ids
    return plain | {"logits": logits, "difference": float(logits[true] - logits[other])}


def weights_of(model, attention, head, q, query=None, key=None):
    """Attention of position q, by its definition, from the arguments of a layer's attention; query
    and keys may be others'."""
    own_query, own_key, _, mask, scaling, softcap = attention
    query, key = own_query if query is None else query, own_key if key is None else key
    scores = key[0, model.value_head(head), : q + 1] @ query[0, head, q] * scaling
    return softmax(scores, softcap, mask[0, 0, q, : q + 1])


def softmax(scores, softcap, mask):
    """Weights of one row of scaled scores, of which the mask lets some be seen."""
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    return scores.masked_fill(~mask, -np.inf).softmax(-1)


def z_of(model, weights, value, head):
    return weights @ value[0, model.value_head(head), : len(weights)]


def put(model, heads, new, q=-1):
    """A change of z for `run`: some heads replaced, at a position or at a slice of them, by
    new[layer, head]."""

    def change(layer, z, _):
        for head in (h for at, h in heads if at == layer):
            z[0, q, head * model.d_head : (head + 1) * model.d_head] = new[layer, head]
        return z

    return change


def every_head(model):
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
