"""Chapter 13: how the in-context heads of a model come to be, from tables that were recorded along its training.

`python -m miniatures.along_training` trains, measures and records; nothing of a model is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.paths import results_folder
from twotowers.stats import tables
from twotowers.stats.intervals import overlap_within_layers
from twotowers.studies.context import chapter_studies
from twotowers.studies.run import Run

MEASURES, HEADS, STAGES = (f"along-training-{name}" for name in ("measures", "heads", "stages"))
ALL = "model"  # stands for a head in rows that are about the whole model
READING, INTERACTION, INDUCTION = "label reading", "class interaction", "induction"
OF_HEADS = ("increase", "label margin", READING, INTERACTION, "attention difference", INDUCTION)
TWO_LABEL, COPIED = "accuracy, two labels", "repeated tokens copied"
OF_MODEL = ("accuracy, vocabulary", TWO_LABEL, "margin", COPIED)
OURS, OTHERS, OVER = "later in-context heads", "other heads of their layers", "in-context less others"
DRILLS, LAST = "the whole training", "the last stage alone"
PARTS = (0.25, 0.5, 0.75)  # of what a quantity ends at
CHANCE = 0.5  # accuracy between the labels, of a guess

_study = chapter_studies("13-training")


def study(function):
    """A study of this chapter: no parameter changes it, the recorded tables do."""
    return _study(uses=(), reads=(MEASURES, HEADS, STAGES))(function)


def _recorded(run: Run, name: str) -> pd.DataFrame:
    model = run.parameters.model
    if (results_folder(model) / f"{name}.csv").is_file():
        table = tables.load(results_folder(model), name)
        if table.attrs["provenance"].get("model") == model:
            return table
    raise TwoTowersError(f"the training of {model} was not recorded: this chapter is about mini-gpt2")


def _measured(run: Run) -> pd.DataFrame:
    """Every head, and the model, at every checkpoint (0 is the first of its seed): the recorded columns, checkpoint,
    stage, layer, in_context and begins (the step at which the last stage began)."""

    def make() -> pd.DataFrame:
        table, heads, stages = (_recorded(run, name) for name in (MEASURES, HEADS, STAGES))
        table = table.merge(heads[["seed", "head", "layer", "in_context"]], how="left")
        table["checkpoint"] = table.groupby("seed")["step"].rank("dense").astype(int) - 1
        for seed, own in stages.groupby("seed"):
            mine = table["seed"] == seed
            at = np.searchsorted(own["end"], table.loc[mine, "step"])
            table.loc[mine, "stage"] = own["stage"].to_numpy()[at.clip(max=len(own) - 1)]
            table.loc[mine, "begins"] = own["start"].iloc[-1]
        return table

    return run.keep("along training", make)


def mean_courses(table: pd.DataFrame) -> Iterator[tuple[str, str, pd.Series]]:
    """(quantity, heads, its mean by step) of one seed's measures, for OURS and OTHERS and of the model for itself.

    OTHERS are matched in depth: for each in-context head the mean over the other heads of its layer; an in-context
    head whose layer has no other is left out there. All missing where a seed has no in-context head.
    """
    of_heads = table[table["head"] != ALL]
    known = of_heads.drop_duplicates("head").set_index("head")
    ours = known.index[known["in_context"].astype(bool)]
    rest = known[~known.index.isin(ours)]
    beside = [rest.index[rest["layer"] == known.at[head, "layer"]] for head in ours]
    for quantity in OF_HEADS:
        values = of_heads.pivot(index="step", columns="head", values=quantity)
        yield quantity, OURS, values[ours].mean(axis=1)
        matched = [values[names].mean(axis=1).rename(i) for i, names in enumerate(beside)]
        yield quantity, OTHERS, pd.DataFrame(matched, columns=values.index).mean()
    of_model = table[table["head"] == ALL].set_index("step")
    for quantity in OF_MODEL:
        yield quantity, ALL, of_model[quantity]


@study
def course(run: Run) -> pd.DataFrame:
    """Means at every checkpoint: seed, step, stage, heads, quantity, value. `heads` as in `mean_courses`; accuracies and
    what is copied are shares, induction and attention difference are attention weights, all else is in nats."""
    parts = []
    for seed, table in _measured(run).groupby("seed"):
        stage = table.drop_duplicates("step").set_index("step")["stage"]
        for quantity, heads, values in mean_courses(table):
            part = pd.DataFrame({"seed": seed, "step": values.index, "heads": heads, "quantity": quantity})
            parts.append(part.assign(stage=part["step"].map(stage), value=values.to_numpy()))
    return pd.concat(parts, ignore_index=True)


def onset(values: pd.Series, part: float = 0.5) -> float:
    """The first step from which a quantity (by step) stays above `part` of what it ends at.

    Missing where it does not end above zero. The rule is of 2026-11-21.
    """
    values = values.sort_index()
    final = values.iloc[-1] if len(values) else np.nan
    above = values[::-1].gt(part * final).cummin()  # from the end back, as long as it is above
    return float(above.index[above].min()) if final > 0 else np.nan


@study
def onsets(run: Run) -> pd.DataFrame:
    """When each quantity comes: seed, quantity, heads, since, part, final, step, stage, late (in the last one); see `onset`.

    `heads` may also be OVER: in-context heads less the others of their layers. Accuracy between the labels counts from
    CHANCE. `since` LAST: the course in the last stage only, less what it began that stage with. Induction has no onset:
    what is above zero there may still be chance.
    """
    rows = []
    for seed, table in _measured(run).groupby("seed"):
        stage, begins = table.drop_duplicates("step").set_index("step")["stage"], table["begins"].iloc[0]
        found = {(quantity, heads): values for quantity, heads, values in mean_courses(table)}
        wanted = {(TWO_LABEL, ALL): found[TWO_LABEL, ALL] - CHANCE}
        for quantity in OF_HEADS[:-1]:
            ours, others = found[quantity, OURS], found[quantity, OTHERS]
            wanted |= {(quantity, OURS): ours, (quantity, OTHERS): others, (quantity, OVER): ours - others}
        for (quantity, heads), values in wanted.items():
            late = values[values.index >= begins]
            for since, own in ((DRILLS, values), (LAST, late - late.sort_index().iloc[0])):
                for part in PARTS:
                    step = onset(own, part)
                    final = own.sort_index().iloc[-1]
                    rows.append((seed, quantity, heads, since, part, final, step, stage.get(step), step > begins))
    return pd.DataFrame(rows, columns=["seed", "quantity", "heads", "since", "part", "final", "step", "stage", "late"])


@study
def stages(run: Run) -> pd.DataFrame:
    """What each stage of the training leaves behind: seed, stage, start, end (updates), checkpoints; at its end accuracy
    between the two labels, tokens copied, and the in-context heads' label reading and class interaction. Beside it chosen
    (the update that validation prompts chose), and prompts, recorded and machine of the recording."""
    told = _recorded(run, MEASURES).attrs["provenance"]
    parts = []
    measured = _measured(run)
    for seed, own in _recorded(run, STAGES).groupby("seed"):
        table = measured[measured["seed"] == seed]
        count = table.drop_duplicates("step").groupby("stage")["step"].size()
        own = own.assign(checkpoints=own["stage"].map(count).fillna(0).astype(int), chosen=own["chosen"].max())
        for quantity, heads, values in mean_courses(table):
            if (quantity, heads) in ((TWO_LABEL, ALL), (COPIED, ALL), (READING, OURS), (INTERACTION, OURS)):
                own[quantity] = own["end"].map(values)
        parts.append(own)
    return pd.concat(parts, ignore_index=True).assign(
        prompts=told["prompts"], recorded=told["date"], machine=told["machine"]
    )


@study
def every_head(run: Run) -> pd.DataFrame:
    """Every head at every checkpoint: seed, checkpoint, step, stage, head, in_context, and OF_HEADS as columns."""
    table = _measured(run)
    table = table[table["head"] != ALL].reset_index(drop=True)
    return table[["seed", "checkpoint", "step", "stage", "head", "in_context", *OF_HEADS]]


@study
def inherited(run: Run) -> pd.DataFrame:
    """Were later in-context heads induction heads when the last stage began? One row a seed: k in-context heads; shared
    with as many heads of the largest induction score then, expected and p by chance within layers (exact); in_context and
    others (mean scores then)."""
    rows = []
    for seed, table in _measured(run).groupby("seed"):
        then = table[(table["step"] == table["begins"]) & (table["head"] != ALL)]
        mine = then["in_context"].astype(bool)
        k, heads = int(mine.sum()), then.groupby("layer").size().max()
        first = then.nlargest(k, INDUCTION)
        a, b = ([Head.parse(name) for name in some["head"]] for some in (then[mine], first))
        shared = overlap_within_layers(a, b, int(heads))
        rows.append((seed, k, *shared[:3], then.loc[mine, INDUCTION].mean(), then.loc[~mine, INDUCTION].mean()))
    return pd.DataFrame(rows, columns=["seed", "k", "shared", "expected", "p", "in_context", "others"])
