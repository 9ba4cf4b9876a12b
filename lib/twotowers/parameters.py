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
DTYPES = ("float32", "bfloat16", "float16", "float64")


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

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, frozen=True)

    model: Text = "mini-gpt2"
    datasets: Words = list(datasets.WORD_SETS)
    n_prompts: Count = 1000
    n_locate: Count = 200
    labels: Words = ["foo", "bar"]
    k: Annotated[StrictInt | Literal["auto"], BeforeValidator(_number)] = AUTO
    separator: Literal["auto", "space", "line break"] = AUTO
    long: Literal["drop", "truncate"] = "drop"
    norm: Literal["frozen", "recomputed", "raw"] = "frozen"
    top_k: Count = 5
    heads: Annotated[list[Head], BeforeValidator(_heads)] = []
    ranking: Literal["label", "paper"] = "label"
    seed: Annotated[int, BeforeValidator(_number), Field(ge=0, strict=True)] = 0
    device: Text = "cpu"
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    device_map: Annotated[str | None, BeforeValidator(_none)] = None
    recorded: Literal["use", "never", "only"] = "use"
    out: Text = "_build/tables"
    n_words: Count = 10
    draws: Count = 20
    a_c: Annotated[float, Field(allow_inf_nan=False)] = 0.03
    more_models: Words = []
    chat_model: Annotated[str | None, BeforeValidator(_none)] = None
    max_new_tokens: Count = 200

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
