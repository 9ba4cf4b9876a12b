"""Chapter 6, second half: heads that serve one label, and what changes when the prediction flips.

EMNLP 2024 tables 3 to 6 are known only as summarised by others; how each is computed here is our reading of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named
from twotowers.prompts.datasets import with_other_class_text
from twotowers.stats.intervals import bootstrap, bootstrap_difference, rate
from twotowers.studies.interventions import ACCURACY, LOG_PROB, MARGIN, MOST, SMALL, study
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

OWN, RANDOM, OVER = "own", "random", "own less random"
QUERY, DEMONSTRATION = "query moved", "demonstration moved"
LEAN = 40  # locating prompts on which a head's lean is measured, each with either label true: it walks the vocabulary
MINUS = 100  # prompts a label whose label positions are projected
LEAST = 5  # query texts that must flip, or stay, before something is said of them


def _large(run: Run) -> bool:
    return run.about["layers"] * run.about["heads"] > SMALL


@study
def label_heads(run: Run) -> pd.DataFrame:
    """Which label each in-context head serves, on locating prompts of the first set: head, serves, kind ("fooheads"),
    lean, low, high (nats), n (query texts), clear (the interval leaves zero out)."""
    from twotowers.analysis import ablate, locate

    p = run.parameters
    pairs = [run.locating(p.datasets[0], label)[:LEAN] for label in p.labels]
    encoded = run.encode([q for prompts in pairs for q in prompts])
    found = in_parts(run, locate.increases, encoded, norm=p.norm, progress="which label heads raise").heads
    parts = dict(zip(p.labels, np.split(found, len(p.labels)), strict=True))
    table = ablate.label_heads(parts, run.heads(), p.seed, clusters=[q.query for q in pairs[0]])
    return table.assign(kind=[f"{label}heads" for label in table["serves"]], dataset=p.datasets[0])


def _groups(run: Run) -> dict[str, list[Head]]:
    """Label -> the in-context heads that serve it, for labels that any serves."""
    table, ours = run.table(label_heads), run.heads()
    groups = {
        label: [h for h, of in zip(ours, table["serves"], strict=True) if of == label]
        for label in run.parameters.labels
    }
    return {label: some for label, some in groups.items() if some}


def _partners(run: Run, some: list[Head]) -> list[Head]:
    """The random heads of the same layers that stand beside some in-context heads."""
    beside = dict(zip(run.heads(), run.controls(), strict=True))
    return list(dict.fromkeys(beside[head] for head in some))


@study
def label_heads_zeroed(run: Run) -> pd.DataFrame:
    """The heads of one label zeroed at the last position, on prompts of either true label (paper's order, first set).

    One row per (zeroed, source, true_label, measure): value, low, high, n (query texts); the change from nothing zeroed
    of accuracy, margin and log-probability of the true label (nats). `source`: the heads, the mean of random draws of
    the same layers, and the paired difference.
    """
    from twotowers.analysis.ablate import ablate_sets

    p, groups, sets = run.parameters, _groups(run), []
    for some in groups.values():
        sets += [some, *run.control_sets(some)]
    rows = []
    for true in p.labels:
        encoded = run.encoded(p.datasets[0], true)[: 2 * MOST]
        queries = [e.prompt.query for e in encoded]
        found = in_parts(
            run, ablate_sets, encoded, sets, "last", progress=f"zeroing the heads of one label, {true} true"
        )
        changes = {
            ACCURACY: found.answers.correct * 1.0 - found.plain.correct, LOG_PROB: -found.log_prob_drop.numpy(),
            MARGIN: found.answers.margin - found.plain.margin,
        }  # fmt: skip
        for i, label in enumerate(groups):
            at = i * (1 + p.draws)
            for measure, change in changes.items():
                own, random = change[at], change[at + 1 : at + 1 + p.draws].mean(0)
                for source, one in ((OWN, own), (RANDOM, random), (OVER, own - random)):
                    found_one = bootstrap(one, clusters=queries, seed=p.seed).as_row("value")
                    rows.append(
                        {"zeroed": f"{label}heads", "source": source, "true_label": true, "measure": measure, **found_one,
                         "serves": "own label" if true == label else "other label"}
                    )  # fmt: skip
    return pd.DataFrame(rows).assign(dataset=p.datasets[0], draws=p.draws, passes=p.datasets[0] in run.passing)


@study(version=2)
def logit_minus(run: Run) -> pd.DataFrame:
    """What heads add from a label position, first label less second (nats), and how much they attend to it; first set.

    One row per (heads, source, at, quantity): value, low, high, n (query texts). `at` is the label that stands there.
    """
    from twotowers.analysis import prediction_flips

    p, groups, parts = run.parameters, _groups(run), []
    every = list(dict.fromkeys([*run.heads(), *run.controls()]))
    for label in p.labels:
        encoded = run.encoded(p.datasets[0], label)[: 24 if _large(run) else MINUS]
        found = in_parts(run, prediction_flips.logit_minus, encoded, every, tuple(p.labels), p.norm)
        queries = np.array([e.prompt.query for e in encoded])
        parts.append(found.assign(query=queries[found["prompt"]], prompt=found["prompt"].astype(str) + label))
    table, rows = pd.concat(parts), []
    for label, some in groups.items():
        for at in p.labels:
            mine = {}
            for source, heads in ((OWN, some), (RANDOM, _partners(run, some))):
                own = table[table["head"].isin(named(heads)) & (table["label"] == at)]
                mine[source] = own.groupby(["query", "prompt"])[["logit_minus", "weight"]].mean()
            clusters = mine[OWN].index.get_level_values("query")
            for quantity, column in (("logit minus", "logit_minus"), ("attention weight", "weight")):
                own, random = (mine[source][column] for source in (OWN, RANDOM))
                over = bootstrap_difference(own, random, clusters=clusters, seed=p.seed)
                for source, one in ((OWN, own), (RANDOM, random), (OVER, None)):
                    interval = over if one is None else bootstrap(one, clusters=clusters, seed=p.seed)
                    row = {"heads": f"{label}heads", "source": source, "at": at, "quantity": quantity}
                    rows.append(row | interval.as_row("value") | {"stands_for": p.labels.index(label)})
    learned = p.datasets[0] in run.passing
    return pd.DataFrame(rows).assign(dataset=p.datasets[0], labels=",".join(p.labels), learned=learned)


def _pairs(run: Run) -> pd.DataFrame:
    """`prediction_flips.compare` of prompts of the first set with one text taken from its other class, in turn.

    Raises TwoTowersError when a class has no text left to take.
    """
    from twotowers.analysis import prediction_flips

    def make() -> pd.DataFrame:
        before = run.prompts(run.parameters.datasets[0])[: 24 if _large(run) else MINUS]
        many = len(before[0].demonstrations)
        places = sorted({*np.linspace(0, many - 1, min(many, 4)).round().astype(int).tolist()})
        changed = [with_other_class_text(before, place, run.fits) for place in (None, *places)]
        start, *after = run.encode_paired(before, *changed)
        every, parts = list(dict.fromkeys([*run.heads(), *run.controls()])), []
        for place, one in zip((None, *places), after, strict=True):
            found = prediction_flips.compare(run.lm, start, one, every)
            found["query"] = np.array([e.prompt.query for e in start])[found["prompt"]]
            move, at = (QUERY, -1) if place is None else (DEMONSTRATION, place)
            # A value can change only behind the moved text; behind the query there is no label.
            parts.append(found.assign(move=move, moved_place=at, reached=(found["place"] >= at) & (at >= 0)))
        return pd.concat(parts, ignore_index=True)

    return run.keep("pairs of prompts", make)


@study
def flip_rates(run: Run) -> pd.DataFrame:
    """How often the prediction goes from the first label to the second, of prompts answered with the first (the top
    word of the vocabulary): move, value, low, high, n (query texts), prompts, answered (of all prompts)."""
    p, pairs, rows = run.parameters, _pairs(run), []
    first, second = p.labels
    one = pairs[(pairs["head"] == pairs["head"].iloc[0]) & (pairs["place"] == 0)]
    for move, part in one.groupby("move", sort=False):
        mine = part[part["before"] == first]
        if len(mine):
            found = rate(mine["after"] == second, clusters=mine["query"])
            rows.append(
                {"move": move, **found.as_row("value"), "prompts": len(mine), "answered": len(mine) / len(part)}
            )
    if not rows:
        raise TwoTowersError(f"the model answers no prompt with {first}, so its prediction cannot flip from {first}")
    return pd.DataFrame(rows).assign(first=first, second=second, dataset=p.datasets[0])


@study
def flips(run: Run) -> pd.DataFrame:
    """Attention on label positions, and values there, when the prediction flips from the first label to the second.

    One row per (move, outcome, heads, at, source, quantity): value, low, high, n (query texts), pairs; outcome "flips"
    or "stays". Quantities: attention before, attention after, relative change of attention; for labels behind a moved
    demonstration how far attention and values moved (shares of themselves) and their difference. Raises TwoTowersError
    where fewer than LEAST query texts flip.
    """
    from twotowers.analysis.prediction_flips import relative_change, relative_shift

    p, pairs, rows = run.parameters, _pairs(run), []
    first, second = p.labels
    pairs = pairs[pairs["before"] == first]
    for outcome, after in (("flips", second), ("stays", first)):
        for move, part in pairs[pairs["after"] == after].groupby("move", sort=False):
            for (label, some), at in ((group, at) for group in _groups(run).items() for at in p.labels):
                here = part[part["label"] == at]
                own, random = (here[here["head"].isin(named(h))] for h in (some, _partners(run, some)))
                if own["query"].nunique() < LEAST:
                    continue
                where = {"move": move, "outcome": outcome, "heads": f"{label}heads", "at": at}
                where["pairs"] = len(own[["prompt", "moved_place"]].drop_duplicates())
                found = [(OVER, "relative change of attention", relative_change(own, "weight", p.seed, random))]
                for source, one in ((OWN, own), (RANDOM, random)):
                    found.append((source, "relative change of attention", relative_change(one, "weight", p.seed)))
                    for when in ("before", "after"):
                        mean = one.groupby(["query", "prompt"])[f"weight_{when}"].mean()
                        clusters = mean.index.get_level_values("query")
                        found.append((source, f"attention {when}", bootstrap(mean, clusters=clusters, seed=p.seed)))
                    reached = one[one["reached"]]
                    if reached["query"].nunique() >= LEAST:
                        for what, column in (("attention", "weight"), ("values", "norm")):
                            found.append((source, f"how far {what} moved", relative_shift(reached, column, p.seed)))
                        less = relative_shift(reached, "weight", p.seed, "norm")
                        found.append((source, "attention less values", less))
                rows += [
                    {**where, "source": source, "quantity": quantity, **interval.as_row("value")}
                    for source, quantity, interval in found if np.isfinite(interval.estimate)
                ]  # fmt: skip
    if not any(row["outcome"] == "flips" for row in rows):
        raise TwoTowersError(
            f"the prediction goes from {first} to {second} on fewer than {LEAST} query texts, or heads serve no label: "
            "too few to say what changed; take more n_prompts"
        )
    passes = p.datasets[0] in run.passing
    return pd.DataFrame(rows).assign(first=first, second=second, dataset=p.datasets[0], passes=passes)
