"""The paper's results on prompts that a model solves, by the rules of data/solved.csv.

    python -m benchmarks.solved                    # all models with measurements on blocks

The prompts are counterbalanced blocks with the template that the model learns best. A model that
does not learn the task there has no verdict. Thresholds are those of data/figures.csv, and random
lists and resamples are those of `twotowers.paper_results`. No page reads this table yet.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from towerlab import cli
from twotowers import book, claims, head_selection, paper_results
from twotowers.errors import NotTestable
from twotowers.heads import Head, head_names
from twotowers.paper_results import LABELS, Result, compare, compare_lists

SMALL_MODEL = 200
"""Number of heads below which a list has 5 heads, and not 20 (`towerlab_experiments.paper`)"""
CHANGED = {"plain": "before", "one true fewer": "after"}
PUBLISHED_RECENCY = 0.17
"""Part of the recency bias that the remedy takes away in the EMNLP version"""
SMALLEST_LOSS = 0.05


def n_listed(ds: xr.Dataset) -> int:
    """Return the number of heads of a list, from a measurement with layers and heads."""
    return 20 if ds.sizes["layer"] * ds.sizes["head"] >= SMALL_MODEL else 5


def halves(ds: xr.Dataset) -> list[xr.Dataset]:
    """Return the prompts of every second class pair, and those of the others."""
    pairs = np.unique(ds["class_pair"])
    return [ds.isel(prompt=ds["class_pair"].isin(pairs[i::2]).values) for i in (0, 1)]


def listed(by_norm: xr.Dataset) -> list[Head]:
    """Return the heads with the largest mean increase on selection blocks."""
    mean = by_norm["increase"].sel(norm="frozen").mean("prompt")
    return head_selection.top_heads(mean, n_listed(by_norm), minimum=-np.inf)


def share_of_deep(lists: xr.DataArray) -> xr.DataArray:
    """Return the share of the first list that lies from the middle layer on."""
    judged = lists.isel(list=0)
    deep = judged.isel(layer=slice(judged.sizes["layer"] // 2, None))
    return deep.sum(("layer", "head")) / judged.sum(("layer", "head"))


def beyond_chance(lists: xr.DataArray) -> xr.DataArray:
    """Return the share of heads that both lists have, beyond chance in each layer."""
    first, second = (lists.isel(list=i) for i in (0, 1))
    n, n_common = (mask.sum(("layer", "head")) for mask in (first, first & second))
    chance = (first.sum("head") * second.sum("head")).sum("layer") / lists.sizes["head"]
    return (n_common - chance) / (n - chance)


def share_with_twice_the_attention(attention: xr.DataArray) -> xr.DataArray:
    """Return the share of heads with at least twice as much attention to true labels."""
    true, false = (attention.sel(label=label) for label in LABELS)
    return (true >= 2 * false).mean("selected_head")


def fall(attention: xr.DataArray, label: str = LABELS[0]) -> xr.DataArray:
    """Return by which share the attention of all heads on a kind of labels falls."""
    total = attention.sel(label=label).sum("selected_head")
    return 1 - total.sel(change="after") / total.sel(change="before")


def fall_and_rise(attention: xr.DataArray) -> xr.DataArray:
    """Return the smaller of the fall on true labels and the rise on false labels."""
    return np.minimum(fall(attention), -fall(attention, LABELS[1]))


def fall_in_nearly_all(attention: xr.DataArray) -> xr.DataArray:
    """Return the fall on true labels, halved if attention rises in more than one head."""
    true = attention.sel(label=LABELS[0])
    rises = (true.sel(change="after") > true.sel(change="before")).sum("selected_head")
    return fall(attention) / (1 + (rises > 1))


def of_heads(
    statistic: paper_results.Statistic, values: xr.DataArray, heads: Sequence[Head], sizes: dict
) -> Result:
    """Return a statistic of a list of heads, from values over (..., prompt, layer, head)."""
    selected = head_selection.select_heads(values, heads).drop_vars(("layer", "head"))
    selected = selected.assign_coords(selected_head=head_names(heads))
    every_head = values.mean("prompt")
    words = f"{len(heads)} heads"
    return compare(statistic, selected, words, heads=heads, every_head=every_head, sizes=sizes)


def on_labels(ds: xr.Dataset) -> xr.DataArray:
    """Return attention on all labels of a kind, over (label, prompt, layer, head)."""
    sums = [
        ds["attention"].where(is_label).sum("demonstration")
        for is_label in (ds["is_true_label"], ~ds["is_true_label"])
    ]
    return xr.concat(sums, pd.Index(LABELS, name="label"))


def before_and_after(conditions: xr.Dataset) -> xr.DataArray:
    """Return attention with and without the last true demonstration, over (label, change, ...)."""
    both = paper_results.by_label(conditions.sel(condition=[*CHANGED]), "attention")
    return both.rename(condition="change").assign_coords(change=[*CHANGED.values()])


def in_both_lists(by_norm: xr.Dataset) -> list[Head]:
    """Return heads of the lists on both halves, from the middle layer to five sixths of depth."""
    first, second = (listed(half) for half in halves(by_norm))
    n_layers = by_norm.sizes["layer"]
    common = [head for head in first if head in second]
    return [head for head in common if 1 / 2 <= head.layer / n_layers < 5 / 6]


def lost_accuracy(is_top: xr.DataArray) -> xr.DataArray:
    """Return the share of the accuracy that is lost without the twelve heads."""
    return 1 - is_top.sel(head_set="paper's twelve") / is_top.sel(head_set="none")


def majority_remedy(right: xr.DataArray) -> xr.DataArray:
    """Return the share of the lost accuracy that the remedy gives back, less its cost."""
    fewer, other = (right.sel(change=f"one {kind} fewer") for kind in ("true", "other"))
    lost = right.sel(change="plain", remedy="none") - fewer.sel(remedy="none")
    given_back = fewer.sel(remedy="remedy") - fewer.sel(remedy="none")
    cost = other.sel(remedy="none") - other.sel(remedy="remedy")
    return ((given_back - cost) / lost).where(lost >= SMALLEST_LOSS)


def recency_remedy(right: xr.DataArray) -> xr.DataArray:
    """Return the share of the difference between orders that the remedy takes away, over 17%."""
    difference = right.sel(change="true nearest") - right.sel(change="true first")
    without, left = (difference.sel(remedy=remedy) for remedy in ("none", "remedy"))
    return ((1 - left / without) / PUBLISHED_RECENCY).where(without >= SMALLEST_LOSS)


def with_plain(mitigations: xr.Dataset, conditions: xr.Dataset) -> xr.DataArray:
    """Return in which prompts the true label is likelier, over (change, remedy, ..., prompt)."""
    right = mitigations["logit_difference"].sel(head_set="by attribution", drop=True) > 0
    plain = (conditions["logit_difference"] > 0).sel(condition="plain", drop=True)
    if not np.array_equal(plain["block"], right["block"]):
        raise NotTestable("the two measurements have other prompts")
    plain = plain.broadcast_like(right.isel(change=0, drop=True)).expand_dims(change=["plain"])
    return xr.concat([right, plain], "change", coords="minimal", compat="override")


def results(chapter: book.Chapter) -> Iterator[tuple[str, str, Result]]:
    """Yield the name of each result, a model, and its number on solved prompts.

    Args:
        chapter: Chapter that opens the measurements.
    """
    answers, increases, by_norm = map(
        chapter.measured, ("answers", "increases", "increase_by_norm")
    )
    heads, conditions = map(chapter.measured, ("heads", "conditions"))
    ablations, mitigations = map(chapter.measured, ("ablations", "mitigations"))
    ablated, remedied = map(chapter.control, ("ablations", "mitigations"))
    for m, ds in answers.items():
        right = ds["logit_difference"] > 0
        yield "word prompts", m, compare(lambda x: x, right, f"{right.sizes['prompt']} prompts")
    for m, ds in increases.items():
        increase, n = ds["increase"], n_listed(ds)
        both = {f"{i}": half["increase"] for i, half in enumerate(halves(ds))}
        words = f"{n} heads"
        deep = compare_lists(share_of_deep, {"all": increase}, n, words, ("layer", "head"))
        yield "figure 3", m, deep
        yield "figure 4", m, compare_lists(beyond_chance, both, n, words)
    for m in (m for m in heads if m in by_norm):
        sizes, chosen = heads[m].attrs, listed(by_norm[m])
        attention = on_labels(heads[m])
        yield "figure 6", m, of_heads(share_with_twice_the_attention, attention, chosen, sizes)
    for m in (m for m in conditions if m in by_norm):
        sizes, changed = conditions[m].attrs, before_and_after(conditions[m])
        common = in_both_lists(by_norm[m])
        yield "figure 8", m, of_heads(fall_and_rise, changed, listed(by_norm[m]), sizes)
        yield "figure 10", m, (of_heads(fall_in_nearly_all, changed, common, sizes) if common
                               else Result(math.nan, "no heads in both lists"))  # fmt: skip
    for m, ds in ablations.items():
        is_top, random = ds["top_answer"] == 0, ablated.get(m)
        control = None if random is None else random["top_answer"] == 0
        yield "twelve heads", m, compare(lost_accuracy, is_top, "", control=control)
    for m in (m for m in mitigations if m in conditions):
        right = with_plain(mitigations[m], conditions[m])
        random = remedied.get(m)
        control = None if random is None else with_plain(random, conditions[m])
        for name, statistic in (
            ("EMNLP table 7", majority_remedy), ("EMNLP table 8", recency_remedy),
        ):  # fmt: skip
            yield name, m, compare(statistic, right, "", control=control)


def table(chapter: book.Chapter) -> pd.DataFrame:
    """Return the second verdict on each result in each model that learns the task.

    Args:
        chapter: Chapter that opens the measurements.
    """
    rules, rows = claims.paper_results(), []
    for name, model, found in results(chapter):
        try:
            chapter.models[model].check_learned()
        except NotTestable as error:
            found = Result(math.nan, str(error))
        judged = paper_results.judge(rules[name], found)
        rows.append({"result": name, "model": model} | judged)
    columns = ["result", "model", "effect", "verdict", "exceedance", "n_random_sets", "stability"]
    order = {name: i for i, name in enumerate(rules)}
    found = pd.DataFrame(rows).reindex(columns=columns)
    return found.sort_values("result", key=lambda names: names.map(order), kind="stable")


def main(*words: str) -> int:
    """Read the command line, and print the table.

    Args:
        *words: Words of the command line.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.solved",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(words)
    print(table(book.open({})).round(3).to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(cli.guarded(lambda: main(*sys.argv[1:])))
