"""The parameters of chapters: the one list of them, what each may be, checked before a model loads. No torch here.

    Parameters.of({"n_prompts": 200, "labels": "foo,bar"}).labels      # ["foo", "bar"]
    Parameters.of({"n_promts": 200})                                   # TwoTowersError: did you mean 'n_prompts'?

A notebook's parameter cell, `papermill -p`, `twotowers run --n-prompts` and `make book SET=...` all end here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.prompts import datasets
from twotowers.prompts.prompt import check_labels

AUTO = "auto"


def _words(value: Any) -> list[str]:
    """A list, or a comma-separated string: `papermill -p` passes lists as strings; nothing and "" are no words."""
    if not isinstance(value, str | list | tuple | None):
        raise ValueError("give words, separated by commas")
    items = value.strip().strip("[]").split(",") if isinstance(value, str) else list(value or [])
    items = [str(item).strip().strip("'\"") for item in items]
    return [] if items in ([], [""]) else items


def _heads(value: Any) -> list[Head]:
    items = [value] if isinstance(value, Head) else value
    if not isinstance(items, str) and items and all(isinstance(item, tuple | list) for item in items):
        return list(dict.fromkeys(Head(*item) for item in items))
    return list(dict.fromkeys(Head.parse(word) for word in _words(value)))


def _none(value: Any) -> str | None:
    return None if value is None or str(value).strip().lower() in ("", "none") else str(value).strip()


def _number(value: Any) -> Any:
    """papermill's -p turns "20" into 20 itself; other doors pass text."""
    return int(value) if isinstance(value, str) and value.strip().lstrip("-").isdecimal() else value


Words = Annotated[list[str], BeforeValidator(_words)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, strict=True)]
Text = Annotated[str, Field(min_length=1)]


class Parameters(BaseModel):
    """Every parameter of every chapter, with its default. A chapter declares those it uses in its parameters cell."""

    model_config = ConfigDict(
        extra="forbid", str_strip_whitespace=True, frozen=True, use_attribute_docstrings=True
    )  # the text below a parameter is its help on the command line

    model: Text = "mini-gpt2"
    """a shipped or named model, a folder, a GGUF file, or a hub id"""
    datasets: Words = list(datasets.WORD_SETS)
    """named sets, separated by commas"""
    n_prompts: Count = 300
    """prompts a set, to judge on"""
    n_locate: Count = 200
    """other prompts, on which heads are located and the form is chosen"""
    labels: Words = ["foo", "bar"]
    """two label words, separated by a comma; the first is the true one unless a figure says otherwise"""
    k: Annotated[StrictInt | Literal["auto"], BeforeValidator(_number)] = AUTO
    """demonstrations of each class; auto: by the rule of chapter 1"""
    separator: Literal["auto", "space", "line break"] = AUTO
    """between demonstrations: space (the paper's), line break, or auto"""
    long: Literal["drop", "truncate"] = "drop"
    """what to do with a prompt that is longer than the model reads: drop or truncate"""
    norm: Literal["frozen", "recomputed", "raw"] = "frozen"
    """frozen, recomputed or raw"""
    top_k: Count = 5
    """how many heads count as in-context heads"""
    heads: Annotated[list[Head], BeforeValidator(_heads)] = []
    """heads to look at, such as 22-0,19-11, in place of the located ones"""
    ranking: Literal["label", "paper"] = "label"
    """label: by the increase from label positions; paper: by the whole increase"""
    seed: Annotated[int, BeforeValidator(_number), Field(ge=0, strict=True)] = 0
    """of every draw"""
    device: Text = "cpu"
    """cpu, cuda, cuda:1 or mps"""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """float32, bfloat16, float16 or float64"""
    device_map: Annotated[str | None, BeforeValidator(_none)] = None
    """auto: spread the model over all devices (needs accelerate)"""
    recorded: Literal["use", "never", "only"] = "use"
    """saved tables of the same model and parameters: use, never, or only"""
    out: Text = "_build/tables"
    """folder of the tables"""
    n_words: Count = 10
    """how many top words are shown and counted"""
    draws: Count = 20
    """sets of random heads to compare with"""
    a_c: Annotated[float, Field(allow_inf_nan=False)] = 0.03
    """the constant of the paper's mitigation"""
    chat_model: Annotated[str | None, BeforeValidator(_none)] = None
    """a chat model to ask, folder or hub id (default: none)"""
    max_new_tokens: Count = 200
    """of one answer of the chat model"""

    @field_validator("labels")
    @classmethod
    def _two_labels(cls, value: list[str]) -> list[str]:
        if len(value) != 2:
            raise ValueError("give two different label words, such as foo,bar")
        check_labels(value, value[0])
        return value

    @field_validator("datasets")
    @classmethod
    def _known_sets(cls, value: list[str]) -> list[str]:
        if not value or len(set(value)) != len(value):
            raise ValueError("give one or more different sets, separated by commas")
        for name in value:
            datasets.check_name(name)
        return value

    @field_validator("k")
    @classmethod
    def _demonstrations(cls, value: int | str) -> int | str:
        if value != AUTO and value < 1:
            raise ValueError("give a whole number of at least 1, or auto")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> Parameters:
        if self.device_map and self.device != "cpu":
            raise ValueError(f"device={self.device} and device_map={self.device_map}: the map places the model")
        return self

    @classmethod
    def of(cls, given: dict[str, Any]) -> Parameters:
        """Checked and cleaned. Raises TwoTowersError, in one line, on an unknown name or a value out of range."""
        for name in given:
            if name not in cls.model_fields:
                raise TwoTowersError(f"unknown parameter '{name}': {nearest(name, cls.model_fields)}")
        try:
            return cls(**given)
        except ValidationError as error:
            raise TwoTowersError(_one_line(error.errors(include_url=False)[0], given)) from None


def _one_line(error: dict[str, Any], given: dict[str, Any]) -> str:
    """pydantic's first complaint as one line that names the parameter, its value and what it may be."""
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ")
    name = str(error["loc"][0])
    context, kind = error.get("ctx", {}), error["type"]
    if "ge" in context:
        remedy = f"give a whole number of at least {context['ge']}"
    elif kind.startswith("int"):
        remedy = "give a whole number" + (" or auto" if name == "k" else "")
    elif kind == "literal_error":
        remedy = f"choose one of {context['expected']}"
    elif kind in ("string_type", "string_too_short"):
        remedy = "give a word"
    else:
        remedy = error["msg"].removeprefix("Value error, ")
    return f"{name}={given.get(name)!r}: {remedy}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
