"""The design of a model's prompts: class pairs, label pairs, the template, and blocks of prompts.

>>> settings = Settings(model="mini-gpt2", k=2, separator="space", label_pairs="foo/bar")
>>> design = Design(settings, None, 1024, dict, "mini-gpt2")  # without a tokenizer
>>> len(design.blocks(3, SELECTION)), str(design.template)
(12, 'k = 2, space')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xarray as xr
from twotowers import head_selection
from twotowers.errors import TwoTowersError
from twotowers.paths import included_models
from twotowers.settings import CLASS_NAMES, SEPARATORS, Settings, Template, read_label_pairs

from towerlab.progress import say
from towerlab.prompts import sentences
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import Encoded, Prompt, encode_all

SELECTION, EVALUATION = 1, 2
"""Seeds of the selection blocks and of the evaluation blocks"""
QUICK_PROMPTS = 20
"""Number of prompts of each of the paper's sets for a preview of your own model"""


@dataclass(frozen=True)
class Design:
    """The prompts of one setting: class pairs, label pairs, template and blocks.

    A design opens no measurement file itself: `open_templates` does, if the template is left open.
    """

    settings: Settings
    tokenizer: Any
    context: int
    """Maximum number of tokens of a prompt"""
    open_templates: Callable[[], xr.Dataset]
    """Function that returns the answers in every template that the settings leave open"""
    model: str
    """Name of the model among measurements, which a copy of an included model shares"""

    @cached_property
    def class_pairs(self) -> tuple[str, ...]:
        """Class pairs of the suite."""
        return sentences.class_pairs(self.settings.suite)

    @cached_property
    def texts(self) -> Mapping[str, list[str]]:
        """Texts of each class of the suite."""
        return sentences.class_texts(self.settings.suite)

    @cached_property
    def label_pairs(self) -> tuple[str, ...]:
        """Label pairs of the settings, or all default pairs that the tokenizer can encode.

        An included model has the label pairs that it was trained on.

        Raises:
            TwoTowersError: If the tokenizer can encode no label pair.
        """
        if self.settings.label_pairs:
            return tuple(self.settings.label_pairs)
        kinds = ["nonsense"]
        if not self.is_included:
            kinds.append("plain")
            if self.settings.suite == "words":
                kinds.append(CLASS_NAMES)
        usable = []
        reasons = {}
        for pair in read_label_pairs(tuple(kinds)):
            try:
                self._check_labels(pair)
                usable.append(pair)
            except TwoTowersError as error:
                reasons[pair] = str(error)
        if not usable:
            reason = next(iter(reasons.values()), "data/words/labels.csv has none")
            raise TwoTowersError(
                f"cannot use the tokenizer of '{self.model}': it can encode no label pair "
                f"({reason}); choose others with label_pairs=..."
            )
        if reasons:
            say(
                f"{self.model}: label pairs left out, which its tokenizer cannot encode: "
                f"{', '.join(reasons)}"
            )
        return tuple(usable)

    def _check_labels(self, pair: str) -> None:
        """Raise TwoTowersError if the tokenizer cannot encode a label pair.

        A block of each class pair is tried, since classes may be the labels.
        """
        n = len(self.class_pairs)
        for separator in SEPARATORS:
            prompts = self.blocks(n, 0, Template(1, separator), label_pairs=[pair])
            encode_all(prompts, self.tokenizer)

    @property
    def arbitrary_label_pairs(self) -> tuple[str, ...]:
        """Label pairs that are no names of classes."""
        return tuple(pair for pair in self.label_pairs if pair != CLASS_NAMES)

    @property
    def is_included(self) -> bool:
        """Whether the model is an included model, or a copy of one."""
        return self.model in included_models()

    @cached_property
    def template(self) -> Template:
        """Template of the settings, or the template with the highest accuracy."""
        k = self.settings.k
        separator = self.settings.separator
        if k and separator:
            return Template(k, separator)
        return head_selection.select_template(self.open_templates())

    def blocks(
        self,
        n: int,
        seed: int,
        template: Template | None = None,
        label_pairs: Sequence[str] = (),
        pairs: Sequence[str] = (),
        texts: Mapping[str, list[str]] | None = None,
    ) -> list[Prompt]:
        """Return blocks of prompts, with everything of the design that is not given.

        Args:
            n: Number of blocks.
            seed: Seed, SELECTION or EVALUATION.
            template: Template.
            label_pairs: Label pairs.
            pairs: Class pairs.
            texts: Class -> texts.

        Returns:
            Prompts, four for each block.
        """
        return draw_blocks(
            n,
            template or self.template,
            seed=[self.settings.seed, seed],
            label_pairs=label_pairs or self.label_pairs,
            pairs=pairs or self.class_pairs,
            texts=texts or self.texts,
        )

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Return prompts as tokens of the model.

        Args:
            prompts: Prompts of any length.

        Returns:
            Encoded prompts, in their order: see `prompt.encode_all`.
        """
        return encode_all(prompts, self.tokenizer, self.context)

    def selection(self, template: Template | None = None) -> list[Encoded]:
        """Return the prompts of the selection blocks.

        They select the template and the heads, and are not used for evaluation.

        Args:
            template: Template, or None for the template of the design.

        Returns:
            Encoded prompts.
        """
        return self.encode(self.blocks(self.settings.selection_blocks, SELECTION, template))

    def evaluation(self, share: float = 1.0) -> list[Encoded]:
        """Return the prompts of the first evaluation blocks.

        Args:
            share: Number of blocks, as a multiple of the settings' `evaluation_blocks`.

        Returns:
            Encoded prompts.
        """
        n_blocks = round(share * self.settings.evaluation_blocks)
        return self.encode(self.blocks(max(1, n_blocks), EVALUATION))

    def intervention(self) -> list[Encoded]:
        """Return the prompts of the evaluation blocks for interventions.

        Returns:
            Encoded prompts of `n_intervention` blocks.
        """
        return self.encode(self.blocks(self.n_intervention, EVALUATION))

    @property
    def n_intervention(self) -> int:
        """Number of evaluation blocks for interventions, which run a prompt many times.

        It is two blocks of every class pair, or a quarter of all blocks if that is more, and at
        most all blocks.
        """
        n_blocks = self.settings.evaluation_blocks
        return min(n_blocks, max(2 * len(self.class_pairs), round(n_blocks / 4)))

    @property
    def intervention_pairs(self) -> Sequence[str]:
        """Class pairs of the evaluation blocks for interventions."""
        return self.class_pairs[: self.n_intervention]

    def repeatable(self, pairs: Sequence[str]) -> Sequence[str]:
        """Return the first class pairs, so that each can have two intervention blocks.

        A text of the other class comes from another block of the same pair.

        Args:
            pairs: Class pairs.

        Returns:
            Half as many class pairs as there are intervention blocks, at least one.
        """
        return pairs[: max(1, self.n_intervention // 2)]

    @property
    def n_prompts(self) -> int:
        """Number of prompts of each of the paper's own sets."""
        default = 200 if self.is_included else QUICK_PROMPTS
        return self.settings.prompts or default
