"""Ablations leave the model as it was, and what is refused. The numbers are in test_independent."""

import pytest
from conftest import random_prompts, refused, tiny
from towerlab.measure.ablations import ablations


def test_the_model_stays_as_it_was_also_after_an_error(model):
    def touched():
        return [(dict(m._forward_hooks), dict(m._forward_pre_hooks), vars(m).get("forward"),
                 "_attn" in vars(m),
                 {k for k in vars(m) if k.startswith("twotowers")})
                for m in model.hf.modules()]  # fmt: skip

    stock = model.blocks[0].forward
    model.blocks[0].forward = lambda *args, **kwargs: stock(
        *args, **kwargs
    )  # as accelerate does for a device_map
    before, encoded, calls = touched(), random_prompts(2, lengths=(11,)), []
    ablations(model, encoded, {"a": [(1, 0), (1, 1)]})
    assert touched() == before

    def fails(*args):  # in the second run: the plain one comes first
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("broken")

    handle = model.part(model.n_layers - 1, "ffn_out").register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="broken"):
        ablations(model, encoded, {"a": [(1, 0), (1, 1)]})
    handle.remove()
    assert touched() == before
    del model.blocks[0].forward


def test_unknown_heads_are_refused():
    model, encoded = tiny("gpt2"), random_prompts(3)
    refused("is not in", ablations, model, encoded, {"a": [(99, 0)]})
