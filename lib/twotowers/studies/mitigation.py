"""Chapter 7: acting on the heads to make the two biases smaller (EMNLP section 6, tables 7 and 8, as summarised).

Tables of a mitigation hold, for each set and for all sets that pass, one row per (measure, what, heads): `what` is
"size" of the bias, "gone" (by how much it becomes smaller) or "share" (the same as a share of it; no row where there is
no bias); `heads` is "as it is", the in-context heads, random heads of the same layers, or the first less the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.prompts.datasets import CONTENT_FREE, alternated, imbalanced, orders
from twotowers.prompts.prompt import Prompt
from twotowers.stats.intervals import bootstrap, bootstrap_of_means, rate
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("07-mitigation")
AS_IS, IN, RANDOM, OVER, ALL = "as it is", "in-context heads", "random heads", "in-context less random", "all sets"
KINDS = {"one true fewer": "true", "one false fewer": "false"}
FACTORS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
KS = (2, 3, 4)
MOST, MOST_ORDERS, ORDERS = 200, 40, 6  # prompts of each set; those read in every order; orders read
CONTROLS = 3  # sets of random heads
Size = Callable[[np.ndarray], np.ndarray]


# --- what studies share ---


def _judged(run: Run, dataset: str, most: int) -> list[Prompt]:
    """Every second prompt has its labels exchanged: a liking for one of the words cannot pass for a bias."""
    if run.form.k not in KS:
        raise TwoTowersError(
            f"k = {run.form.k}: this needs 2 to 4 demonstrations of each class, as one goes and all orders are drawn from"
        )
    return alternated(run.prompts(dataset)[:most])


def _controls(run: Run) -> list[list]:
    return run.control_sets()[:CONTROLS]


def _pool(run: Run, most: int) -> tuple[list[Prompt], pd.DataFrame]:
    """Judged prompts of all sets, and their dataset and query."""
    prompts = [prompt for dataset in run.parameters.datasets for prompt in _judged(run, dataset, most)]
    return prompts, pd.DataFrame({"dataset": [p.dataset for p in prompts], "query": [p.query for p in prompts]})


def _groups(run: Run, about: pd.DataFrame) -> Iterable[tuple[str, np.ndarray]]:
    """The rows of each set, then those of all sets that pass; of all there are where none passes."""
    sets = about["dataset"].to_numpy()
    for dataset in run.parameters.datasets:
        yield dataset, np.flatnonzero(sets == dataset)
    yield ALL, np.flatnonzero(np.isin(sets, run.judged))


def _told(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """What every claim has to know: how many sets pass, which heads, and a_c."""
    return table.assign(passing=len(run.passing), names=" ".join(named(run.heads())), a_c=run.parameters.a_c)


def changed(
    table: np.ndarray, before: Size, after: Size, controls: Sequence[tuple[Size, Size]], clusters: np.ndarray, seed: int
) -> pd.DataFrame:
    """Rows (what, heads, value, low, high, n) of a mitigation: sizes of a bias are functions of column means."""

    def compared(size: Callable[[Size, Size], Size]) -> dict[str, Size]:
        ours, theirs = size(before, after), [size(*pair) for pair in controls]
        of_random: Size = lambda m: np.mean([one(m) for one in theirs], axis=0)  # noqa: E731
        return {IN: ours, RANDOM: of_random, OVER: lambda m: ours(m) - of_random(m)}

    wanted: dict[tuple[str, str], Size] = {("size", AS_IS): before, ("size", IN): after}
    wanted["size", RANDOM] = lambda m: np.mean([last(m) for _, last in controls], axis=0)
    for what, size in (
        ("gone", lambda first, last: lambda m: np.abs(first(m)) - np.abs(last(m))),
        ("share", lambda first, last: lambda m: 1 - np.abs(last(m)) / np.abs(first(m))),
    ):
        wanted |= {(what, heads): of for heads, of in compared(size).items()}
    rows = []
    for (what, heads), of in wanted.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            found = bootstrap_of_means(table, of, clusters=clusters, seed=seed)
        if np.isfinite(found.estimate):
            rows.append({"what": what, "heads": heads, **found.as_row("value")})
    return pd.DataFrame(rows)


def _by_set(run: Run, about: pd.DataFrame, table: np.ndarray, pairs: Sequence[tuple[Size, Size]], **columns) -> list:
    """`changed` for every set and for all that pass; the first pair of sizes is of the in-context heads."""
    queries, ((before, after), *controls), parts = about["query"].to_numpy(), pairs, []
    for dataset, rows in _groups(run, about):
        made = changed(table[rows], before, after, controls, queries[rows], run.parameters.seed)
        parts.append(made.assign(dataset=dataset, prompts=len(rows), **columns))
    return parts


# --- majority label ---


def _fewer(run: Run):
    """Balanced answers, and for each kind the answers (head set, factor, prompt) of prompts with one fewer."""
    from twotowers.analysis import biases
    from twotowers.model.answers import answers

    def make():
        (prompts, about), factors = _pool(run, MOST), _factors(run)
        sets = [run.heads(), *_controls(run)]
        balanced = in_parts(run, answers, run.encode(prompts), progress="balanced prompts")
        found = {}
        for kind, which in KINDS.items():
            encoded = run.encode([imbalanced(p, kind=which) for p in prompts])
            found[kind] = in_parts(run, biases.majority_answers, encoded, sets, factors, progress=kind)
        return about, balanced, found

    return run.keep("07 fewer", make)


def _factors(run: Run) -> list[float]:
    return sorted({*FACTORS, run.parameters.a_c})


@study
def majority(run: Run) -> pd.DataFrame:
    """The majority-label bias with and without the minority shortcut (EMNLP table 7): the change from balanced prompts
    to those with one demonstration fewer. See the module; also dataset, kind, measure (accuracy; margin in nats)."""
    about, balanced, found = _fewer(run)
    factors, parts = _factors(run), []
    zero, at = factors.index(0.0), factors.index(run.parameters.a_c)
    for kind, answers in found.items():
        for measure, of in (("accuracy", "correct"), ("margin", "margin")):
            now = getattr(answers, of)
            columns = [getattr(balanced, of), now[0, zero], *now[:, at]]
            table = np.stack(columns, 1).astype(float)
            sizes = [lambda m, j=j: m[..., 0] - m[..., j] for j in range(1, table.shape[1])]
            pairs = [(sizes[0], one) for one in sizes[1:]]
            parts += _by_set(run, about, table, pairs, kind=kind, measure=measure)
    return _told(run, pd.concat(parts, ignore_index=True))


@study
def factors(run: Run) -> pd.DataFrame:
    """Fall of accuracy for every factor a_c on all sets that pass: factor, kind, heads, fall, low, high, n; `cost`, the
    mean absolute fall over both kinds on the prompts on which heads are located; `chosen`, the factor of least cost."""
    from twotowers.analysis import biases
    from twotowers.model.answers import answers

    about, balanced, found = _fewer(run)
    some = [q for d in run.judged for q in alternated(run.locating(d)[:MOST_ORDERS])]
    level, cost = answers(run.lm, run.encode(some), progress="tuning, balanced").correct.mean(), 0.0
    for kind, which in KINDS.items():
        encoded = run.encode([imbalanced(p, kind=which) for p in some])
        tuned = in_parts(run, biases.majority_answers, encoded, [run.heads()], _factors(run), progress=kind)
        cost = cost + np.abs(level - tuned.correct[0].mean(-1)) / len(KINDS)
    (*_, (_, rows)), out = _groups(run, about), []
    queries = about["query"].to_numpy()[rows]
    for kind, one in found.items():
        fall = balanced.correct[rows].astype(float) - one.correct[:, :, rows]
        for j, factor in enumerate(_factors(run)):
            for heads, mine in ((IN, fall[0, j]), (RANDOM, fall[1:, j].mean(0))):
                interval = bootstrap(mine, clusters=queries, seed=run.parameters.seed)
                out.append({"factor": factor, "kind": kind, "heads": heads, **interval.as_row("fall"), "cost": cost[j]})
    return _told(run, pd.DataFrame(out).assign(chosen=_factors(run)[int(np.argmin(cost))], tuned_on=len(some)))


# --- recency ---


def _ordered(run: Run) -> tuple[list[str], list[list]]:
    """Patterns (T true, F false), and the prompts of all sets in each: all orders, or as many evenly spread."""

    def make():
        every = [some_orders(prompt) for prompt in _pool(run, MOST_ORDERS)[0]]
        return ["".join("FT"[true] for true in one.is_true) for one in every[0]], [run.encode(one) for one in every]

    return run.keep("07 ordered", make)


def some_orders(prompt: Prompt) -> list[Prompt]:
    """All orders of a prompt, or ORDERS of them, evenly spread, the first and the last among them."""
    every = orders(prompt)
    return [every[i] for i in np.unique(np.linspace(0, len(every) - 1, min(ORDERS, len(every))).round().astype(int))]


def _orders_read(run: Run):
    """About the prompts; name -> (answers (order, prompt), weights) of the model as it is, and with the shortcut in the
    in-context heads and in each set of random heads; the weights as it is for each of these sets."""
    from twotowers.analysis import biases

    def make():
        (_, by_prompt), sets = _ordered(run), {IN: run.heads()}
        sets |= {f"{RANDOM} {i + 1}": one for i, one in enumerate(_controls(run))}
        every = list(dict.fromkeys(head for one in sets.values() for head in one))
        plain, weights = in_parts(run, biases.read_orders, by_prompt, every, progress="orders")
        found = {
            name: in_parts(run, biases.read_orders, by_prompt, one, "mean", progress=name) for name, one in sets.items()
        }
        own = {name: weights[:, :, [every.index(head) for head in one]] for name, one in sets.items()}
        return _pool(run, MOST_ORDERS)[1], plain, found, own

    return run.keep("07 orders read", make)


def _std(start: int, stop: int) -> Size:
    return lambda m: m[..., start:stop].std(-1)


@study
def recency(run: Run) -> pd.DataFrame:
    """The recency bias with and without the position-free shortcut (EMNLP table 8): the standard deviation of accuracy
    over orders (measure margin: of the margin, nats). See the module; also dataset, measure, and what="chance": the
    spread that chance exceeds once in twenty times."""
    from twotowers.analysis import biases

    about, plain, found, _ = _orders_read(run)
    parts = []
    for measure, of in (("accuracy", "correct"), ("margin", "margin")):
        blocks = [getattr(one, of) for one in (plain, *(answers for answers, _ in found.values()))]
        k, table = len(blocks[0]), np.concatenate(blocks).T.astype(float)
        sizes = [_std(i * k, i * k + k) for i in range(len(blocks))]
        parts += _by_set(run, about, table, [(sizes[0], one) for one in sizes[1:]], measure=measure, orders=k)
        for dataset, rows in _groups(run, about):
            chance = biases.spread_by_chance(blocks[0][:, rows], seed=run.parameters.seed)
            row = {"what": "chance", "heads": AS_IS, "value": chance, "low": chance, "high": chance, "n": len(rows)}
            parts.append(pd.DataFrame([row]).assign(dataset=dataset, prompts=len(rows), measure=measure, orders=k))
    return _told(run, pd.concat(parts, ignore_index=True))


@study
def attention(run: Run) -> pd.DataFrame:
    """How much the weight on a demonstration's label varies over the orders, mean over heads (EMNLP section 6). See the
    module; also dataset, measure ("weight": standard deviation; "weight, relative": over the mean weight). Random heads
    are compared with themselves as they are."""
    from twotowers.analysis import biases

    about, _, found, own = _orders_read(run)
    pairs = [biases.weight_spread(one) for name in found for one in (own[name], found[name][1])]
    table, parts = np.concatenate(pairs, 1), []  # columns: (std, mean) before, (std, mean) after, for each set of heads
    absolute = [lambda m, j=j: m[..., 2 * j] for j in range(len(pairs))]
    relative = [lambda m, j=j: m[..., 2 * j] / m[..., 2 * j + 1] for j in range(len(pairs))]
    for measure, sizes in (("weight", absolute), ("weight, relative", relative)):
        parts += _by_set(run, about, table, list(zip(sizes[::2], sizes[1::2], strict=True)), measure=measure)
    return _told(run, pd.concat(parts, ignore_index=True))


@study
def by_head(run: Run) -> pd.DataFrame:
    """`attention` head by head, over all sets that pass: head, weights ("as it is", "with the shortcut"), spread, low,
    high, n."""
    about, _, found, own = _orders_read(run)
    (*_, (_, rows)), out = _groups(run, about), []
    clusters = about["query"].to_numpy()[rows]
    for i, head in enumerate(named(run.heads())):
        for weights, value in ((AS_IS, own[IN]), ("with the shortcut", found[IN][1])):
            spread = value[rows][:, :, i].std(1).mean(-1)
            interval = bootstrap(spread, clusters=clusters, seed=run.parameters.seed)
            out.append({"head": head, "weights": weights, **interval.as_row("spread")})
    return pd.DataFrame(out)


@study
def by_order(run: Run) -> pd.DataFrame:
    """Accuracy in every order, over all sets that pass: order (T true, F false, the query last), heads, accuracy, low,
    high, n (query words); orders, how many are read."""
    about, plain, found, _ = _orders_read(run)
    (*_, (_, rows)), out = _groups(run, about), []
    random = np.mean([answers.correct for name, (answers, _) in found.items() if name != IN], axis=0)
    for i, pattern in enumerate(_ordered(run)[0]):
        for heads, correct in ((AS_IS, plain.correct), (IN, found[IN][0].correct), (RANDOM, random)):
            mine, of = correct[i, rows].astype(float), bootstrap if heads == RANDOM else rate  # a share of random sets
            interval = of(mine, clusters=about["query"].to_numpy()[rows])
            out.append({"order": pattern, "heads": heads, **interval.as_row("accuracy")})
    return pd.DataFrame(out).assign(orders=plain.correct.shape[0])


def _first(run: Run) -> tuple[str, np.ndarray]:
    """The first set that passes, or the first of all, and its rows among the prompts read in every order."""
    about, dataset = _orders_read(run)[0], run.judged[0]
    return dataset, np.flatnonzero(about["dataset"] == dataset)


@study
def readings(run: Run) -> pd.DataFrame:
    """Spread of accuracy over orders under three readings of "a shortcut beside", and under the same heads doubled with
    their position: reading, spread, low, high, n; accuracy; dataset. On the first set that passes."""
    from twotowers.analysis import biases

    (dataset, rows), (about, plain, found, _) = _first(run), _orders_read(run)
    by_prompt = [_ordered(run)[1][i] for i in rows]
    read = {AS_IS: plain.correct[:, rows], "mean": found[IN][0].correct[:, rows]}
    for name, shares in (("replace", (0, 1)), ("add", (1, 1)), ("doubled, with position", (2, 0))):
        read[name] = in_parts(run, biases.read_orders, by_prompt, run.heads(), shares, progress=name)[0].correct
    clusters, out = about["query"].to_numpy()[rows], []
    for name, correct in read.items():
        found = bootstrap_of_means(
            correct.T.astype(float), lambda m: m.std(-1), clusters=clusters, seed=run.parameters.seed
        )
        out.append({"reading": name, **found.as_row("spread"), "accuracy": correct.mean()})
    return pd.DataFrame(out).assign(dataset=dataset)


# --- known remedies ---


@study
def remedies(run: Run) -> pd.DataFrame:
    """Both biases under each remedy, by two-label accuracy, on the first set that passes: remedy, bias, size, low, high,
    n; passes (a prompt), balanced (accuracy), dataset, prompts."""
    from twotowers.analysis import biases, mitigate
    from twotowers.model.answers import answers

    (dataset, rows), (about, plain, found, _) = _first(run), _orders_read(run)
    by_prompt, factors = [_ordered(run)[1][i] for i in rows], _factors(run)
    even = [orders_[-1] for orders_ in by_prompt]  # the paper's order
    one_fewer = [imbalanced(e.prompt) for e in even]
    fewer, flat = run.encode(one_fewer), [e for orders_ in by_prompt for e in orders_]
    shape = len(rows), len(by_prompt[0])
    pool, _, shortcut = _fewer(run)
    same = np.flatnonzero(pool["dataset"] == dataset)[: len(rows)]  # the same prompts come first there
    minority = shortcut["one true fewer"].two_label[0][:, same]
    base, mean = plain.two_label[:, rows], found[IN][0].two_label[:, rows]
    with mitigate.position_free(run.lm, run.heads(), "mean"):
        free = answers(run.lm, fewer, progress="position-free").two_label
    mean_of = [run.encode(some_orders(one)) for one in one_fewer]
    calibrated, over = in_parts(run, biases.calibrated, flat), in_parts(run, biases.averaged, by_prompt)
    calibrated_fewer, over_fewer = in_parts(run, biases.calibrated, fewer), in_parts(run, biases.averaged, mean_of)
    calibrated = calibrated.reshape(shape).T
    zero, at = factors.index(0.0), factors.index(run.parameters.a_c)
    methods = {  # passes a prompt, balanced, one true fewer, (order, prompt)
        AS_IS: (1, base[-1], minority[zero], base),
        "minority shortcut": (1, base[-1], minority[at], base),
        "position-free shortcut": (1, mean[-1], free, mean),
        "contextual calibration": (1 + len(CONTENT_FREE), calibrated[-1], calibrated_fewer, calibrated),
        "mean over orders": (shape[1], over, over_fewer, np.tile(over, (shape[1], 1))),
    }
    clusters, seed, out = about["query"].to_numpy()[rows], run.parameters.seed, []
    for remedy, (passes, balanced, uneven, ordered) in methods.items():
        fall = bootstrap(balanced.astype(float) - uneven, clusters=clusters, seed=seed)
        spread = bootstrap_of_means(ordered.T.astype(float), lambda m: m.std(-1), clusters=clusters, seed=seed)
        for bias, size in (("fall of accuracy (majority label)", fall), ("spread of accuracy (recency)", spread)):
            row = {"remedy": remedy, "bias": bias, **size.as_row("size")}
            out.append(row | {"passes": passes, "balanced": balanced.mean()})
    return pd.DataFrame(out).assign(dataset=dataset, prompts=len(rows))
