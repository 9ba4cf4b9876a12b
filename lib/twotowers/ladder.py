"""What a model of the ladder does, as numbers: appendix E draws them, and predictions about them are judged by them.

    end = load().sel(checkpoint="end")
    told_by_query(end)["place"]                                  # (model, seed): is the last position told where to look?

Each function takes means over prompts: of `data/ladder.nc`, over (model, seed, checkpoint) or some of these, or of one
measurement of a single model. What was not measured, and what is asked of a model that makes no choice, has no number.
"""

from __future__ import annotations

import numpy as np
import scipy.stats
import xarray as xr

from twotowers import store
from twotowers.paths import data_folder

CHOOSES = 0.6
"""Accuracy between two labels from which on there is a choice"""
LEAST = 0.02
"""Nats from which on a look counts as one that moves the answer"""
HEADS = ("layer", "head")
MEASURES = ("relay", "depth gap", "overlap", "suppression", "sent without a look")


def load() -> xr.Dataset:
    """`data/ladder.nc`, its models named by `named`."""
    every = store.load(data_folder() / "ladder.nc").data
    return every.assign_coords(model=[named(str(m)) for m in every.model.values])


def named(configuration: str) -> str:
    """A configuration as pages write it: "6 layers, untied"."""
    layers, _, change = configuration.removeprefix("depth-").partition("-")
    return f"{layers} layers" + (", " + change.replace("-", " ") if change else "")


def turned(d: xr.Dataset, logit_difference: xr.DataArray) -> xr.DataArray:
    """How far the choice goes towards the other label, as a share of the way: 1 where it turns round, a half where none is left."""
    return ((d.logit_difference - logit_difference) / (2 * d.logit_difference)).where(d.accuracy >= CHOOSES)


def told(d: xr.Dataset, contrast: str, reader: str) -> xr.Dataset:
    """By what a reader finds at each source of a prompt with other labels, or with texts at other places (`label_sources`)."""
    values = d.logit_difference_by_source.sel(contrast=contrast, reader=reader, drop=True)
    return turned(d, values).to_dataset("source").drop_vars("all")


def told_by_query(d: xr.Dataset) -> xr.Dataset:
    """What the last position is told by the query's text: `label`, which label it is, and `place`, at which place to look."""
    of_prompts = {"label": "labels exchanged", "place": "texts exchanged"}
    return xr.Dataset({name: told(d, contrast, "last position")["query's text"] for name, contrast in of_prompts.items()})


def accounted(d: xr.Dataset) -> xr.Dataset:
    """By the looks of all heads at labels at once, reversed at some positions (`looks`)."""
    return turned(d, d.logit_difference_all_reversed).to_dataset("reversed_position")


def held(d: xr.Dataset) -> xr.Dataset:
    """By texts and colons of the prompt with exchanged labels, by the class of their demonstration and that of the one before."""
    share = (d.effect_by_demonstration / (2 * d.logit_difference)).where(d.accuracy >= CHOOSES)
    return xr.Dataset({f"{of} after {after}": share.sel(of_class=of, after_class=after, drop=True)
                       for after in d.after_class.values for of in d.of_class.values})  # fmt: skip


def stands_later(d: xr.Dataset) -> xr.Dataset:
    """For a prompt that stands one or two demonstrations later: the share of its choice that is left, and how far that of the
    prompt where it was turns by the query's text of the later one."""
    whole, query = (d.logit_difference_later.sel(later_part=of, drop=True) for of in ("prompt", "query's text"))
    own = whole.sel(demonstrations_later=0, drop=True).where(d.accuracy >= CHOOSES)
    measures = {"choice left": whole / own, "turned": (own - query) / (2 * own)}
    return xr.Dataset({f"{name}, {n} later": of.sel(demonstrations_later=n, drop=True)
                       for name, of in measures.items() for n in (1, 2)})  # fmt: skip


def parts(d: xr.Dataset, least: float = 0.0) -> list[xr.DataArray]:
    """Over the heads whose look helps by more than `least`: what it does, what they send, what they write of that (nats)."""
    does, sent, written = (of.sel(contrast=contrast, drop=True) for of, contrast in (
        (d.effect, "reversed"), (d.effect, "labels exchanged"), (d.direct_effect, "labels exchanged")))  # fmt: skip
    return [of.where(does > least, 0.0).clip(min=0) for of in (does, sent, written)]


def numbers(d: xr.Dataset, least: float = 0.0) -> xr.Dataset:
    """MEASURES: see appendix E."""
    does, sends, writes = parts(d, least)
    shares = [of / of.sum(HEADS) for of in (does, writes)]
    depths = [(of * of.layer).sum(HEADS) for of in shares]
    reverse, exchange = (d.effect.sel(contrast=of, drop=True) for of in ("reversed", "labels exchanged"))
    towards, against = exchange.clip(min=0), -exchange.clip(max=0)
    still = towards.where(abs(reverse) < LEAST, 0.0)
    values = (1 - writes.sum(HEADS) / sends.sum(HEADS), depths[1] - depths[0], _common(shares),
              against.sum(HEADS), still.sum(HEADS) / towards.sum(HEADS))  # fmt: skip
    out = xr.Dataset(dict(zip(MEASURES, values, strict=True))).where(d.accuracy >= CHOOSES)
    return out.assign_coords(layers=d.effect.notnull().any(("contrast", "head")).sum("layer"))


def recall_updates(d: xr.Dataset) -> xr.DataArray:
    """Of the drill in which words are asked for their labels, before any colon."""
    ends = d.updates.where(d.updates > 0)
    return (ends.sel(checkpoint="recall") - ends.sel(checkpoint="repeats")).drop_vars("checkpoint", errors="ignore")


def recall_without(d: xr.Dataset, edges: str) -> xr.DataArray:
    """Share of the right answers at the end of that drill that are left where attention is knocked out along some edges."""
    right = d.recall_accuracy.sel(checkpoint="recall", drop=True)
    return right.sel(edges=edges, drop=True) / right.sel(edges="nothing", drop=True)


def layers(d: xr.Dataset) -> xr.DataArray:
    """Of each model, by its name."""
    return xr.DataArray([int(str(m).split()[0]) for m in d.model.values], coords={"model": d.model})


def slope(of_models: xr.DataArray) -> tuple[float, float, float]:
    """Of values (model, seed), for each doubling of the layers, over models that differ in nothing else; with a 90% interval."""
    table = of_models.transpose("model", "seed").to_series().dropna()
    alone = table[["," not in model for model, _ in table.index]]
    fit = scipy.stats.linregress(np.log2([int(model.split()[0]) for model, _ in alone.index]), alone)
    half = fit.stderr * scipy.stats.t.ppf(0.95, len(alone) - 2)
    return fit.slope, fit.slope - half, fit.slope + half


def _common(shares: list[xr.DataArray]) -> xr.DataArray:
    """How much two distributions over heads have in common, from 0 to 1."""
    return xr.concat(shares, "of").min("of", skipna=False).sum(HEADS)


def through(d: xr.Dataset, end: xr.Dataset) -> xr.Dataset:
    """What changes while a model is trained; `end`: the same model at its last checkpoint."""
    shares = [of / of.sum(HEADS) for of in (parts(d)[0], parts(end)[0])]
    out = numbers(d)[["relay", "overlap"]]
    out["same heads as at the end"] = _common(shares)
    out["place told by the query's text"] = told_by_query(d)["place"]
    return out.where(d.accuracy >= CHOOSES).assign(accuracy=d.accuracy)
