"""The split of a margin into terms: exact on hand-made margins, and the same for heads."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp
from twotowers.analysis.decide import PLACES, REST, split, split_heads
from twotowers.analysis.factorial import factorial
from twotowers.errors import TwoTowersError
from twotowers.prompts.datasets import draw


@pytest.fixture(scope="module")
def balanced():
    return factorial(draw("animal/country", 8))[1]


@pytest.fixture(scope="module")
def imbalanced():
    return factorial(draw("animal/country", 8), imbalanced=True)[1]


def margin_of(design, effects):
    return sum(size * design.assign(prior=1.0)[term] for term, size in effects.items()).to_numpy()


def by_term(table, column):
    return dict(zip(table["term"], table[column], strict=True))


@pytest.mark.parametrize(
    "effects, shares",
    [
        ({"last": 1.7}, {"last": 1}),  # repeats the last label
        ({"prior": -0.4}, {"prior": 1}),  # prefers the second label word
        ({"match": 2.0}, {"match": 1}),  # compares classes
        ({"alternation": 3.0}, {"alternation": 1}),
        ({"place": -0.5}, {"place": 1}),  # prefers what stands first
        ({"prior": 3.0, "match": 4.0}, {"prior": 9 / 25, "match": 16 / 25}),
        # Alternates where labels alternate, else repeats. Alone `last` explains 1/9 and `alternation` 1/3, so the
        # orders weigh 9/8 and 3/2: (9/8 * 1/9 + 3/2 * 2/3) / (9/8 + 3/2) = 3/7.
        ({"last": 1.0, "alternation": 2.0}, {"last": 3 / 7, "alternation": 4 / 7}),
    ],
)
def test_hand_made_margins_are_split_exactly(balanced, effects, shares):
    found = split(margin_of(balanced, effects), balanced, draws=50)
    assert found["term"].tolist() == ["prior", "last", "alternation", "place", "match", PLACES, REST]
    for term, nats in by_term(found, "nats").items():
        assert term in (PLACES, REST) or nats == pytest.approx(effects.get(term, 0), abs=1e-12)
    for column in ("share", "share_low", "share_high"):
        assert by_term(found, column) == pytest.approx({t: shares.get(t, 0) for t in found["term"]}, abs=1e-7)
    assert (found["n"] == balanced["cluster"].nunique()).all()


def test_a_margin_that_counts_is_split_exactly_from_imbalanced_prompts(imbalanced):
    found = split(margin_of(imbalanced, {"count": 1.5}), imbalanced, draws=50)
    assert by_term(found, "nats")["count"] == pytest.approx(1.5)
    assert by_term(found, "share")["count"] == pytest.approx(1)
    effects = {"prior": 0.3, "last": 1.0, "alternation": 0.7, "place": -0.2, "count": 0.5, "match": 0.9}
    found = split(margin_of(imbalanced, effects), imbalanced, draws=50)
    assert by_term(found[:-2], "nats") == pytest.approx(effects)
    assert by_term(found, "share")[REST] == pytest.approx(0, abs=1e-9)


def test_shares_add_up_and_what_the_label_sequence_shares_does_not_depend_on_the_sharing_out(balanced):
    noise = np.random.default_rng(0).normal(size=len(balanced))
    margin = margin_of(balanced, {"prior": 1.0, "last": 0.5, "place": -0.6, "match": 0.4}) + noise
    found = by_term(split(margin, balanced, draws=50), "share")
    assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= 0
    sequence = balanced[["last", "alternation", "place"]].to_numpy()
    fitted = sequence @ np.linalg.lstsq(sequence, margin)[0]
    assert found["last"] + found["alternation"] + found["place"] == pytest.approx((fitted**2).sum() / (margin**2).sum())
    assert found["match"] == pytest.approx((margin @ balanced["match"]) ** 2 / len(margin) / (margin**2).sum())
    assert found["prior"] == pytest.approx(margin.mean() ** 2 / (margin**2).mean())


def test_what_texts_decide_is_the_rest():
    design = factorial(draw("animal/country", 6))[1]
    by_source = np.where(design["source"] % 2, 1.0, -1.0)
    found = split(3 * design["match"].to_numpy() + by_source, design, draws=50)
    assert by_term(found, "share")["match"] == pytest.approx(0.9)
    assert by_term(found, "share")[REST] == pytest.approx(0.1)


def test_a_weight_for_each_place_is_told_apart_from_place_and_from_texts():
    design = factorial(draw("animal/country", 4, k=3))[1]
    second = design["labels"].str[1].map({"a": 1.0, "b": -1.0}).to_numpy()
    columns = design.assign(prior=1.0)[["prior", "last", "alternation", "place", "match"]].to_numpy()
    by_terms = columns @ np.linalg.lstsq(columns, second)[0]
    by_texts = np.where(design["source"] % 2, 0.5, -0.5)
    found = by_term(split(second + by_texts, design, draws=20), "share")
    assert found[PLACES] == pytest.approx(((second - by_terms) ** 2).mean() / 1.25)
    assert found[REST] == pytest.approx(0.2) and found["match"] == pytest.approx(0)


def test_intervals_resample_clusters_not_prompts(balanced):
    two = pd.DataFrame({"cluster": [0, 0, 1, 1], "labels": "ab"})
    found = split(np.array([0.0, 0.0, 1.0, 1.0]), two, terms=("prior",))
    assert found.loc[0, ["nats", "low", "high"]].tolist() == [0.5, 0, 1]  # resamples of two clusters: 0, 0.5 or 1
    margin = np.random.default_rng(1).normal(size=len(balanced))
    repeated = pd.concat([balanced] * 5)
    pd.testing.assert_frame_equal(split(margin, balanced), split(np.tile(margin, 5), repeated))


def test_an_interval_holds_a_true_effect_that_differs_between_clusters_and_not_zero():
    design = factorial(list({p.query: p for p in draw("animal/country", 40)}.values()))[1]
    rng = np.random.default_rng(3)
    of_cluster = rng.normal(1.0, 0.5, size=design["cluster"].max() + 1)
    margin = of_cluster[design["cluster"]] * design["match"].to_numpy() + rng.normal(size=len(design))
    row = split(margin, design).set_index("term").loc["match"]
    assert 0 < row["low"] < 1 < row["high"]
    assert row["high"] - row["low"] > 2 * 1.96 / np.sqrt(len(design))  # wider than prompts would give


def test_heads_are_split_as_margins_are(balanced):
    rng = np.random.default_rng(2)
    values = rng.normal(size=(len(balanced), 2, 3))
    values[:, 1, 2] += margin_of(balanced, {"prior": 0.5, "last": 1.0, "match": 0.8})
    found = split_heads(values, balanced)
    assert len(found) == 2 * 3 * 7
    for (layer, head), rows in found.groupby(["layer", "head"]):
        one = split(values[:, layer, head], balanced, draws=10)
        assert rows["term"].tolist() == one["term"].tolist()
        np.testing.assert_allclose(rows["nats"], one["nats"])
        np.testing.assert_allclose(rows["share"], one["share"])
    hits = found[found["discovery"]]
    assert set(zip(hits["layer"], hits["head"], hits["term"], strict=True)) >= {(1, 2, "match"), (1, 2, "last")}
    assert not found.loc[found["term"].isin([PLACES, REST]), "discovery"].any()


def test_the_p_of_an_equal_sized_clusters_mean_is_that_of_a_t_test_on_cluster_means():
    design = pd.DataFrame({"cluster": np.repeat(np.arange(7), 4), "labels": "ab"})
    values = np.random.default_rng(4).normal(0.3, size=(28, 1, 2))
    found = split_heads(values, design, terms=("prior",))
    expected = ttest_1samp(values.reshape(7, 4, 2).mean(1), 0).pvalue
    assert found.loc[found["term"] == "prior", "p"].tolist() == pytest.approx(expected.tolist())


def test_noise_gives_no_more_discoveries_than_the_rate_allows(balanced):
    wrong = [
        split_heads(np.random.default_rng(seed).normal(size=(len(balanced), 10, 10)), balanced, terms=("match",))
        for seed in range(40)
    ]
    assert sum(table["discovery"].any() for table in wrong) <= 8  # 2 expected at 5%; few clusters add some


def test_heads_that_only_match_or_write_nothing(balanced):
    values = np.zeros((len(balanced), 1, 3))
    values[:, 0, 1] = balanced["match"]
    values[:, 0, 2] = 1e-3 * balanced["last"]
    found = split_heads(values, balanced).set_index(["head", "term"])
    assert found.loc[(1, "match"), "p"] < 1e-12 and found.loc[(1, "last"), "p"] == 1
    assert found.loc[(2, "last"), "p"] < 1e-12 and found.loc[(2, "match"), "p"] == 1
    assert found.loc[0, "share"].isna().all() and (found.loc[0, "p"].dropna() == 1).all()
    assert found.loc[(1, "match"), "share"] == pytest.approx(1)


def test_what_cannot_be_split_is_refused(balanced):
    one, margin = factorial(draw("animal/country", 6, k=1))[1], balanced["match"].to_numpy()
    for values, table, options, message in [
        (margin[:-1], balanced, {}, "one of each"),
        (np.where(margin > 0, np.nan, 1.0), balanced, {}, "NaN"),
        (0 * margin, balanced, {}, "every margin is 0"),
        (margin, balanced, {"terms": ("last", "luck")}, "unknown term 'luck'"),
        (one["match"].to_numpy(), one, {}, "cannot tell 'place' from prior, last"),
        (margin, balanced, {"terms": ("count",)}, "cannot tell 'count'"),
        (margin, balanced.assign(cluster=0), {}, "one cluster"),
    ]:
        with pytest.raises(TwoTowersError, match=message):
            split(values, table, **options)
