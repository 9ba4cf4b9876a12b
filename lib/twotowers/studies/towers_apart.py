"""Chapter 11: the towers, taken apart. Parts of heads exchanged between prompts, and attention blocked along edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.prompts.datasets import counterbalanced, reordered, swapped_labels
from twotowers.prompts.uninformative import silent_texts
from twotowers.stats.intervals import Interval, bootstrap, bootstrap_of_means
from twotowers.studies.context import chapter_studies
from twotowers.studies.decides import of_different_queries, sets_of
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("11-towers-apart")
MOST = 40  # prompts a set whose parts are exchanged
BLOCKED = 16  # prompts of different queries a set in which attention is blocked: a run of the model for each block
DRAWS = 5  # sets of random heads
RANDOM = "random heads"
TEXTS, PREVIOUS = "labels and colons to own text", "labels and colons to previous text"
QUERY, BEFORE_QUERY = "last to query", "last to previous text"
NEIGHBOURS, DEMONSTRATIONS = "labels to earlier demonstrations", "last to demonstrations"
CONTROL_OF = {TEXTS: PREVIOUS, QUERY: BEFORE_QUERY}
MIXED = (PREVIOUS, BEFORE_QUERY, DEMONSTRATIONS, NEIGHBOURS)  # the last hides labels too
LABEL_EDGES = (TEXTS, PREVIOUS, NEIGHBOURS)


def _pairs(run: Run) -> dict[str, list]:
    """Prompts and their sources, of three kinds; a kind that this model cannot exchange is left out, with a note."""
    from twotowers.analysis import interchange as ic

    prompts = [p for d in sets_of(run) for p in counterbalanced(run.prompts(d)[:MOST])]
    fits = ic.same_length(prompts, run.lm.tokenizer)
    made = {
        "query pairs": ic.query_pairs(prompts, lambda p: run.fits(p) and fits(p)),
        "key pairs": ic.key_pairs(prompts), "value pairs": ic.value_pairs(prompts),
    }  # fmt: skip
    found = {}
    for kind, pairs in made.items():
        pairs = [pair for pair in pairs if all(run.fits(one) for one in pair)]
        try:
            found[kind], dropped = ic.encode_pairs(pairs, run.lm)
        except TwoTowersError as error:
            run.notes.append(f"{kind}: {error}")
            continue
        if dropped:
            run.notes.append(f"{kind}: {dropped} of {len(pairs)} left out, their tokens cannot be aligned")
    if not found:
        raise TwoTowersError("no pair of prompts can be exchanged in this model: choose classes of one-token words")
    return found


def _without_draws(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the mean over the sets of random heads in their place."""
    table = table.assign(heads=np.where(table["heads"].str.startswith(RANDOM), RANDOM, table["heads"]))
    keys = [name for name in table if name not in ("patched", "says")]
    return table.groupby(keys, sort=False, as_index=False)["patched"].mean()


@study
def exchanged(run: Run) -> pd.DataFrame:
    """Margin moved towards the other label (nats) by each exchange: pairs ("query pairs", ...), heads ("in-context heads",
    "random heads": mean of DRAWS sets of the same depths, "all heads"), what ("query", "keys", "values", "all"), moved,
    low, high, n (queries), count (pairs), share_of_source with low and high.

    Two more kinds of rows: heads "in-context less random", paired; and in the key pairs, for the in-context heads, what
    "keys less twice values" and "keys plus twice values", both above 0 where values move less than half as far as keys.
    """
    from twotowers.analysis import interchange as ic

    ours, seed, parts = run.heads(), run.parameters.seed, []
    random = {f"{RANDOM} {i + 1}": some for i, some in enumerate(run.control_sets()[:DRAWS])}
    sets = {ic.OURS: ours, **random, ic.ALL: ic.all_heads(run.lm)}
    for kind, pairs in _pairs(run).items():
        table = _without_draws(in_parts(run, ic.interchange, pairs, sets, outer="heads", progress=kind))
        rows = ic.moved(table, seed=seed).rename(columns={"pairs": "count"})
        beyond = ic.beyond_controls(table, control=RANDOM, seed=seed)
        beyond = beyond.drop(columns=["moved", "control"]).rename(columns={"beyond": "moved"})
        parts += [one.assign(pairs=kind) for one in (rows, beyond.assign(heads="in-context less random"))]
        if kind == "key pairs":
            mine = table[table["heads"] == ic.OURS]
            mine = mine.assign(moved=mine["toward"] * (mine["patched"] - mine["base"]))
            wide = mine.pivot(index=["pair", "query"], columns="what", values="moved")
            for what, sign in (("keys less twice values", -2), ("keys plus twice values", 2)):
                found = bootstrap(
                    wide["keys"] + sign * wide["values"], clusters=wide.index.get_level_values("query"), seed=seed
                )
                parts.append(pd.DataFrame([{"pairs": kind, "heads": ic.OURS, "what": what, **found.as_row("moved")}]))
    kept = ["pairs", "heads", "what", "moved", "low", "high", "n", "count"]
    kept += ["share_of_source", "share_of_source_low", "share_of_source_high"]
    names = ", ".join(named(ours))
    return pd.concat(parts, ignore_index=True)[kept].assign(names=names, learned=bool(run.passing), draws=len(random))


def _near_and_far(run: Run, silent: bool = False) -> dict[str, list]:
    """For each set, prompts of different queries with the true demonstrations nearest to the query, then farthest.

    Every second one has its labels exchanged, so neither place nor label word tells a class. `silent`: the same orders of
    labels, with texts that do not tell them.
    """

    def make() -> dict[str, list]:
        found = {}
        for dataset in sets_of(run):
            drawn = of_different_queries(run, dataset, BLOCKED)
            near = [swapped_labels(p) if i % 2 else p for i, p in enumerate(drawn)]
            forms = near, silent_texts(near, run.parameters.seed)
            found[dataset] = run.encode_paired(
                *(order for form in forms for order in (form, list(map(reordered, form))))
            )
        return found

    kept = run.keep("near and far", make)
    return {dataset: [*forms[2 * silent], *forms[2 * silent + 1]] for dataset, forms in kept.items()}


def _margins(run: Run, silent: bool = False) -> pd.DataFrame:
    """`blocked_margins` of all prompts, with `source` (the drawn prompt) and `far`."""
    from twotowers.analysis import blocking

    def make() -> pd.DataFrame:
        sets = _near_and_far(run, silent)
        names = MIXED if silent else (TEXTS, PREVIOUS, QUERY, BEFORE_QUERY, NEIGHBOURS, DEMONSTRATIONS)
        edges = {name: blocking.EDGES[name] for name in names}
        encoded, thirds = [e for some in sets.values() for e in some], blocking.layer_thirds(run.lm)
        table = in_parts(
            run, blocking.blocked_margins, encoded, edges, thirds, batched=True, progress="attention blocked"
        )
        half = [len(some) // 2 for some in sets.values()]
        far = np.concatenate([np.repeat([False, True], n) for n in half])
        source = np.concatenate([np.tile(np.arange(n), 2) + 1000 * i for i, n in enumerate(half)])
        return table.assign(far=far[table["prompt"]], source=source[table["prompt"]])

    return run.keep(("blocked", silent), make)


def _compared(table: pd.DataFrame, edges: Sequence[str], chance: float, seed: int) -> pd.DataFrame:
    """What each block costs, and paired differences: less its control, and in the lower less each other third."""
    from twotowers.analysis.blocking import lost

    rows = [lost(table, chance, seed=seed).assign(kind="lost")]
    wide = table.assign(lost=table["plain"] - table["blocked"]).pivot_table(
        index=["prompt", "query"], columns=["edges", "layers"], values="lost", sort=False
    )
    queries, thirds = wide.index.get_level_values("query"), list(dict.fromkeys(table["layers"]))
    for name in edges:
        pairs = [("less control", t, wide[name, t] - wide[CONTROL_OF[name], t]) for t in thirds if name in CONTROL_OF]
        pairs += [(f"lower less {t}", "lower", wide[name, "lower"] - wide[name, t]) for t in thirds if t != "lower"]
        for kind, third, values in pairs:
            found = bootstrap(values, clusters=queries, seed=seed)
            rows.append(pd.DataFrame([{"kind": kind, "edges": name, "layers": third, **found.as_row("lost")}]))
    return pd.concat(rows, ignore_index=True)


@study
def blocked(run: Run) -> pd.DataFrame:
    """Margin of the true label lost (nats) when attention is blocked along edges in a third of the layers: kind
    ("lost", or paired, "less control", "lower less middle" and "lower less upper"), edges, layers,
    plain, blocked, lost, low, high, n (queries), share."""
    found = _compared(_margins(run), (TEXTS, QUERY, NEIGHBOURS, DEMONSTRATIONS), 0.0, run.parameters.seed)
    return found.assign(learned=bool(run.passing))


@study
def keys(run: Run) -> pd.DataFrame:
    """How well the in-context heads' keys at labels tell the classes of their texts (AUC within a prompt, mean over heads):
    columns as `blocked`; `share` is of what lies above one half."""
    from twotowers.analysis import blocking

    edges, parts, at = {name: blocking.EDGES[name] for name in LABEL_EDGES}, [], 0
    thirds = blocking.layer_thirds(run.lm)
    for encoded in _near_and_far(run).values():  # two classes at a time
        found = blocking.class_in_keys(run.lm, encoded, run.heads(), edges, thirds, progress="class in label keys")
        parts.append(found.assign(prompt=found["prompt"] + at))
        at += len(encoded)
    by = ["prompt", "query", "edges", "layers"]
    mean = pd.concat(parts).groupby(by, sort=False, as_index=False)[["plain", "blocked"]].mean()
    found = _compared(mean, (TEXTS, NEIGHBOURS), 0.5, run.parameters.seed)
    return found.assign(learned=bool(run.passing), names=", ".join(named(run.heads())))


def _effects(table: pd.DataFrame, edges: str, third: str) -> pd.DataFrame:
    """The effect of order of each (source, query), plain and blocked; and the mean margin of both orders, plain and blocked."""
    cell = table[(table["edges"] == edges) & (table["layers"] == third)]
    wide = cell.pivot(index=["source", "query"], columns="far", values=["plain", "blocked"])
    found = {one: wide[one, False] - wide[one, True] for one in ("plain", "blocked")}
    return pd.DataFrame(found | {f"margin {one}": wide[one].mean(axis=1) for one in ("plain", "blocked")})


def _beyond_share(effect: pd.DataFrame, other: pd.DataFrame, **drawn) -> Interval:
    """Nats that the effect (plain, blocked) loses beyond what it would, did it lose the share that `other` loses.

    A block that only scales the whole answer gives 0, to nine digits: less is rounding. NaN where the interval of
    `other`, nothing blocked, holds zero.
    """
    whole = bootstrap(other.iloc[:, 0], **drawn)
    if not (whole.low > 0 or whole.high < 0):
        return Interval(np.nan, np.nan, np.nan, whole.n)
    columns = np.column_stack([effect, other])
    return bootstrap_of_means(columns, lambda m: (m[..., 0] * m[..., 3] / m[..., 2] - m[..., 1]).round(9), **drawn)


@study(version=3)
def mixing(run: Run) -> pd.DataFrame:
    """Section 5.2 by intervention: the effect of order, and how far it shrinks when neighbours cannot be seen.

    The effect is the true label's margin with the true demonstrations nearest less that with them farthest. kind ("order
    effect": nothing blocked; "order effect, silent texts": of prompts with labels in the same places and texts that do
    not tell them, so of the order of labels alone; "shrinks"; and paired, "shrinks, less ..." four controls: "margin lost"
    and "silent texts", the nats that the mean margin of both orders and the second effect lose; "margin's share" and
    "silent texts' share", what the effect would lose with the share of itself that each of them loses), edges, layers,
    nats, low, high, n (queries). A share is NaN where the interval of its whole holds zero.
    """
    told, silent, rows = _margins(run), _margins(run, silent=True), []
    for name, third in told[["edges", "layers"]].drop_duplicates().itertuples(index=False, name=None):
        if name not in MIXED:
            continue
        own, other = _effects(told, name, third), _effects(silent, name, third)
        effect, margin, alone = (
            own[["plain", "blocked"]],
            own[["margin plain", "margin blocked"]],
            other[["plain", "blocked"]],
        )
        drawn = {"clusters": own.index.get_level_values("query"), "seed": run.parameters.seed}
        shrunk, lost, lost_alone = (one.iloc[:, 0] - one.iloc[:, 1] for one in (effect, margin, alone))
        found = {
            "order effect": bootstrap(own["plain"], **drawn),
            "order effect, silent texts": bootstrap(other["plain"], **drawn),
            "shrinks": bootstrap(shrunk, **drawn),
            "shrinks, less margin lost": bootstrap(shrunk - lost, **drawn),
            "shrinks, less margin's share": _beyond_share(effect, margin, **drawn),
            "shrinks, less silent texts": bootstrap(shrunk - lost_alone, **drawn),
            "shrinks, less silent texts' share": _beyond_share(effect, alone, **drawn),
        }
        rows += [{"kind": kind, "edges": name, "layers": third, **one.as_row("nats")} for kind, one in found.items()]
    return pd.DataFrame(rows).assign(learned=bool(run.passing))
