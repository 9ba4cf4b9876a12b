"""Chapter 13's analysis tells heads that compare meanings from heads that compare something else,
and its regression is that of every textbook."""

import itertools

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from chapter_runs import functions_of
from conftest import ROOT
from tolerances import near

CLASSES = ["animal", "country", "fruit", "tool"]
PAIRS = ["animal/country", "animal/country", "fruit/tool", "fruit/tool"]


@pytest.fixture(scope="module")
def chapter():
    return functions_of("13-is-it-a-metric")


def dataset(classes=CLASSES):
    """Scores of four heads in one layer, each made of one similarity, with the attraction of single
    words added; the fourth has nothing else."""
    rng = np.random.default_rng(0)
    lists = pd.read_csv(ROOT / "data/words/words.csv", keep_default_na=False)
    lists = lists[lists["ambiguous"] == 0].groupby("class")["word"].apply(list)
    own = [f"mine{i}" for i in range(12)]
    words = {name: lists.get(name, own)[:12] for name in classes}
    pairs = [(name, *pair) for name in classes for pair in itertools.combinations(words[name], 2)]
    every = [word for name in classes for word in words[name]]
    of_word = [name for name in classes for _ in words[name]]
    coordinates = {
        "layer": [0], "head": range(4), "prompt": classes,
        "class_pair": ("prompt", PAIRS[: len(classes)]),
        "pair_class": ("word_pair", [pair[0] for pair in pairs]),
        "first_word": ("word_pair", [pair[1] for pair in pairs]),
        "second_word": ("word_pair", [pair[2] for pair in pairs]),
        "asked": every, "demonstrated": every, "selected_head": ["0-0", "0-3"],
        "demonstrated_class": ("demonstrated", of_word),
    }  # fmt: skip
    return xr.Dataset(
        {
            "within_class": (("layer", "head", "word_pair"), rng.normal(size=(1, 4, len(pairs)))),
            "within_class_step": (("layer", "head"), np.full((1, 4), 0.5)),
            "class_effect": (("prompt", "layer", "head"), np.ones((len(classes), 1, 4))),
            "embedding_similarity": ("word_pair", rng.normal(size=len(pairs))),
            "tokens": ("asked", rng.integers(1, 4, len(every))),
            "similarity": (
                ("selected_head", "asked", "demonstrated"),
                rng.integers(-99, 99, (2, len(every), len(every))),
            ),
            "similarity_step": ("selected_head", [0.1, 0.2]),
        },
        coordinates,
    )


def planted(chapter):
    ds = dataset()
    table, rng = chapter["yardsticks"](ds), np.random.default_rng(0)
    of_words = pd.Series(3 * rng.normal(size=ds.sizes["asked"]), ds.asked.values)
    attraction = table["first"].map(of_words) + table["second"].map(of_words)
    columns = ["sentence embedding", "rank in the list", "letters"]
    parts = [(table[name] / table[name].std()).values for name in columns] + [0 * attraction.values]
    scores = np.array(parts) + attraction.values + 0.2 * rng.normal(size=(4, len(table)))
    return ds.assign(within_class=(("layer", "head", "word_pair"), scores[None]))


def test_words_that_are_nearer_have_a_larger_yardstick(chapter):
    table = chapter["yardsticks"](dataset(["number"]))
    names = ["length", "rank in the list", "distance of numbers"]
    zero_and_one, zero_and_eleven = table.iloc[0], table.iloc[10]
    assert (zero_and_one[names] > zero_and_eleven[names]).all()


def test_the_largest_coefficient_is_that_of_what_a_head_compares(chapter):
    names = chapter["TOGETHER"]
    values = chapter["within_classes"](planted(chapter), names, chapter["coefficients"])
    means = values.mean("prompt").isel(layer=0)
    for head, name in enumerate(("sentence embedding", "rank in the list", "letters")):
        largest = means.isel(head=head)
        assert largest.yardstick[int(largest.argmax("yardstick"))].item() == name
        assert float(largest.max()) > 0.7 > 0.3 > float(abs(largest.drop_sel(yardstick=name)).max())
    # the attraction of words leaves nothing but noise
    assert float(abs(means.isel(head=3)).max()) < 0.4


@pytest.mark.parametrize(("names", "fit"), [(None, "coefficients"), (["letters"], "correlations")])
def test_fits_are_those_of_least_squares_with_a_number_for_each_word(chapter, names, fit):
    """A correlation is the coefficient of a single yardstick."""
    ds, names = dataset(), names or chapter["TOGETHER"]
    values = chapter["within_classes"](ds, names, chapter[fit])
    table = chapter["yardsticks"](ds)
    for i, name in enumerate(CLASSES):
        part = table[table["class"] == name]
        words = sorted({*part["first"], *part["second"]})
        ends = zip(part["first"], part["second"], strict=True)
        dummies = np.array([[word in pair for word in words] for pair in ends], float)
        y = part[names].values.astype(float)
        for head in range(4):
            s = ds.within_class.values[0, head, part.index]
            slopes = np.linalg.lstsq(np.hstack([dummies, y]), s, rcond=None)[0][len(words) :]
            rest = [np.std(x - dummies @ np.linalg.lstsq(dummies, x, rcond=None)[0])
                    for x in (s, *y.T)]  # fmt: skip
            varies = np.array(rest[1:]) > 1e-9
            expected = np.where(varies, slopes * rest[1:] / rest[0], 0)
            near(values.values[i, 0, head], expected, atol=1e-6)


def test_words_of_users_are_left_out(chapter):
    values = chapter["within_classes"](
        dataset(["animal", "mine"]), ["letters"], chapter["correlations"]
    )
    assert values.sel(prompt="animal").notnull().all() and values.sel(prompt="mine").isnull().all()


def test_the_picture_shows_differences_within_a_row_and_a_class_pair(chapter):
    ds = dataset()
    scores = chapter["scores"](ds, "0-3")
    nats = 0.2 * ds.similarity.sel(selected_head="0-3").values
    for half in (slice(0, 24), slice(24, 48)):
        expected = nats[:, half] - nats[:, half].mean(1, keepdims=True)
        assert scores[:, half] == pytest.approx(expected)
