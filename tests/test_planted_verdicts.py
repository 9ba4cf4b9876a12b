"""Which verdicts a model earns that compares texts, that answers by position, or by one word.

Attention and answers are planted on the paper's prompts, in both orders and with both assignments
of the labels: two true labels and two false ones, of which one kind is nearer.
"""

import numpy as np
import pytest
import xarray as xr
from twotowers import claims, paper_results
from twotowers.paper_results import BALANCED, LABELS

NEAR_IS_TRUE = [True, True, False, False]  # in BALANCED
FOO_IS_TRUE = [True, False, True, False]


def attention_of(kind):
    """Attention on true and on false labels in each version, over (label, change, head)."""
    prefers_true = {"compares": [True] * 4, "position": NEAR_IS_TRUE, "word": FOO_IS_TRUE}[kind]
    true = np.where(prefers_true, 0.6, 0.1)
    values = np.repeat(np.stack([true, 0.7 - true])[..., None], 5, axis=-1)
    heads = [f"1-{i}" for i in range(5)]
    return xr.DataArray(values, {"label": LABELS, "change": BALANCED, "selected_head": heads})


def answers_of(kind):
    prefers_true = {"compares": [True] * 4, "position": NEAR_IS_TRUE, "word": FOO_IS_TRUE}[kind]
    nats = np.where(prefers_true, 1.0, -1.0)[:, None] * np.ones(20)
    return xr.Dataset({"logit_difference": (("change", "prompt"), nats)}, {"change": BALANCED})


def share_of_twice(attention):
    true, false = (attention.sel(label=label) for label in LABELS)
    return (true >= 2 * false).mean("selected_head")


@pytest.mark.parametrize(
    "kind, task, mark, content",
    [
        ("compares", claims.AGREES, "", 1),
        ("position", claims.DISAGREES, claims.BY_POSITION, 0),
        ("word", claims.DISAGREES, claims.BY_WORD, 0),
    ],
)
def test_only_a_model_that_compares_solves_the_task_and_keeps_its_difference(
    kind, task, mark, content
):
    results, attention = claims.paper_results(), attention_of(kind)
    found = paper_results.compare_task(answers_of(kind))
    assert paper_results.judge(results["word prompts"], found)["verdict"] == task
    assert paper_results.task_mark(answers_of(kind)) == mark
    assert np.isclose(paper_results.content_share(attention), content)
    # In the paper's order all three earn figure 6; in the mean over all versions only one does.
    figure_6 = results["figure 6"]
    assert figure_6.judge(float(share_of_twice(attention.sel(change="as it is")))) == claims.AGREES
    balanced = float(share_of_twice(attention.mean("change")))
    assert (figure_6.judge(balanced) == claims.AGREES) == (kind == "compares")


@pytest.mark.parametrize("kind, fall", [("compares", 0), ("position", 5 / 6), ("word", 0)])
def test_with_true_labels_first_attention_by_position_falls_most(kind, fall):
    """So figure 9 has no verdict."""
    true = attention_of(kind).sel(label="true label").sum("selected_head")
    found = 1 - true.sel(change="true first") / true.sel(change="as it is")
    assert np.isclose(found, fall)
    result = claims.paper_results()["figure 9"]
    assert result.judge(float(found)) == claims.NOT_JUDGED and result.no_verdict
