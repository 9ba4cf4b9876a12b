"""Rankings of heads against whole runs with one head changed, eager attention, and projections by
hand."""

import numpy as np
import pytest
import torch
import xarray as xr
from conftest import VOCABULARY, of_two_classes, random_prompts, refused, shared_tiny
from reference import Reference
from towerlab.measure import rankings as module
from towerlab.measure.heads import heads
from towerlab.measure.increases import increases
from towerlab.model.attention import changing_z
from twotowers import choose


@pytest.fixture(autouse=True)
def tokens(monkeypatch):
    monkeypatch.setattr(module, "ordinary_tokens", lambda _: ([*range(2, VOCABULARY)], []))


def head_scaled(model, e, layer, head, scale=0.0, add=0.0, positions=slice(None)):
    """Logits of one prompt, a head's mixed values at some positions multiplied and added to."""

    def change(z):
        z[:, positions, head] = z[:, positions, head] * scale + add

    with changing_z(model, {layer: change}):
        return model.hf(torch.tensor([e.ids])).logits[0, -1]


def test_a_function_vector_is_the_balanced_mean_of_other_blocks_put_in_place(model, small_batches):
    encoded, shuffled = of_two_classes(6), of_two_classes(6, seed=9)
    result = module.function_vector_scores(model, encoded, shuffled, range(len(encoded)))
    of_class = [
        [2, 4],
        [1, 3, 5],
    ]  # prompts by the class they ask; prompt 0, whose own block is left out, is in none
    for layer, head in ((0, 1), (1, model.n_heads - 1)):
        rows = []
        for e in encoded:

            def keep(z, head=head, rows=rows):
                rows.append(z[0, -1, head].clone())

            with changing_z(model, {layer: keep}):
                model.hf(torch.tensor([e.ids]))
        mean = sum(sum(rows[j] for j in some) / len(some) for some in of_class) / 2
        prompt = shuffled[0]
        plain = head_scaled(model, prompt, layer, head, 1.0).softmax(-1)[prompt.true_id]
        put = head_scaled(model, prompt, layer, head, 0.0, mean, -1).softmax(-1)[prompt.true_id]
        assert result[0, layer, head] == pytest.approx(float(put - plain), abs=1e-10)


def test_task_subspace_scores_are_those_of_a_least_squares_projection(model):
    encoded = random_prompts(3)
    recognition, learning = module.task_subspace_scores(model, encoded).values()
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        rows = model.unembedding.weight[[e.true_id, 16 - e.true_id]]
        for layer, head in ((0, 1), (1, model.n_heads - 1)):
            output = slow.head(layer, head)
            projection = rows.T @ torch.linalg.lstsq(rows.T, output[:, None]).solution[:, 0]
            assert recognition[i, layer, head] == pytest.approx(float(projection.norm()), abs=1e-9)
            difference = float(output @ rows[0] - output @ rows[1])
            assert learning[i, layer, head] == pytest.approx(
                difference / float(projection.norm()), abs=1e-8
            )


def test_induction_scores_are_those_of_eager_attention(model, monkeypatch):
    monkeypatch.setattr(module, "LENGTH", 7)
    monkeypatch.setattr(module, "REPEATS", 3)
    ids = []
    hook = model.hf.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: ids.append(args[0])
    )
    result = module.induction_scores(model)
    hook.remove()
    (ids,) = ids
    assert ids.shape == (3, 14) and torch.equal(ids[:, :7], ids[:, 7:]) and ids.min() >= 2
    assert all(len(set(row)) == 7 for row in ids.tolist())
    stock = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    attentions = model.hf(ids, output_attentions=True, use_cache=False).attentions
    model.hf.set_attn_implementation(stock)
    for layer, weights in enumerate(attentions):
        expected = torch.stack([weights[:, :, at, at - 6] for at in range(7, 14)]).mean((0, 1))
        np.testing.assert_allclose(result[layer], expected.numpy(), atol=1e-10)


def test_the_dataset_holds_every_ranking(float64):
    model, encoded = shared_tiny("gpt2"), of_two_classes(6)
    of_heads = heads(model, encoded).assign(increase=increases(model, encoded)["increase"])
    data = module.of_prompts(model, range(len(encoded)), encoded, of_two_classes(6, seed=9))
    result = module.scores(model, of_heads, data)
    assert list(result["ranking"].values) == [*choose.RANKINGS, "induction", *module.EACH]
    assert result["score"].dims == ("ranking", "layer", "head")
    xr.testing.assert_allclose(
        result["score"].sel(ranking=list(module.EACH)), data["score"].mean("prompt")
    )
    np.testing.assert_allclose(
        result["score"].sel(ranking="writing"), of_heads["writing"].mean("prompt")
    )


def test_what_cannot_be_ranked_is_refused(monkeypatch):
    monkeypatch.setattr(module, "LENGTH", 30)
    model = shared_tiny("gpt2")
    few = of_two_classes(3)  # the other blocks of the second one ask one class only
    refused(
        "lacks other blocks that ask each class",
        module.function_vector_scores,
        model,
        few,
        few,
        range(len(few)),
    )
    refused("takes 29 random tokens", module.induction_scores, model, False)
