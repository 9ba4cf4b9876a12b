"""The ways that benchmarks/run.py compares. Each is method(model, encoded) -> a function that does the work once.

`forward`, `ours`, `ours_positions`, `zero_all`, `zero_last` are this project's; the others do what people otherwise do.
All score every head and block by its log-probability increase with the frozen norm (zeroing: log-probability drop).
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from twotowers import locate, models, reading, tracing, vocabulary
from twotowers.architectures import ARCHITECTURES, Model
from twotowers.capture import captures
from twotowers.intervene import all_heads
from twotowers.prompts import Demonstration, Encoded, Prompt

MAX_TOKENS = 4096


def make_model(shape: dict, folder: Path, dtype: str) -> None:
    """Random weights in the shape of a published model, as safetensors."""
    config = transformers.AutoConfig.for_model(**shape)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=models.DTYPES[dtype])
    model.save_pretrained(folder)


def load(folder: str, dtype: str) -> Model:
    """Without tokenizer or proof: the prompts here are random tokens."""
    config = transformers.AutoConfig.from_pretrained(folder)
    row = ARCHITECTURES[config.model_type]
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=models.DTYPES[dtype], attn_implementation=reading.implementation(row)
    )
    return Model("benchmark", hf.eval().requires_grad_(False), None, row)


def prompts(model: Model, n: int, tokens: int) -> list[Encoded]:
    generator = torch.Generator().manual_seed(1)
    words = model.unembedding.vocabulary
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))
    out = []
    for _ in range(n):
        ids = torch.randint(words, (tokens,), generator=generator).tolist()
        out.append(Encoded(prompt, tuple(ids), (2,), ((0, 1),), (3, 4), tokens - 1, {"foo": 5 % words, "bar": 7}))
    return out


def forward(model: Model, encoded: list[Encoded]):
    """A plain batched forward pass with last-token logits."""
    ids = torch.tensor([e.ids for e in encoded])
    size = max(1, MAX_TOKENS // ids.shape[1])

    @torch.inference_mode()
    def work():
        for some in ids.split(size):
            model.hf(input_ids=some, use_cache=False, logits_to_keep=1)

    return work


def ours(model: Model, encoded: list[Encoded]):
    return lambda: locate.increases(model, encoded, max_tokens=MAX_TOKENS).heads


def ours_positions(model: Model, encoded: list[Encoded]):
    def work():
        for seen in captures(model, encoded, {"weights", "values"}, max_tokens=MAX_TOKENS):
            locate.position_increases(seen, model)

    return work


def zero_all(model: Model, encoded: list[Encoded]):
    return lambda: tracing.zero_each(model, encoded, all_heads(model), "all", max_tokens=MAX_TOKENS) and None


def zero_last(model: Model, encoded: list[Encoded]):
    return lambda: tracing.zero_each(model, encoded, all_heads(model), "last", max_tokens=MAX_TOKENS) and None


def zero_whole_runs(model: Model, encoded: list[Encoded]):
    """Zero every head, one whole forward pass each: what the paper compares itself with."""
    from twotowers.intervene import Edit, edited

    run = forward(model, encoded)

    def work():
        for head in all_heads(model):
            with edited(model, [Edit((head,))]):
                run()

    return work


def _pieces(model: Model, encoded: list[Encoded]):
    """What plain hooks see: layer inputs, head vectors and block outputs at the last position."""
    ids, seen = torch.tensor([e.ids for e in encoded]), {}
    handles = []
    for i in range(model.n_layers):
        handles += [
            model.blocks[i].register_forward_pre_hook(lambda _, a, i=i: seen.__setitem__(("x", i), a[0][:, -1])),
            model.part(i, "attention_out").register_forward_pre_hook(
                lambda _, a, i=i: seen.__setitem__(("z", i), a[0][:, -1])
            ),
            model.part(i, "attention_block").register_forward_hook(
                lambda _, a, o, i=i: seen.__setitem__(("a", i), o[:, -1])
            ),
            model.part(i, "ffn_block").register_forward_hook(lambda _, a, o, i=i: seen.__setitem__(("f", i), o[:, -1])),
        ]
    handles.append(model.final_norm.register_forward_pre_hook(lambda _, a: seen.__setitem__("final", a[0][:, -1])))
    model.hf(input_ids=ids, use_cache=False, logits_to_keep=1)
    for handle in handles:
        handle.remove()
    return seen


def hooks(model: Model, encoded: list[Encoded]):
    """Plain hooks, then one unembedding call a layer over all its vectors, whole vocabulary at once."""
    words = torch.tensor([e.true_id for e in encoded])
    e = model.unembedding

    def log_p(v, scale):
        return vocabulary.bs_values(v, e, "frozen", scale).log_softmax(-1)

    @torch.inference_mode()
    def work():
        seen = _pieces(model, encoded)
        scale = vocabulary.norm_scale(seen["final"], e)[:, None]
        out = []
        for i in range(model.n_layers):
            z = seen["z", i].view(len(encoded), model.n_heads, model.d_head)
            heads = torch.einsum("bhk,hkd->bhd", z, model.output_weight(i))
            x = seen["x", i][:, None]
            after = x + seen["a", i][:, None]
            rows = torch.cat([x, after, after + seen["f", i][:, None], x + heads], 1)
            p = log_p(rows, scale).gather(-1, words[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
            out.append(p[:, 3:] - p[:, :1])
        return torch.stack(out, 1).numpy()

    return work


def authors(model: Model, encoded: list[Encoded]):
    """The shape of the authors' notebooks: one prompt, and one unembedding call for each vector."""
    e = model.unembedding

    @torch.inference_mode()
    def work():
        out = np.empty((len(encoded), model.n_layers, model.n_heads))
        for n, prompt in enumerate(encoded):
            seen = _pieces(model, [prompt])
            scale = vocabulary.norm_scale(seen["final"], e)

            def log_p(v, scale=scale, word=prompt.true_id):
                return vocabulary.bs_values(v, e, "frozen", scale).log_softmax(-1)[0, word]

            for i in range(model.n_layers):
                x, weight = seen["x", i], model.output_weight(i)
                before, after = log_p(x), x + seen["a", i]
                log_p(after), log_p(after + seen["f", i])
                z = seen["z", i].view(model.n_heads, model.d_head)
                for h in range(model.n_heads):
                    out[n, i, h] = log_p(x + z[h] @ weight[h]) - before
        return out

    return work


def transformer_lens(model: Model, encoded: list[Encoded]):
    """TransformerLens: run_with_cache, stack_head_results, one unembedding call a layer."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    c = model.config
    cfg = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_ctx=c.n_positions, d_head=model.d_head, n_heads=c.n_head,
        d_vocab=c.vocab_size, act_fn="gelu_new", normalization_type="LN", eps=c.layer_norm_epsilon,
        original_architecture="GPT2LMHeadModel",
    )  # fmt: skip
    lens = HookedTransformer(cfg)
    lens.load_state_dict(convert_gpt2_weights(model.hf, cfg), strict=False)
    ids, e = torch.tensor([x.ids for x in encoded]), model.unembedding
    words = torch.tensor([x.true_id for x in encoded])
    names = ("hook_resid_pre", "hook_attn_out", "hook_mlp_out", "attn.hook_z")

    @torch.inference_mode()
    def work():
        _, cache = lens.run_with_cache(ids, names_filter=lambda n: n.endswith(names) or n == "ln_final.hook_scale")
        out, scale = [], cache["ln_final.hook_scale"][:, -1]
        for i in range(model.n_layers):
            heads = torch.einsum("bhk,hkd->bhd", cache["z", i][:, -1], lens.W_O[i])
            x = cache["resid_pre", i][:, -1, None]
            after = x + cache["attn_out", i][:, -1, None]
            rows = torch.cat([x, after, after + cache["mlp_out", i][:, -1, None], x + heads], 1)
            p = vocabulary.bs_values(rows, e, "frozen", scale).log_softmax(-1)
            p = p.gather(-1, words[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
            out.append(p[:, 3:] - p[:, :1])
        return torch.stack(out, 1).numpy()

    return work


def nnsight(model: Model, encoded: list[Encoded]):
    """nnsight: a trace that saves the pieces, then one unembedding call a layer."""
    from nnsight import NNsight

    wrapped = NNsight(model.hf)
    ids, e = torch.tensor([x.ids for x in encoded]), model.unembedding
    words = torch.tensor([x.true_id for x in encoded])

    @torch.inference_mode()
    def work():
        xs, zs, attentions, ffns = [], [], [], []
        with wrapped.trace(input_ids=ids, use_cache=False):
            for block in wrapped.transformer.h:
                xs.append(block.input[:, -1].save())
                zs.append(block.attn.c_proj.input[:, -1].save())
                attentions.append(block.attn.c_proj.output[:, -1].save())
                ffns.append(block.mlp.c_proj.output[:, -1].save())
            final = wrapped.transformer.ln_f.input[:, -1].save()
        scale, out = vocabulary.norm_scale(final, e)[:, None], []
        for i in range(model.n_layers):
            z = zs[i].view(len(encoded), model.n_heads, model.d_head)
            x = xs[i][:, None]
            after = x + attentions[i][:, None]
            heads = torch.einsum("bhk,hkd->bhd", z, model.output_weight(i))
            rows = torch.cat([x, after, after + ffns[i][:, None], x + heads], 1)
            p = vocabulary.bs_values(rows, e, "frozen", scale).log_softmax(-1)
            p = p.gather(-1, words[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
            out.append(p[:, 3:] - p[:, :1])
        return torch.stack(out, 1).numpy()

    return work


METHODS = {
    f.__name__: f
    for f in (
        forward, ours, ours_positions, zero_all, zero_last, zero_whole_runs, hooks, authors, transformer_lens, nnsight,
    )
}  # fmt: skip


def largest_difference(scores: Path, reference: Path | None) -> float:
    """Largest difference in nats between two saved tables of head scores; NaN where either is missing."""
    if reference is None or not scores.exists() or not reference.exists():
        return float("nan")
    return float(np.abs(np.load(scores) - np.load(reference)).max())
