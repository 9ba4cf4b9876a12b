"""The best head of a model, chosen on some prompts and judged on others (v1 appendices C and D).

    sets, missing = readable(["sst2", "trec"], draw)      # what can be had and read here, and why the rest cannot
    choosing, judged = split(prompts)                     # no query stands in both
    choice = choose(model, {"sst2": chapter.encode(choosing)})
    choice.head, choice.by_set                            # largest mean increase over the sets, and on each set

A head that is chosen and judged on the same prompts looks better than it is; so it never is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from twotowers.analysis import locate
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.model.model import Model
from twotowers.prompts import datasets, sentences
from twotowers.prompts.prompt import Encoded, Prompt

EVERY = 4  # one query in so many is for choosing
Drawn = TypeVar("Drawn")


def load_available(names: Sequence[str], draw: Callable[[str], Drawn]) -> tuple[dict[str, Drawn], dict[str, str]]:
    """`draw(name)` for each named set, and the reason for each set of sentences that could not be had or read.

    Only sets of sentences may be missing (their files may not be here, their texts too long for the model); what is
    wrong with a word set is raised.
    """
    had, missing = {}, {}
    for name in names:
        try:
            had[name] = draw(name)
        except TwoTowersError as error:
            if not is_sentences(name):
                raise
            missing[name] = str(error).removeprefix(f"{name}: ")
    return had, missing


def is_sentences(name: str) -> bool:
    """Whether a data set is one of sentences; the others are of words."""
    return name.partition(":")[0] in sentences.SETS


def split(prompts: Sequence[Prompt], every: int = EVERY) -> tuple[list[Prompt], list[Prompt]]:
    """(for choosing, for judging): one query in `every`, in order of appearance, is for choosing. None is in both.

    Demonstrations may stand in both. Raises TwoTowersError when there are fewer than `every` different queries.
    """
    place = {query: i for i, query in enumerate(dict.fromkeys(prompt.query for prompt in prompts))}
    if len(place) < every:
        raise TwoTowersError(f"{len(place)} different queries: give at least {every}, or no head can be chosen apart")
    parts: tuple[list[Prompt], list[Prompt]] = ([], [])
    for prompt in prompts:
        parts[place[prompt.query] % every > 0].append(prompt)
    return parts


def both_labels(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts, the labels of every second one exchanged: a head that raises one word always is not chosen."""
    return [datasets.swapped_labels(prompt) if i % 2 else prompt for i, prompt in enumerate(prompts)]


@dataclass(frozen=True)
class Choice:
    """`by_set`: dataset, layer, head, name, increase (nats), of every head on every set; `mean` over the sets."""

    head: Head
    by_set: pd.DataFrame
    n: int
    """prompts it was chosen on"""

    @property
    def name(self) -> str:
        return f"{self.head[0]}-{self.head[1]}"

    @property
    def mean(self) -> pd.DataFrame:
        """layer, head, name, increase: every set counts as much as any other; largest first."""
        table = self.by_set.groupby(["layer", "head", "name"], as_index=False)["increase"].mean()
        return table.sort_values("increase", ascending=False, kind="stable", ignore_index=True)

    @property
    def best_on(self) -> dict[str, str]:
        """Set -> the head with the largest mean increase on that set alone."""
        best = self.by_set.loc[self.by_set.groupby("dataset", sort=False)["increase"].idxmax()]
        return dict(zip(best["dataset"], best["name"], strict=True))


def choose(model: Model, sets: Mapping[str, Sequence[Encoded]], norm: str = "frozen", progress: bool = False) -> Choice:
    """The head with the largest mean increase over all sets (v1 appendix D), by the method of chapter 1.

    Raises TwoTowersError when no head raises the true label.
    """
    tables = []
    for name, encoded in sets.items():
        told = f"choosing a head on {name}" if progress else None
        tables.append(locate.increases(model, encoded, norm=norm, progress=told).heads_table().assign(dataset=name))
    by_set = pd.concat(tables, ignore_index=True)[["dataset", "layer", "head", "name", "increase"]]
    choice = Choice((0, 0), by_set, sum(len(encoded) for encoded in sets.values()))
    ((layer, head),) = locate.top_heads(choice.mean, 1)
    if choice.mean["increase"].iloc[0] <= 0:
        raise TwoTowersError(f"no head of {model.name} raises the true label: choose another dataset or model")
    return Choice((layer, head), by_set, choice.n)
