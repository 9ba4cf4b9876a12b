"""The best head: chosen and judged on other queries, each set counting alike; missing sets told apart from faults."""

import numpy as np
import pytest
from conftest import random_prompts, tiny
from twotowers import heads as head_sets
from twotowers.analysis import best, locate
from twotowers.errors import TwoTowersError
from twotowers.prompts import datasets


@pytest.mark.parametrize("n", [8, 50, 400])
def test_no_query_is_both_chosen_on_and_judged(n):
    prompts = datasets.draw("animal/country", n)
    choosing, judged = best.split(prompts)
    assert not {p.query for p in choosing} & {p.query for p in judged}
    assert sorted(map(id, [*choosing, *judged])) == sorted(map(id, prompts))
    queries = [len({p.query for p in part}) for part in (choosing, judged)]
    assert queries[0] == -(-sum(queries) // best.EVERY)


def test_too_few_queries_cannot_be_split():
    with pytest.raises(TwoTowersError, match="2 different queries: give at least 4"):
        best.split(datasets.draw("animal/country", 2))


def test_every_second_prompt_has_its_labels_exchanged():
    prompts = datasets.draw("animal/country", 4)
    assert [p.true_label for p in best.both_labels(prompts)] == ["foo", "bar", "foo", "bar"]
    assert [p.query for p in best.both_labels(prompts)] == [p.query for p in prompts]


def test_only_sets_of_sentences_may_be_missing():
    def draw(name):
        if name in ("trec", "animal/country"):
            raise TwoTowersError(f"no {name}")
        return name.upper()

    assert best.load_available(["sst2", "trec", "agnews:sports/world"], draw) == (
        {"sst2": "SST2", "agnews:sports/world": "AGNEWS:SPORTS/WORLD"}, {"trec": "no trec"}
    )  # fmt: skip
    with pytest.raises(TwoTowersError, match="no animal/country"):
        best.load_available(["sst2", "animal/country"], draw)


def test_every_set_counts_alike_whatever_its_size():
    model = tiny("llama")
    sets = {"large": random_prompts(12), "small": random_prompts(3, seed=1)}
    choice = best.choose(model, sets)
    mean = np.mean([locate.increases(model, encoded).heads.mean(0) for encoded in sets.values()], axis=0)
    assert choice.head == np.unravel_index(mean.argmax(), mean.shape) and choice.n == 15
    assert choice.name == f"{choice.head[0]}-{choice.head[1]}" == choice.mean["name"].iloc[0]
    for layer, head, value in choice.mean[["layer", "head", "increase"]].itertuples(index=False):
        assert value == pytest.approx(mean[layer, head])
    for name, encoded in sets.items():
        assert choice.best_on[name] == "{}-{}".format(*locate.increases(model, encoded).top_heads(1)[0])


def test_a_model_without_a_head_that_helps_is_refused(monkeypatch):
    model, full = tiny("gpt2"), locate.Increases.heads_table
    monkeypatch.setattr(
        locate.Increases, "heads_table", lambda self: full(self).assign(increase=lambda t: -t["increase"].abs())
    )
    with pytest.raises(TwoTowersError, match="no head of gpt2 raises the true label"):
        best.choose(model, {"a": random_prompts(3)})


def test_controls_are_other_heads_of_the_layer():
    for seed in range(5):
        drawn = head_sets.others_of_layer((2, 1), 8, 5, seed)
        assert len(set(drawn)) == 5 and (2, 1) not in drawn and {layer for layer, _ in drawn} == {2}
        assert drawn == head_sets.others_of_layer((2, 1), 8, 5, seed)
    assert set(head_sets.others_of_layer((0, 0), 3, 5)) == {(0, 1), (0, 2)}
    with pytest.raises(TwoTowersError, match="one head only"):
        head_sets.others_of_layer((0, 0), 1, 5)
