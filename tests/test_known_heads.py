"""Scores of known rankings against whole runs with one head changed, eager attention, and
projections by hand."""

import numpy as np
import torch
from conftest import VOCABULARY, of_two_classes, random_prompts
from independent import changed_at, log_softmax
from reference import Reference
from tolerances import near

from benchmarks import known_heads as module


def test_a_function_vector_is_the_balanced_mean_of_other_blocks_put_in_place(model, small_batches):
    encoded, shuffled = of_two_classes(6), of_two_classes(6, seed=9)
    result = module.function_vector_scores(model, encoded, shuffled)
    # prompts by the class they ask; prompt 0, whose own block is left out, is in none
    of_class = [[2, 4], [1, 3, 5]]
    for layer, head in ((0, 1), (1, model.n_heads - 1)):
        rows = [Reference(model, e.ids).run.z[layer][head, -1] for e in encoded]
        mean = sum(sum(rows[j] for j in some) / len(some) for some in of_class) / 2
        prompt = shuffled[0]
        slow = Reference(model, prompt.ids)
        put = changed_at([(layer, head)], lambda *_, mean=mean: mean, -1)
        runs = slow.by_hand.run(prompt.ids, z=put), slow.run
        after, before = (np.exp(log_softmax(run.logits)[prompt.true_id]) for run in runs)
        near(result[0, layer, head], after - before, atol=1e-10)


def test_task_subspace_scores_are_those_of_a_least_squares_projection(model):
    encoded = random_prompts(3)
    recognition, learning = module.task_subspace_scores(model, encoded).values()
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        rows = model.unembedding.weight[[e.true_id, 16 - e.true_id]]
        for layer, head in ((0, 1), (1, model.n_heads - 1)):
            output = slow.head(layer, head)
            norm = float((rows.T @ torch.linalg.lstsq(rows.T, output[:, None]).solution).norm())
            near(recognition[i, layer, head], norm)
            difference = float(output @ rows[0] - output @ rows[1])
            near(learning[i, layer, head], difference / norm, atol=1e-8)


def test_induction_scores_are_those_of_eager_attention(model, monkeypatch):
    monkeypatch.setattr(module, "ordinary_tokens", lambda _: ([*range(2, VOCABULARY)], []))
    monkeypatch.setattr(module, "LENGTH", 7)
    monkeypatch.setattr(module, "REPEATS", 3)
    ids = []
    hook = model.hf.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: ids.append(args[0])
    )
    result = module.induction_scores(model)
    hook.remove()
    (ids,) = ids
    assert torch.equal(ids[:, :7], ids[:, 7:])
    assert all(len(set(row)) == 7 for row in ids.tolist())
    stock = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    attentions = model.hf(ids, output_attentions=True, use_cache=False).attentions
    model.hf.set_attn_implementation(stock)
    for layer, weights in enumerate(attentions):
        expected = torch.stack([weights[:, :, at, at - 6] for at in range(7, 14)]).mean((0, 1))
        near(result[layer], expected.numpy(), atol=1e-10)
