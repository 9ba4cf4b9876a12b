"""A run of one chapter: `Context`, with the form of prompt and the in-context heads that studies share.

run = Run(Parameters.of({"model": "mini-gpt2"}))
run.form, run.heads(), run.controls()
run.table(mrr.by_head)
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from twotowers.heads import Head, check_inside, control_heads, random_heads
from twotowers.prompts.datasets import counterbalanced, with_other_class_text
from twotowers.prompts.prompt import Encoded
from twotowers.studies.context import Context, Form
from twotowers.studies.forms import form_of, passing_sets
from twotowers.studies.located import WORDS, heads, top
from twotowers.studies.parts import in_parts


def _key(e: Encoded) -> Hashable:
    return tuple(e.ids), tuple(e.label_ids.values())


class Run(Context):
    """See `Context`; studies of chapters get one of these."""

    @property
    def form(self) -> Form:
        """Demonstrations of each class and separator: the parameters', or chosen by the rule of `studies.forms`."""
        return form_of(self)[0]

    @property
    def learns(self) -> bool:
        """Whether some form passed the rule of `studies.forms`."""
        return form_of(self)[1]

    @property
    def passing(self) -> list[str]:
        """The sets on which this model clearly learns the task."""
        return passing_sets(self)

    @property
    def judged(self) -> list[str]:
        """The sets that claims about learning are judged on: those that are learned; where none is, all, to describe."""
        return self.passing or list(self.parameters.datasets)

    def either_class(self, dataset: str, n: int | None = None) -> list[Encoded]:
        """`prompts` in which either class is asked about (drawn by the seed), in all orders and with both labels in turn.

        No place, label word or class of the query tells the answer. Those too long with the other query are left out.
        """

        def make() -> list[Encoded]:
            prompts, rng = self.prompts(dataset)[:n], random.Random(self.parameters.seed)
            pairs = zip(prompts, with_other_class_text(prompts), strict=True)
            asked = [pair[rng.random() < 0.5] for pair in pairs]
            return self.encode([one for one in counterbalanced(asked) if self.fits(one)])

        return self.keep(("either class", dataset, n), make)

    def answers(self, encoded: Sequence[Encoded], progress: str | None = None) -> Any:
        """The model's `Answers`, each prompt run once: what a pass for another study `saw` is not run again."""
        from twotowers.model.answers import Answers
        from twotowers.model.capture import predict

        known = self.keep("answers", dict)
        if new := [one for key, one in {_key(e): e for e in encoded}.items() if key not in known]:
            self.saw(new, *in_parts(self, predict, new, progress=progress))
        top, log_prob = map(np.array, zip(*(known[_key(e)] for e in encoded), strict=True))
        return Answers.read(top, log_prob, encoded)

    def saw(self, encoded: Sequence[Encoded], top: Any, log_prob: Any) -> None:
        """Note what the model answered to prompts: top words (prompt,), log-probabilities of labels (prompt, label)."""
        found = zip(np.asarray(top), np.asarray(log_prob), strict=True)
        self.keep("answers", dict).update(zip(map(_key, encoded), found, strict=True))

    @cached_property
    def lexicon(self) -> Any:
        """`token_text.Lexicon`: what the tokens of the model's vocabulary spell."""
        from twotowers.model.token_text import Lexicon

        return Lexicon.of(self.lm.tokenizer, self.lm.unembedding.vocabulary)

    def heads(self) -> list[Head]:
        """The in-context heads, highest first: the parameter `heads`, or the `top_k` of `ranking` on the first set.

        Raises TwoTowersError for a head outside the model and when no head is left.
        """
        p, about = self.parameters, self.about
        check_inside(p.heads, about["layers"], about["heads"], about["name"])
        return list(p.heads) or top(self.table(heads), p.datasets[0], p.ranking, p.top_k)

    def controls(self, draw: int = 0) -> list[Head]:
        """One random other head of the same layer for each in-context head (v1 section 4.3), aligned with `heads()`.

        `draw` gives others. Raises TwoTowersError when a layer has no head left.
        """
        return random_heads(self.heads(), self.about["heads"], self.parameters.seed + draw)

    def control_sets(self, some: list[Head] | None = None, draws: int | None = None) -> list[list[Head]]:
        """`draws` sets (by itself the parameter's) of as many random heads of the same layers, no in-context head in any."""
        ours, p = self.heads(), self.parameters
        return [
            control_heads(some or ours, self.about["layers"], self.about["heads"], 1000 * p.seed + i, beside=ours)
            for i in range(draws or p.draws)
        ]

    def on(self, datasets: list[str]) -> Run:
        """This run on other sets, with the same model."""
        other = Run(self.parameters.model_copy(update={"datasets": datasets}), self.least, self.notes)
        other.__dict__.update({name: self.__dict__[name] for name in ("lm", "about") if name in self.__dict__})
        return other

    @property
    def heads_from(self) -> str:
        """Where `heads()` come from, as part of a sentence."""
        p = self.parameters
        if p.heads:
            return "given as a parameter"
        return f"the top {p.top_k} by {WORDS[p.ranking]}, located on {p.n_locate} other prompts of {p.datasets[0]}"
