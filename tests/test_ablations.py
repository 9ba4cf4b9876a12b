"""Ablations against whole runs of one prompt at a time with plain hooks on W_O's input."""

import numpy as np
import pytest
from conftest import random_prompts, refused, tiny
from plain_hooks import put, run
from towerlab.measure.ablations import ablations, single_ablations

EXACT = dict(rtol=0, atol=1e-9)


def whole_run(model, e, heads, positions):
    """log p(true), log p(other) and what is said (0 true, 1 other, 2 neither) of one prompt, a stock run with hooks."""
    zeroed = put(model, heads, dict.fromkeys(heads, 0.0), slice(None) if positions == "all" else -1)
    log_prob = run(model, e, zeroed)["logits"].log_softmax(-1)
    top, labels = int(log_prob.argmax()), list(e.label_pair)
    return *(float(log_prob[label]) for label in labels), [*labels, top].index(top)


def sets_of(model):
    """Heads of one layer and of several, a head named twice, a set of the lowest and one of the highest layer only."""
    top, last = model.n_layers - 1, model.n_heads - 1
    return {"mixed": [(top, 0), (0, 1), (0, 0)], "twice": [(1, 0), (1, last), (1, 0)], "top": [(top, 1)],
            "low": [(0, last)], "empty": [], "again": [(top, 1)]}  # fmt: skip


def test_every_ablation_equals_a_whole_run(model, small_batches):
    encoded, sets = random_prompts(5), sets_of(model)  # two lengths
    result = ablations(model, encoded, sets)
    assert list(result.heads.values) == ["none", *sets] and "place" not in result.dims
    for label, heads in {"none": [], **sets}.items():
        at, expected = result.sel(heads=label), [whole_run(model, prompt, heads, "all") for prompt in encoded]
        np.testing.assert_allclose(at.log_prob_true, [e[0] for e in expected], **EXACT)
        np.testing.assert_allclose(at.log_prob_other, [e[1] for e in expected], **EXACT)
        assert list(at.says.values) == [says for _, _, says in expected]
    effects = (result - result.sel(heads="none")).log_prob_true
    assert float(abs(effects.sel(heads=["mixed", "twice", "top", "low"])).mean("prompt").min()) > 1e-4


@pytest.mark.parametrize("positions", ["all", "last"])
def test_every_head_alone_equals_a_whole_run(model, positions):
    encoded = random_prompts(3)
    result = single_ablations(model, encoded, positions)
    assert result.log_prob_lost.dims == ("prompt", "layer", "head") and str(result.positions.values) == positions
    for i, e in enumerate(encoded):
        true, other, _ = whole_run(model, e, [], positions)
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                own, others, _ = whole_run(model, e, [(layer, head)], positions)
                at = result.isel(prompt=i, layer=layer, head=head)
                assert float(at.log_prob_lost) == pytest.approx(true - own, abs=1e-9)
                assert float(at.logit_difference_lost) == pytest.approx(true - other - own + others, abs=1e-9)


def test_the_model_stays_as_it_was_also_after_an_error(model):
    def touched():
        return [(dict(m._forward_hooks), dict(m._forward_pre_hooks), vars(m).get("forward"), "_attn" in vars(m),
                 {k for k in vars(m) if k.startswith("twotowers")}) for m in model.hf.modules()]  # fmt: skip

    stock = model.blocks[0].forward
    model.blocks[0].forward = lambda *args, **kwargs: stock(*args, **kwargs)  # as accelerate does for a device_map
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
