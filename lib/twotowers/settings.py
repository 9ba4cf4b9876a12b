"""Settings of a measurement, prompt templates and label pairs.

    >>> Settings.from_values({"model": "mini-gpt2", "top_k": "3"}).top_k
    3
    >>> str(Template(4, "line break"))
    'k = 4, line break'

The parameter cell of a notebook, `papermill -p` and `twotowers measure` all use this module.
Settings are checked before weights are read. This module does not load torch.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from twotowers.errors import TwoTowersError
from twotowers.names import second_meaning
from twotowers.paths import build_folder, data_folder
from twotowers.tables import Row, first_fault, read_table

CLASS_NAMES = "class names"
"""The label pair of the two classes' own names: one assignment is natural, and the other exchanges
them"""
SEPARATORS = {"space": " ", "line break": "\n"}
"""Text between two demonstrations by name. The paper has a space."""
SEEDS = {
    "paper's sets": 5,
    "random sets": 44,
    "random partners": 45,
    "other queries": 61,
    "words": 75,
    "chosen demonstrations": 76,
}
"""Draw -> its own number, a part of the seed. It never changes, so that measurements stay as they
are"""


class Template(NamedTuple):
    """A prompt template: the number of demonstrations and their separator.

    Attributes:
        k: Number of demonstrations of each class.
        separator: Text between two demonstrations, as a key of SEPARATORS.
    """

    k: int
    separator: str

    def __str__(self) -> str:
        """Return the template in words."""
        return f"k = {self.k}, {self.separator}"


class _LabelPair(Row):
    """A line of data/words/labels.csv: two labels, or none for CLASS_NAMES."""

    first: str
    second: str
    kind: Literal["nonsense", "plain", "class names"]


@cache
def read_label_pairs(
    kinds: tuple[str, ...] = ("nonsense", "plain", CLASS_NAMES),
) -> tuple[str, ...]:
    """Return the label pairs of data/words/labels.csv as settings write them, such as "foo/bar".

    Args:
        kinds: Kinds of label pairs.
    """
    rows = read_table(data_folder() / "words" / "labels.csv", _LabelPair, ("first", "second"))
    return tuple(
        CLASS_NAMES if row.kind == CLASS_NAMES else f"{row.first}/{row.second}"
        for row in rows
        if row.kind in kinds
    )


DEFAULT = dict.fromkeys(("k", "separator", "label_pairs", "prompts"), "auto") | {
    "device_map": "none"
}
"""Words that mean the default of a setting, as an empty value does for all settings"""
FEW_BLOCKS = 20
"""Number of blocks of either kind on which a chapter measures a model of your own"""
OUT = "_build/measurements"
MAX_COUNT = 100_000
"""Maximum of every number of blocks, prompts or heads: this number of blocks takes days"""


def _pairs(value: Any) -> list[str]:
    """Return label pairs from a list or a text such as "foo/bar,left/right"."""
    texts = value if isinstance(value, list | tuple) else str(value).split(",")
    pairs = [str(text).strip() for text in texts]
    for pair in pairs:
        are_words = re.fullmatch(r"[^\s/]+/[^\s/]+", pair)
        if pair != CLASS_NAMES and not (are_words and len({*pair.split("/")}) == 2):
            raise TwoTowersError(
                f"expected two different words with a slash, such as foo/bar, got '{pair}'"
            )
    if len({frozenset(pair.split("/")) for pair in pairs}) < len(pairs):
        raise TwoTowersError("expected each label pair once, in one order")
    return pairs


def _model(value: str) -> str:
    """Return the name of one model, in which "~" is home."""
    model = os.path.expanduser(value)
    if fault := second_meaning(model):
        raise TwoTowersError(fault)
    return model


def _out(value: str) -> str:
    """Return the default folder inside the project, or any other folder, in which "~" is home."""
    folder = str(build_folder() / "measurements") if value == OUT else os.path.expanduser(value)
    encoding = sys.getfilesystemencoding()
    can_be_encoded = folder == folder.encode(encoding, "replace").decode(encoding)
    if "\\" in folder or not can_be_encoded:  # the netCDF library cannot write there
        raise TwoTowersError(f"expected a path in {encoding} without backslashes")
    return folder


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class Settings(BaseModel):
    """All settings with their defaults."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )

    model: Annotated[str, AfterValidator(_model), Field(min_length=1)] = "mini-gpt2"
    """name of an included or precomputed model, folder (./NAME if a model has its name), or Hugging
    Face id"""
    suite: Literal["words", "sentences", "published"] = "words"
    """texts of the prompts: words, sentences (the book's own) or published (public data sets)"""
    evaluation_blocks: Count = 50
    """number of evaluation blocks, of four prompts each, on which every head is measured"""
    selection_blocks: Count = 40
    """number of selection blocks, on which the prompt template and the heads are chosen"""
    k: Count | None = None
    """number of demonstrations of each class; auto: that of the most accurate template"""
    separator: Literal["space", "line break"] | None = None
    """separator between demonstrations; auto: that of the most accurate template"""
    label_pairs: Annotated[list[str], BeforeValidator(_pairs)] = []
    """label pairs, such as foo/bar,left/right; auto: all pairs of data/words/labels.csv"""
    prompts: Count | None = None
    """number of prompts of each of the paper's sets; auto: 200 for an included model, else 20"""
    top_k: Count = 5
    """number of heads in a set"""
    seed: Annotated[int, Field(ge=0)] = 0
    """seed of all random draws"""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """data type of the weights"""
    device: str = "cpu"
    """device: cpu, cuda, cuda:1 or mps"""
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = None
    """placement on several devices; auto: spread over all devices, ignoring --device; none: one
    device"""
    out: Annotated[str, AfterValidator(_out), Field(validate_default=True)] = OUT
    """folder of the measurements"""

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Settings:
        """Return settings from typed values.

        Args:
            values: Values by name. An empty value means the default.

        Raises:
            TwoTowersError: If a setting is unknown or its value cannot be used.
        """
        chosen = {}
        for name, value in values.items():
            if name not in cls.model_fields:
                raise TwoTowersError(
                    f"unknown parameter '{name}': expected one of {', '.join(cls.model_fields)}"
                )
            if name == "model" or value not in ("", None, DEFAULT.get(name)):
                chosen[name] = value
        try:
            return cls(**chosen)
        except ValidationError as error:
            raise TwoTowersError(
                f"cannot use {first_fault(error)}; see `twotowers measure --help`"
            ) from None
