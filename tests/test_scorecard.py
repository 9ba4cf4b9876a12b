"""The scorecard: rules for every published row, verdicts at their edges, and the page itself."""

import json
import math
import re

import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from twotowers.chapters import runs
from twotowers.errors import TwoTowersError
from twotowers.paper import scorecard
from twotowers.paper.scorecard import DIFFERS, NOT_COMPARABLE, NOT_RUN, REPRODUCED, UNDECIDED, Measured
from twotowers.stats import tables

PUBLISHED = {
    "source": "s", "model": "gpt2-large", "where": "a/b true=foo", "quantity": "q", "value": "0.94", "note": "",
}  # fmt: skip
RULE = {
    "source": "s", "model": "*", "where": "*", "quantity": "q", "page": "", "table": "t", "rows": "", "less": "",
    "column": "x low high", "less_column": "", "by": "", "take": "rows", "test": "> 0", "number": "", "tolerance": "",
    "models": "any", "exceptions": "0", "accuracy": "", "sets": "", "measures": "x",
}  # fmt: skip


def judged(table, name="mini", published=None, **rule):
    model = Measured(f"{name}@0", {"t": pd.DataFrame(table)} if table is not None else {})
    return scorecard.judge(pd.Series(RULE | rule), pd.Series(PUBLISHED | (published or {})), model)["verdict"]


def rows(*intervals):
    return [{"x": (low + high) / 2, "low": low, "high": high} for low, high in intervals]


UP, DOWN, OPEN = (0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1)


@pytest.mark.parametrize(
    "intervals, exceptions, expected",
    [([UP], 0, REPRODUCED), ([DOWN], 0, DIFFERS), ([OPEN], 0, UNDECIDED), ([(0.0, 0.2)], 0, UNDECIDED),
     ([UP, UP], 0, REPRODUCED), ([UP, OPEN], 0, UNDECIDED), ([UP, DOWN], 0, DIFFERS), ([UP, OPEN, DOWN], 0, DIFFERS),
     ([UP, UP, DOWN], 1, REPRODUCED), ([UP, OPEN, DOWN], 1, UNDECIDED), ([UP, DOWN, DOWN], 1, DIFFERS),
     ([DOWN], 1, DIFFERS)],
)  # fmt: skip
def test_a_direction_needs_intervals_that_leave_the_null_out(intervals, exceptions, expected):
    assert judged(rows(*intervals), exceptions=str(exceptions)) == expected
    mirrored = [(-high, -low) for low, high in intervals]
    assert judged(rows(*mirrored), exceptions=str(exceptions), test="< 0") == expected


def test_without_an_interval_nothing_is_decided():
    assert judged([{"x": 1.0}]) == UNDECIDED
    assert judged([{"x": 1.0}], column="x exact") == REPRODUCED
    assert judged([{"x": float("nan"), "low": 0.0, "high": 1.0}]) == UNDECIDED


@pytest.mark.parametrize(
    "x, name, models, expected",
    [(0.90, "org/gpt2-large", "same", REPRODUCED), (0.88, "org/gpt2-large", "same", DIFFERS),
     (0.94, "mini", "same", NOT_COMPARABLE), (0.94, "org/gpt2-large", "never", NOT_COMPARABLE),
     (0.99, "mini", "any", REPRODUCED), (0.9901, "mini", "any", DIFFERS)],
)  # fmt: skip
def test_a_printed_number_is_judged_by_tolerance_and_only_on_its_model(x, name, models, expected):
    found = judged([{"x": x, "low": x, "high": x}], name, number="1", tolerance="0.05", test="", models=models)
    assert found == expected


def test_what_is_missing_is_not_run_and_what_no_run_could_bring_is_not_comparable():
    assert judged(None) == NOT_RUN
    assert judged(rows(UP), rows="x > 5") == NOT_RUN
    assert judged(rows(UP), rows="nothing == 1") == NOT_RUN
    assert judged(rows(UP), column="y low high") == NOT_RUN
    assert judged(None, models="same") == NOT_COMPARABLE
    assert judged(None, "gpt2-large", models="same") == NOT_RUN


def test_rows_are_subtracted_with_the_widest_bounds():
    table = [
        {"kind": kind, "d": d, "x": x, "low": x - 0.1, "high": x + 0.1}
        for kind, d, x in (("in", 1, 0.5), ("random", 1, 0.2), ("in", 2, 0.5), ("random", 2, 0.35))
    ]
    rule = dict(rows="kind == 'in'", less="kind == 'random'", less_column="x low high", by="d")
    found = scorecard.measured_rows(pd.Series(RULE | rule), pd.Series(PUBLISHED), pd.DataFrame(table))
    assert found.round(9).to_numpy().tolist() == [[0.3, 0.1, 0.5], [0.15, -0.05, 0.35]]
    assert judged(table, **rule) == UNDECIDED


def test_the_published_row_can_be_named_in_a_query():
    table = [{"d": "a/b", "t": "foo", "h": "1-2", **rows(UP)[0]}, {"d": "c/d", "t": "bar", "h": "3-4", **rows(DOWN)[0]}]
    assert judged(table, rows="d == @dataset and t == @true_label") == REPRODUCED
    assert judged(table, rows="h in @heads", published={"where": "heads 3-4 and 5-6"}) == DIFFERS
    assert judged(table, rows="d in @word_sets") == NOT_RUN


@pytest.mark.parametrize(
    "which, value, expected",
    [("1", "0.94", (0.94, 0.94)), ("1-2", "0.26 to 0.32", (0.26, 0.32)), ("1-2", "-0.11 to -0.20", (-0.2, -0.11)),
     ("1-2", "18-31", (18, 31)), ("2", "0.09 -> 0.70", (0.7, 0.7)), ("1-2", "0.860 to 2.378", (0.86, 2.378))],
)  # fmt: skip
def test_numbers_are_read_from_published_values(which, value, expected):
    assert scorecard.printed_range(which, value) == expected


@given(st.floats(-9, 9), st.floats(-9, 9))
def test_any_range_is_read_back(a, b):
    low, high = sorted((round(a, 3), round(b, 3)))
    assert scorecard.printed_range("1-2", f"{low:.3f} to {high:.3f}") == (low, high)


def test_the_layers_of_the_top_heads_scale_with_the_model():
    table = [{"layer": i // 20, "increase": float(i)} for i in range(720)]
    assert judged(table, "gpt2-large", {"value": "35-35"}, take="layers", number="1-2", tolerance="0") == REPRODUCED
    assert judged(table, "gpt2-large", {"value": "18-31"}, take="layers", number="1-2", tolerance="2") == DIFFERS


def test_every_published_row_has_a_rule_and_every_rule_a_row_and_a_number_where_it_needs_one():
    found = scorecard.rules()
    assert set(found["models"]) <= {"any", "same", "never"} and set(found["take"]) <= {"rows", "least", "layers"}
    assert (found["test"].ne("") | found["number"].ne("")).all()
    assert (found["number"].eq("") == found["tolerance"].eq("")).all()
    for _, row in tables.published().iterrows():
        for number in scorecard._rules_of(row, found)["number"]:
            if number:
                scorecard.printed_range(number, row["value"])


def chapters():
    return {name: json.loads(path.read_text())["cells"] for name, path in runs.chapters().items()}


def test_every_table_is_saved_and_every_figure_is_there():
    found, cells = scorecard.rules(), chapters()
    for _, rule in found.iterrows():
        page, _, heading = rule["page"].partition("#")
        if page not in cells:  # not written yet
            continue
        code = "".join("".join(c["source"]) for c in cells[page] if c["cell_type"] == "code")
        text = "\n".join("".join(c["source"]) for c in cells[page] if c["cell_type"] == "markdown")
        name = rule["table"].removeprefix(f"{page}-")
        assert f'"{name}"' in code, f"{page} does not save {name}"
        headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}
        assert not heading or heading in slugs, f"{page} has no heading {heading}"


HIGH, LOW, UNSURE, NONE = (0.9, 0.8), (0.04, 0.0), (0.6, 0.4), (1.0, math.nan)  # accuracy and its lower end
ONE, SIX, SEVEN, EIGHT = scorecard.ACCURACY
FIVE = "05-imbalanced-and-reorder"


def seen(word=HIGH, sentences=HIGH, other_label=None):
    """Tables of a model on which every gated rule holds; accuracy on word sets and on sentence sets as given."""
    words = sorted(set(tables.published("v1 table 2")["where"].str.split(" true=").str[0]))
    sets = {name: word for name in words} | {name: sentences for name in ("sst2", "trec")}

    def accuracies(estimate, lower, labels=("foo", "bar"), **more):
        found = []
        for name, first in sets.items():
            for label in labels:
                value, end = first if label == "foo" or other_label is None else other_label
                found.append({"dataset": name, "true_label": label, **more, estimate: value, lower: end})
        return found

    def up(column, x=0.3, **more):
        return {column: x, "low": x - 0.1, "high": x + 0.1, **more}

    def ranked(source):
        return [up("mrr", x, source=s, **p) for p in paired for s, x in ((source, 0.6), ("random heads", 0.1))]

    kind, source, relative = {"kind": "in-context heads"}, "in-context heads", "relative change of attention"
    removed = [up("change", -0.3, label=True, **kind), up("change", label=False, **kind)]
    paired = [{"dataset": name, "label": "foo"} for name in sets]
    found = {
        ONE: accuracies("accuracy", "low"),
        "01-locate-heads": [{"layer": i // 20, "increase": 0.0, "dataset": words[0]} for i in range(700)]
        + [{"layer": layer, "increase": 1.0, "dataset": words[0]} for layer in [*range(18, 32), *[20] * 6]],
        "01-locate-overlap": [{"first": words[0], "second": "sst2", "p_by_chance": 0.001}],
        "03-mrr-by-head": [up("mrr", 0.0033, source=source)],
        "03-mrr-preferences": [up("difference", -0.3, head="29-17"), up("difference", -0.3, head="30-16")],
        "03-mrr-by-set": ranked(source),
        "04-attention-weights-differences": [up("difference", form="paper's order", **kind, **p) for p in paired],
        f"{FIVE}-accuracy": [{"dataset": name} for name in sets],
        f"{FIVE}-removed": removed,
        f"{FIVE}-reordered": removed,
        SIX: accuracies("plain", "plain_low", ["foo"], **up("accuracy", -0.5, k=1, heads=source, plain_high=1.0)),
        "06-interventions-logit-minus": [
            up("logit_minus", heads="fooheads", **{"position of": "foo"}),
            up("logit_minus", -0.3, heads="barheads", **{"position of": "bar"}),
        ],
        "06-interventions-flips": [
            up("value", x, heads=heads, n=9, outcome="flips", quantity=relative, **{"position of": of})
            for heads, of, x in (("fooheads", "foo", -0.3), ("barheads", "bar", 1.0))
        ],
        SEVEN: [{"prompts": "balanced", "heads": "as it is", "accuracy": word[0], "low": word[1]}],
        "07-mitigation-reductions": [
            up("share_less", bias=bias) for bias in ("majority label", "recency", "attention over orders")
        ],
        EIGHT: accuracies("accuracy", "low", ["foo"]),
        "08-llama-mrr": ranked("best head"),
        "08-llama-attention": [up("difference", source="best head", **p) for p in paired],
    }  # fmt: skip
    return Measured("gpt2-large@0", {name: pd.DataFrame(rows) for name, rows in found.items()})


def gated(model, without=None):
    """(rule, published row, verdict and why) of every rule about learning."""
    model.tables.pop(without, None)
    found = scorecard.rules()
    for _, row in tables.published().iterrows():
        for _, rule in scorecard._rules_of(row, found).iterrows():
            if rule["accuracy"] and rule["table"] != without:
                yield rule, row, scorecard.judge(rule, row, model)


def test_every_claim_about_learning_is_gated_by_a_table_with_accuracies():
    found = scorecard.rules()
    free = found[found["accuracy"].eq("")]
    assert set(zip(free["source"], free["quantity"], strict=True)) == {
        ("v1 table 2", "accuracy"), ("v1 appendix E", "probability of word 1 before and after"),
        ("EMNLP abstract", "mean accuracy"), ("authors' notebook", "*"),
    }  # fmt: skip
    assert set(found["accuracy"]) <= {"", *scorecard.ACCURACY} and found["accuracy"].eq("").equals(found["sets"].eq(""))


def test_a_model_that_learns_passes_the_gate_of_every_rule():
    for rule, _, got in gated(seen()):
        expected = NOT_COMPARABLE if rule["models"] == "never" else REPRODUCED
        assert got["verdict"] == expected and got["measured"], (rule["table"], got)
        assert rule["models"] != "never" or got["why"].endswith("the same direction")


@pytest.mark.parametrize(
    "accuracy, other_label, said",
    [(LOW, None, "does not learn"), (UNSURE, None, "is not shown to learn"), (NONE, None, "is not shown to learn"),
     ((0.51, 0.5), None, "is not shown to learn"), (HIGH, LOW, "is not shown to learn")],
)  # fmt: skip
def test_a_model_at_chance_reproduces_no_claim_about_learning(accuracy, other_label, said):
    model = seen(accuracy, accuracy, other_label)
    if other_label:  # always one word: right whenever that word is true, at chance where both are counted together
        for name in (SIX, EIGHT):
            model.tables[name] = model.tables[name].assign(low=0.3, plain_low=0.3)
        model.tables[SEVEN] = model.tables[SEVEN].assign(low=0.3)
    for rule, _, got in gated(model):
        assert got["verdict"] == NOT_COMPARABLE and not got["measured"], (rule["table"], got)
        assert re.fullmatch(rf"the model {said} th(is task|ese tasks): accuracy .*\d%.*", got["why"]), got["why"]
    assert scorecard.score([model]).query("source == 'v1 section 4.4'")["verdict"].tolist() == [NOT_COMPARABLE]


@pytest.mark.parametrize("table", scorecard.ACCURACY)
def test_accuracy_that_was_not_measured_is_not_taken_for_high(table):
    met = [(rule, got) for rule, _, got in gated(seen(), without=table) if rule["accuracy"] == table]
    assert met
    for rule, got in met:
        assert got["verdict"] == NOT_COMPARABLE and not got["measured"], (rule["table"], got)
        assert re.fullmatch(r"accuracy on .+ was not measured", got["why"])


@pytest.mark.parametrize("other", ["03-mrr-by-set", f"{FIVE}-accuracy", SIX])
def test_where_the_sets_are_not_known_nothing_counts(other):
    met = [got for rule, _, got in gated(seen(), without=other) if rule["sets"].endswith(f" of {other}")]
    assert met
    assert {got["why"] for got in met} == {"accuracy on the sets it was measured on was not measured"}
    empty = seen()
    empty.tables[other] = empty.tables[other].head(0)
    met = [got for rule, _, got in gated(empty) if rule["sets"].endswith(f" of {other}")]
    assert {(got["verdict"], got["measured"]) for got in met} == {(NOT_COMPARABLE, "")}


def test_rows_of_sets_that_are_not_learned_are_left_out_and_named():
    model = seen()
    rows = model.tables[EIGHT]
    model.tables[EIGHT] = rows.assign(accuracy=rows["accuracy"].where(rows["dataset"] != "trec", 0.1),
                                      low=rows["low"].where(rows["dataset"] != "trec", 0.0))  # fmt: skip
    for name in ("08-llama-mrr", "08-llama-attention"):  # what is left out is against the claim
        table = model.tables[name]
        turned = table["dataset"].eq("trec") & table["source"].eq("best head")
        for column in ("low", "high"):
            model.tables[name] = table = table.assign(**{column: table[column].mask(turned, -0.5)})
    card = scorecard.score([model]).query("source == 'v1 appendix D'").iloc[0]
    assert card["verdict"] == REPRODUCED
    assert "; left out: the model does not learn trec: accuracy 10%" in card["measured"]
    model.tables[EIGHT] = rows
    assert scorecard.score([model]).query("source == 'v1 appendix D'")["verdict"].tolist() == [DIFFERS]
    model.tables[EIGHT] = rows[rows["dataset"] != "trec"]
    card = scorecard.score([model]).query("source == 'v1 appendix D'").iloc[0]
    assert card["verdict"] == REPRODUCED and "; left out: accuracy on trec was not measured" in card["measured"]


def test_rows_over_several_sets_count_only_where_all_of_them_are_learned():
    got = {rule["table"]: found for rule, _, found in gated(seen(sentences=LOW))}
    assert got["03-mrr-by-head"]["verdict"] == NOT_COMPARABLE
    assert got["03-mrr-by-head"]["why"] == "the model does not learn sst2, trec: accuracy 4%"
    assert got["01-locate-overlap"]["why"] == "the model does not learn sst2: accuracy 4%"
    assert got[f"{FIVE}-removed"]["verdict"] == REPRODUCED  # of the first set alone, which is learned


def test_a_row_without_a_rule_is_refused(tmp_path, monkeypatch):
    text = (ROOT / "data/scorecard_rules.csv").read_text().splitlines()
    (tmp_path / "published.csv").write_text((ROOT / "data/published.csv").read_text())
    monkeypatch.setattr(scorecard, "data_folder", lambda: tmp_path)
    (tmp_path / "scorecard_rules.csv").write_text("\n".join(line for line in text if "v1 section 5.2" not in line))
    with pytest.raises(TwoTowersError, match=r"no rule judges 'v1 section 5\.2"):
        scorecard.rules()
    spare = text[1].replace("v1 table 2", "v1 table 9")
    (tmp_path / "scorecard_rules.csv").write_text("\n".join([*text, spare]))
    with pytest.raises(TwoTowersError, match=r"fits nothing in data/published\.csv"):
        scorecard.rules()


def test_tables_of_models_are_found_and_cards_are_dealt(tmp_path):
    table = pd.DataFrame([{"quantity": "increase of head 21-19", "measured": 0.6979}])
    tables.save(table, tmp_path / "a/gpt2-large", "authors-numbers", fingerprint="gpt2-large@1")
    later = table.assign(measured=0.1)
    tables.save(later, tmp_path / "b/gpt2-large/tables", "authors-numbers", fingerprint="gpt2-large@1")
    tables.save(table, tmp_path / "b/other", "authors-numbers", fingerprint="other@2")
    (tmp_path / "a/gpt2-large/unstamped.csv").write_text("x\n1\n")
    found = scorecard.model_tables([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert [one.name for one in found] == ["gpt2-large", "other"]
    cards = scorecard.score(found)
    tables.save(table, tmp_path / "c/main", "authors-numbers@org--gpt2-large", fingerprint="org/gpt2-large@3")
    (beside,) = scorecard.model_tables([tmp_path / "c"])  # one more model in the folder of another
    assert beside.fingerprint == "org/gpt2-large@3" and list(beside.tables) == ["authors-numbers"]
    assert len(cards) == 2 * len(tables.published())
    of = cards[cards["quantity"] == "increase of head 21-19"].set_index("here")["verdict"]
    assert of.to_dict() == {"gpt2-large@1": REPRODUCED, "other@2": NOT_COMPARABLE}
    other = cards[(cards["here"] == "gpt2-large@1") & (cards["quantity"] == "increase of head 23-13")]
    assert other["verdict"].tolist() == [NOT_RUN]
    assert scorecard.counts(cards).sum(axis=1).tolist() == [len(tables.published())] * 2
    assert scorecard.score([]).empty
