"""A slow, obvious implementation of every increase, kept to hold the fast one against.

Straight from the definitions, one vector at a time, on the model's own tensors by output_hidden_states and plain
module calls: no capture, no factoring, no streaming.
"""

import unittest.mock

import torch
from twotowers.architectures import Model


def log_prob(model: Model, v, word, norm, scale):
    e = model.unembedding
    if norm != "raw":
        centred = v - v.mean() if e.centred else v
        s = (centred.square().mean() + e.eps).sqrt() if norm == "recomputed" else scale
        v = e.gamma * centred / s
    return torch.log_softmax(e.weight @ v, -1)[word]


class Reference:
    """Everything the last position of one prompt is made of, by hand."""

    def __init__(self, model: Model, ids):
        self.model = model
        seen = {}
        handles = []
        for layer in range(model.n_layers):
            parts = {"attention_in": "attention_norm", "attention": "attention_block", "ffn": "ffn_block"}
            for name, path in parts.items():
                module = model.part(layer, path)
                handles.append(
                    module.register_forward_hook(lambda m, a, out, key=(name, layer): seen.__setitem__(key, out))
                )
            handles.append(
                model.part(layer, "ffn_out").register_forward_pre_hook(
                    lambda m, args, key=("coefficients", layer): seen.__setitem__(key, args[0])
                )
            )
        implementation = model.hf.config._attn_implementation
        model.hf.set_attn_implementation("eager")
        # Some eager attentions take their softmax in float32; the reference stays in the model's own dtype.
        wide = unittest.mock.patch("torch.nn.functional.softmax", lambda x, dim=-1, dtype=None: torch.softmax(x, dim))
        try:
            wide.start()
            out = model.hf(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, use_cache=False)
        finally:
            wide.stop()
            model.hf.set_attn_implementation(implementation)
            for handle in handles:
                handle.remove()
        self.attentions = [a[0, :, -1] for a in out.attentions]  # per layer (head, position)
        self.layer_input = [h[0, -1] for h in out.hidden_states[: model.n_layers]]
        self.attention = [seen["attention", i][0, -1] for i in range(model.n_layers)]
        self.ffn = [seen["ffn", i].reshape(-1, model.d_model)[-1] for i in range(model.n_layers)]
        self.normed = [seen["attention_in", i][0] for i in range(model.n_layers)]  # (position, d_model)
        self.coefficients = [seen["coefficients", i].reshape(len(ids), -1)[-1] for i in range(model.n_layers)]
        self.final = self.layer_input[-1] + self.attention[-1] + self.ffn[-1]
        e = model.unembedding
        centred = self.final - self.final.mean() if e.centred else self.final
        self.scale = (centred.square().mean() + e.eps).sqrt()

    def value_output(self, layer, head, position):
        """vo: W_O^h (W_V^h norm(x) + b_V), weights taken straight from the modules."""
        model, attention = self.model, self.model.part(layer, "attention")
        d = model.d_head
        x = self.normed[layer][position]
        if hasattr(attention, "c_attn"):
            value = attention.c_attn(x)[2 * model.d_model :][head * d : (head + 1) * d]
            return value @ attention.c_proj.weight[head * d : (head + 1) * d]
        group = head * model.n_key_value_heads // model.n_heads
        value = attention.v_proj(x)[group * d : (group + 1) * d]
        out = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
        return out.weight[:, head * d : (head + 1) * d] @ value

    def position(self, layer, head, position):
        return self.attentions[layer][head, position] * self.value_output(layer, head, position)

    def head(self, layer, head):
        return sum(self.position(layer, head, p) for p in range(self.attentions[layer].shape[-1]))

    def neuron(self, layer, neuron):
        return self.coefficients[layer][neuron] * self.model.ffn_weight(layer)[neuron]

    def increase(self, x, v, word, norm):
        before = log_prob(self.model, x, word, norm, self.scale)
        return float(log_prob(self.model, x + v, word, norm, self.scale) - before)
