"""Pictures of the story that no other page has."""

import numpy as np
import opening_page
import pytest
import story
import test_opening_page
from twotowers import matrices

rows, write_chart = test_opening_page.rows, test_opening_page.write_chart


def points(answer):
    """The answers of a model on the grid of chapter 11, asked about either class."""
    coefficients = (-2.0, -1.0, 0.0, 1.0, 2.0)
    return [
        {"model": "SmolLM2-135M", "axis": "product", "asked": asked, "query": query, "key": key,
         "nats": answer((0.5 + sign * query), (1 + 2 * key))}
        for asked, sign in (("first class of the pair", 1), ("second class", -1))
        for query in coefficients for key in coefficients
    ]  # fmt: skip


def test_both_mirrored_is_right_again_if_the_answer_is_a_product_and_wrong_if_it_is_a_sum(tmp_path):
    names = [*story.MIRRORED]
    write_chart(tmp_path, "11", points(lambda query, key: query * key))
    product = story._mirrored(tmp_path).loc["SmolLM2-135M", names] * 20
    assert product.tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5])
    write_chart(tmp_path, "11", points(lambda query, key: query + key / 2))
    sums = story._mirrored(tmp_path).loc["SmolLM2-135M", names]
    assert sums["both mirrored"] < sums["query mirrored"] < sums["nothing mirrored"]


def test_the_picture_has_a_dot_and_a_diamond_for_each_model(rows, tmp_path):
    assert "not made" in story.product(tmp_path, rows)
    write_chart(tmp_path, "11", points(lambda query, key: query * key))
    html = story.product(tmp_path, rows)
    assert html.count("<tr>") == 6 and html.count('r="4"') == 4 and html.count("M0 -5") == 1


def test_the_matrix_has_its_mean_in_each_block_beside_it(rows, tmp_path, monkeypatch):
    assert "not made" in story.matrix(tmp_path, rows)
    classes = [name for name in ("fruit", "animal", "country") for _ in range(3)]
    scores = np.random.default_rng(0).normal(size=(9, 9))
    packed = matrices.pack(scores, classes, classes)
    packed |= {"model": "SmolLM2-135M", "title": "18-6, selected"}
    write_chart(tmp_path, "13", [packed])
    found = story._one_class_pair(opening_page.matrix_of(tmp_path))
    step = packed["largest"] / matrices.SCORE_STEPS
    assert found.values * step == pytest.approx(scores[3:, 3:], abs=step)
    drawn = []
    monkeypatch.setattr(matrices, "pack", lambda table, *of: drawn.append((table, *of)) or packed)
    html = story.matrix(tmp_path, test_opening_page.SAME_WORD)
    means, *of = drawn[1]
    assert means[:3, 3:] == pytest.approx(np.full((3, 3), found.values[:3, 3:].mean()))
    assert of[-1] == packed["limit"]  # both pictures have the same colours
    assert "6 words, in one order" in html and html.count("<image") == 2
    assert "Measured: head 18-6 of SmolLM2-135M" in html and html.count("<li>") == 1
