"""The ways that are compared, for four kinds of work. `make(model, encoded)` gives a function that does the work once.

`ours` and the like are this project's; the others do what people otherwise do, as a competent user of each library
would: only the last position is kept, only what is needed is recorded, and logits are made at the last position only
where the library allows it. Every work gives the same numbers, prompt by prompt: log-probability increases (nats,
frozen norm) or the drop of the true label's log-probability; `reference_of` says what they are checked against.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from shapes import stock
from twotowers.analysis import ablate, locate
from twotowers.analysis.edit_heads import Edit, all_heads, edited
from twotowers.model import unembed
from twotowers.model.capture import captures
from twotowers.model.model import Model
from twotowers.paper import costs
from twotowers.prompts.prompt import Encoded

MAX_TOKENS = 4096  # of a batch
# Of a batch of the plain forward pass: on a CPU larger ones are slower, on a GPU smaller ones, and would flatter the rest.
BASELINE_TOKENS = {"cpu": 1024, "cuda": 16384}
OWN = "this book"
HEADS, POSITIONS = "all heads and blocks", "every (head, position)"
ZERO_ALL, ZERO_LAST = "zeroing every head, all positions", "zeroing every head, last position"


def _ids(model: Model, encoded: list[Encoded]) -> torch.Tensor:
    return torch.tensor([e.ids for e in encoded], device=model.device)


def _true(model: Model, encoded: list[Encoded]) -> torch.Tensor:
    return torch.tensor([e.true_id for e in encoded], device=model.device)


def forward(model: Model, encoded: list[Encoded]) -> Callable[[], None]:
    """The measure of all: the stock model over the same prompts in batches, logits at the last position only."""
    hf, ids = stock(model), _ids(model, encoded)

    @torch.inference_mode()
    def work():
        for some in ids.split(max(1, BASELINE_TOKENS[ids.device.type] // ids.shape[1])):
            hf(input_ids=some, use_cache=False, logits_to_keep=1)

    return work


# This project


def ours(model: Model, encoded: list[Encoded]):
    """Everything anew in each call, also the factors that all prompts share: nothing is kept from an earlier one."""
    return lambda: locate.increases(model, encoded).heads


def ours_positions(model: Model, encoded: list[Encoded]):
    @torch.inference_mode()
    def work():
        out = [None] * len(encoded)
        for seen in captures(model, encoded, {"weights", "values"}, max_tokens=MAX_TOKENS):
            for i, found in zip(seen.index, locate.position_increases(seen, model), strict=True):
                out[i] = found.cpu().numpy()
        return np.stack(out)

    return work


def _ours_zero(model: Model, encoded: list[Encoded], positions: str):
    def work():
        found = ablate.ablate_heads(model, encoded, all_heads(model), positions)
        true = list(encoded[0].label_ids).index("foo")
        return (found.plain_log_prob[:, true] - found.log_prob[..., true]).T.cpu().numpy()

    return work


def ours_zero_all(model: Model, encoded: list[Encoded]):
    return _ours_zero(model, encoded, "all")


def ours_zero_last(model: Model, encoded: list[Encoded]):
    return _ours_zero(model, encoded, "last")


# Without a library


def _pieces(model: Model, encoded: list[Encoded]) -> dict:
    """What plain hooks see: layer inputs, head vectors and block outputs at the last position."""
    seen, handles = {}, []
    for i in range(model.n_layers):
        handles += [
            model.blocks[i].register_forward_pre_hook(
                lambda _, a, k, i=i: seen.__setitem__(("x", i), (a[0] if a else k["hidden_states"])[:, -1]),
                with_kwargs=True,
            ),
            model.part(i, "attention_out").register_forward_pre_hook(
                lambda _, a, i=i: seen.__setitem__(("z", i), a[0][:, -1])
            ),
            model.part(i, "attention_block").register_forward_hook(
                lambda _, a, o, i=i: seen.__setitem__(("a", i), o[:, -1])
            ),
            model.part(i, "ffn_block").register_forward_hook(lambda _, a, o, i=i: seen.__setitem__(("f", i), o[:, -1])),
        ]
    handles.append(model.final_norm.register_forward_pre_hook(lambda _, a: seen.__setitem__("final", a[0][:, -1])))
    model.hf(input_ids=_ids(model, encoded), use_cache=False, logits_to_keep=1)
    for handle in handles:
        handle.remove()
    return seen


def _layer_scores(model: Model, words, scale, x, z, weight, attention, ffn) -> torch.Tensor:
    """One unembedding call for all vectors of a layer, whole vocabulary at once: increases (prompt, head).

    The blocks' rows are made too, as all the ways make them; only the heads' are compared.
    """
    x, attention, ffn = (v.float()[:, None] for v in (x, attention, ffn))
    z = z.float().view(len(x), model.n_heads, model.d_head)
    heads = torch.einsum("bhk,hkd->bhd", z, weight.float())
    rows = torch.cat([x, x + attention, x + attention + ffn, x + heads], 1)
    p = unembed.bs_values(rows, model.unembedding, "frozen", scale).log_softmax(-1)
    p = p.gather(-1, words[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
    return p[:, 3:] - p[:, :1]


def hooks(model: Model, encoded: list[Encoded]):
    """Plain hooks, then one unembedding call a layer."""
    words = _true(model, encoded)

    @torch.inference_mode()
    def work():
        seen = _pieces(model, encoded)
        scale = unembed.norm_scale(seen["final"], model.unembedding)[:, None]
        out = [
            _layer_scores(
                model, words, scale, *(seen[k, i] for k in "xz"), model.output_weight(i), *(seen[k, i] for k in "af")
            )
            for i in range(model.n_layers)
        ]
        return torch.stack(out, 1).cpu().numpy()

    return work


def authors(model: Model, encoded: list[Encoded]):
    """The shape of the authors' notebooks: one prompt, and one unembedding call for each vector."""
    e = model.unembedding

    @torch.inference_mode()
    def work():
        out = np.empty((len(encoded), model.n_layers, model.n_heads))
        for n, prompt in enumerate(encoded):
            seen = _pieces(model, [prompt])
            scale = unembed.norm_scale(seen["final"], e)

            def log_p(v, scale=scale, word=prompt.true_id):
                return unembed.bs_values(v, e, "frozen", scale).log_softmax(-1)[0, word]

            for i in range(model.n_layers):
                x, weight = seen["x", i], model.output_weight(i)
                before, after = log_p(x), x + seen["a", i]
                log_p(after), log_p(after + seen["f", i])
                z = seen["z", i].view(model.n_heads, model.d_head)
                for h in range(model.n_heads):
                    out[n, i, h] = log_p(x + z[h] @ weight[h]) - before
        return out

    return work


def positions_in_batches(model: Model, encoded: list[Encoded]):
    """Every (head, position) vector in full width, one unembedding call for each layer of each prompt."""
    e, shared = model.unembedding, model.n_heads // model.n_key_value_heads

    @torch.inference_mode()
    def work():
        out = [None] * len(encoded)
        for seen in captures(model, encoded, {"weights", "values"}, max_tokens=MAX_TOKENS):
            scale = unembed.norm_scale(seen.resid_final, e)
            for row, i in enumerate(seen.index):
                word, layers = seen.prompts[row].true_id, []
                for layer in range(model.n_layers):
                    value = seen.values[layer, row].float().repeat_interleave(shared, 0)
                    z = seen.weights[layer, row].float()[..., None] * value
                    x = seen.resid_pre[layer, row].float()
                    rows = torch.cat([x[None], (x + z @ model.output_weight(layer).float()).flatten(0, 1)])
                    p = unembed.bs_values(rows, e, "frozen", scale[row]).log_softmax(-1)[:, word]
                    layers.append((p[1:] - p[0]).view(model.n_heads, -1))
                out[i] = torch.stack(layers).cpu().numpy()
        return np.stack(out)

    return work


def _whole_runs(model: Model, encoded: list[Encoded], positions: str):
    """Zero every head, one whole forward pass each: what the paper compares itself with."""
    ids, words = _ids(model, encoded), _true(model, encoded)

    def log_p():
        found = []
        for some, true in zip(*(t.split(max(1, MAX_TOKENS // ids.shape[1])) for t in (ids, words)), strict=True):
            logits = model.hf(input_ids=some, use_cache=False, logits_to_keep=1).logits[:, -1]
            found.append(logits.float().log_softmax(-1).gather(-1, true[:, None])[:, 0])
        return torch.cat(found)

    @torch.inference_mode()
    def work():
        plain, out = log_p(), []
        for head in all_heads(model):
            with edited(model, [Edit((head,), positions=positions)]):
                out.append(plain - log_p())
        return torch.stack(out, 1).cpu().numpy()

    return work


def zero_all_whole_runs(model: Model, encoded: list[Encoded]):
    return _whole_runs(model, encoded, "all")


def zero_last_whole_runs(model: Model, encoded: list[Encoded]):
    return _whole_runs(model, encoded, "last")


# Other libraries


def transformer_lens(model: Model, encoded: list[Encoded]):
    """TransformerLens: run_with_cache of the last position, then one unembedding call a layer. GPT-2 only here."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf = stock(model)
    lens = build_bridge_from_module(hf, type(hf).__name__, hf_config=hf.config, dtype=model.dtype)
    kinds = {"x": "hook_resid_pre", "z": "attn.hook_z", "a": "hook_attn_out", "f": "hook_mlp_out"}
    layers = range(model.n_layers)
    names = [f"blocks.{i}.{name}" for i in layers for name in kinds.values()] + ["ln_final.hook_scale"]
    ids, words, w_o = _ids(model, encoded), _true(model, encoded), lens.W_O

    @torch.inference_mode()
    def work():
        _, cache = lens.run_with_cache(
            ids, names_filter=names, pos_slice=-1, return_type=None, use_cache=False, logits_to_keep=1
        )
        out = []
        for i in layers:
            x, z, a, f = (cache[f"blocks.{i}.{name}"][:, -1] for name in kinds.values())
            out.append(_layer_scores(model, words, cache["ln_final.hook_scale"][:, -1], x, z, w_o[i], a, f))
        return torch.stack(out, 1).cpu().numpy()

    return work


def nnsight(model: Model, encoded: list[Encoded]):
    """nnsight: a trace that saves the last position, then one unembedding call a layer. GPT-2 only here."""
    from nnsight import NNsight, save

    wrapped = NNsight(stock(model))
    ids, words, layers = _ids(model, encoded), _true(model, encoded), range(model.n_layers)

    @torch.inference_mode()
    def work():
        with wrapped.trace(input_ids=ids, use_cache=False, logits_to_keep=1):
            seen = save([])
            for block in wrapped.transformer.h:
                x = block.input[:, -1]
                z, a = block.attn.c_proj.input[:, -1], block.attn.c_proj.output[:, -1]
                seen.append((x, z, a, block.mlp.c_proj.output[:, -1]))
            final = wrapped.transformer.ln_f.input[:, -1].save()
        scale = unembed.norm_scale(final, model.unembedding)[:, None]
        out = [
            _layer_scores(model, words, scale, x, z, model.output_weight(i), a, f)
            for i, (x, z, a, f) in zip(layers, seen, strict=True)
        ]
        return torch.stack(out, 1).cpu().numpy()

    return work


@dataclass(frozen=True)
class Method:
    """A way to do a work, and its name in tables."""

    work: str
    make: Callable
    name: str
    package: str = ""  # on the registry, if it is another library's

    @property
    def own(self) -> bool:
        """Is it this book's?"""
        return self.name == OWN

    def shown(self) -> str:
        return f"{self.name} {importlib.metadata.version(self.package)}" if self.package else self.name

    def operations(self, shape: costs.Shape, n: int, tokens: int) -> costs.Operations:
        """What is counted for it beside the forward pass."""
        return (costs.WORKS if self.own else costs.OTHERS)[self.work](shape, n, tokens)

    def missing(self) -> str | None:
        """Why it cannot run here, or None."""
        if self.package and importlib.util.find_spec(self.make.__name__) is None:
            return f"{self.name} is not installed: make peers"
        return None


METHODS = {
    "ours": Method(HEADS, ours, OWN),
    "hooks": Method(HEADS, hooks, "plain hooks"),
    "authors": Method(HEADS, authors, "the authors' notebook form"),
    "transformer_lens": Method(HEADS, transformer_lens, "TransformerLens", "transformer-lens"),
    "nnsight": Method(HEADS, nnsight, "nnsight", "nnsight"),
    "ours_positions": Method(POSITIONS, ours_positions, OWN),
    "positions_in_batches": Method(POSITIONS, positions_in_batches, "plain, a layer at a time"),
    "ours_zero_all": Method(ZERO_ALL, ours_zero_all, OWN),
    "zero_all_whole_runs": Method(ZERO_ALL, zero_all_whole_runs, "a forward pass for each head"),
    "ours_zero_last": Method(ZERO_LAST, ours_zero_last, OWN),
    "zero_last_whole_runs": Method(ZERO_LAST, zero_last_whole_runs, "a forward pass for each head"),
}
REFERENCES = {
    HEADS: hooks, POSITIONS: positions_in_batches, ZERO_ALL: zero_all_whole_runs, ZERO_LAST: zero_last_whole_runs,
}  # fmt: skip


def reference_of(method: Method) -> Callable:
    """The plain way to do the same work, which the numbers are compared with."""
    return REFERENCES[method.work]
