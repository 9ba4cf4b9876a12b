"""The paper's results: their rules can be met and missed, by planted numbers; rows go from a
chapter to the page."""

import functools
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from chapter_runs import evidence_of, shown_chapter
from conftest import refused
from tolerances import near
from twotowers import book, claims, evidence, intervals, paper_results, random_heads, strips, tables
from twotowers.claims import AGREES, DISAGREES, IN_PART, NOT_TESTABLE
from twotowers.heads import head_coordinates
from twotowers.paper_results import BALANCED, Result
from twotowers.paths import data_folder

OTHERS = """section 6.2; chat model; word prompts; sentence prompts; twelve heads;
  appendix E, sum; appendix E, toy example; appendix E, order; appendix E, parts of a head;
  appendix E, neurons; appendix E, coefficients;
  authors' notebooks, gpt2-large; authors' notebooks, llama-7b"""


def test_every_result_of_both_versions_has_its_line():
    every = claims.paper_results()
    names = [f"figure {i}" for i in range(2, 28)] + [f"table {i}" for i in range(1, 4)]
    names += [f"EMNLP table {i}" for i in range(3, 9)]
    assert {*every} == {*names, *map(str.strip, OTHERS.split(";"))}
    assert {*claims.WITHOUT_MODEL} <= {*every}
    for result in every.values():  # each is judged by a rule, or has a reason
        rule = (result.measure, result.agrees, result.part, result.rule, result.chapter)
        reason = result.not_run or result.no_verdict
        assert all(cell not in ("", None) for cell in rule) != bool(reason)
        assert reason or (result.part <= result.agrees and result.seen)


def test_values_of_the_paper_are_those_that_it_prints():
    published = tables.read_csv(data_folder() / "published.csv", str)
    abstract = published[published["source"] == "EMNLP abstract"].set_index("quantity")["value"]
    before, after, majority = abstract.astype(float)[:3]
    results = claims.paper_results()
    lost = 1 - after / before
    near(results["twelve heads"].published_value, lost, atol=0.005)
    assert results["EMNLP table 7"].published_value == majority
    for name in ("EMNLP table 4", "EMNLP table 6", "EMNLP table 8"):
        assert results[name].published_value == 1 and "published" in results[name].measure
    layers = published.set_index("quantity")["value"]["layers of the top 20 heads"]
    assert int(layers.split("-")[0]) >= 36 / 2 and results["figure 3"].published_value == 1
    smallest = published[published["source"] == "v1 table 2"]["value"].astype(float).min()
    assert smallest >= 0.87 and results["table 2"].published_value == 1


@pytest.mark.parametrize(
    "item", [item for item, of in claims.paper_results().items() if of.agrees is not None]
)
def test_a_rule_can_be_met_in_part_and_missed(item):
    result = claims.paper_results()[item]
    assert result.judge(result.agrees) == AGREES and result.judge(math.nan) == NOT_TESTABLE
    assert result.judge(result.part - 0.01) == DISAGREES
    assert result.judge(result.part) == (IN_PART if result.part < result.agrees else AGREES)


SHARE = claims.PaperResult(
    id="a share", chapter="4", statement="Most heads do it.", source="a table",
    measure="share of heads", rule="2026-11-28", seen="two models", published="", agrees="0.9",
    part="0.75", not_run="",
)  # fmt: skip
"""A result of the paper whose thresholds are not those of any line of data/figures.csv"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(tmp_path))
    return tmp_path


def test_a_chapter_keeps_its_rows_for_the_page(folder, monkeypatch):
    task = claims.paper_results()["word prompts"]
    of = {
        SHARE.id: SHARE,
        task.id: task,
        "chat": SHARE.model_copy(update={"not_run": "it has no model"}),
    }
    monkeypatch.setattr(claims, "paper_results", lambda: of)
    chapter, shown = shown_chapter(monkeypatch)
    chapter.left_out["x<y"] = "it cannot"
    of_model = Result(0.96, "24 of 25 <heads>", [0.5] * 99 + [1.0], [0.96] * 3 + [0.5])
    found = {"smollm2-135m": of_model, "opposite": Result(0.0, "0 of 25 heads")}
    chapter.compare_with_paper(SHARE.id, "4.1", found)
    numbers = "0.96; random lists 0.51, 1% of 100 from other key-value groups reach it; 75%"
    numbers += " of resamples. 24 of 25 &lt;heads&gt;"
    assert f"SmolLM2-135M: <b>agrees</b> (says the nearest label), {numbers}</li>" in shown[0]
    assert "opposite: <b>does not agree</b>, 0.00. 0 of 25" in shown[0]
    assert "written after the results of two models were seen" in shown[0]
    assert "x&lt;y: <b>not testable</b>: it cannot</li>" in shown[0]
    chapter.close()
    rows = evidence.read(folder, claims.paper_results())
    verdicts = {"smollm2-135m": AGREES, "opposite": DISAGREES, "x<y": NOT_TESTABLE}
    assert rows.set_index("model")["verdict"].to_dict() == verdicts
    assert set(rows["figure"]) == {"4.1"} and set(rows["chapter"]) == {"4"}
    assert evidence.read(folder).empty
    refused("unknown result 'a sum'", chapter.compare_with_paper, "a sum", "4.1", {})
    refused("unknown result 'chat'", chapter.compare_with_paper, "chat", "4.1", {})


@pytest.mark.parametrize(
    "right, share, mark",
    [
        ([1, 1, 1, 0], 0.75, ""),
        ([1, 1, 0, 0], 0.5, claims.BY_POSITION),
        ([1, 0, 1, 0], 0.5, claims.BY_WORD),  # foo
        ([0, 1, 0, 1], 0.5, claims.BY_WORD),  # bar
    ],
)
def test_a_model_without_the_task_is_marked_by_what_it_says(right, share, mark):
    nats = ("change", "prompt"), [[2.0 * x - 1] * 3 for x in right]
    balance = xr.Dataset({"logit_difference": nats}, {"change": BALANCED})
    found = paper_results.compare_task(balance)
    assert (found.value, found.random) == (share, None) and found.resampled.size == 1000
    assert paper_results.task_mark(balance) == mark
    row = evidence.verdict_row(SHARE, "m", AGREES, "5 of 5 heads", mark=mark)
    name = f" ({claims.MARK_NAMES[mark]})" if mark else ""
    shown = f"agrees</b>{name}, 5 of 5"
    assert shown in strips.block(SHARE, [row], "")


@pytest.mark.parametrize(
    "value, random, verdict",
    [
        (0.9, None, AGREES),  # a row that names no heads
        (0.9, [0.8] * 95 + [0.9] * 5, AGREES),
        (0.9, [0.8] * 94 + [0.9] * 6, claims.AGREES_UNSPECIFIC),
        (0.9, [0.8] * 19, claims.AGREES_TOO_FEW),
        (0.9, [], claims.AGREES_TOO_FEW),
        # A list without a number is no test: with it in the count, 6 of 120 lists would reach 0.9.
        (0.9, [0.8] * 94 + [0.9] * 6 + [math.nan] * 20, claims.AGREES_UNSPECIFIC),
        (0.9, [0.8] * 19 + [math.nan] * 20, claims.AGREES_TOO_FEW),
        (0.8, [0.9] * 100, claims.PART_UNSPECIFIC),
        (0.8, [0.9] * 19, claims.PART_TOO_FEW),
        (0.8, [0.7] * 100, IN_PART),
        (math.nan, [0.9] * 100, NOT_TESTABLE),
    ],
)
def test_what_random_lists_reach_is_not_specific(value, random, verdict):
    resampled = [value, value, math.nan, value]
    found = paper_results.judge(SHARE, Result(value, "words", random, resampled))
    assert found["verdict"] == verdict
    if not math.isnan(value):
        assert found["stability"] == 0.75
        assert ("reason" in found) == bool(claims.about_control(verdict) or random is None)


def test_a_second_comparison_is_with_other_heads_of_the_same_layers():
    other_groups, same_layers = [0.5] * 100, [0.5] * 80 + [1.0] * 20
    found = Result(0.95, "", other_groups, in_layers=same_layers, share_in_layer=0.6)
    row = paper_results.judge(SHARE, found)
    assert row["verdict"] == claims.AGREES_UNSPECIFIC
    assert (row["exceedance"], row["exceedance_in_layers"]) == (0, 0.2)
    assert row["reason"] == "20% of lists from the same layers do as well"
    few = paper_results.judge(SHARE, found._replace(in_layers=[1.0] * 19))
    assert few["verdict"] == AGREES  # too few of the second kind say nothing


@pytest.mark.parametrize("n, verdict", [(59, claims.UNDECIDED), (60, AGREES)])
def test_below_sixty_percent_of_resamples_a_verdict_is_undecided(n, verdict):
    resampled = [0.95] * n + [0.5] * (100 - n)
    row = paper_results.judge(SHARE, Result(0.95, "", [0.5] * 100, resampled))
    assert row["verdict"] == verdict and row["stability"] == n / 100
    assert (row.get("reason") == "agrees in only 59% of resamples") == (n == 59)


def test_a_number_without_a_rule_has_no_verdict_and_a_reason():
    number = SHARE.model_copy(update={"agrees": None, "part": None, "no_verdict": "it is a size"})
    row = paper_results.judge(number, Result(0.95, "", [0.5] * 100, [0.95] * 10))
    assert (row["verdict"], row["reason"]) == (claims.NOT_JUDGED, "it is a size")
    assert "stability" not in row and "exceedance" not in row


LAYERS_AND_HEADS = ("prompt", "layer", "head")


@pytest.mark.parametrize("named", [False, True])
def test_a_list_stands_beside_other_heads_of_its_layers(named):
    """Two planted heads of layer 1 stand out; a head that is not measured is not drawn."""
    rng = np.random.default_rng(1)
    values = xr.DataArray(
        rng.uniform(0, 1, (8, 2, 6)), {"layer": [0, 1], "head": range(6)}, LAYERS_AND_HEADS
    )
    values[:, 1, :2] += 2
    by_prompt = values.stack(selected_head=("layer", "head")).transpose("prompt", ...)
    coordinates = head_coordinates(by_prompt.selected_head.values.tolist())
    by_prompt = by_prompt.drop_vars(["selected_head", "layer", "head"]).assign_coords(coordinates)
    by_prompt = by_prompt.isel(selected_head=slice(None, -1) if named else slice(None))
    every = (by_prompt if named else values).mean("prompt")
    sizes = {"layers": 2, "heads": 6, "key_value_heads": 3}
    compare = functools.partial(
        paper_results.compare, lambda x: x.mean("selected_head"), sizes=sizes
    )
    found = compare(
        by_prompt,
        lambda x: ", ".join(x.selected_head.values),
        heads=["1-0", "1-1"],
        every_head=None if named else every,
    )
    rest = values.mean("prompt")[1, 2 : 5 if named else 6].values
    pairs = sorted({(a + b) / 2 for a, b in itertools.combinations(rest, 2)})
    assert math.isclose(found.value, values[:, 1, :2].mean()) and found.words == "1-0, 1-1"
    assert np.allclose(sorted(found.random), pairs)
    assert found.resampled.shape == (1000,)
    assert abs(float(found.resampled.mean()) - found.value) < 0.02
    one = compare(every, "", heads=["1-0"])
    assert one.random.size == 10 - named  # of both layers, without its key-value group
    assert one.resampled is None
    some = compare(every, "", heads=["1-0"], others=["0-3"])
    assert np.allclose(some.random, values.mean("prompt")[0, 3])


def test_sets_without_random_ones_keep_their_values_in_the_control():
    sets = {"head_set": ["none", "twelve"]}
    answers = xr.DataArray([[1.0, 1, 1, 1], [1, 0, 0, 1]], sets, ("head_set", "prompt"))
    drawn = xr.DataArray([[1.0, 1, 1, 1], [1, 1, 1, 0]], dims=("random_set", "prompt"))
    random = drawn.expand_dims(head_set=["twelve"])
    found = paper_results.compare(
        lambda x: 1 - x.sel(head_set="twelve") / x.sel(head_set="none"), answers, "", control=random
    )
    assert found.value == 0.5 and [*found.random.values] == [0, 0.25]
    assert abs(float(found.resampled.mean()) - 0.5) < 0.02


def test_a_list_stands_beside_shuffled_ones():
    increase = xr.DataArray(
        [[[3.0, 2, 0], [0, 0, 4]]] * 2, {"layer": [0, 1], "head": range(3)}, LAYERS_AND_HEADS
    )
    lists = {"one": increase, "other": increase}
    found = paper_results.compare_lists(
        lambda x: x.all("list").sum(("layer", "head")),
        lists,
        3,
        lambda x: str(int(x.isel(list=0).sum())),
    )
    assert found.value == 3 and found.words == "3" and (found.resampled == 3).all()
    assert {*np.unique(found.random)} == {1, 2, 3}  # at least one of both heads of layer 0
    anywhere = paper_results.compare_lists(
        lambda x: x.isel(list=0, layer=0).sum("head"), lists, 3, "", shuffled=("layer", "head")
    )
    assert {*np.unique(anywhere.random)} == {0, 1, 2, 3}


def test_means_of_resamples_and_shuffled_lists_keep_what_they_should():
    right = xr.DataArray([[1.0, 0.0, 0.0, 1.0]] * 2, dims=("change", "prompt"))
    drawn = intervals.resample(right)
    assert drawn.sizes == {"resample": 1000, "change": 2} and (drawn[:, 0] == drawn[:, 1]).all()
    assert set(np.unique(drawn)) == {0, 0.25, 0.5, 0.75, 1}
    mask = xr.DataArray([[True, False, False], [True, True, False]], dims=("layer", "head"))
    lists = random_heads.shuffle_heads(mask)
    assert (lists.sum("head") == [1, 2]).all() and 0.6 < lists[:, 1, 0].mean() < 0.73


def test_other_files_beside_the_evidence_are_none(folder):
    """K4: a copy, and what macOS adds on some disks."""
    row = evidence.verdict_row(claims.claims()["learned"], "a", claims.HOLDS, "words")
    pd.DataFrame([row]).to_csv(folder / f"{row.chapter}.csv", index=False)
    before = evidence.read(folder)
    (folder / f"{row.chapter} (copy).csv").write_bytes((folder / f"{row.chapter}.csv").read_bytes())
    (folder / f"._{row.chapter}.csv").write_bytes(b"\x00\x05\x16\x07")
    assert len(before) == 1 and evidence.read(folder).equals(before)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_figure_by_figure_shows_what_is_there(value, folder, monkeypatch):
    """The evidence of one chapter, in which all rows agree or all disagree."""
    result = claims.paper_results()["figure 6"]
    row = evidence.verdict_row(result, "a", result.judge(value), "words", effect=value)
    pd.DataFrame([row]).to_csv(folder / "4.csv", index=False)
    evidence_of("figure-by-figure", monkeypatch, folder)
    results, judged = claims.paper_results(), evidence.read(folder, claims.paper_results())
    entry = strips.entry(result, [*judged.itertuples()])
    assert 'id="row-figure-6"' in entry and '<span class="entry">figure 6</span>' in entry
    assert "Not run: " in strips.entry(results["figure 23"], [])


def test_random_sets_that_were_recorded_have_the_share_in_layer_that_can_be():
    """Three of four heads of layer 0 are replaced, by the fourth one and by two of layer 1."""
    edited = {"a": [["0-0", "0-1", "0-2"], ["0-0", "0-1", "1-0"]]}
    sizes = {"layers": 2, "heads": 4, "key_value_heads": 4}
    values = xr.DataArray([1.0, 1.0], dims="prompt")
    control = {"a": xr.DataArray([[0.0, 0.0]], dims=("random_set", "prompt"))}
    found = book._found("a", values, lambda x: x, "", sizes, control, edited)
    assert math.isclose(found.share_in_layer, (1 / 3 + 1) / 2)
