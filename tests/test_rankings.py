"""Rankings of heads: against the slow reference and whole runs on every architecture, and what they refuse."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from conftest import VOCABULARY, random_prompts, tiny
from reference import Reference
from twotowers.analysis import locate, rankings
from twotowers.analysis.edit_heads import Edit, edited, mean_fed
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.architectures import ARCHITECTURES
from twotowers.model.attention_hooks import implementation
from twotowers.model.capture import capture, predict
from twotowers.model.model import Model
from twotowers.prompts import datasets


@pytest.mark.parametrize("norm", unembed.NORMS)
def test_the_label_margin_is_the_difference_of_two_increases_from_label_positions(any_model, norm):
    encoded = random_prompts(3, lengths=(14,))
    found = rankings.label_margin(any_model, encoded, norm, max_tokens=30)
    for i in (0, 2):  # either label true
        slow, true = Reference(any_model, encoded[i].ids), encoded[i].true_id
        for layer, head in ((0, 1), (1, any_model.n_heads - 1)):
            increases = {
                word: sum(
                    slow.increase(slow.resid_pre[layer], slow.position(layer, head, p), word, norm)
                    for p in encoded[i].label_positions
                )
                for word in (7, 9)
            }
            assert found[i, layer, head] == pytest.approx(increases[true] - increases[16 - true], abs=1e-9)


def test_it_is_what_the_walk_over_the_vocabulary_gives_position_by_position():
    model, encoded = tiny("llama"), random_prompts(3, lengths=(11,))
    seen = capture(model, encoded, {"weights", "values"})
    of_true, of_other = (
        locate.position_increases(seen, model, words)[..., list(encoded[0].label_positions)]
        for words in (seen.true_ids, 16 - seen.true_ids)
    )
    torch.testing.assert_close(rankings.label_position_margins(seen, model), of_true - of_other, atol=1e-9, rtol=0)


def test_attention_by_class_is_the_sum_on_true_labels_less_that_on_false_ones(any_model):
    encoded = random_prompts(3, lengths=(14,))
    found = rankings.attention_by_class(any_model, encoded, max_tokens=30)
    for i in (0, 1):
        slow, one = Reference(any_model, encoded[i].ids), encoded[i]
        for layer in range(any_model.n_layers):
            weights = slow.attentions[layer][:, list(one.label_positions)].numpy()
            true = np.array(one.prompt.is_true)
            np.testing.assert_allclose(
                found[i, layer], (weights[:, true].sum(1) - weights[:, ~true].sum(1)), atol=1e-12
            )


def test_prompts_in_which_a_place_or_a_word_tells_the_class_are_refused():
    drawn = datasets.draw("animal/country", 12)
    rankings.check_counterbalanced(datasets.counterbalanced(drawn))
    with pytest.raises(TwoTowersError, match="demonstration 1 carries the query's label in 0% of the prompts"):
        rankings.check_counterbalanced(drawn)
    one_word = [datasets.orders(prompt)[i % 6] for i, prompt in enumerate(drawn)]
    with pytest.raises(TwoTowersError, match="the label 'foo' is true in 100%"):
        rankings.check_counterbalanced(one_word)


def test_induction_scores_are_those_of_eager_attention(any_model):
    said = []
    with ExitStack() as stack:
        hook = any_model.hf.get_input_embeddings().register_forward_pre_hook(lambda _, args: said.append(args[0]))
        stack.callback(hook.remove)
        found = rankings.induction_scores(any_model, length=7, n=3, tokens=range(2, VOCABULARY))
    ids = torch.cat(said)
    assert ids.shape == (3, 14) and torch.equal(ids[:, :7], ids[:, 7:])
    assert all(len(set(row[:7])) == 7 for row in ids.tolist()) and ids.min() >= 2
    stock = any_model.hf.config._attn_implementation
    any_model.hf.set_attn_implementation("eager")
    attentions = any_model.hf(ids, output_attentions=True, use_cache=False).attentions
    any_model.hf.set_attn_implementation(stock)
    for layer, weights in enumerate(attentions):
        expected = torch.stack([weights[:, :, at, at - 6] for at in range(7, 14)]).mean((0, 1))
        np.testing.assert_allclose(found[layer], expected.numpy(), atol=1e-10)


def test_a_head_that_looks_at_a_distance_scores_as_high_without_repetition():
    """A planted head that only looks 9 places back, on 10 tokens said twice."""
    config = transformers.GPT2Config(vocab_size=50, n_layer=1, n_head=1, n_embd=32, n_positions=32)
    hf = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    hf.set_attn_implementation(implementation(ARCHITECTURES["gpt2"]))
    attention = hf.transformer.h[0].attn.c_attn
    for parameter in (hf.transformer.wte.weight, attention.weight, attention.bias):
        parameter.zero_()
    hf.transformer.wpe.weight.copy_(torch.eye(32))
    attention.weight[:, :32] = torch.eye(32).roll(-9, 1)  # the query of place t is the key of place t - 9
    attention.weight[:, 32:64] = 10 * torch.eye(32)
    model = Model("planted", hf, None, ARCHITECTURES["gpt2"])
    found, control = (
        rankings.induction_scores(model, 10, n=2, repeated=repeated, tokens=range(50)) for repeated in (True, False)
    )
    assert found[0, 0] > 0.99 and control[0, 0] > 0.99


@pytest.mark.parametrize(("length", "repeated"), [(33, True), (1, True), (30, False)])
def test_more_random_tokens_than_there_are_places_or_words_are_refused(length, repeated):
    with pytest.raises(TwoTowersError, match="takes 2 to"):
        rankings.induction_scores(tiny("gpt2"), length, repeated=repeated, tokens=range(2, VOCABULARY))


def of_task(encoded, task):
    """The same tokens; a task says which class has which label, and so the classes of texts with these labels."""
    cls = {label: name for name, label in task.items()}
    return [
        replace(e, prompt=replace(
            e.prompt, cls=cls[e.prompt.true_label],
            demonstrations=tuple(replace(d, cls=cls[d.label]) for d in e.prompt.demonstrations),
        ))
        for e in encoded
    ]  # fmt: skip


ONE, OTHER = {"number": "foo", "animal": "bar"}, {"number": "bar", "animal": "foo"}


def test_a_function_vector_is_the_mean_of_its_own_task_put_in_place(any_model):
    clean = [of_task(random_prompts(4, (14,), seed=i), task) for i, task in enumerate((ONE, OTHER))]
    shown = [of_task(random_prompts(2, (14, 11), seed=i), task) for i, task in ((2, ONE), (3, OTHER))]
    mixed = [shown[0][0], shown[1][0], shown[1][1], shown[0][1]]
    found = rankings.function_vector_scores(any_model, [*clean[1], *clean[0]], mixed)
    for place, one, own in ((0, shown[0][0], clean[0]), (2, shown[1][1], clean[1])):
        mean, label = mean_fed(any_model, own), list(one.label_ids).index(one.prompt.true_label)
        before = predict(any_model, [one])[1][0, label].exp()
        for layer, head in ((0, 1), (1, any_model.n_heads - 1)):
            with edited(any_model, [Edit(((layer, head),), positions="last", replacement=mean[layer, [head]])]):
                after = predict(any_model, [one])[1][0, label].exp()
            assert found[place, layer, head] == pytest.approx(float(after - before), abs=1e-10)


def test_prompts_without_a_task_or_a_clean_mean_are_refused():
    model, encoded = tiny("gpt2"), of_task(random_prompts(4, (14,)), ONE)
    with pytest.raises(TwoTowersError, match="the task 'animal is foo, number is bar' needs clean prompts"):
        rankings.function_vector_scores(model, encoded, of_task(random_prompts(1, (14,)), OTHER))
    always_foo = [e for e in encoded if e.prompt.true_label == "foo"]
    with pytest.raises(TwoTowersError, match="ask each class"):
        rankings.function_vector_scores(model, always_foo, encoded)
    with pytest.raises(TwoTowersError, match="two named classes"):
        rankings.function_vector_scores(model, encoded, random_prompts(1))
