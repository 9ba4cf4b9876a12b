"""Which verdicts a model earns that compares texts, that answers by position, or by one word.

Attention and answers are planted, in both orders and with both assignments of the labels: two true
labels and two false ones, of which one kind is nearer. The first verdict is on the paper's prompts,
the second on blocks.
"""

import itertools

import numpy as np
import pytest
import xarray as xr
from chapter_runs import functions_of, shown_chapter
from twotowers import claims, label_values, paper_results
from twotowers.claims import AGREES, DISAGREES, IN_PART, NEEDED, NOT_TESTABLE
from twotowers.head_selection import halves
from twotowers.heads import Head
from twotowers.judged_model import JudgedModel
from twotowers.paper_results import BALANCED, LABELS, Result, Solved, compare_lists

NEAR_IS_TRUE = [True, True, False, False]  # in BALANCED
FOO_IS_TRUE = [True, False, True, False]
KINDS = {"compares": [True] * 4, "position": NEAR_IS_TRUE, "word": FOO_IS_TRUE}
CHAPTER_1, CHAPTER_3, CHAPTER_4, CHAPTER_5, CHAPTER_6, CHAPTER_7 = map(
    functions_of,
    ("01-locate", "03-mrr", "04-attention-weights", "05-imbalanced-and-reordered",
     "06-interventions", "07-mitigation"),
)  # fmt: skip
share_of_twice = CHAPTER_4["share_with_twice_the_attention"]


def attention_of(kind):
    """Attention on true and on false labels in each version, over (label, change, head)."""
    true = np.where(KINDS[kind], 0.6, 0.1)
    values = np.repeat(np.stack([true, 0.7 - true])[..., None], 5, axis=-1)
    heads = [f"1-{i}" for i in range(5)]
    return xr.DataArray(values, {"label": LABELS, "change": BALANCED, "selected_head": heads})


def answers_of(kind):
    nats = np.where(KINDS[kind], 1.0, -1.0)[:, None] * np.ones(20)
    return xr.Dataset({"logit_difference": (("change", "prompt"), nats)}, {"change": BALANCED})


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_model_that_compares_solves_the_task_and_keeps_its_difference(kind):
    results, attention = claims.paper_results(), attention_of(kind)
    verdict = paper_results.judge(
        results["word prompts"], paper_results.compare_task(answers_of(kind))
    )
    assert verdict["verdict"] == (AGREES if kind == "compares" else DISAGREES)
    assert np.isclose(paper_results.content_share(attention), kind == "compares")
    # In the paper's order all three earn figure 6; in the mean over all versions only one does.
    figure_6 = results["figure 6"]
    assert figure_6.judge(float(share_of_twice(attention.sel(change="as it is")))) == claims.AGREES
    balanced = float(share_of_twice(attention.mean("change")))
    assert (figure_6.judge(balanced) == claims.AGREES) == (kind == "compares")


def test_no_share_is_taken_of_next_to_nothing():
    attention = attention_of("position")
    same = xr.where(attention.change == "as it is", 0.35, attention)
    assert np.isnan(paper_results.content_share(same))


PAIRS = [(f"a{i}/b{i}", f"x{j}/y{j}") for i in range(8) for j in range(3)]
"""Class pair and label pair of each block"""
ORDERS = (("TTFF", "FFTT"), ("TFTF", "FTFT"), ("TFFT", "FTTF"))
"""An order and its mirror image, of one block after the other"""
SHAPE, LISTED = (2, 12), [Head(1, i) for i in range(5)]
"""Numbers of layers and heads, and the heads that are of a kind. The others attend to no label."""


def true_labels(orders):
    return np.array([[letter == "T" for letter in order] for order in orders])


def all_prompts():
    """The prompts of all blocks: each order with the first and with the second label true."""
    rows = [
        (i, *PAIRS[i], order, is_first, PAIRS[i][1].split("/")[not is_first])
        for i in range(len(PAIRS))
        for order, is_first in itertools.product(ORDERS[i % 3], (True, False))
    ]
    names = ("block", "class_pair", "label_pair", "order", "true_first", "true_label")
    coordinates = {n: ("prompt", [*x]) for n, x in zip(names, zip(*rows, strict=True), strict=True)}
    is_true = true_labels(coordinates["order"][1])
    return xr.Dataset(
        coords=coordinates | {"is_true_label": (("prompt", "demonstration"), is_true)}
    )


PROMPTS = all_prompts()
TRUE, FIRST_IS_TRUE = PROMPTS.is_true_label.values, PROMPTS.true_first.values[:, None]
OF_PROMPTS = PROMPTS.drop_vars("is_true_label").coords
SPREAD = np.repeat(np.linspace(-1.3, 1.3, len(PAIRS))[np.arange(len(PAIRS)) * 7 % len(PAIRS)], 4)
"""What else moves the answers of a block, in nats"""


def without_last(letter):
    """Which demonstrations are there without the last true ("T") or the last false one ("F")."""
    places = [order.rindex(letter) for order in PROMPTS.order.values]
    return np.arange(4) != np.array(places)[:, None]


ALL, FEWER = np.ones_like(TRUE), without_last("T")


def attention_at(kind, is_true=TRUE, is_there=ALL, seed=None):
    """Attention of a head on labels: a softmax over their scores, and 0 for all other positions.

    The score grows with the similarity of query and text ("compares"), with nearness ("position"),
    for one label word ("word"), or with the number of demonstrations ("count"), and "any" label has
    the same. As in the paper, a similarity does not depend on which other demonstrations there are.
    """
    distance = np.cumsum(is_there[:, ::-1], axis=1)[:, ::-1]  # 1 for the nearest
    scores = {
        "compares": 2.0 * is_true, "position": 3.0 - distance,
        "word": 2.0 * (is_true == FIRST_IS_TRUE), "count": 2.0 * is_there.sum(1, keepdims=True) - 7,
        "any": 0.0,
    }.get(kind, -4.0)  # fmt: skip
    noise = 0.0 if seed is None else np.random.default_rng(seed).normal(0, 0.05, TRUE.shape)
    weights = np.exp(scores + noise) * is_there
    return weights / (1 + weights.sum(1, keepdims=True))


def of_all_heads(kind, is_there=ALL):
    """Attention of every head at labels, over (prompt, layer, head, demonstration)."""
    kinds = {head: kind for head in LISTED}
    heads = [
        attention_at(kinds.get(head), is_there=is_there, seed=n)
        for n, head in enumerate(itertools.starmap(Head, np.ndindex(SHAPE)))
    ]
    values = np.stack(heads, axis=1).reshape(-1, *SHAPE, 4)
    return xr.DataArray(values, PROMPTS.coords, ("prompt", "layer", "head", "demonstration"))


def answers(is_solved, kind, is_true=TRUE, is_there=ALL, remedy=""):
    """Logit difference: from heads that no list has, if the task is solved there, and the listed.

    Args:
        remedy: "majority": what listed heads write at the rarer label is added. "recency": half of
            their attention is computed without the position. Both in the first heads of the list.
    """
    attention = attention_at(kind, is_true, is_there)
    if remedy == "recency":
        no_position = attention_at("any" if kind == "position" else kind, is_true, is_there)
        attention = (attention + no_position) / 2
    sign = np.where(is_true, 1.0, -1.0)
    more = (sign * is_there).sum(1)
    nats = 1.0 * is_solved + 0.3 * more + 0.8 * (sign * attention).sum(1) + SPREAD
    if remedy == "majority":
        is_rarer = (sign * more[:, None] < 0) & is_there
        nats += 0.8 * (sign * attention * is_rarer).sum(1)
    return nats


def remedied(is_solved, kind):
    """Right answers with and without a remedy, (change, remedy, prompt), as in chapter 7."""
    near, far = (true_labels([order] * len(TRUE)) for order in ("FFTT", "TTFF"))
    changes = {
        "FFTT": (TRUE, ALL, "majority"), "one true fewer": (TRUE, FEWER, "majority"),
        "one false fewer": (TRUE, without_last("F"), "majority"),
        "true nearest": (near, ALL, "recency"), "true first": (far, ALL, "recency"),
    }  # fmt: skip
    right = [[answers(is_solved, kind, is_true, is_there, name) > 0 for name in ("", remedy)]
             for is_true, is_there, remedy in changes.values()]  # fmt: skip
    names = {"change": [*changes], "remedy": ["none", "remedy"]}
    return xr.DataArray(right, names, ("change", "remedy", "prompt"))


def conditions(kind):
    """Attention as it is, and without the last true demonstration, as chapter 5 takes it."""
    plain, fewer = of_all_heads(kind), of_all_heads(kind, FEWER)
    true = [x.where(PROMPTS.is_true_label).sum("demonstration") for x in (plain, fewer)]
    there = xr.DataArray(FEWER, dims=("prompt", "demonstration"))
    removed = plain.where(~there).sum("demonstration")
    names = xr.IndexVariable("condition", ["plain", "one true fewer"])
    return xr.Dataset({"attention_true": xr.concat(true, names), "attention_removed": removed,
                       "attention_left": true[0] - removed})  # fmt: skip


def second(is_solved, kind):
    """Data and statistic of each second verdict, by the functions of the chapters."""
    attention = of_all_heads(kind)
    # A head raises every label that it attends to, and one label of each pair a little more.
    lean = xr.DataArray(np.where(np.arange(SHAPE[1]) % 2, 0.05, -0.05), dims="head")
    raised = attention.sum("demonstration") + lean * xr.where(PROMPTS.true_first, 1, -1)
    increases = raised.to_dataset(name="increase")
    nats = xr.DataArray(answers(is_solved, kind), OF_PROMPTS, ("prompt",))
    heads = xr.Dataset({"attention": attention, "logit_difference": nats})
    own = label_values.at_own_label_of_pair(heads, label_values.leaning(increases))
    # Listed heads have the label itself on top of its value, others do not.
    names = [str(Head(1, i)) for i in range(10)]
    ranks = xr.DataArray([[1.0] * 5 + [1e-3] * 5] * 4, {"selected_head": names},
                         ("prompt", "selected_head"))  # fmt: skip
    ratio = CHAPTER_3["ratio_to_unlisted"](ranks, names[5:]).sel(selected_head=names[:5])
    of_conditions = conditions(kind)
    beyond = CHAPTER_5["lost"](of_conditions) - CHAPTER_5["softmax_alone"](of_conditions)
    plain = of_conditions.attention_true.sel(condition="plain", drop=True)
    losses = xr.Dataset({"beyond": beyond, "plain": plain}).to_dataarray("part")
    in_halves = {n: x.increase for n, x in zip("ab", halves(increases), strict=True)}
    deep = compare_lists(CHAPTER_1["share_of_deep"], {"all": raised}, 5, "", ("layer", "head"))
    right, listed = remedied(is_solved, kind), {"m": LISTED}
    # Random heads attend to no label, so nothing changes if a remedy acts in them.
    unchanged = right.sel(remedy=["none", "none"]).assign_coords(remedy=right.remedy)
    numbers = {"set_number": ("random_set", range(20))}
    control = {"m": unchanged.expand_dims(random_set=20).assign_coords(numbers)}
    return {
        "word prompts": Solved({"m": nats > 0}, lambda is_right: is_right),
        "figure 3": Solved({"m": deep}),
        "figure 4": Solved({"m": compare_lists(CHAPTER_1["beyond_chance"], in_halves, 5, "")}),
        "figure 5": Solved({"m": ratio}, CHAPTER_3["more_than_unlisted"]),
        "figure 6": Solved({"m": CHAPTER_4["sums_by_label"](heads)}, share_of_twice, listed),
        "figure 8": Solved({"m": losses}, CHAPTER_5["share_beyond"], listed),
        "figure 10": Solved({"m": losses}, CHAPTER_5["share_beyond_in_nearly_all"], listed),
        "EMNLP table 5": Solved({"m": own}, CHAPTER_6["share_with_more"], listed),
        "EMNLP table 6": Solved(
            {"m": own.isel(prompt=own.flips.values)}, CHAPTER_6["share_of_sizes"], listed),
        "EMNLP table 7": Solved({"m": right}, CHAPTER_7["net"], control=control),
        "EMNLP table 8": Solved({"m": right}, CHAPTER_7["share_of_published"], control=control),
    }  # fmt: skip


def second_verdicts(is_solved, kind, monkeypatch):
    """The second verdicts on a model whose listed heads are of a kind, with their numbers."""
    chapter, _ = shown_chapter(monkeypatch)
    nats = xr.DataArray(answers(is_solved, kind), OF_PROMPTS, ("prompt",))
    sizes = {"layers": SHAPE[0], "heads": SHAPE[1], "key_value_heads": SHAPE[1]}
    measured = xr.Dataset({"logit_difference": nats}, attrs=sizes)
    chapter.models = {"m": JudgedModel(chapter, "m", measured)}
    for name, solved in second(is_solved, kind).items():
        chapter.compare_with_paper(name, "", {"m": Result(1.0, "")}, solved=solved)
    return {row.claim: row for row in chapter.rows if row.prompt_set == claims.ON_SOLVED}


SIGNS = {AGREES: "+", IN_PART: "/", NOT_TESTABLE: "?"}
EARNED = {
    # Heads that no list has    compare texts                |  do not
    # The listed heads go by    text place word any  number  |  text place word any number
    "word prompts":           "+    +    +    +    +          /    ?    ?    ?    ?",
    "figure 3":               "+    +    +    +    +          +    ?    ?    ?    ?",
    "figure 4":               "+    +    +    +    +          +    ?    ?    ?    ?",
    "figure 5":               "+    +    +    +    +          +    ?    ?    ?    ?",
    "figure 6":               "+    -    -    -    -          +    ?    ?    ?    ?",
    "figure 8":               "-    -    -    -    +          -    ?    ?    ?    ?",
    "figure 10":              "-    -    -    -    +          -    ?    ?    ?    ?",
    "EMNLP table 5":          "+    -    -    -    -          +    ?    ?    ?    ?",
    "EMNLP table 6":          "+    -    -    -    -          +    ?    ?    ?    ?",
    "EMNLP table 7":          "+    -    -    +    -          +    ?    ?    ?    ?",
    "EMNLP table 8":          "?    +    ?    ?    ?          ?    ?    ?    ?    ?",
}  # fmt: skip
"""Second verdicts: agrees (+), in part (/), neither (-) or not testable (?).

Figures 8 and 10: with one demonstration fewer the softmax alone changes the attention of heads that
compare, since their scores do not know of other texts. So only heads whose scores fall with the
number of demonstrations lose more, whatever the texts. EMNLP table 8: only heads that go by place
have a part of their attention that this remedy takes away."""
PLANTED = [(solved, kind) for solved in (True, False)
           for kind in ("compares", "position", "word", "any", "count")]  # fmt: skip


@pytest.mark.parametrize("place", range(len(PLANTED)))
def test_second_verdicts_that_a_planted_model_earns(place, monkeypatch):
    rows = second_verdicts(*PLANTED[place], monkeypatch)
    signs = {name: SIGNS.get(row.verdict, "-") for name, row in rows.items()}
    assert signs == {name: earned.split()[place] for name, earned in EARNED.items()}


def test_the_table_says_which_agreement_needs_a_comparison():
    """A model is compared in its answers, and heads in the other results."""
    rules = claims.solved_rules()
    assert {*EARNED} == {name for name, rule in rules.items() if rule.measure}
    for name, earned in EARNED.items():
        agrees = [PLANTED[i] for i, sign in enumerate(earned.split()) if sign == "+"]
        compare = [solved if name == "word prompts" else kind == "compares"
                   for solved, kind in agrees]  # fmt: skip
        assert all(compare) == (rules[name].comparison == NEEDED), name
