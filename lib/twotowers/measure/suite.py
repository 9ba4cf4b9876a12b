"""The measurements of the book: each name, what it is made from, and on how many blocks.

Answers are measured on two and a half times as many blocks as `heads`; interventions, which run a prompt many times, on a
quarter, and at least `_fewest`, so that every class pair is there twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from twotowers import choose
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head
from twotowers.measure import steering as steer
from twotowers.measure.ablations import ablations, mean_z
from twotowers.measure.answers import answers, joined
from twotowers.measure.chain import JUDGING, LOCATING, MEASUREMENTS, Measurement, Run
from twotowers.measure.conditions import CONDITIONS, conditions
from twotowers.measure.heads import heads
from twotowers.measure.interchanges import interchanges, pairs_of
from twotowers.measure.knockouts import default_cuts, knockouts
from twotowers.measure.label_reads import label_reads
from twotowers.measure.mitigations import mitigations
from twotowers.measure.path_patching import path_patching
from twotowers.measure.rankings import rankings
from twotowers.measure.single_ablations import single_ablations
from twotowers.measure.top_tokens import top_tokens
from twotowers.measure.towers import towers
from twotowers.prompts.blocks import Form, draw_blocks, texts_of_one_length
from twotowers.prompts.prompt import SEPARATORS, Encoded, Prompt
from twotowers.prompts.variants import factorial, patterns, shuffled_labels

KS = (1, 2, 4, 8)
"""Demonstrations of each class that are tried, with every separator; the paper's form is two, separated by a space"""
DRAWS = 20
DOSES = (1, 2, 5, 10, 20)
"""Numbers of heads that are ablated together"""
ORDERS = 6
"""Orders of the demonstrations in the factorial design: all of two and two, a spread of more"""


def random_name(heads: str, draw: int) -> str:
    """The name of a random set of heads matched to a named one."""
    return f"{heads}, random {draw}"


def _fewest(run: Run) -> int:
    """Blocks: two of every class pair."""
    return 2 * len(run.pairs)


def _n_few(run: Run) -> int:
    """Blocks on which interventions are judged."""
    return max(_fewest(run), round(run.settings.blocks / 4))


def _few(run: Run) -> list[Prompt]:
    """Prompts on which interventions are judged."""
    return run.blocks(_n_few(run), JUDGING)


def _controls(run: Run, name: str, chosen: Sequence[Head]) -> dict[str, list[Head]]:
    """DRAWS random sets matched to one, none of whose heads stands in the sets in question."""
    model = run.model
    group = model.n_heads // model.n_key_value_heads
    sets = choose.matched_sets(chosen, model.n_layers, model.n_heads, group, DRAWS)
    return {random_name(name, i): drawn for i, drawn in enumerate(sets)}


def _present(sets: Mapping[str, list[Head]]) -> dict[str, list[Head]]:
    """Sets in which the rule names heads. Raises NotTestable where it names none at all."""
    out = {name: chosen for name, chosen in sets.items() if chosen}
    if not out:
        raise NotTestable("no rule names any head of this model, as happens where it does not learn the task")
    return out


def _forms(run: Run) -> xr.Dataset:
    """Answers on the locating blocks in every form of the grid that the model can read; what is given is not varied."""
    k, separator = run.settings.k, run.settings.separator
    grid = [Form(n, between) for n in ((k,) if k else KS) for between in ((separator,) if separator else SEPARATORS)]
    parts, forms = [], []
    for form in grid:
        try:
            encoded = run.locating(form)
        except TwoTowersError:
            if form.k == grid[0].k:
                raise  # not even the shortest prompt can be read: the message says why
            continue
        parts.append(answers(run.model, encoded))
        forms.append(form)
    return joined(parts, k=[form.k for form in forms], separator=[form.separator for form in forms])


def _locating(run: Run) -> xr.Dataset:
    """Every head on the locating blocks: what the sets of heads are chosen from."""
    return heads(run.model, run.locating())


def _norms(run: Run) -> xr.Dataset:
    """The paper's increase with the final norm recomputed for each vector, on the locating blocks."""
    return heads(run.model, run.locating(), norm="recomputed")[["increase"]]


def _singles(run: Run) -> xr.Dataset:
    """Every head zeroed by itself at the last position, on a quarter of the locating blocks (the EMNLP version's second list)."""
    few = run.encode(run.blocks(max(1, run.settings.locate // 4), LOCATING))
    return single_ablations(run.model, few, "last")


def _heads(run: Run) -> xr.Dataset:
    return heads(run.model, run.judging())


def _answers(run: Run) -> xr.Dataset:
    return answers(run.model, run.judging(2.5))


def _check_one_can_go(run: Run) -> None:
    """Raises NotTestable where the form has one demonstration of each class, so that none can be removed."""
    if run.form.k < 2:
        raise NotTestable("its best-learned form has one demonstration of each class, and none can be removed: give k=2")


def _conditions(run: Run) -> xr.Dataset:
    _check_one_can_go(run)
    return conditions(run.model, _few(run), CONDITIONS, run.encode)


def _factorial(run: Run) -> xr.Dataset:
    """Two blocks of every class pair in up to ORDERS orders, each with a query of either class and both label assignments."""
    blocks = run.blocks(_fewest(run), JUDGING)  # the query of the other class comes from another block of the pair
    return answers(run.model, run.encode(factorial(blocks, spread_orders(blocks[0]))))


def spread_orders(prompt: Prompt) -> list[str]:
    """Up to ORDERS of a prompt's orders, evenly spread from "TTFF" to "FFTT", with each its mirror."""
    every = patterns(prompt)
    return [every[round(i)] for i in np.linspace(0, len(every) - 1, min(ORDERS, len(every)))]


def _towers(run: Run) -> xr.Dataset:
    """Queries and keys of the head that prefers the query's class most, and of the one that writes most."""
    chosen = [*run.sets["by attention"][:1], *run.sets["writers"][:1]]
    return towers(run.model, run.judging(0.5), list(dict.fromkeys(chosen)))


def _label_reads(run: Run) -> xr.Dataset:
    """The located heads, comparers and writers, and all heads of the random sets matched to the located ones."""
    sets = _present(run.sets)
    sets |= _controls(run, "located", run.sets["located"])
    return label_reads(run.model, run.encode(_few(run)), list(dict.fromkeys(h for chosen in sets.values() for h in chosen)))


def _top_tokens(run: Run) -> xr.Dataset:
    """Words read in three located heads and in the two best comparers, on a block of every class pair."""
    chosen = dict.fromkeys([*run.sets["located"][:3], *run.sets["by attention"][:2]])
    return top_tokens(run.model, run.encode(run.blocks(_fewest(run) // 2, JUDGING)), list(chosen), k=10)


def _ablated_sets(run: Run) -> dict[str, list[Head]]:
    """The sets of the rules and of growing size, siblings, and random sets matched to three of them.

    On sentences, which are long, only the paper's twelve heads and the random sets matched to them.
    """
    single = run.measured("singles")["log_prob_lost"].mean("prompt")
    many = choose.head_sets(run.measured("locating"), max(DOSES))
    twelve = {"paper's twelve": choose.union(many["by increase"], choose.top(single, max(DOSES)), 12)}
    if run.settings.suite != "words":
        return twelve | _controls(run, "paper's twelve", twelve["paper's twelve"])
    sets = dict(run.sets) | twelve
    group = run.model.n_heads // run.model.n_key_value_heads
    for name in ("comparers", "writers"):
        sets |= {f"{name}, {n} heads": many[name][:n] for n in DOSES if n <= len(many[name])}
        sets[f"siblings of {name}"] = choose.siblings(sets[name], group, run.model.n_heads)
    sets = _present(sets)
    for name in ("comparers", "writers", "paper's twelve"):
        if name in sets:
            sets |= _controls(run, name, sets[name])
    return sets


def _ablations(run: Run) -> xr.Dataset:
    """Sets of heads zeroed at all positions, as the EMNLP version does."""
    return ablations(run.model, run.encode(_few(run)), _ablated_sets(run), ("all",))


def _ablations_last(run: Run) -> xr.Dataset:
    """The same at the last position, zeroed and replaced by their means over locating blocks."""
    replacements = {"zero": None, "mean": mean_z(run.model, run.locating())}
    return ablations(run.model, run.encode(_few(run)), _ablated_sets(run), ("last",), replacements)


def _path_patching(run: Run) -> xr.Dataset:
    """From comparers to the queries of writers, of random sets matched to the writers, and of all heads that come later."""
    sets = _both(run)
    first = min(layer for layer, _ in sets["comparers"])
    later = [Head(layer, h) for layer in range(first + 1, run.model.n_layers) for h in range(run.model.n_heads)]
    receivers = _present({"writers": sets["writers"]}) | _controls(run, "writers", sets["writers"]) | {"all later heads": later}
    return path_patching(run.model, run.encode(_few(run)), sets["comparers"], receivers, answers_only=["all later heads"])


def _both(run: Run) -> dict[str, list[Head]]:
    """Sets with comparers and writers; where the rule names no comparers, the heads with the largest attention difference."""
    return {**run.sets, "comparers": run.sets["comparers"] or run.sets["by attention"]}


def _interchanges(run: Run) -> xr.Dataset:
    """Between prompts whose texts have as many tokens, so that labels stand at the same positions."""
    texts = texts_of_one_length(run.model.tokenizer, run.form, run.pairs, run.texts)
    classes = [pair for pair in run.pairs if set(pair.split("/")) <= set(texts)]
    if not classes:
        raise NotTestable("no two classes have texts of the same number of tokens")
    seed = [run.settings.seed, JUDGING]
    blocks = draw_blocks(_n_few(run), run.form, seed=seed, pairs=classes, labels=run.labels, texts=texts)
    pairs, _ = pairs_of(run.encode(blocks), run.model.tokenizer)
    chosen = run.sets["by attention"]
    sets = _present({"by attention": chosen, "writers": run.sets["writers"]}) | _controls(run, "by attention", chosen)
    return interchanges(run.model, pairs, sets, ("query", "keys", "values"))


def _knockouts(run: Run) -> xr.Dataset:
    """Cuts spread over the layers, and one at the first writer's layer."""
    first = min(layer for layer, _ in _present(run.sets).get("writers") or run.sets["located"])
    cuts = sorted({*default_cuts(run.model.n_layers), first})
    return knockouts(run.model, run.encode(_few(run)), cuts=cuts, heads=_both(run)["comparers"][:3])


def _directions(run: Run) -> xr.Dataset:
    return steer.class_directions(run.model, run.encode(run.blocks(steer.BLOCKS * len(run.pairs), LOCATING)))


def _steering(run: Run) -> xr.Dataset:
    """Comparers, writers, located heads and random heads matched to the comparers, along class directions at all doses."""
    sets = _both(run)
    other = _controls(run, "comparers", sets["comparers"])[random_name("comparers", 0)]
    steered = _present({name: sets[name] for name in ("comparers", "writers", "located")}) | {"other heads": other}
    return steer.steering(run.model, run.encode(_few(run)), _directions(run), steered)


def _steering_random(run: Run) -> xr.Dataset:
    """The control of the claims about steering: the comparers along random directions of the same norm."""
    chosen = {"comparers": _both(run)["comparers"]}
    return steer.steering(run.model, run.encode(_few(run)), _directions(run), chosen, (-1.0, 1.0), ("query", "keys"), DRAWS)


def _steering_labels(run: Run) -> xr.Dataset:
    """Comparers along directions from blocks of one half of the label pairs: prompts of the same half, and of the other.

    Each direction comes from as many blocks as one of `_directions`, on average. Class pairs of which a half asks only one
    class are left out. Raises NotTestable where none is left.
    """
    first = {frozenset(pair.split("/")) for pair in run.labels[::2]}

    def halves(prompts: Sequence[Prompt]) -> list[list[Encoded]]:
        encoded = run.encode(prompts)
        return [[e for e in encoded if (frozenset(e.prompt.labels) in first) == half] for half in (False, True)]

    located, few = halves(run.blocks(2 * steer.BLOCKS * len(run.pairs), LOCATING)), halves(_few(run))
    asked = [{(e.prompt.dataset, e.prompt.cls) for e in half} for half in located]
    kept = {pair for pair in run.pairs if all((pair, cls) in half for half in asked for cls in pair.split("/"))}
    located, few = ([[e for e in half if e.prompt.dataset in kept] for half in of] for of in (located, few))
    if not all(few):
        raise NotTestable("no half of its labels has blocks of both classes: give at least two label pairs")
    directions = [steer.class_directions(run.model, half) for half in located]
    parts = []
    for which, swap in (("same", 0), ("other", 1)):
        sets = {f"comparers, {which} labels": _both(run)["comparers"]}
        pairs = [(few[i], directions[i ^ swap]) for i in range(2)]
        parts.append(joined([steer.steering(run.model, e, d, sets, (-1.0, 1.0), ("query", "keys"), random=0) for e, d in pairs]))
    return xr.concat(parts, "heads")


def _mitigations(run: Run) -> xr.Dataset:
    """Under each remedy, prompts with one demonstration fewer and in two orders, in located heads and random ones."""
    _check_one_can_go(run)
    sets = _present({"located": run.sets["located"]}) | _controls(run, "located", run.sets["located"])
    names = [name for name in CONDITIONS if name != "plain"]
    parts = [mitigations(run.model, run.encode([CONDITIONS[name](p) for p in _few(run)]), sets) for name in names]
    return joined([part.drop_vars(["attention", "true"], errors="ignore") for part in parts], condition=names)


def _rankings(run: Run) -> xr.Dataset:
    """Known rankings of heads on blocks of four tasks: a function vector is a mean over blocks of one task."""
    seed = [run.settings.seed, LOCATING]
    few = draw_blocks(20, run.form, seed=seed, pairs=run.pairs[:4], labels=run.labels[:1], texts=run.texts)
    return rankings(run.model, run.measured("locating"), run.encode(few), run.encode(shuffled_labels(few)))


MEASUREMENTS |= {
    "forms": Measurement(_forms, judges=False),
    "locating": Measurement(_locating, ("forms",), judges=False),
    "heads": Measurement(_heads, ("forms",)),
    "answers": Measurement(_answers, ("forms",)),
    "factorial": Measurement(_factorial, ("forms",)),
    "norms": Measurement(_norms, ("forms",), judges=False),
    "conditions": Measurement(_conditions, ("forms",)),
    "towers": Measurement(_towers, ("locating",)),
    "label_reads": Measurement(_label_reads, ("locating",)),
    "top_tokens": Measurement(_top_tokens, ("locating",), version=2),
    "steering": Measurement(_steering, ("locating",)),
    "steering_random": Measurement(_steering_random, ("locating",)),
    "steering_labels": Measurement(_steering_labels, ("locating",)),
    "interchanges": Measurement(_interchanges, ("locating",)),
    "path_patching": Measurement(_path_patching, ("locating",), version=2),
    "singles": Measurement(_singles, ("forms",), judges=False),
    "ablations": Measurement(_ablations, ("locating", "singles")),
    "ablations_last": Measurement(_ablations_last, ("locating", "singles")),
    "knockouts": Measurement(_knockouts, ("locating",)),
    "mitigations": Measurement(_mitigations, ("locating",)),
    "rankings": Measurement(_rankings, ("locating",), judges=False),
}

