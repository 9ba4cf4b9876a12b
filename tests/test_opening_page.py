"""What the first screen is put together from; how it looks and works is in test_page_actions.py."""

import json
import math
import re
from html import unescape

import opening_page
import pandas as pd
import plain_words
import pytest
import verdict_map
import xarray as xr
from twotowers import claims, identity
from twotowers.paths import chapter_names
from twotowers.settings import Settings
from twotowers.theme import VEGA


@pytest.fixture
def rows():
    """The verdicts that the opening page's sentences rest on."""
    table = claims.written_findings().assign(prompt_set="")
    return table[table["page"] == "intro"].drop_duplicates(["claim", "model"])


def test_a_sentence_whose_verdicts_moved_is_left_out(rows):
    told = opening_page.sentences(rows)
    first, *others = told
    assert first == "word prompts"
    others_told = ["exchange-query", "used", "beyond-inputs", "values-beyond-attention"]
    others_told += ["figure 6" + claims.SECOND, "product"]
    assert others == others_told
    assert all(told.values())
    moved = rows.assign(verdict=rows["verdict"].mask(rows["claim"] == "product", claims.UNDECIDED))
    gone = [name for name, text in opening_page.sentences(moved).items() if not text]
    assert gone == ["product"]


def test_the_question_is_answered_as_long_as_both_of_its_sentences_stand(rows):
    own = rows.assign(model="mine--1a2b3c", verdict=claims.ABSENT)
    text = opening_page.answer(pd.concat([rows, own]))
    assert "<b>Yes, with two limits</b>, in all 6 models that we tested" in text
    for claim in ("used", "exchange-query"):
        moved = rows.assign(verdict=rows["verdict"].mask(rows["claim"] == claim, claims.UNDECIDED))
        assert "Yes" not in opening_page.answer(moved)


VERDICTS = [
    ("figure 6", "mini-gpt2", claims.AGREES),
    ("figure 6", "b", claims.AGREES),
    ("figure 9", "mini-gpt2", claims.AGREES_UNSPECIFIC),
    ("figure 9", "b", claims.IN_PART),
    ("table 1", "mini-gpt2", claims.IN_PART),
    ("table 1", "b", claims.DISAGREES),
    ("table 2", "mini-gpt2", claims.AGREES_TOO_FEW),
    ("table 2", "b", claims.NOT_TESTABLE),
    ("figure 22", "b", claims.AGREES),  # in no count
]


@pytest.fixture
def judged(rows, monkeypatch):
    """Four results of the paper in mini-gpt2 and a pretrained model."""
    results = pd.DataFrame(VERDICTS, columns=["claim", "model", "verdict"])
    results = results.assign(stability=1.0, n_random_sets=100)
    results["mark"] = results["model"].map({"mini-gpt2": "", "b": claims.BY_POSITION})
    on_solved = results[results["claim"].isin(["figure 6", "table 1"])].assign(mark="")
    on_solved = on_solved.assign(n_random_sets=[100, 0, 0, 0])
    on_solved.loc[on_solved["claim"] == "table 1", "verdict"] = claims.DISAGREES

    def read(folder, statements, solved=False):
        if "figure 6" not in statements:
            return rows
        return on_solved if solved else results

    monkeypatch.setattr(verdict_map.evidence, "read", read)
    return results


def write_interchanges(folder):
    """Exchanges of queries that move the answer by a quarter, and pairs that are not judged."""
    kinds, labels = [*["query"] * 7, "keys"], [*"xyxyxya", "x"]
    moved = [0.5] * 6 + [9.0] * 2
    classes = [*"aabbccaa"]
    coords = {"pair_kind": kinds, "label_pair": labels, "class_pair": classes}
    nats = {"base_logit_difference": [1.0] * 8, "source_logit_difference": [-1.0] * 8}
    pairs = xr.Dataset({name: ("prompt", values) for name, values in nats.items()})
    pairs = pairs.assign(logit_difference=(("head_set", "prompt"), [moved]))
    pairs = pairs.assign_coords({name: ("prompt", values) for name, values in coords.items()})
    folder.mkdir(parents=True)
    pairs.assign_coords(head_set=["by attention"]).to_netcdf(folder / "interchanges.nc")


def test_cards_say_which_agreements_count_and_how_far_the_answer_moves(
    judged, rows, tmp_path, monkeypatch
):
    write_interchanges(tmp_path / "measurements/mini-gpt2/words")
    monkeypatch.setattr(opening_page.files, "precomputed_files", dict)
    shown = rows.assign(effect=math.nan, p_holm=0.01)
    shown.loc[shown["model"] == "mini-gpt2", "p_holm"] = 0.2
    text = unescape(re.sub("<[^>]*>", "", opening_page.cards(tmp_path, shown)))
    assert "hardly any twice as much (our bar) (chapter\xa04)." in text
    assert "In the paper's protocol, 4 tests agree. In 1 of these the model solves" in text
    assert text.count("After correction for the number of claims, p is below 0.05 in 5 of 6.") == 2
    assert "The answer moves 25% to 25% of the way" in text


def test_models_that_differ_from_most_are_named(rows):
    others = {"mini-gpt2": claims.UNDECIDED, "smollm2-135m": claims.NOT_TESTABLE}
    told = rows[rows["claim"] == "product"]
    told = told.assign(verdict=told["model"].map(others).fillna(claims.HOLDS))
    n = len(told)
    words = f"Holds in {n - 2} of {n - 1} models tested; undecided in mini-gpt2; not tested in "
    words += "SmolLM2-135M."
    assert plain_words.result_in_words(told, "product") == words
    told = told.assign(verdict=claims.HOLDS)
    assert plain_words.result_in_words(told, "product") == f"Holds in all {n} models."
    assert plain_words.result_in_words(told, "symmetric") == ""


def test_plain_words_are_those_of_claims():
    assert {*plain_words.STATEMENTS, *plain_words.MEASURES} <= {*claims.claims()}


def test_the_catch_has_both_orders_of_each_model(rows, tmp_path):
    right = {"as it is": 1, "labels exchanged": 1, "true first": 0}
    names = [*right, "true first, labels exchanged"]
    nats = [[1.0 if right.get(name) else -1.0] * 3 + [1.0] for name in names]
    file = tmp_path / "measurements/mini-gpt2/words/paper_balance.nc"
    file.parent.mkdir(parents=True)
    changes = {"logit_difference": (("change", "prompt"), nats)}
    xr.Dataset(changes, {"change": names}).to_netcdf(file)
    rates = opening_page.accuracies(tmp_path).loc["mini-gpt2"]
    assert rates.to_dict() == {"first": 0.25, "last": 1.0}
    table = opening_page.catch(tmp_path, rows.assign(mark=claims.BY_POSITION))
    assert "mini-gpt2: 100% right labels last, 25% first" in table
    assert table.count("<tr>") - 2 == len(rows[rows["claim"] == "word prompts"])


def test_the_catch_is_of_the_last_build_and_not_of_another_seed(tmp_path):
    folder, seed_1 = tmp_path / "measurements/mini-gpt2", Settings(seed=1)
    other = identity.folder_of(seed_1, "mini-gpt2", "paper_balance").name
    for name, nats in (("words", 1.0), (other, -1.0)):  # the second file is the newer one
        (folder / name).mkdir(parents=True)
        changes = {"logit_difference": (("change", "prompt"), [[nats], [nats]])}
        data = xr.Dataset(changes, {"change": ["as it is", "true first"]})
        data.to_netcdf(folder / name / "paper_balance.nc")
    for values, rate in (({"threads": 1}, 1.0), ({"threads": 1, "seed": "1"}, 0.0)):
        (tmp_path / "settings.json").write_text(json.dumps(values))
        assert set(opening_page.accuracies(tmp_path).loc["mini-gpt2"]) == {rate}


def test_three_kinds_of_prompts_tell_pretrained_models_apart(rows, tmp_path, monkeypatch):
    task = rows[rows["claim"] == "word prompts"]
    on_blocks = task.assign(effect=[0.9] + [0.6] * (len(task) - 1))
    monkeypatch.setattr(opening_page.evidence, "read", lambda *args, **options: on_blocks)
    in_order = pd.DataFrame({"last": 0.97}, index=task["model"])
    monkeypatch.setattr(opening_page, "accuracies", lambda build: in_order)
    shares = [0.8, 0.5, *[0.55] * (len(task) - 2)]
    text = opening_page.kinds_of_prompts(tmp_path, task.assign(effect=shares))
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td>.*?</td>", text)]
    assert cells == ["97%", "97%", "50%–55%", "80%", "60%", "90%"]


def test_the_summary_tells_firm_verdicts_and_pretrained_models_apart(judged, tmp_path):
    def summary():
        return re.sub("<[^>]*>", "", verdict_map.summary(verdict_map.tests(tmp_path)))

    assert "7 tests: ✓ 2 ≈ 1 ? 1 ½ 2 ✗ 1Pretrained models alone, 3 tests: ✓ 1" in summary()
    assert "where that was tested: figure 6, table 2. Results that agree fully in" in summary()
    assert "no model, or only as random heads do: figure 9, table 1." in summary()
    judged.loc[judged["claim"] == "figure 6", "stability"] = 0.9
    assert "where that was tested: table 2." in summary()


def test_a_cell_of_the_picture_says_its_verdict_and_leads_to_its_row(judged, tmp_path):
    html = verdict_map.drawn(tmp_path)
    assert (
        'title="figure 6, b: agrees (says the nearest label)"' in html
        and ">✓<sup>n</sup></a>" in html
    )
    assert 'class="verdict agrees-not-specific" href="#row-figure-9"' in html
    assert html.count("<td><a") == 4 + 8 and "figure 22" not in html
    on_solved = html.split("In the paper's protocol")[0]
    assert "4 tests: ✓ 2 ✗ 2" in re.sub("<[^>]*>", "", on_solved) and "figure 9" not in on_solved


SAME_WORD = pd.DataFrame({"claim": ["same-word"], "verdict": [claims.HOLDS], "model": ["b"]})


def write_chart(folder, chapter, table):
    """An executed chapter with one chart."""
    outputs = [{"data": {VEGA: {"datasets": {"d": table}}}}]
    (folder / "chapters").mkdir(exist_ok=True)
    path = folder / "chapters" / f"{chapter_names()[chapter]}.ipynb"
    path.write_text(json.dumps({"cells": [{"outputs": outputs}]}))


def test_the_matrix_is_that_of_a_pretrained_model(rows, tmp_path):
    assert opening_page.metric(tmp_path, rows) == ""  # the chapter was not made
    row = {"title": "1-2, selected head", "n": 2, "classes": "animal tool", "limit": 5.3}
    models = "mini-gpt2", "SmolLM2-135M"
    table = [row | {"model": m, "picture": f"data:image/png;base64,{m}"} for m in models]
    write_chart(tmp_path, "13", table)
    html = opening_page.metric(tmp_path, SAME_WORD)
    assert "base64,SmolLM2" in html and "the score of 2 query" in html
    assert "Holds in b." in html and html.count("<li>") == 1
