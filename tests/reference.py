"""A slow, obvious implementation of every increase, kept to hold the fast one against.

Straight from the definitions, one vector at a time, on the model's own tensors by output_hidden_states and plain
module calls: no capture, no factoring, no streaming.
"""

import torch
from towerlab.model.model import Model


def log_prob(model: Model, v, word, norm, scale):
    unembedding = model.unembedding
    centred = v - v.mean() if unembedding.centred else v
    s = (centred.square().mean() + unembedding.eps).sqrt() if norm == "recomputed" else scale
    return torch.log_softmax(unembedding.weight @ (unembedding.gamma * centred / s), -1)[word]


class Reference:
    """Everything the last position of one prompt is made of, by hand."""

    def __init__(self, model: Model, ids):
        self.model = model
        outputs = {}
        handles = []
        for layer in range(model.n_layers):
            handles.append(
                model.part(layer, "attention").register_forward_pre_hook(
                    lambda m, args, kwargs, key=("attention_in", layer): outputs.__setitem__(
                        key, args[0] if args else kwargs["hidden_states"]
                    ),
                    with_kwargs=True,
                )
            )
            for name, path in {"attention": "attention_block", "ffn": "ffn_block"}.items():
                module = model.part(layer, path)
                handles.append(module.register_forward_hook(lambda m, a, out, key=(name, layer): outputs.__setitem__(key, out)))
            handles.append(
                model.part(layer, "ffn_out").register_forward_pre_hook(
                    lambda m, args, key=("coefficients", layer): outputs.__setitem__(key, args[0])
                )
            )
            for block in ("attention", "ffn"):
                handles.append(
                    model.part(layer, f"{block}_out").register_forward_hook(
                        lambda m, a, out, key=(f"{block} map", layer): outputs.__setitem__(key, out)
                    )
                )
        implementation = model.hf.config._attn_implementation
        if implementation != "eager":
            model.hf.set_attn_implementation("eager")
        try:
            out = model.hf(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, use_cache=False)
        finally:
            if implementation != "eager":
                model.hf.set_attn_implementation(implementation)
            for handle in handles:
                handle.remove()
        self.attentions = [a[0, :, -1] for a in out.attentions]  # per layer (head, position)
        self.resid_pre = [h[0, -1] for h in out.hidden_states[: model.n_layers]]
        self.attention = [outputs["attention", i][0, -1] for i in range(model.n_layers)]
        self.ffn = [outputs["ffn", i].reshape(-1, model.d_model)[-1] for i in range(model.n_layers)]
        self.normed = [outputs["attention_in", i][0] for i in range(model.n_layers)]  # (position, d_model)
        self.coefficients = [outputs["coefficients", i].reshape(len(ids), -1)[-1] for i in range(model.n_layers)]
        self.mapped = {
            b: [outputs[f"{b} map", i].reshape(-1, model.d_model)[-1] for i in range(model.n_layers)] for b in ("attention", "ffn")
        }
        self.resid_final = self.resid_pre[-1] + self.attention[-1] + self.ffn[-1]
        unembedding = model.unembedding
        centred = self.resid_final - self.resid_final.mean() if unembedding.centred else self.resid_final
        self.scale = (centred.square().mean() + unembedding.eps).sqrt()

    def after_norm(self, layer, block, v):
        """A share v of what W_O or fc2 gave, behind a norm of the whole: w * v / s, or (1 + w) * v / s in Gemma."""
        name = {"attention": "post_attention_layernorm", "ffn": "post_feedforward_layernorm"}[block]
        gain = {"gemma2": 1, "gemma3_text": 1, "olmo2": 0}.get(self.model.config.model_type)
        if gain is None:
            return v
        norm, whole = getattr(self.model.blocks[layer], name), self.mapped[block][layer]
        return (gain + norm.weight) * v / (whole.square().mean() + self.model.config.rms_norm_eps).sqrt()

    def value_output(self, layer, head, position):
        """vo: W_O^h (W_V^h norm(x) + b_V), weights taken straight from the modules."""
        return self.after_norm(layer, "attention", self._value_output(layer, head, position))

    def _value_output(self, layer, head, position):
        model, attention = self.model, self.model.part(layer, "attention")
        d = model.d_head
        x = self.normed[layer][position]
        if hasattr(attention, "c_attn"):
            value = attention.c_attn(x)[2 * model.d_model :][head * d : (head + 1) * d]
            return value @ attention.c_proj.weight[head * d : (head + 1) * d]
        if hasattr(attention, "query_key_value"):
            value = attention.query_key_value(x)[(3 * head + 2) * d : (3 * head + 3) * d]
            return attention.dense.weight[:, head * d : (head + 1) * d] @ value
        group = head * model.n_key_value_heads // model.n_heads
        fused = hasattr(attention, "qkv_proj")  # Phi-3: all queries, all keys, all values
        values = attention.qkv_proj(x)[-model.n_key_value_heads * d :] if fused else attention.v_proj(x)
        value = values[group * d : (group + 1) * d]
        out = next(getattr(attention, name) for name in ("o_proj", "out_proj", "dense") if hasattr(attention, name))
        return out.weight[:, head * d : (head + 1) * d] @ value

    def position(self, layer, head, position):
        return self.attentions[layer][head, position] * self.value_output(layer, head, position)

    def head(self, layer, head):
        return sum(self.position(layer, head, p) for p in range(self.attentions[layer].shape[-1]))

    def neuron(self, layer, neuron):
        fc2 = self.model.part(layer, "ffn_out").weight
        row = fc2[neuron] if self.model.config.model_type == "gpt2" else fc2[:, neuron]
        return self.after_norm(layer, "ffn", self.coefficients[layer][neuron] * row)

    def increase(self, x, v, word, norm):
        before = log_prob(self.model, x, word, norm, self.scale)
        return float(log_prob(self.model, x + v, word, norm, self.scale) - before)
