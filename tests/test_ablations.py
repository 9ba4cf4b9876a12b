"""Ablations against whole runs of one prompt at a time with plain hooks on W_O's input."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from conftest import random_prompts, tiny
from towerlab.measure.ablations import ablations, mean_z
from towerlab.measure.answers import answers
from towerlab.measure.single_ablations import single_ablations
from towerlab.model.capture import capture
from twotowers.errors import TwoTowersError

EXACT = dict(rtol=0, atol=1e-9)


def whole_run(model, encoded, heads, positions, replacement=None):
    """log p(true), log p(other) and the top token of one prompt, a stock run with hooks."""

    def hook(layer):
        def change(_, args):
            z = args[0].clone()
            for head in (h for at, h in heads if at == layer):
                columns = slice(head * model.d_head, (head + 1) * model.d_head)
                new = 0.0 if replacement is None else replacement[layer, head]
                if positions == "all":
                    z[..., columns] = new
                else:
                    z[:, -1, columns] = new
            return (z,)

        return change

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.callback(model.part(layer, "attention_out").register_forward_pre_hook(hook(layer)).remove)
        logits = model.hf(torch.tensor([encoded.ids])).logits[0, -1]
    (other,) = set(encoded.label_ids.values()) - {encoded.true_id}
    log_prob = logits.log_softmax(-1)
    return float(log_prob[encoded.true_id]), float(log_prob[other]), int(logits.argmax())


def sets_of(model):
    """Heads of one layer and of several, a head named twice, a set of the lowest and one of the highest layer only."""
    top, last = model.n_layers - 1, model.n_heads - 1
    return {"mixed": [(top, 0), (0, 1), (0, 0)], "twice": [(1, 0), (1, last), (1, 0)], "top": [(top, 1)],
            "low": [(0, last)], "empty": [], "again": [(top, 1)]}  # fmt: skip


@pytest.mark.parametrize("max_tokens", [40, 1024])  # few: many batches, and sets of a layer in several goes
def test_every_ablation_equals_a_whole_run(any_model, max_tokens):
    encoded, sets = random_prompts(5), sets_of(any_model)  # two lengths
    means = mean_z(any_model, random_prompts(3, seed=1))
    result = ablations(any_model, encoded, sets, replacements={"zero": None, "mean": means}, max_tokens=max_tokens)
    assert result.log_prob_true.dims == ("positions", "replacement", "heads", "prompt")
    assert list(result.heads.values) == ["none", *sets] and "place" not in result.dims
    for positions in ("all", "last"):
        for name, mean in (("zero", None), ("mean", means[positions])):
            for label, heads in {"none": [], **sets}.items():
                at = result.sel(positions=positions, replacement=name, heads=label)
                expected = [whole_run(any_model, prompt, heads, positions, mean) for prompt in encoded]
                np.testing.assert_allclose(at.log_prob_true, [e[0] for e in expected], **EXACT)
                np.testing.assert_allclose(at.log_prob_other, [e[1] for e in expected], **EXACT)
                ids = [
                    [e.true_id, *set(e.label_ids.values()) - {e.true_id}, top]
                    for e, (*_, top) in zip(encoded, expected, strict=True)
                ]
                assert list(at.says.values) == [row.index(row[2]) for row in ids]
    effects = (result - result.sel(heads="none")).log_prob_true
    assert float(abs(effects.sel(heads=["mixed", "twice", "top", "low"])).mean("prompt").min()) > 1e-4


@pytest.mark.parametrize("positions", ["all", "last"])
def test_every_head_alone_equals_a_whole_run(any_model, positions):
    encoded = random_prompts(3)
    result = single_ablations(any_model, encoded, positions)
    assert result.log_prob_lost.dims == ("prompt", "layer", "head") and str(result.positions.values) == positions
    for i, e in enumerate(encoded):
        true, other, _ = whole_run(any_model, e, [], positions)
        for layer in range(any_model.n_layers):
            for head in range(any_model.n_heads):
                own, others, _ = whole_run(any_model, e, [(layer, head)], positions)
                lost = result.isel(prompt=i, layer=layer, head=head)
                assert float(lost.log_prob_lost) == pytest.approx(true - own, abs=1e-9)
                assert float(lost.logit_difference_lost) == pytest.approx(true - other - own + others, abs=1e-9)


def test_means_are_those_of_plain_runs_and_a_head_given_its_own_z_changes_nothing(any_model):
    encoded = random_prompts(4)
    rows = []
    handle = any_model.part(1, "attention_out").register_forward_pre_hook(lambda _, args: rows.append(args[0][0]))
    for e in encoded:
        any_model.logits([e])
    handle.remove()
    means = mean_z(any_model, encoded, max_tokens=30)
    torch.testing.assert_close(means["all"][1].flatten(), torch.cat(rows).mean(0))
    torch.testing.assert_close(means["last"][1].flatten(), torch.stack([row[-1] for row in rows]).mean(0))
    z = {"last": capture(any_model, encoded[:1]).attention_out_input[:, 0]}
    result = ablations(any_model, encoded[:1], {"all": [(0, 0), (1, 1)]}, ["last"], {"its own": z}).log_prob_true
    np.testing.assert_allclose(result.sel(heads="all"), result.sel(heads="none"), **EXACT)


@pytest.mark.parametrize("positions", ["all", "last"])
def test_no_hook_stays_also_after_an_error(any_model, positions):
    def touched():
        return [(dict(m._forward_hooks), dict(m._forward_pre_hooks), m.__dict__.get("forward"),
                 {k for k in vars(m) if k.startswith("twotowers")}, "_attn" in vars(m))
                for m in any_model.hf.modules()]  # fmt: skip

    before, encoded, calls = touched(), random_prompts(2, lengths=(11,)), []
    ablations(any_model, encoded, {"a": [(0, 0), (1, 1)]}, [positions])
    assert touched() == before

    def fails(*args):  # in the second run: the plain one comes first
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("broken")

    handle = any_model.part(any_model.n_layers - 1, "ffn_out").register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="broken"):
        ablations(any_model, encoded, {"a": [(0, 0), (1, 1)]}, [positions])
    handle.remove()
    assert touched() == before


def test_a_forward_that_another_library_put_on_a_module_stays(any_model):
    module, encoded, sets = any_model.part(any_model.n_layers - 1, "attention"), random_prompts(2), sets_of(any_model)
    expected, stock = ablations(any_model, encoded, sets), module.forward
    module.forward = wrapped = lambda *args, **kwargs: stock(*args, **kwargs)  # as accelerate does for a device_map
    try:
        result = ablations(any_model, encoded, sets)
        assert module.forward is wrapped
    finally:
        del module.forward
    np.testing.assert_allclose(result.log_prob_true, expected.log_prob_true, rtol=0, atol=1e-12)


def test_without_any_head_all_runs_are_the_plain_one_and_unknown_names_are_refused():
    model, encoded = tiny("gpt2"), random_prompts(3)
    result, plain = ablations(model, encoded, {"empty": []}), answers(model, encoded)
    for positions in ("all", "last"):
        np.testing.assert_allclose(result.log_prob_true.sel(positions=positions, heads="empty")[0], plain.log_prob_true)
    with pytest.raises(TwoTowersError, match="choose all or last"):
        single_ablations(model, encoded, "first")
    with pytest.raises(TwoTowersError, match="is not in"):
        ablations(model, encoded, {"a": [(99, 0)]})
