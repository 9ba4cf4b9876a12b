"""The towers, taken apart: what moves the answer when only a head's query, keys or values come from another prompt.

    pairs, dropped = encode_pairs(query_pairs(prompts), model)           # base and source of every pair
    table = interchange(model, pairs, sets)                              # margins of base, source, patched base
    moved(table)                                                         # nats towards the other label, with intervals
    beyond_controls(table)                                               # the same, less depth-matched random heads

Interchange interventions (Geiger et al. 2021) on claim 4: if attention is a metric between query and demonstrations,
queries (in `query_pairs`) or keys (in `key_pairs`) alone move the margin as far as the whole exchange does, and values
do not; in `value_pairs` values alone do. What a source promises is the same in all three: the other label. Attention is
causal, so before the query nothing differs within a query pair: there "query" and "all" are one and the same by
construction, "keys" and "values" move nothing, and only `share_of_source` and the controls tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.analysis.edit_heads import all_heads  # noqa: F401  `studies.towers_apart` finds it here
from twotowers.analysis.locate import check_heads
from twotowers.errors import TwoTowersError
from twotowers.model.attention_edits import EXCHANGES, can_realign, exchanged, last_position, reading_parts, realigned
from twotowers.model.capture import capture
from twotowers.model.memory import in_memory
from twotowers.model.model import Model
from twotowers.prompts.datasets import swapped_labels, with_other_class_text
from twotowers.prompts.prompt import Encoded, Prompt, batches, encode_all
from twotowers.stats.intervals import bootstrap, bootstrap_of_means

OURS, CONTROL, ALL = "in-context heads", "random heads", "all heads"


class Pair(NamedTuple):
    """The prompt that runs, and the prompt that parts are taken from."""

    base: Encoded
    source: Encoded

    @property
    def aligned(self) -> bool:
        """Do label positions and the last position agree?"""
        return (self.base.label_positions, self.base.last) == (self.source.label_positions, self.source.last)


def query_pairs(
    prompts: Sequence[Prompt], fits: Callable[[Prompt], bool] = lambda _: True
) -> list[tuple[Prompt, Prompt]]:
    """(prompt, the same with a query of its other class). See `with_other_class_text`, and `same_length` for `fits`."""
    return list(zip(prompts, with_other_class_text(prompts, None, fits), strict=True))


def same_length(prompts: Sequence[Prompt], tokenizer) -> Callable[[Prompt], bool]:
    """Does a prompt have as many tokens as the one of these with the same demonstrations?"""
    known: dict[tuple, set[int]] = {}
    for one in encode_all(prompts, tokenizer):
        known.setdefault(one.prompt.demonstrations, set()).add(len(one.ids))
    return lambda prompt: len(encode_all([prompt], tokenizer)[0].ids) in known.get(prompt.demonstrations, ())


def key_pairs(prompts: Sequence[Prompt]) -> list[tuple[Prompt, Prompt]]:
    """(prompt, the same with the texts of its classes exchanged): each label stands beside a text of the other class.

    The first text of one class changes places with the first of the other, and so on; labels and query stay, so the
    query's true label is the other one. Raises TwoTowersError unless a prompt has two named classes of as many
    demonstrations, each under a label of its own.
    """
    return [(prompt, _texts_exchanged(prompt)) for prompt in prompts]


def value_pairs(prompts: Sequence[Prompt]) -> list[tuple[Prompt, Prompt]]:
    """(prompt, the same with its labels exchanged): texts and query stay, the true label is the other one."""
    return [(prompt, swapped_labels(prompt)) for prompt in prompts]


def _texts_exchanged(prompt: Prompt) -> Prompt:
    places: dict[str, list[int]] = {}
    for i, d in enumerate(prompt.demonstrations):
        places.setdefault(d.cls, []).append(i)
    labels = [{prompt.demonstrations[i].label for i in found} for found in places.values()]
    if len(places) != 2 or "" in places or prompt.cls not in places or labels[0] & labels[1]:
        raise TwoTowersError("texts cannot change places: give prompts of two named classes, each with its own label")
    first, second = places.values()
    if len(first) != len(second):
        raise TwoTowersError(f"{len(first)} texts cannot change places with {len(second)}: give balanced prompts")
    other = dict(zip([*first, *second], [*second, *first], strict=True))
    shown = [
        replace(d, text=prompt.demonstrations[other[i]].text, cls=prompt.demonstrations[other[i]].cls)
        for i, d in enumerate(prompt.demonstrations)
    ]
    true = next(label for label in prompt.labels if label != prompt.true_label)
    return replace(prompt, demonstrations=tuple(shown), true_label=true)


def encode_pairs(pairs: Sequence[tuple[Prompt, Prompt]], model: Model) -> tuple[list[Pair], int]:
    """The pairs that can be exchanged in this model, and how many were dropped.

    Where positions are rotary, label positions are aligned by their ordinal and what is exchanged is turned to its new
    position. Elsewhere a key holds its position, and pairs whose label positions or lengths differ are dropped. Raises
    TwoTowersError when none is left, and as `encode_all`.
    """
    sides = (encode_all(side, model.tokenizer, model.context) for side in zip(*pairs, strict=True))
    found = [Pair(*pair) for pair in zip(*sides, strict=True)]
    kept = [pair for pair in found if pair.aligned or can_realign(model)]
    if not kept:
        raise TwoTowersError(
            f"none of {len(found)} pairs has equal token lengths, which {model.name} needs: "
            "draw more prompts, give query_pairs a `fits`, or choose classes of one-token words"
        )
    return kept, len(found) - len(kept)


@torch.inference_mode()
def interchange(
    model: Model,
    pairs: Sequence[Pair],
    sets: Mapping[str, Sequence[tuple[int, int]]],
    what: Sequence[str] = tuple(EXCHANGES),
    max_tokens: int = 1024,
    progress: str | None = None,
) -> pd.DataFrame:
    """Margins with the query of the last position, or the keys or values at label positions, taken from the source.

    One row per pair, set of heads and exchange: pair, query (the base's text), toward (+1 where the label that is not
    the base's true one is the first label, -1 where it is the second), aligned, heads (the set's name), what, and base,
    source, patched: log p(first label) - log p(second), nats, of the two prompts as they are and of the base with the
    exchange; says: the label that is then the top word of the vocabulary, "" when none is. Cost: one run of each base
    and source, and one of the last position alone for each set and exchange. Raises TwoTowersError on no pairs or sets,
    heads outside the model, and pairs that do not fit (see `exchanged`, `realigned`).
    """
    if not pairs or not sets or not what:
        raise TwoTowersError("nothing to exchange: give at least one pair, one set of heads and one exchange")
    sets = {name: check_heads(heads, model) for name, heads in sets.items()}
    for pair in pairs:
        _check(pair)
    layers, rows = sorted({layer for heads in sets.values() for layer, _ in heads}), []

    def run(index: list[int], bases: list[Encoded]) -> list[pd.DataFrame]:
        sources = [pairs[i].source for i in index]
        at, there = (torch.tensor([e.label_positions for e in batch]) for batch in (bases, sources))
        with reading_parts(model, layers, there) as parts:
            source, _ = _answered(capture(model, sources).logits, sources)
        parts = realigned(model, parts, there, sources[0].last, at, bases[0].last)
        again = last_position(model, bases)
        base, _ = _answered(again(), bases)
        common = {
            "pair": index, "query": [e.prompt.query for e in bases],
            "toward": [1 if e.prompt.true_label == e.prompt.labels[1] else -1 for e in bases],
            "aligned": [pairs[i].aligned for i in index], "base": base, "source": source,
        }  # fmt: skip
        found = []
        for name, heads in sets.items():
            for one in what:
                with exchanged(model, heads, one, parts, at):
                    patched, says = _answered(again(), bases)
                found.append(pd.DataFrame({**common, "heads": name, "what": one, "patched": patched, "says": says}))
        return found

    with tqdm(total=len(pairs), desc=progress, disable=progress is None, unit="pair", leave=False) as bar:
        for index, found in in_memory(run, _batches(pairs, max_tokens)):
            rows += found
            bar.update(len(index))
    order = ["pair", "query", "toward", "aligned", "heads", "what", "base", "source", "patched", "says"]
    table = pd.concat(rows, ignore_index=True)[order]
    ranks = [table["heads"].map({name: i for i, name in enumerate(sets)}), table["pair"]]
    return table.iloc[np.lexsort(ranks)].reset_index(drop=True)


def _check(pair: Pair) -> None:
    base, source = pair
    if len(base.label_ids) != 2 or base.label_ids != source.label_ids:
        raise TwoTowersError("the prompts of a pair need the same two labels: the margin is between these two")
    if len(base.label_positions) != len(source.label_positions):
        raise TwoTowersError("the prompts of a pair need as many demonstrations: their labels could not be aligned")


def _batches(pairs: Sequence[Pair], max_tokens: int) -> Iterator[tuple[list[int], list[Encoded]]]:
    """Batches of pairs, as their bases: of one length and number of labels, and their sources of one length."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, pair in enumerate(pairs):
        groups.setdefault((len(pair.source.ids), len(pair.base.label_positions)), []).append(i)
    for group in groups.values():
        for index, bases in batches([pairs[i].base for i in group], max_tokens):
            yield [group[i] for i in index], bases


def _answered(logits: Float[Tensor, "batch vocabulary"], batch: Sequence[Encoded]) -> tuple[np.ndarray, list[str]]:
    """log p(first label) - log p(second), nats, and the label that is the top word ("" when none is)."""
    words = torch.tensor([[e.label_ids[label] for label in e.prompt.labels] for e in batch], device=logits.device)
    labels = logits.double().gather(1, words)  # the normaliser of log p cancels
    said = [{word: label for label, word in e.label_ids.items()} for e in batch]
    top = [of.get(int(word), "") for of, word in zip(said, logits.argmax(-1), strict=True)]
    return (labels[:, 0] - labels[:, 1]).cpu().numpy(), top


def moved(table: pd.DataFrame, **settings) -> pd.DataFrame:
    """How far every exchange moves the margin towards the other label (nats), with intervals resampled by query.

    One row per set of heads and exchange: heads, what, moved, low, high, n (different queries), pairs, share_of_all (of
    what "all" of these parts in the same heads moves) and share_of_source (of what the source prompt itself differs
    by), each with _low and _high. `settings`: level, draws, seed. Raises TwoTowersError when the table has no exchange
    of "all".
    """
    if "all" not in set(table["what"]):
        raise TwoTowersError("shares need the whole exchange: add 'all' to `what`")
    wide, rows = _wide(table), []
    settings = {"clusters": wide["query"], **settings}
    for heads, what in table[["heads", "what"]].drop_duplicates().itertuples(index=False):
        columns = np.stack([wide[heads, what], wide[heads, "all"], wide["source"]], 1)
        row = {"heads": heads, "what": what, **bootstrap(columns[:, 0], **settings).as_row("moved")}
        row["pairs"] = len(columns)
        for name, whole in (("share_of_all", 1), ("share_of_source", 2)):
            row |= share_of(columns[:, 0], columns[:, whole], name, **settings)
        rows.append(row)
    return pd.DataFrame(rows)


def share_of(part: ArrayLike, whole: ArrayLike, name: str, **settings) -> dict[str, float]:
    """Mean of a part / mean of its whole, as columns `name`, name_low, name_high; `settings` of the bootstrap.

    NaN where the interval of the whole holds zero: that share would be noise over noise.
    """
    total, columns = bootstrap(whole, **settings), np.stack([part, whole], 1)
    share = bootstrap_of_means(columns, lambda m: m[..., 0] / m[..., 1], **settings)
    values = (share.estimate, share.low, share.high) if total.low > 0 or total.high < 0 else (np.nan,) * 3
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def beyond_controls(table: pd.DataFrame, heads: str = OURS, control: str = CONTROL, **settings) -> pd.DataFrame:
    """How much further each exchange moves the margin in `heads` than in the mean set whose name begins with `control`.

    One row per exchange: what, moved, control (nats), beyond (their difference) with low, high, n (different queries).
    `settings`: level, draws, seed. Raises TwoTowersError when the table lacks either.
    """
    wide, rows = _wide(table), []
    names = [name for name in dict.fromkeys(table["heads"]) if name.startswith(control)]
    if not names or heads not in set(table["heads"]):
        raise TwoTowersError(f"the table needs '{heads}' and sets named '{control} ...': exchange in both")
    for what in dict.fromkeys(table["what"]):
        ours, theirs = wide[heads, what], sum(wide[name, what] for name in names) / len(names)
        found = bootstrap(ours - theirs, clusters=wide["query"], **settings)
        rows.append({"what": what, "moved": ours.mean(), "control": theirs.mean(), **found.as_row("beyond")})
    return pd.DataFrame(rows)


def _wide(table: pd.DataFrame) -> dict:
    """Columns of one entry a pair: "query", "source", and (heads, what) -> nats moved towards the other label."""
    first = table.drop_duplicates("pair").set_index("pair")
    out = {"query": first["query"], "source": first["toward"] * (first["source"] - first["base"])}
    for cell, rows in table.groupby(["heads", "what"], sort=False):
        rows = rows.set_index("pair").reindex(first.index)
        out[cell] = rows["toward"] * (rows["patched"] - rows["base"])
    return out
