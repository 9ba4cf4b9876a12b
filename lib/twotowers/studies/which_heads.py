"""Chapter 12: the rankings of heads that the field uses, how far they agree, and what the heads that each one finds do.

Heads are ranked on locating prompts of at most two learned sets of different classes, in all orders in turn and with
both assignments of the labels; what they do is judged on other prompts of these sets. Only the paper's ranking keeps the
paper's order. `analysis.rankings` and `analysis.attribution` define the rankings and name their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, control_heads, lacking, named
from twotowers.prompts.datasets import both_assignments, counterbalanced
from twotowers.prompts.prompt import Encoded, Prompt
from twotowers.prompts.uninformative import uninformative
from twotowers.stats import agreement as agreeing
from twotowers.stats.intervals import bootstrap, discoveries, p_value, rate
from twotowers.studies import located
from twotowers.studies.cells import queries
from twotowers.studies.context import chapter_studies
from twotowers.studies.decides import of_different_queries, sets_of
from twotowers.studies.interventions import MEASURES
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("12-which-heads")
INCREASE, LABEL, CLASS = "increase", "label margin", "attention by class"
ATTRIBUTION, INDUCTION, VECTOR = "attribution", "induction", "function vector"
UNITS = {INCREASE: "nats", LABEL: "nats", CLASS: "weight", ATTRIBUTION: "nats", INDUCTION: "weight",
         VECTOR: "probability"}  # fmt: skip
LOCATED = 40  # drawn prompts a set on which heads are ranked, each with both assignments of the labels
VECTORS = 5  # drawn prompts a set in which each head's mean output is put, each asking either class under either labels
JUDGED = 16  # prompts of different queries a set in which heads are zeroed, each with both assignments
DRAWS = 5  # sets of random heads for each ranking
NOTHING, OURS, RANDOM = "nothing zeroed", "heads of the ranking", "random heads, same layers"
CHANGE, OVER, VERSUS = "less nothing", "less random", "less random, less the paper's"


def _both_labels(prompts: Sequence[Prompt]) -> list[Prompt]:
    return both_assignments(counterbalanced(prompts))


def _ranking_on(run: Run) -> list[Encoded]:
    return run.encode([p for d in sets_of(run) for p in _both_labels(run.locating(d)[:LOCATED])])


def _vectors(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Function-vector scores of every prompt without a task, and the prompts' queries. One intervention a head."""
    from twotowers.analysis.factorial import factorial
    from twotowers.analysis.rankings import function_vector_scores

    clean, without = [], []
    for dataset in sets_of(run):
        drawn = list({p.query: p for p in run.locating(dataset)[:LOCATED]}.values())
        if len(drawn) < 2:
            raise TwoTowersError(f"{dataset}: prompts of two queries are needed at least, take a larger n_locate")
        made, design = factorial(drawn, 2, run.parameters.seed)
        apart = design["source"] < min(VECTORS, len(drawn) // 2)
        first = design.groupby("source").cumcount() < 4  # one order, either class asked, either assignment
        clean += [p for p, away in zip(made, apart, strict=True) if not away and run.fits(p)]
        without += [p for p, here in zip(made, apart & first, strict=True) if here and run.fits(p)]
    encoded = run.encode(uninformative(without, run.parameters.seed))
    # Its vectors are means over prompts, so these are not cut into parts.
    return function_vector_scores(run.lm, run.encode(clean), encoded, progress="function vectors"), queries(encoded)


def _induction(run: Run) -> np.ndarray:
    """The score on repeated tokens less that on new ones: what a head gives to a distance alone is taken out."""
    from twotowers.analysis.rankings import induction_scores

    seed = run.parameters.seed
    return induction_scores(run.lm, seed=seed) - induction_scores(run.lm, seed=seed, repeated=False)


def _tested(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean of every head, its two-sided p with queries as clusters, and their number."""
    p = np.array([[p_value(values[:, i, j], clusters=clusters) for j in range(values.shape[2])]
                  for i in range(values.shape[1])])  # fmt: skip
    return values.mean(0), p, len(set(clusters))


def _scores(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray | None, int]]:
    """Ranking -> score of every head, p where it is tested, and the n of that test. What cannot be made has a note."""
    from twotowers.analysis import rankings as known
    from twotowers.analysis.attribution import attribution_patching

    table, encoded = run.table(located.heads), _ranking_on(run)
    table = table[table["dataset"].isin(sets_of(run))].groupby(["layer", "head"])["increase"].mean().unstack()
    makers: dict[str, Callable] = {
        LABEL: lambda: _tested(in_parts(run, known.label_margin, encoded, progress=LABEL), queries(encoded)),
        CLASS: lambda: _tested(known.attention_by_class(run.lm, encoded, progress=CLASS), queries(encoded)),
        ATTRIBUTION: lambda: _tested(
            in_parts(run, attribution_patching, encoded, progress=ATTRIBUTION), queries(encoded)
        ),
        INDUCTION: lambda: (_induction(run), None, 0),
        VECTOR: lambda: _tested(*_vectors(run)),
    }
    found: dict[str, tuple] = {INCREASE: (table.to_numpy(), None, 0)}
    for name, make in makers.items():
        try:
            found[name] = make()
        except TwoTowersError as error:
            run.notes.append(f"The ranking '{name}' is left out: {error}.")
    for name in [name for name, (score, *_) in found.items() if not np.isfinite(score).all() or np.ptp(score) == 0]:
        run.notes.append(f"The ranking '{name}' is left out: it gives no order of the heads here.")
        del found[name]
    return found


@study
def rankings(run: Run) -> pd.DataFrame:
    """Every head under every ranking: ranking, unit, layer, head, name, score, rank (1 is the highest), chosen (among the
    `top_k` and above zero), tested, p, discovery (Benjamini and Hochberg over all heads, within the ranking), n (queries).

    The function-vector score needs an intervention for each head, so it has VECTORS drawn prompts a set. The paper's
    increase is a mean over prompts that chapter 1 saved, and the induction score reads no prompts: both are not tested.
    """
    parts = []
    for name, (score, p, n) in _scores(run).items():
        layer, head = (axis.ravel() for axis in np.indices(score.shape))
        rank = pd.Series(-score.ravel()).rank(method="first").astype(int)
        columns = {"ranking": name, "unit": UNITS[name], "layer": layer, "head": head}
        columns |= {"name": named(zip(layer, head, strict=True)), "score": score.ravel(), "rank": rank}
        columns["chosen"] = (rank <= run.parameters.top_k) & (score.ravel() > 0)
        columns |= {"tested": p is not None, "p": np.nan if p is None else p.ravel(), "n": n}
        columns["discovery"] = False if p is None else discoveries(p).ravel()
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True).assign(learned=bool(run.passing), sets=", ".join(sets_of(run)))


@study
def agreement(run: Run) -> pd.DataFrame:
    """How far every two rankings agree: `stats.agreement`, with spearman_found and shared_found (Benjamini and Hochberg over the
    pairs), and class_heads: heads whose attention by class is a
    discovery above zero (missing without that ranking)."""
    p, table = run.parameters, run.table(rankings)
    names = list(dict.fromkeys(table["ranking"]))
    by = {name: table[table["ranking"] == name] for name in names}
    scores = {name: one.pivot(index="layer", columns="head", values="score").to_numpy() for name, one in by.items()}
    found = agreeing.agreement(scores, p.top_k, p.seed)
    for what in ("spearman", "shared"):
        found[f"{what}_found"] = discoveries(found[f"{what}_p"])
    by_class = by.get(CLASS)
    count = np.nan if by_class is None else int((by_class["discovery"] & (by_class["score"] > 0)).sum())
    return found.assign(class_heads=count, learned=bool(run.passing))


def _compared(values: dict[str, np.ndarray], clusters: np.ndarray, seed: int) -> list[dict]:
    """Rows of one measure: nothing, the ranking's heads, their random draws, and paired differences by query.

    `values`: NOTHING (prompt,), OURS (prompt,), RANDOM (draw, prompt), and the paper's difference where it is to be had.
    `draws_as_low` counts draws that leave as little as the heads do; p is that of the difference from random heads.
    """
    plain, ours, draws = values[NOTHING], values[OURS], values[RANDOM]
    control = draws.mean(0)
    wanted = {NOTHING: plain, OURS: ours, RANDOM: control, CHANGE: ours - plain, OVER: ours - control}
    if VERSUS in values:
        wanted[VERSUS] = ours - control - values[VERSUS]
    rows = []
    for heads, one in wanted.items():
        shares = heads in (NOTHING, OURS) and set(np.unique(one)) <= {0.0, 1.0}
        found = rate(one, clusters=clusters) if shares else bootstrap(one, clusters=clusters, seed=seed)
        p = p_value(one, clusters=clusters) if heads == OVER else np.nan
        rows.append({"heads": heads, **found.as_row("value"), "p": p})
    low = int((draws.mean(1) <= ours.mean()).sum())
    return [row | {"draws": len(draws), "draws_as_low": low} for row in rows]


@study
def what_they_do(run: Run) -> pd.DataFrame:
    """The top heads of each ranking zeroed together at all positions, on prompts that located nothing, beside random other heads
    of the same layers. Of these DRAWS sets; heads that another ranking finds may be among them.

    One row per (ranking, measure, heads): value, low, high, n (queries); draws, draws_as_low, p and discovery (of the
    difference from random heads; over rankings, within the measure). Beside it k, names, elsewhere (random heads that
    had to come from other layers), learned, sets. Margin in nats, all else shares.
    """
    from twotowers.analysis.ablate import ablate_sets

    p, about, table = run.parameters, run.about, run.table(rankings)
    table = table[table["chosen"]].sort_values("rank")
    picked = {name: [Head(*one) for one in mine[["layer", "head"]].to_numpy().tolist()]
              for name, mine in table.groupby("ranking", sort=False)}  # fmt: skip
    picked = {name: picked[name] for name in UNITS if name in picked}
    sets = []
    for heads in picked.values():
        draws = [control_heads(heads, about["layers"], about["heads"], 1000 * p.seed + i) for i in range(DRAWS)]
        sets += [heads, *draws]
    encoded = run.encode([q for d in sets_of(run) for q in _both_labels(of_different_queries(run, d, JUDGED))])
    found, rows = in_parts(run, ablate_sets, encoded, sets, progress="zeroing the heads of each ranking"), []
    for measure, of in MEASURES.items():
        plain, zeroed = (getattr(one, of).astype(float) for one in (found.plain, found.answers))
        blocks = dict(zip(picked, zeroed.reshape(len(picked), 1 + DRAWS, -1), strict=True))
        for name, block in blocks.items():
            values = {NOTHING: plain, OURS: block[0], RANDOM: block[1:]}
            if name != INCREASE and INCREASE in blocks:
                values[VERSUS] = blocks[INCREASE][0] - blocks[INCREASE][1:].mean(0)
            made = _compared(values, queries(encoded), p.seed)
            rows += [{"ranking": name, "measure": measure, **row} for row in made]
    out = pd.DataFrame(rows)
    out["discovery"] = False
    for measure in MEASURES:
        over = (out["heads"] == OVER) & (out["measure"] == measure)
        out.loc[over, "discovery"] = discoveries(out.loc[over, "p"])
    short = {name: lacking(heads, about["heads"]) for name, heads in picked.items()}
    for column, value in (
        ("k", {name: len(heads) for name, heads in picked.items()}),
        ("names", {name: ", ".join(named(heads)) for name, heads in picked.items()}),
        ("elsewhere", short),
    ):
        out[column] = out["ranking"].map(value)
    return out.assign(learned=bool(run.passing), sets=", ".join(sets_of(run)))
