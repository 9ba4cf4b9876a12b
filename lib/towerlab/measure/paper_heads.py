"""The EMNLP version's twelve heads and its two remedies, as summarised, on the paper's own sets. Chapters 6 and 7.

Half of the prompts have foo as the true label, the others are the same with the labels exchanged. The first prompts of each
set choose heads, others judge them.

Recipe `paper_ablations`:

- `log_prob_lost` (layer, head): what the true label loses when one head is zeroed at all positions, nats; heads below the middle
  layer are not tried ("deep layers") and have 0;
- `named_head`: the twelve, first by mean increase and first by that loss, taken in turn. `foo_head`, `bar_head` (rank): the
  halves that raise foo more than bar, and least so (our reading). An eighth of the heads, where a model has fewer than 96;
- answers (heads, prompt) with "none", "the twelve", "foo-heads", "bar-heads" zeroed at all positions, and random sets;
- `attention` (change, prompt, named_head, place), as it is and with a query of the other class; `reading` (prompt, named_head,
  place), its own label's logit minus the other's: attention x reading is the logit minus of the label that stands there;
- `flipped_log_prob_true`, `flipped_log_prob_other` (prompt,): answers to the query of the other class.

Recipe `paper_remedies`, in the twelve and in random sets:

- answers (change, remedy, heads, prompt), without ("none") and with the remedy: the majority shortcut where a demonstration is
  missing, the recency shortcut in all six orders (`measure.mitigations`). Balanced prompts are FFTT, which the first leaves alone;
- `mean_attention_true` (change, remedy, named_head): attention on true labels, mean over prompts, in each head's own set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads
from twotowers.recording import Recording, own, with_shared

from towerlab.measure.ablations import ablated_answers, ablations
from towerlab.measure.chain import Run
from towerlab.measure.heads import at_labels, label_readings
from towerlab.measure.increases import increases
from towerlab.measure.mitigations import A_C, minority_shortcut, recency_shortcut
from towerlab.measure.observations import Answers, Variables, observations, variables_of
from towerlab.measure.paper import encoded_sets
from towerlab.measure.sets import random_sets, with_control
from towerlab.model.capture import Capture, label_log_probs, read_all
from towerlab.model.last_position import LastPosition
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.model.unembed import final_logits
from towerlab.progress import progress
from towerlab.prompts.paper_sets import CHANGES, LABELS, orders
from towerlab.prompts.prompt import Encoded, Prompt
from towerlab.prompts.variants import exchanged_labels, in_order, one_fewer

Encode = Callable[[Sequence[Prompt]], list[Encoded]]
CHOOSE, ALONE, JUDGE, MITIGATE = 8, 2, 24, 16
"""Prompts of each set and true label at most: that choose heads, that each head is zeroed alone on, that judge, under remedies.
Where a set has few, which is so of large models, a half of them judge, and a third under remedies"""
DRAWS = 5
FOO, BAR, TWELVE = "foo-heads", "bar-heads", "the twelve"
ASKED = ("as it is", "query of the other class")
FEWER: dict[str, Callable[[Prompt], Prompt]] = {"one true fewer": one_fewer, "one false fewer": partial(one_fewer, kind=False)}
REMEDIED = FEWER | {order: partial(in_order, pattern=order) for order in orders(2)}
"""Name -> how a prompt of a set is changed. Under the first two the remedy is the majority shortcut, else the recency shortcut"""


def twelve(increase: Mapping[str, xr.DataArray], lost: xr.DataArray) -> tuple[list[Head], list[Head], list[Head]]:
    """(the twelve, foo-heads, bar-heads), each best first.

    Args:
        increase: true label, foo or bar -> mean increase (layer, head), nats.
        lost: (layer, head), nats; NaN: not tried.
    """
    n = min(12, max(2, lost.size // 16 * 2))
    by_increase = choose.top((increase[LABELS[0]] + increase[LABELS[1]]) / 2, n, least=-np.inf)
    heads = choose.union(by_increase, choose.top(lost, n, least=-np.inf), n)
    leaning = (increase[LABELS[0]] - increase[LABELS[1]]).transpose("layer", "head").values
    leans = sorted(heads, key=lambda head: -leaning[head])
    return heads, leans[: n // 2], leans[n // 2 :][::-1]


def alone(model: Model, encoded: Sequence[Encoded]) -> xr.Dataset:
    """`log_prob_lost` (prompt, layer, head) of every head from the middle layer on, zeroed by itself at all positions; others NaN."""
    middle = min((model.n_layers + 1) // 2, model.n_layers - 1)
    deep = [Head(layer, head) for layer in range(middle, model.n_layers) for head in range(model.n_heads)]
    with progress("heads zeroed alone", len(encoded)) as bar:
        log_prob = ablated_answers(model, encoded, [[head] for head in deep], "all", bar).log_prob[..., 0]
    lost = np.full((len(encoded), model.n_layers, model.n_heads), np.nan)
    lost[(slice(None), *np.transpose(deep))] = (log_prob[:1] - log_prob[1:]).T
    return observations(encoded, {"log_prob_lost": (("prompt", "layer", "head"), lost, "nats")})


def looked_at(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head], encode: Encode) -> xr.Dataset:
    """`attention` and `reading` of some heads at labels, and answers to the query of the other class: see the module."""
    layers, numbers = (list(of) for of in zip(*heads, strict=True))
    attention = np.empty((len(ASKED), len(encoded), len(heads), len(encoded[0].label_positions)), dtype=np.float32)
    reading, answers = np.empty(attention.shape[1:]), Answers(encoded, len(ASKED))
    for i, name in enumerate(ASKED):
        answers.encoded = encode([CHANGES[name](e.prompt) for e in encoded])

        def read(capture: Capture, i: int = i) -> None:
            attention[i, capture.index] = at_labels(capture, capture.weights)[:, layers, numbers].float().cpu().numpy()
            if i == 0:
                reading[capture.index] = label_readings(capture, model)[:, layers, numbers].cpu().numpy()
            answers.read(capture, (i,))

        read_all(f"the twelve, {name}", model, answers.encoded, {"weights", "values"}, read)
    true, other = answers.log_prob[1].T
    variables = variables_of(
        "paper_ablations", attention=attention, reading=reading, flipped_log_prob_true=true, flipped_log_prob_other=other
    )
    return observations(encoded, variables, change=list(ASKED), named_head=[*map(str, heads)])


@torch.inference_mode()
def remedied(model: Model, encoded: Sequence[Encoded], sets: Mapping[str, Heads], encode: Encode) -> xr.Dataset:
    """Answers (change, remedy, heads, prompt) and `attention_true` (change, remedy, prompt, named_head): see the module."""
    owner: dict[Head, int] = {}  # head -> the first set that it is in
    for i, heads in enumerate(sets.values()):
        owner = {Head(*head): i for head in heads} | owner
    at = {head: i for i, head in enumerate(owner)}
    answers = Answers(encoded, len(REMEDIED), 2, len(sets))
    attention = np.empty((len(REMEDIED), 2, len(encoded), len(at)), dtype=np.float32)

    def run(c: int, index: list[int], batch: list[Encoded]) -> None:
        last = LastPosition(model, batch, {"weights", "values", "streams"})
        plain, true = last.plain_answer(), _true_positions(last.capture)

        def note(i: int, layer: int, heads: list[int], weights: Tensor) -> None:
            for head, seen in zip((Head(layer, head) for head in heads), weights.unbind(1), strict=True):
                if owner[head] == i:
                    attention[c, 1, index, at[head]] = (seen * true.to(seen)).sum(-1).cpu().numpy()

        for i in range(len(sets)):
            answers.put((c, 0, i), index, *plain)
        for (layer, head), column in at.items():
            attention[c, :, index, column] = (last.capture.weights[layer][:, head] * true).sum(-1).cpu().numpy()[:, None]
        if names[c] in FEWER:
            for i, heads in enumerate(sets.values()):
                logits = final_logits(model, last.capture.resid_final + A_C * minority_shortcut(last.capture, model, heads))
                answers.put((c, 1, i), index, *label_log_probs(logits, batch))
        else:
            edits = [recency_shortcut(model, heads, last.capture, seen=partial(note, i)) for i, heads in enumerate(sets.values())]
            answers.put_each(((c, 1, i) for i in range(len(sets))), index, *last.answers(edits))

    names = list(REMEDIED)
    for c, (name, change) in enumerate(REMEDIED.items()):
        answers.encoded = encode([change(e.prompt) for e in encoded])
        run_batches(f"remedies, {name}", answers.encoded, 2048, partial(run, c))
    variables: Variables = {"attention_true": (("change", "remedy", "prompt", "named_head"), attention, "share")}
    coordinates = {"change": names, "remedy": ["none", "remedy"], "heads": list(sets)}
    return observations(encoded, {**variables, **answers.variables(*list(coordinates))}, **coordinates, named_head=[*map(str, at)])


def _true_positions(capture: Capture) -> Tensor:
    """1 where a true label stands, else 0: (prompt, position)."""
    true = torch.zeros_like(capture.weights[0, :, 0])
    for row, e in enumerate(capture.prompts):
        true[row, [p for p, is_true in zip(e.label_positions, e.prompt.is_true, strict=True) if is_true]] = 1
    return true


def _prompts(run: Run) -> tuple[list[Encoded], list[Encoded]]:
    """Prompts of the sets that the measurement "paper" has, foo true: those that choose heads, and those that judge them."""
    encoded = encoded_sets(run, run.measured("paper")["word_set"].values.tolist())
    n = min(CHOOSE, max(1, run.n_prompts // 2))
    return [e for e in encoded if e.prompt.block < n], [e for e in encoded if e.prompt.block >= n] or encoded


def _with_exchanged(run: Run, encoded: Sequence[Encoded], most: int) -> list[Encoded]:
    """The first prompts of each set, `most` at most, and the same with the labels exchanged, so that bar is true."""
    first = min(e.prompt.block for e in encoded)
    some = [e for e in encoded if e.prompt.block < first + most]
    return [*some, *run.encode([exchanged_labels(e.prompt) for e in some])]


def _with_random(run: Run, measure: Callable[[dict[str, Heads]], xr.Dataset], sets: dict[str, Heads]) -> Recording:
    """`measure(sets)` with random sets matched to each, where the model has enough other heads."""
    try:
        draws = {name: random_sets(run, [Head(*head) for head in heads], DRAWS) for name, heads in sets.items()}
    except NotTestable:
        draws = {}
    return with_control(measure, sets, draws)


def _paper_ablations(run: Run) -> Recording:
    """The EMNLP version's twelve heads, foo-heads and bar-heads: chosen, zeroed, and what they attend to and read at labels."""
    name, (choosing, judging) = "paper_ablations", _prompts(run)
    if run.model.n_layers * run.model.n_heads < 2:
        raise NotTestable("it has one head, which cannot be both a foo-head and a bar-head")
    exchanged = run.encode([exchanged_labels(e.prompt) for e in choosing])
    foo = run.measured("paper")["increase"]
    foo = foo.isel(prompt=foo["block"].isin([e.prompt.block for e in choosing]).values)
    bar = run.in_parts(name, exchanged, lambda some: increases(run.model, some), "increase.").data["increase"]
    tried = run.in_parts(name, _with_exchanged(run, choosing, ALONE), lambda some: alone(run.model, some), "alone.").data
    increase, lost = {"foo": foo.mean("prompt"), "bar": bar.mean("prompt")}, tried["log_prob_lost"].mean("prompt")
    heads, foo_heads, bar_heads = twelve(increase, lost)
    judges = _with_exchanged(run, judging, min(JUDGE, run.n_prompts // 2 or 1))

    def measure(sets: dict[str, Heads]) -> xr.Dataset:
        of_sets = run.in_parts(name, judges, lambda some: ablations(run.model, some, sets, ("all",)), "zeroed.").data
        return of_sets.isel(positions=0, replacement=0, drop=True)

    sets: dict[str, Heads] = {TWELVE: heads, FOO: foo_heads, BAR: bar_heads}
    recording = _with_random(run, measure, sets)
    looks = run.in_parts(name, judges, lambda some: looked_at(run.model, some, heads, run.encode), "looks.").data
    lists = variables_of(
        name, foo_head=[*map(str, foo_heads)], bar_head=[*map(str, bar_heads)], log_prob_lost=lost.fillna(0).values
    )
    of_heads = xr.Dataset({key: (dims, values, {"units": units}) for key, (dims, values, units) in lists.items()})
    sizes = {"rank": range(1, 1 + len(foo_heads)), "layer": range(run.model.n_layers), "head": range(run.model.n_heads)}
    every = xr.merge([recording.data, looks, of_heads.assign_coords(sizes)], compat="override", join="override")
    control = recording.control
    return Recording(every, None if control is None else with_shared(own(control, recording.data), every))


def _paper_remedies(run: Run) -> Recording:
    """The two remedies in the twelve heads: answers and attention with one demonstration fewer and in six orders, without and with."""
    judges = _with_exchanged(run, _prompts(run)[1], min(MITIGATE, run.n_prompts // 3 or 1))
    heads = [Head.parse(name) for name in run.measured("paper_ablations")["named_head"].values]

    def measure(sets: dict[str, Heads]) -> xr.Dataset:
        data = run.in_parts("paper_remedies", judges, lambda some: remedied(run.model, some, sets, run.encode)).data
        means = data["attention_true"].mean("prompt").assign_attrs(units="share")
        return data.drop_vars("attention_true").assign(mean_attention_true=means)

    return _with_random(run, measure, {TWELVE: heads})
