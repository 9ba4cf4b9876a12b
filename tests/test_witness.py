"""A witness: TransformerLens reads the same vectors from the tiny models as `capture`, or the
difference has a name."""

import pytest
import torch
import transformers
from conftest import TINY, random_prompts, tiny
from tolerances import LOGITS
from towerlab.model.capture import capture

bridge = pytest.importorskip(
    "transformer_lens.model_bridge.sources", reason="TransformerLens: make peers"
)
UNKNOWN = ("helium",)
"""Kinds that TransformerLens does not support"""
SCORES_ARE_WEIGHTS = ("gpt_neo", "gptj", "opt")
"""Kinds in which its hook of scores gives what comes after the softmax"""


def witnessed(model, encoded):
    """What TransformerLens caches of a model with the same weights."""
    hf = transformers.AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
    hf.load_state_dict(model.hf.state_dict())
    lens = bridge.build_bridge_from_module(
        hf.eval(), type(hf).__name__, hf_config=hf.config, dtype=torch.float32
    )
    ids = torch.tensor([e.ids for e in encoded])
    return lens.run_with_cache(ids, use_cache=False)[1]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted({*TINY} - {*UNKNOWN}))
def test_another_library_reads_the_same_vectors(kind):
    """All layers, at the last position; queries of all other positions are left out."""
    model, encoded = tiny(kind, torch.float32), random_prompts(2, lengths=(11,))
    ours = capture(model, encoded, {"weights", "values", "neurons"})
    cache = witnessed(model, encoded)
    # Where a norm follows attention, `capture` divides z and values by its scale.
    factor = ours.z / ours.attention_out_input
    values = ours.values / factor[:, :, :1, None, :1]
    scores = ours.weights if kind in SCORES_ARE_WEIGHTS else ours.scores
    for layer in range(model.n_layers):

        def there(name, layer=layer):
            return cache[f"blocks.{layer}.{name}"]

        pairs = {
            "resid_pre": (there("hook_resid_pre")[:, -1], ours.resid_pre[layer]),
            "attention": (there("hook_attn_out")[:, -1], ours.attention_output[layer]),
            "ffn": (there("hook_mlp_out")[:, -1], ours.ffn_output[layer]),
            "z": (there("attn.hook_z")[:, -1], ours.attention_out_input[layer]),
            "weights": (there("attn.hook_pattern")[:, :, -1], ours.weights[layer]),
            "scores": (there("attn.hook_attn_scores")[:, :, -1], scores[layer]),
            "values": (there("attn.hook_v"), values[layer].transpose(1, 2)),
            "neurons": (there("mlp.hook_post")[:, -1], ours.ffn_out_input[layer]),
        }
        for name, (witness, own) in pairs.items():
            witness = witness.reshape(own.shape)
            is_seen = own.isfinite()  # a window or a mask hides the others
            most = float(own[is_seen].abs().max())
            difference = float((witness - own)[is_seen].abs().max())
            assert difference < LOGITS * most, (layer, name)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_kind_that_it_does_not_know_is_named(kind):
    """If it learns to, this list gets shorter."""
    with pytest.raises(ValueError, match="Unsupported architecture"):
        witnessed(tiny(kind, torch.float32), random_prompts(1, lengths=(11,)))
