"""The identities the method stands on, in float64 on tiny random models of every architecture."""

from dataclasses import fields, replace
from unittest.mock import Mock

import pytest
import torch
from conftest import NINE, TINY, random_prompts, refused, tiny
from towerlab.model import increase, proof, unembed
from towerlab.model.architectures import ARCHITECTURES, Architecture
from towerlab.model.capture import capture
from towerlab_experiments.ablations import ablations

INCLUDED = {"weights", "values", "neurons"}
FFN = {"parallel", "ffn_norm", "ffn_in"}  # fields of a row


def test_sums_of_blocks_heads_positions_neurons_and_our_logits(model):
    for length in (14, 11):
        plain = capture(model, random_prompts(2, lengths=(length,)), proof.PROVEN)
        for identity, error in proof.identity_errors(model, plain).items():
            assert error < 1e-12, identity


def test_rank_and_top_words_agree_with_the_whole_vocabulary(model, monkeypatch):
    monkeypatch.setattr(unembed, "SLAB", 7)  # many slabs even for a tiny vocabulary
    unembedding = model.unembedding
    v = torch.randn(
        3, 5, model.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    full = unembed.bs_values(v, unembedding)
    words = torch.arange(unembedding.vocabulary).expand(15, -1)
    every = unembed.rank(v.flatten(0, 1), words, unembedding)
    assert torch.equal(every.reshape(3, 5, -1), 1 + (full[..., None, :] > full[..., None]).sum(-1))
    values, ids = unembed.top_words(v, 4, unembedding, None, torch.tensor([]).long())
    torch.testing.assert_close(values, full.topk(4).values)
    torch.testing.assert_close(full.gather(-1, ids), values)


def test_nine_kinds_use_every_field_of_an_architecture():
    def sort(field, value):  # of paths, that there is one; of words, which
        return (
            value if field in ("positions", "qkv") or value is True else (type(value), bool(value))
        )

    for field in fields(Architecture):
        every, of_nine = (
            {
                sort(field.name, getattr(ARCHITECTURES[kind.split()[0]], field.name))
                for kind in kinds
            }
            for kinds in (TINY, NINE)
        )
        assert of_nine == every, field.name


def test_a_wrong_row_of_the_table_is_refused(model):
    wrong = replace(
        model, architecture=replace(model.architecture, centred=not model.architecture.centred)
    )
    refused("our logits|the sum of heads", proof.prove, wrong)
    proof.prove(model)


@pytest.mark.parametrize(
    ("kind", "change"),
    [("qwen3", {"head_norms": ("", "")}), ("olmo2", {"attention_norm": "post_attention_layernorm"}),
     ("smollm3", {"rotating_layers": ""}), ("gemma3_text", {"head_norms": ("q_norm", "q_norm")}),
     ("gpt_neox", {"rotates_neighbours": True}), ("gptj", {"rotates_neighbours": False}),
     ("gptj", {"parallel": False}), ("phi", {"parallel": False}),
     ("starcoder2", {"ffn_norm": "input_layernorm"}),
     ("olmo2", {"ffn_norm": "post_feedforward_layernorm"}),
     ("gemma", {"ffn_in": ("mlp.up_proj", "mlp.gate_proj")})],
)  # fmt: skip
def test_a_row_that_is_wrong_about_a_product_alone_is_refused(kind, change, float64):
    model = tiny(kind)
    wrong = replace(model, architecture=replace(model.architecture, **change))
    refused(
        "a product with a subkey" if {*change} & FFN else "a product of query and key",
        proof.prove,
        wrong,
    )


def test_the_model_stays_as_it_was_also_after_an_error(model):
    def touched():  # transformers keeps some hooks of its own
        own = {"twotowers_readers", model.architecture.attention_method, "forward"}
        return [
            (dict(m._forward_hooks), dict(m._forward_pre_hooks), own & vars(m).keys())
            for m in model.hf.modules()
        ]

    before, encoded, heads = touched(), random_prompts(2, lengths=(11,)), {"a": [(1, 0), (1, 1)]}
    for answers, run in (
        ([], lambda: capture(model, encoded, INCLUDED | {"streams"})),
        ([None], lambda: ablations(model, encoded, heads)),  # the plain run comes first
    ):
        run()
        assert touched() == before
        fails = Mock(side_effect=[*answers, RuntimeError("broken")])
        handle = model.part(1, "ffn_out").register_forward_pre_hook(fails)
        with pytest.raises(RuntimeError, match="broken"):
            run()
        handle.remove()
        assert touched() == before


@pytest.mark.parametrize("norm", unembed.NORMS)
def test_a_word_of_vanishing_probability_is_computed_again_the_careful_way(norm):
    model = tiny("gpt2", torch.float32)
    plain = capture(model, random_prompts(3, lengths=(11,)))
    scale = model.unembedding.norm.scale(plain.resid_final)
    # 1 / p of the followed word must overflow float32; the least likely word and long vectors see
    # to that.
    parts = [t * 400 for t in (plain.resid_pre, plain.z, plain.ffn_output)]
    frozen = scale if norm == "frozen" else None
    words = unembed.bs_values(parts[0][0], model.unembedding, frozen).argmin(-1)
    _, _, heads = increase.increases_along(model, *parts, scale, words, norm)
    for head in range(model.n_heads):
        x = parts[0][0]
        v = parts[1][0, :, head] @ model.output_weight(0)[head]
        p = [
            unembed.bs_values(u, model.unembedding, frozen)
            .log_softmax(-1)
            .gather(-1, words[:, None])[:, 0]
            for u in (x, x + v)
        ]
        if norm == "frozen":
            assert p[0].max() < -89
        torch.testing.assert_close(heads[:, 0, head], p[1] - p[0], rtol=2e-3, atol=5e-3)
