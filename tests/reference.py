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
        outputs, handles = {}, []

        def keep_input(name, layer, part):
            def hook(_module, args, kwargs):
                outputs[name, layer] = args[0] if args else kwargs["hidden_states"]

            handles.append(model.part(layer, part).register_forward_pre_hook(hook, with_kwargs=True))

        def keep_output(name, layer, part):
            def hook(_module, _args, output):
                outputs[name, layer] = output

            handles.append(model.part(layer, part).register_forward_hook(hook))

        for layer in range(model.n_layers):
            keep_input("attention_in", layer, "attention")
            keep_input("coefficients", layer, "ffn_out")
            for block in ("attention", "ffn"):
                keep_output(block, layer, f"{block}_block")
                keep_output(f"{block} map", layer, f"{block}_out")
        implementation = model.hf.config._attn_implementation
        model.hf.set_attn_implementation("eager")
        try:
            out = model.hf(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, use_cache=False)
        finally:
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

    def query_key(self, layer, head, x):
        """Query (times the scaling) and key of one head from rows of what its layer's W_Q and W_K multiply; not for all kinds."""
        model, attention, d = self.model, self.model.part(layer, "attention"), self.model.d_head
        if hasattr(attention, "c_attn"):
            query, key, _ = attention.c_attn(x).split(model.d_model, -1)
        else:
            query, key = attention.q_proj(x), attention.k_proj(x)
        group = head * model.n_key_value_heads // model.n_heads
        return query[..., head * d : (head + 1) * d] / d**0.5, key[..., group * d : (group + 1) * d]

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
