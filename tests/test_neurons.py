"""FFN neurons: inner products of subkeys sum to coefficients in every architecture, and their changes are shared out."""

import pytest
import torch
from conftest import VOCABULARY, random_prompts
from twotowers.analysis import neurons
from twotowers.analysis.logit_changes import block_changes, margin_rows
from twotowers.errors import TwoTowersError
from twotowers.model.capture import capture
from twotowers.prompts.datasets import swapped_labels
from twotowers.prompts.prompt import Encoded

SOME, GROUPS = [(0, 3), (1, 0), (1, 5)], [[(0, 1), (1, 0)], [(1, 1)]]


def pairs(n):
    """Random prompts, each with its labels exchanged: other words at the label positions."""
    out = []
    for one in random_prompts(n):
        ids, (foo, bar) = list(one.ids), one.label_ids.values()
        for swapped in (False, True):
            prompt = swapped_labels(one.prompt) if swapped else one.prompt
            for at, d in zip(one.label_positions, prompt.demonstrations, strict=True):
                ids[at] = {"foo": foo, "bar": bar}[d.label]
            out.append(Encoded(prompt, tuple(ids), *[getattr(one, f) for f in list(one.__dataclass_fields__)[2:]]))
    return out


def test_inner_products_with_all_that_was_written_before_make_the_coefficient(any_model):
    seen = capture(any_model, random_prompts(3, lengths=(11,)), {"neurons"})
    found = neurons.inner_products(seen, any_model, SOME, GROUPS)
    for i, (layer, neuron) in enumerate(SOME):
        made = neurons.coefficients(found[:, :, [i]], any_model.part(layer, "ffn_activation"))[:, 0]
        made = made if seen.ffn_scale is None else made / seen.ffn_scale[layer]
        torch.testing.assert_close(made, seen.neurons[layer, :, neuron], atol=1e-12, rtol=1e-10)
    every = [(layer, head) for layer in range(any_model.n_layers) for head in range(any_model.n_heads)]
    groups = neurons.inner_products(seen, any_model, SOME, [every])
    torch.testing.assert_close(groups[..., 4], groups[..., 1])


def test_parts_of_a_pair_sum_to_what_the_neurons_add_to_the_lead(any_model):
    encoded = pairs(3)
    assert max(max(e.ids) for e in encoded) < VOCABULARY
    lead, every = neurons.read_pairs(any_model, encoded, SOME, GROUPS)
    seen = [capture(any_model, [e], {"neurons"}) for e in encoded]
    found = torch.cat([neurons.neuron_leads(one, any_model) for one in seen])
    some = torch.stack([found[:, a, b] for a, b in SOME]).sum(0)
    blocks = torch.cat([block_changes(one, any_model, margin_rows(one, any_model))[1].sum(1) for one in seen])
    parts = lead[:, [0, 1, 2, 3, -1]].sum(1)
    assert parts == pytest.approx(some.reshape(-1, 2).mean(1).numpy(), rel=1e-9, abs=1e-12)
    assert every == pytest.approx(blocks.reshape(-1, 2).mean(1).numpy())


def test_a_change_by_hand():
    """Plain: relu(1 + 2) = 3 against relu(1 - 3) = 0, a chord of slope 3 / 5; gated, by the identity: 3 * 4 - 1 * 2."""
    relu, same = torch.relu, lambda x: x
    a, b = (torch.tensor([[[1.0, x, 0.0, 0.0]]], dtype=torch.float64) for x in (2.0, -3.0))
    assert neurons.changes(a, b, relu)[0].tolist() == pytest.approx([0, 3, 0, 0])
    assert neurons.coefficients(a, relu).tolist() == [3] and neurons.coefficients(b, relu).tolist() == [0]
    a = torch.tensor([[[1.0, 2, 0, 0]], [[0.0, 4, 0, 0]]], dtype=torch.float64)
    b = torch.tensor([[[1.0, 0, 0, 0]], [[0.0, 1, 1, 0]]], dtype=torch.float64)
    # The gate moves by 2 at a mean of 3, the other by 3 at a gate of 2 from one part and by -1 at it from the next.
    assert neurons.changes(a, b, same)[0].tolist() == pytest.approx([0, 2 * 3 + 3 * 2, -1 * 2, 0])
    assert float(neurons.coefficients(a, same) - neurons.coefficients(b, same)) == 10
    assert neurons.changes(a, a, relu).tolist() == [[0, 0, 0, 0]]  # a chord of no length


def test_top_neurons_add_most_to_the_lead(any_model):
    encoded = pairs(4)
    leads = torch.cat([neurons.neuron_leads(capture(any_model, [e], {"neurons"}), any_model) for e in encoded]).mean(0)
    found = neurons.top_neurons(any_model, encoded, 3)
    assert [float(leads[at]) for at in found] == pytest.approx(leads.flatten().topk(3).values.tolist())


def test_prompts_that_are_no_pairs_are_refused(any_model):
    with pytest.raises(TwoTowersError, match="both assignments"):
        neurons.read_pairs(any_model, random_prompts(3), SOME)
