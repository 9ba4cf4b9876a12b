"""The second verdict, on counterbalanced prompts: for every result a rule or a reason."""

import math
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from chapter_runs import functions_of, shown_chapter
from twotowers import claims, evidence
from twotowers.claims import AGREES, DISAGREES, NOT_TESTABLE, ON_PAPER, ON_SOLVED
from twotowers.errors import NotTestable
from twotowers.heads import Head
from twotowers.label_values import ANSWERS, at_own_label_of_pair, leaning
from twotowers.paper_results import LABELS, Result, Solved, compare_lists

RULES = claims.solved_rules()
SHARE_OF_TWICE = functions_of("04-attention-weights")["share_with_twice_the_attention"]


def test_every_judged_result_has_a_rule_or_a_reason():
    judged = {name for name, row in claims.paper_results().items() if not row.not_run}
    assert {*RULES} == judged
    assert all(bool(rule.measure) != bool(rule.none) for rule in RULES.values())
    assert all(rule.seen for rule in RULES.values() if rule.measure)


@pytest.fixture
def chapter(monkeypatch):
    """A chapter with three models, of which the last does not learn the task."""
    chapter, chapter.shown = shown_chapter(monkeypatch)

    def fails():
        raise NotTestable("does not learn the task: accuracy 50%")

    def model(check):
        sizes = {"layers": 2, "heads": 12, "key_value_heads": 12}
        return SimpleNamespace(check_learned=check, heads=SimpleNamespace(attrs=sizes))

    chapter.models = {"a": model(lambda: None), "b": model(lambda: None), "c": model(fails)}
    return chapter


def test_a_result_has_two_verdicts_and_a_model_that_fails_the_task_has_one(chapter):
    first = dict.fromkeys("abcd", Result(1.0, "all heads", random=[0.0] * 30))
    attention = xr.DataArray(np.full((2, 4, 2, 12), 0.1), dims=("label", "prompt", "layer", "head"))
    attention = attention.assign_coords(label=LABELS)
    attention[0, :, 1, :3] = 0.3
    listed = [Head(1, 0), Head(1, 1), Head(1, 2)]

    on_blocks = {"a": attention, "b": attention.isel(label=[1, 1]).assign_coords(label=LABELS)}
    on_blocks |= {"c": attention}
    chapter.compare_with_paper(
        "figure 6", "4.1", first,
        solved=Solved(on_blocks, SHARE_OF_TWICE, heads=dict.fromkeys("abc", listed),
                      words=lambda x: f"{x.sizes['selected_head']} heads"))  # fmt: skip
    second = {row.model: row for row in chapter.rows if row.prompt_set == ON_SOLVED}
    assert "d" not in second  # not measured on blocks
    assert [second[m].verdict for m in "abc"] == [AGREES, DISAGREES, NOT_TESTABLE]
    assert second["a"].n_random_sets >= 20 and second["a"].words == "3 heads"
    assert second["c"].words.startswith("does not learn the task")
    assert [row.verdict for row in chapter.rows if row.prompt_set == ON_PAPER] == [AGREES] * 4
    html = unescape(chapter.shown[0])
    assert "On counterbalanced prompts: agrees in 1 of 2 models, does not agree in 1." in html
    assert "In the paper's protocol: agrees in all 4 models." in html
    assert html.count('<th scope="row">') == 4 and html.count('<svg class="track"') == 7
    filled, hollow = html.count('r="6.5" fill="#'), html.count('r="5.5" fill="none"')
    assert (filled, hollow) == (2, 4)
    assert "a, counterbalanced prompts: <b>agrees</b>" in html


def test_a_model_without_its_list_of_heads_on_blocks_is_not_testable_there(chapter):
    first = {"a": Result(1.0, "all heads")}
    on_blocks = Solved({"a": xr.DataArray([1.0, 1.0], dims="selected_head")}, heads={})
    chapter.compare_with_paper(
        "figure 6", "4.1", first, lambda x: x.mean("selected_head"), solved=on_blocks
    )
    (row,) = [row for row in chapter.rows if row.prompt_set == ON_SOLVED]
    assert row.verdict == NOT_TESTABLE and "not listed" in row.words


def test_a_result_without_a_second_verdict_says_why(chapter):
    chapter.compare_with_paper("figure 7", "4.2", {"a": Result(1.0, "")})
    assert [row.prompt_set for row in chapter.rows] == [ON_PAPER]
    assert f"No second verdict, on counterbalanced prompts: {RULES['figure 7'].none}." in unescape(
        chapter.shown[0]
    )


def test_the_two_verdicts_are_read_apart(chapter, tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(tmp_path))
    found = {"a": Result(1.0, "words")}
    chapter.compare_with_paper("figure 3", "1.3", found, solved=Solved({"a": Result(0.1, "")}))
    chapter.close()
    results = claims.paper_results()
    first, second = (evidence.read(tmp_path, results, solved) for solved in (False, True))
    assert first["verdict"].tolist() == [AGREES] and second["verdict"].tolist() == [DISAGREES]


def attention(true, false):
    """Attention of heads by label."""
    return xr.DataArray([true, false], {"label": LABELS}, ("label", "selected_head"))


def test_statistics_of_chapters_by_hand():
    assert float(SHARE_OF_TWICE(attention([0.4, 0.4], [0.2, 0.3]))) == 0.5
    names = functions_of("01-locate")
    increase = xr.DataArray(np.zeros((4, 4, 2)), dims=("prompt", "layer", "head"))
    increase[:, 3], increase[:, 0, 0] = 1.0, 0.5
    deep = compare_lists(names["share_of_deep"], {"all": increase}, 3, "", ("layer", "head"))
    assert deep.value == pytest.approx(2 / 3)
    same = compare_lists(names["beyond_chance"], {"0": increase, "1": increase}, 3, "")
    assert same.value == 1.0
    losses = xr.DataArray(
        [[0.2, -0.1, -0.1], [0.5, 0.3, 0.2]],
        {"part": ["beyond", "plain"]},
        ("part", "selected_head"),
    )
    names = functions_of("05-imbalanced-and-reordered")
    beyond = names["share_beyond"](losses)
    assert math.isclose(beyond, 0, abs_tol=1e-9)
    assert float(names["in_nearly_all"](xr.DataArray(0.4), losses.sel(part="beyond"))) == 0.2


def test_remedies_and_the_twelve_by_hand():
    right = xr.DataArray(
        [[0.8, 0.8], [0.6, 0.7], [0.9, 0.85], [0.9, 0.8], [0.5, 0.6]],
        {"change": ["FFTT", "one true fewer", "one false fewer", "true nearest", "true first"],
         "remedy": ["none", "remedy"]}, ("change", "remedy"))  # fmt: skip
    names = functions_of("07-mitigation")
    names["GOALS"] = [0.17]
    assert float(names["net"](right)) == pytest.approx((0.1 - 0.05) / 0.2)
    assert float(names["share_of_published"](right)) == pytest.approx(0.5 / 0.17)
    sets = {"score": ["top token"], "head_set": ["none", "paper's twelve"]}
    accuracy = xr.DataArray([[0.8, 0.2]], sets, ("score", "head_set"))
    lost = functions_of("06-interventions")["share_lost"](accuracy)
    assert float(lost) == pytest.approx(0.75)


def test_attention_on_own_labels_is_that_of_a_loop_over_prompts():
    """Blocks in any order of prompts, one of which has a label pair without an own label."""
    rng = np.random.default_rng(3)
    pairs, orders = ("x/y", "u/v", "new/one"), ("TFFT", "FTTF")
    prompts = [
        {"block": block, "order": order, "true_first": first, "label_pair": pairs[block % 3]}
        for block in range(6) for order in orders for first in (True, False)
    ]  # fmt: skip
    rng.shuffle(prompts)
    names = {name: ("prompt", [p[name] for p in prompts]) for name in prompts[0]}
    is_true = np.array([[letter == "T" for letter in p["order"]] for p in prompts])
    attention = rng.random((24, 2, 3, 4))
    nats = np.where([p["block"] == 1 for p in prompts], 1.0, rng.normal(size=24))
    dims = ("prompt", "layer", "head")
    heads = xr.Dataset(
        {"attention": ((*dims, "demonstration"), attention), "logit_difference": ("prompt", nats)},
        names | {"is_true_label": (("prompt", "demonstration"), is_true)},
    )
    increase = rng.normal(size=(24, 2, 3))
    increases = xr.Dataset({"increase": (dims, increase)}, names)
    known = increases.isel(prompt=(increases.label_pair != "new/one").values)
    found = at_own_label_of_pair(heads, leaning(known))

    def on(label, i, layer, head):
        """The sum over the positions of the first or of the second label in a prompt."""
        right = prompts[i]["true_first"] == (label == "first")
        return attention[i, layer, head][is_true[i] == right].sum()

    number = {(p["block"], p["order"], p["true_first"]): i for i, p in enumerate(prompts)}
    right = {block: all(nats[i] > 0 for i, p in enumerate(prompts) if p["block"] == block)
             for block in range(6)}  # fmt: skip
    places = [(block, order) for block in (0, 1, 3, 4) for order in sorted(orders)]
    assert [*zip(found.block.values, found.order.values, strict=True)] == places
    assert found.flips.values.tolist() == [right[block] for block, _ in places]
    for place, (block, order) in enumerate(places):
        for layer, head in np.ndindex(2, 3):
            raised = [
                np.mean([increase[i, layer, head] for i, p in enumerate(prompts)
                         if p["label_pair"] == pairs[block % 3] and p["true_first"] == first])
                for first in (True, False)
            ]  # fmt: skip
            own = "first" if raised[0] > raised[1] else "second"
            prompt_of = [number[block, order, (own == "first") == answers] for answers in (1, 0)]
            for answer, i in zip(ANSWERS, prompt_of, strict=True):
                value = found.sel(answer=answer).isel(prompt=place, layer=layer, head=head)
                assert math.isclose(value, on(own, i, layer, head))
