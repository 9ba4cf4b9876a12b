"""Which form of prompt a model learns from: the grid of chapter 1, and the rule that chooses the form used further on.

The rule, written 2026-11-21 before the runs that it judges: of the forms tried, smallest k first and at one k the
paper's space before a line break, take the first whose counterbalanced accuracy is clearly above one half on more than
half of the sets. Accuracy asks for the true label as the top word of the whole vocabulary; "clearly" is a lower bound
of its 95% Wilson interval, with queries as clusters, above 0.5: what naming one of the two labels at random would give.
The prompts are those on which heads are located, so none of them judges anything later. Where no form passes, the
model is not shown to learn the task, the paper's own form is used, and every page says so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.parameters import AUTO
from twotowers.prompts.datasets import counterbalanced, swapped_labels
from twotowers.prompts.prompt import Prompt
from twotowers.studies.cells import answered, places
from twotowers.studies.context import LOCATING_SEED, Context, Form, chapter_studies
from twotowers.studies.parts import in_parts

study = chapter_studies("01-locate")
PRINTED = Form(2, "space")  # the paper's
TRIED = (PRINTED, Form(2, "line break"), Form(4, "space"), Form(4, "line break"))
ORDERS = ("paper's order", "shuffled", "counterbalanced")
CHANCE = 0.5
MOST = 40  # prompts a cell


def shuffled(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Demonstrations in a random order, either label true."""
    rng = random.Random(seed)
    out = []
    for prompt in prompts:
        mixed = replace(prompt, demonstrations=tuple(rng.sample(prompt.demonstrations, len(prompt.demonstrations))))
        out.append(swapped_labels(mixed) if rng.random() < 0.5 else mixed)
    return out


def _tried(run: Context) -> list[Form]:
    """The forms that the parameters leave open."""
    p = run.parameters
    ks = dict.fromkeys(form.k for form in TRIED) if p.k == AUTO else [p.k]
    separators = dict.fromkeys(form.separator for form in TRIED) if p.separator == AUTO else [p.separator]
    return [Form(k, separator) for k in ks for separator in separators]


@study(uses=("datasets", "labels", "k", "separator", "long", "n_locate", "seed", "dtype"))
def forms(run: Context) -> pd.DataFrame:
    """Accuracy of every form on every set in three orders, beside the rules that never read a text.

    One row per (k, separator, dataset, order): n, prompts; accuracy, low, high (top word of the vocabulary);
    two_label, names_label (shares); the baselines' accuracies; passes; chosen.
    """
    from twotowers.model.answers import answers

    p, cells = run.parameters, {}
    for form in _tried(run):
        for dataset in p.datasets:
            try:
                drawn = run.drawn(dataset, None, min(MOST, p.n_locate), form, p.seed + LOCATING_SEED)
                sets = (drawn, shuffled(drawn, p.seed), counterbalanced(drawn))
                cells |= {(form, dataset, o): run.encode(made) for o, made in zip(ORDERS, sets, strict=True)}
            except TwoTowersError as error:  # too few words, or too long for the model: the other forms stand
                run.notes.append(f"{form}: {error}")
    if not cells:
        raise TwoTowersError("no form of prompt can be read by this model: take a smaller k or other datasets")
    found = in_parts(run, answers, [e for encoded in cells.values() for e in encoded], progress="forms of the prompt")
    table, rows = found.table(), []
    for (form, dataset, order), at in places(cells).items():
        accuracy, shares, baselines = answered(table.iloc[at], cells[form, dataset, order])
        row = {"k": form.k, "separator": form.separator, "dataset": dataset, "order": order}
        rows.append(row | {"prompts": at.stop - at.start} | accuracy | shares | baselines)
    return _with_choice(pd.DataFrame(rows))


def _with_choice(table: pd.DataFrame) -> pd.DataFrame:
    """Adds `passes` (the set passes in this form) and `chosen` (the form of the rule; none where no form passes)."""
    balanced = table["order"] == "counterbalanced"
    table["passes"] = balanced & (table["low"] > CHANCE)
    share = table[balanced].groupby(["k", "separator"], sort=False)["passes"].mean()
    order = sorted(share.index, key=lambda one: (one[0], one[1] != "space"))
    chosen = next((one for one in order if share[one] > 0.5), None)
    table["chosen"] = [chosen == one for one in zip(table["k"], table["separator"], strict=True)]
    return table


def form_of(run: Context) -> tuple[Form, bool]:
    """The form of a run, and whether the model is shown to learn the task in it."""
    table = run.table(forms)
    chosen = table[table["chosen"]]
    if chosen.empty:
        p = run.parameters
        k = PRINTED.k if p.k == AUTO else p.k
        return Form(k, PRINTED.separator if p.separator == AUTO else p.separator), False
    return Form(int(chosen["k"].iloc[0]), str(chosen["separator"].iloc[0])), True


def passing_sets(run: Context) -> list[str]:
    """The sets on which the model learns the task in the run's form: those that claims about learning may use.

    None where no form passes: the rule asks for more than half of the sets, so one set alone is no evidence of learning.
    """
    form, learns = form_of(run)
    if not learns:
        return []
    table = run.table(forms)
    mine = table[(table["k"] == form.k) & (table["separator"] == form.separator) & table["passes"]]
    return [dataset for dataset in run.parameters.datasets if dataset in set(mine["dataset"])]
