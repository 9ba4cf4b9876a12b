"""Every architecture by its formulas, in float64 NumPy, from the numbers of a state dict: no module
of transformers is called.

by_hand = Formulas(model.hf)
run = by_hand.run(ids)                         # all positions; run.logits are those of the last one
by_hand.run(ids, z=lambda layer, z: ...)       # heads' outputs changed before W_O; closed=: edges
by_hand.run(ids, q=..., k=..., v=...)          # what the last position asks and reads, unturned
"""

from math import erf
from types import SimpleNamespace

import numpy as np


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "gelu_new": gelu,
    "gelu_pytorch_tanh": gelu, "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5)),
}  # fmt: skip
LLAMA = dict(
    block="model.layers.{}.", embed="model.embed_tokens.weight", final="model.norm",
    norm1="input_layernorm", norm2="post_attention_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.o_proj",
    up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj", after1="", after2="", centred=False,
    turned=False,
)  # fmt: skip
AFTER = LLAMA | dict(
    after1="post_attention_layernorm",
    after2="post_feedforward_layernorm",
    norm2="pre_feedforward_layernorm",
)
GPT2 = dict(
    block="transformer.h.{}.", embed="transformer.wte.weight", final="transformer.ln_f",
    norm1="ln_1", norm2="ln_2", qkv=("attn.c_attn",), out="attn.c_proj", up=("mlp.c_fc",),
    down="mlp.c_proj", after1="", after2="", centred=True, turned=True,
)  # fmt: skip
NAMES = {
    "gpt2": GPT2,
    "gpt_neo": GPT2 | dict(qkv=tuple(f"attn.attention.{x}_proj" for x in "qkv"),
                           out="attn.attention.out_proj", turned=False),
    "gptj": GPT2 | dict(qkv=tuple(f"attn.{x}_proj" for x in "qkv"), out="attn.out_proj",
                        up=("mlp.fc_in",), down="mlp.fc_out", norm2="ln_1", turned=False),
    "gpt_neox": LLAMA | dict(block="gpt_neox.layers.{}.", embed="gpt_neox.embed_in.weight",
                             final="gpt_neox.final_layer_norm", qkv=("attention.query_key_value",),
                             out="attention.dense", up=("mlp.dense_h_to_4h",),
                             down="mlp.dense_4h_to_h", centred=True),
    "opt": LLAMA | dict(block="model.decoder.layers.{}.", embed="model.decoder.embed_tokens.weight",
                        out="self_attn.out_proj", final="model.decoder.final_layer_norm",
                        norm1="self_attn_layer_norm", norm2="final_layer_norm", up=("fc1",),
                        down="fc2", centred=True),
    "phi": LLAMA | dict(norm2="input_layernorm", out="self_attn.dense", up=("mlp.fc1",),
                        down="mlp.fc2", final="model.final_layernorm", centred=True),
    "phi3": LLAMA | dict(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
    "starcoder2": LLAMA | dict(up=("mlp.c_fc",), down="mlp.c_proj", centred=True),
    "stablelm": LLAMA | dict(centred=True),
    "olmo2": AFTER | dict(norm1="", norm2=""),
    "gemma2": AFTER, "gemma3_text": AFTER,
}  # fmt: skip


class Formulas:
    def __init__(self, hf):
        self.w = {
            name: tensor.detach().double().numpy() for name, tensor in hf.state_dict().items()
        }
        self.c = c = hf.config.to_dict()
        self.kind, self.names = c["model_type"], NAMES.get(c["model_type"], LLAMA)

        def first(*names):
            return next((c[name] for name in names if c.get(name) is not None), None)

        self.layers = first("num_hidden_layers", "n_layer", "num_layers")
        self.d = first("hidden_size", "n_embd")
        self.heads = first("num_attention_heads", "n_head", "num_heads")
        self.kv_heads = first("num_key_value_heads") or self.heads
        self.d_head = first("head_dim") or self.d // self.heads
        self.eps = (
            first("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon") or 1e-5
        )
        self.act = ACTIVATIONS[first("hidden_activation", "hidden_act", "activation_function")]
        self.gain = 1.0 if self.kind.startswith("gemma") else 0.0
        self.unembedding = next(
            self.w[name]
            for name in ("lm_head.weight", "embed_out.weight", self.names["embed"])
            if name in self.w
        )
        self.cap = c.get("final_logit_softcapping")
        self.rotary = None  # cos and sin, where they are not made here

    def centred(self, x):
        return x - x.mean(-1, keepdims=True) if self.names["centred"] else x

    def scale_of(self, x):
        return np.sqrt((self.centred(x) ** 2).mean(-1, keepdims=True) + self.eps)

    def scaled(self, name, x, scale):
        """A norm without its bias, read with a scale."""
        return (self.w[f"{name}.weight"] + self.gain) * self.centred(x) / scale

    def norm(self, name, x):
        return self.scaled(name, x, self.scale_of(x)) + self.w.get(f"{name}.bias", 0.0)

    def place(self, layer, name):
        """The name of a part of a block in the state dict."""
        return self.names["block"].format(layer) + self.names[name]

    def linear(self, name, x):
        matrix = self.w[f"{name}.weight"]
        return x @ (matrix if self.names["turned"] else matrix.T) + self.w.get(f"{name}.bias", 0.0)

    def split(self, layer, x):
        """Queries, keys and values of all heads: (head, position, d_head)."""
        at, names, d = self.names["block"].format(layer), self.names["qkv"], self.d_head
        parts = [self.linear(at + name, x) for name in names]
        if self.kind == "gpt_neox":  # query, key and value of head 0, then of head 1
            parts = list(
                np.moveaxis(parts[0].reshape(len(x), self.heads, 3, d), 2, 0).reshape(3, len(x), -1)
            )
        elif len(names) == 1:
            parts = np.split(parts[0], np.cumsum([self.heads * d, self.kv_heads * d]), -1)
        norms = [f"{at}self_attn.{name}_norm" for name in "qk"]
        if self.kind == "olmo2":
            parts[:2] = [self.norm(name, part) for name, part in zip(norms, parts, strict=False)]
        q, k, v = (part.reshape(len(x), -1, d).swapaxes(0, 1) for part in parts)
        if self.kind in ("qwen3", "gemma3_text"):
            q, k = self.norm(norms[0], q), self.norm(norms[1], k)
        return q, k, v

    def angles(self, layer, n):
        """(position, pair of dimensions), and what cos and sin are multiplied by; None where
        nothing turns."""
        if self.kind in ("gpt2", "gpt_neo", "opt") or (
            self.kind == "smollm3" and not self.c["no_rope_layers"][layer]
        ):
            return None, 1.0
        if self.kind == "gptj":
            rope, size = {"rope_theta": 10000.0}, self.c["rotary_dim"]
        else:
            rope = self.c["rope_parameters"]
            rope = rope[self.c["layer_types"][layer]] if self.kind == "gemma3_text" else rope
            size = int(self.d_head * rope.get("partial_rotary_factor", 1.0))
        speed = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
        by = 1.0
        kind = rope.get("rope_type", "default")
        if kind == "linear":
            speed = speed / rope["factor"]
        if kind == "llama3":
            length, low, high = 2 * np.pi / speed, rope["low_freq_factor"], rope["high_freq_factor"]
            of = rope["original_max_position_embeddings"]
            smooth = (of / length - low) / (high - low)
            between = (1 - smooth) * speed / rope["factor"] + smooth * speed
            speed = np.where(
                length > of / low,
                speed / rope["factor"],
                np.where(length < of / high, speed, between),
            )
        if kind == "longrope":
            original = self.c["original_max_position_embeddings"]
            speed = speed / np.array(rope["short_factor" if n <= original else "long_factor"])
            ratio = self.c["max_position_embeddings"] / original
            by = np.sqrt(1 + np.log(ratio) / np.log(original)) if ratio > 1 else 1.0
        return np.arange(n)[:, None] * speed, by

    def turn(self, layer, x):
        angles, by = self.angles(layer, x.shape[1])
        if angles is None:
            return x
        cos, sin = self.rotary or (np.cos(angles) * by, np.sin(angles) * by)
        size = 2 * cos.shape[1]
        out = x.copy()
        if self.kind in ("gptj", "helium"):
            first, second = x[..., 0:size:2], x[..., 1:size:2]
            out[..., 0:size:2] = first * cos - second * sin
            out[..., 1:size:2] = second * cos + first * sin
        else:
            first, second = x[..., : size // 2], x[..., size // 2 : size]
            out[..., : size // 2] = first * cos - second * sin
            out[..., size // 2 : size] = second * cos + first * sin
        return out

    def window(self, layer):
        names = "layer_types", "sliding_window"
        if self.kind == "gpt_neo":
            names = "attention_layers", "window_size"
        types, length = map(self.c.get, names)
        is_local = types is None or types[layer] in ("local", "sliding_attention")
        return length if is_local else None

    def score_scale(self):
        if self.kind == "gpt_neo":
            return 1.0
        return (self.c.get("query_pre_attn_scalar") or self.d_head) ** -0.5

    def neurons(self, layer, x):
        at = self.names["block"].format(layer)
        parts = [self.linear(at + name, x) for name in self.names["up"]]
        first, *second = np.split(parts[0], 2, -1) if self.kind == "phi3" else parts
        return self.act(first) * (second[0] if second else 1.0)

    def run(self, ids, z=None, q=None, k=None, v=None, closed=None, weights=None):
        """`resid` enters each layer and `final` the last norm, `read` is what W_Q, W_K and W_V
        multiply; at the last position blocks add `attention` and `ffn`, and `neurons` are
        coefficients; z, q, k and v are those of every head (q and k before rotation); `after` is
        what a norm behind W_O divides by. Edits: of z, q, k and v, edit(layer, array) gives another
        array; weights(layer, array, run) is given what is read so far, too."""
        ids, names, n = np.array(ids), self.names, len(ids)
        run = SimpleNamespace(**{name: [] for name in ("resid", "read", "after")})
        run.attention, run.ffn, run.neurons, run.weights, run.z, run.q, run.k, run.v = each = [
            [] for _ in range(8)
        ]
        x = self.w[names["embed"]][ids]
        if self.kind.startswith("gemma"):
            x = x * self.d**0.5
        places = {
            "gpt2": "transformer.wpe.weight",
            "gpt_neo": "transformer.wpe.weight",
            "opt": "model.decoder.embed_positions.weight",
        }
        if self.kind in places:
            x = x + self.w[places[self.kind]][np.arange(n) + 2 * (self.kind == "opt")]
        past = np.arange(n)[:, None] - np.arange(n)  # of a position, how far another lies back

        def change(edit, layer, value):
            return value if edit is None else edit(layer, value)

        for layer in range(self.layers):
            at = names["block"].format(layer)
            run.resid.append(x)
            read = self.norm(at + names["norm1"], x) if names["norm1"] else x
            run.read.append(read)
            queries, keys, values = self.split(layer, read)
            group = np.repeat(np.arange(self.kv_heads), self.heads // self.kv_heads)
            keys, values = keys[group], values[group]
            asked, read_keys, read_values = (
                change(e, layer, p) for e, p in zip((q, k, v), (queries, keys, values), strict=True)
            )
            scores = self.turn(layer, queries) @ self.turn(layer, keys).swapaxes(1, 2)
            scores[:, -1] = np.einsum(
                "hd,hpd->hp", self.turn(layer, asked)[:, -1], self.turn(layer, read_keys)
            )
            scores = scores * self.score_scale()
            if self.kind == "gemma2" and (cap := self.c["attn_logit_softcapping"]):
                scores = cap * np.tanh(scores / cap)
            hidden = (past < 0) | (past >= (self.window(layer) or n))
            if closed is not None:
                hidden = hidden | closed(layer)
            scores = np.where(hidden, -np.inf, scores)
            of_heads = np.exp(scores - scores.max(-1, keepdims=True))
            of_heads = of_heads / of_heads.sum(-1, keepdims=True)
            of_heads = of_heads if weights is None else weights(layer, of_heads, run)
            out = of_heads @ values
            out[:, -1] = np.einsum("hp,hpd->hd", of_heads[:, -1], read_values)
            out = change(z, layer, out)
            block = self.linear(at + names["out"], out.swapaxes(0, 1).reshape(n, -1))
            run.after.append(self.scale_of(block)[-1] if names["after1"] else None)
            block = self.norm(at + names["after1"], block) if names["after1"] else block
            parallel = self.kind in ("gptj", "phi") or self.c.get("use_parallel_residual", False)
            between = x if parallel else x + block
            neurons = self.neurons(
                layer, self.norm(at + names["norm2"], between) if names["norm2"] else between
            )
            ffn = self.linear(at + names["down"], neurons)
            ffn = self.norm(at + names["after2"], ffn) if names["after2"] else ffn
            x = x + block + ffn
            for kept, value in zip(
                each,
                (block[-1], ffn[-1], neurons[-1], of_heads, out, queries, keys, values),
                strict=True,
            ):
                kept.append(value)
        run.final = x[-1]
        run.logits = self.logits(run.final)
        return run

    def logits(self, final):
        out = self.unembedding @ self.norm(self.names["final"], final)
        out = out + self.w.get("lm_head.bias", 0.0)
        return self.cap * np.tanh(out / self.cap) if self.cap else out

    def matrix(self, layer, name):
        """(input, output) of a layer's W_O ("out") or fc2 ("down")."""
        matrix = self.w[f"{self.place(layer, name)}.weight"]
        return matrix if self.names["turned"] else matrix.T

    def vector(self, run, layer, head, given):
        """What a head adds to the residual stream of the last position where W_O is given this
        (d_head)."""
        out = given @ self.matrix(layer, "out")[head * self.d_head : (head + 1) * self.d_head]
        if not self.names["after1"]:
            return out
        return (
            (self.w[f"{self.place(layer, 'after1')}.weight"] + self.gain) * out / run.after[layer]
        )

    def projected(self, x, scale):
        """bs-values: the final norm's weight and the unembedding, the norm read with this scale,
        without biases."""
        return self.unembedding @ self.scaled(self.names["final"], x, scale)

    def increase(self, run, before, added, word, frozen=True):
        one, other = (
            log_softmax(self.projected(x, self.scale_of(run.final if frozen else x)))[word]
            for x in (before, before + added)
        )
        return other - one


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def lead(logits, e):
    """Nats by which the true label leads the other."""
    true, other = e.label_pair_ids
    return logits[true] - logits[other]


def changed_at(at, new, where=slice(None), keep=0.0):
    """An edit: heads of a layer are given `new(layer, head)` at some positions, beside so much of
    their own."""

    def edit(layer, x, *_):
        x = x.copy()
        for head in (h for of, h in at if of == layer):
            x[head, where] = keep * x[head, where] + new(layer, head)
        return x

    return edit
