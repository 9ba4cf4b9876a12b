"""Readers of CSV files: one for tables, and one for checked rows.

    >>> class Pair(Row):
    ...     first: Text
    ...     second: Text
    >>> read_table(data_folder() / "words" / "pairs.csv", Pair, unique=("first", "second"))[0].first
    'sentiment'

An error in a row names its line. Names and words are always text, and only an empty cell is
missing: a model or a word may be called `null`, `NA` or `360`. This module does not load torch.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

NAMES = dict.fromkeys(("model", "chapter", "figure", "claim", "mark", "word", "class"), str)
"""Columns that are always text"""
MODEL_NAME = re.compile(r"(?<!precompute )(?<!check )(?<!verdicts )(?<![\w./-])[\w.-]*\w(?![\w/-])")
"""A word that can be the name of a model, not in a path or a command"""


class Row(BaseModel):
    """A line of a table, with one field for each column.

    A field with a default may be missing. `Field(alias="class")` gives the name of a column that is
    no Python name. Numbers are finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnyRow = TypeVar("AnyRow", bound=Row)


Text = Annotated[str, StringConstraints(pattern=r"^\S(.*\S)?$")]
"""A cell that is not empty; a plain `str` may be empty"""
Optional = Annotated[float | None, BeforeValidator(lambda cell: None if cell == "" else cell)]
"""A number, or an empty cell"""


def unreadable(path: Path, fault: str) -> TwoTowersError:
    """Return the error for a file.

    Args:
        path: Path of the file.
        fault: Description of the fault, such as "line 2, id 'a' twice".
    """
    return TwoTowersError(
        f"cannot read '{path}': {fault}; correct the file, or restore it from the repository"
    )


def read_text(path: Path) -> str:
    """Return the text of a file with plain line ends and composed letters.

    So the text does not depend on the program that saved the file.

    Args:
        path: Path of the file.

    Raises:
        TwoTowersError: If the file is missing or is not UTF-8.
    """
    try:
        return unicodedata.normalize("NFC", path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, str(error)) from None


def read_csv(path: Path, dtype: type[str] | Mapping[str, type[str]] = NAMES) -> pd.DataFrame:
    """Return a CSV file as a table. Every CSV file of the project is read here.

        >>> read_csv(data_folder() / "words" / "pairs.csv").loc[0].to_dict()
        {'first': 'sentiment', 'second': 'number'}

    Args:
        path: Path of the file.
        dtype: `str` if all columns are text. By default numbers are numbers and `NAMES` are text.

    Raises:
        TwoTowersError: If the file cannot be read.
    """
    text = read_text(path)
    return _parsed(path, text, dtype)


def _parsed(path: Path, text: str, dtype: type[str] | Mapping[str, type[str]]) -> pd.DataFrame:
    """Return the text of a CSV file as a table; `path` is for the message of an error."""
    content = io.StringIO(text)
    try:
        return pd.read_csv(content, dtype=dtype, keep_default_na=False, na_values=[""])
    except ValueError as error:
        raise unreadable(path, str(error).strip()) from None


def read_table(path: Path, row: type[AnyRow], unique: Sequence[str] = ()) -> list[AnyRow]:
    """Return the rows of a CSV file in their order; row i is in line i + 2.

    Args:
        path: Path of the file.
        row: Class of a row.
        unique: Columns whose cells together differ between all rows, such as ("id",).

    Raises:
        TwoTowersError: If a column is unknown or missing, if `row` refuses a cell, or if a row
            occurs twice. The error names the line.
    """
    text = read_text(path)
    rows = _checked(path, text, row, tuple(unique))
    return [*rows]


# A chapter and the pages read the same table many times.
@lru_cache(maxsize=32)
def _checked(
    path: Path, text: str, row: type[AnyRow], unique: tuple[str, ...]
) -> tuple[AnyRow, ...]:
    """Return the checked rows of the text of a CSV file."""
    table = _parsed(path, text, str).fillna("")
    rows = []
    for line, cells in enumerate(table.to_dict("records"), 2):
        try:
            rows.append(row.model_validate(cells))
        except ValidationError as error:
            raise unreadable(path, f"line {line}, {first_fault(error)}") from None
    key = [*unique]
    is_second = table.duplicated(key) if key else pd.Series(False)
    if is_second.any():
        number = is_second.argmax()
        names = ", ".join(key)
        cells = ", ".join(table.loc[number, key])
        raise unreadable(path, f"line {number + 2}, {names} '{cells}' twice")
    return tuple(rows)


def first_fault(error: ValidationError) -> str:
    """Return pydantic's message about the first wrong value, such as a cell or a setting.

    Args:
        error: Error of pydantic.
    """
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    message = re.sub("^[A-Z][a-z]+ should (be|have|match)", "expected", message)
    if not first["loc"]:
        return message
    column, *_ = first["loc"]
    cell = str(first["input"])[:40]
    return f"{column} {cell!r}: {message}"


@cache
def shown_names() -> dict[str, str]:
    """Return the names of models with their sizes, as pages show them, by name."""
    table = read_csv(data_folder() / "models" / "names.csv")
    return dict(table[["name", "shown"]].values)


def ordered_models(models: Iterable[str]) -> list[str]:
    """Return different models in the order of all pages; other models are last.

        >>> ordered_models(["mymodel", "smollm2-135m", "mini-gpt2", "mymodel"])
        ['mini-gpt2', 'smollm2-135m', 'mymodel']

    Args:
        models: Names of models.
    """
    different = dict.fromkeys(models)
    order = shown_names()
    known = [name for name in order if name in different]
    others = [name for name in different if name not in order]
    return known + others


def shown_name(text: str) -> str:
    """Return a text in which names of models are written as pages show them, except in commands.

        >>> shown_name("smollm2-135m, 18-6")
        'SmolLM2-135M, 18-6'
        >>> shown_name("my/smollm2-135m smollm2-135m-mine: x")
        'my/smollm2-135m smollm2-135m-mine: x'

    Args:
        text: Any text.
    """
    return MODEL_NAME.sub(lambda match: shown_names().get(match[0], match[0]), text)
