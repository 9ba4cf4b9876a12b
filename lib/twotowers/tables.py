"""The book's own tables, read strictly: what is damaged is named with its line, never half used.

    >>> class Pair(Row):
    ...     first: Text
    ...     second: Text
    >>> read_table(data_folder() / "words" / "pairs.csv", Pair, unique=("first", "second"))[0].first
    'sentiment'

No torch here.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import pandas as pd
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
)

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder, has_data

NAME = re.compile(r"^[\w.-]+(?=$|[,: ])", re.ASCII)
"""Of a model, where a text begins with one"""


class Row(BaseModel):
    """A line of a table: a field a column. A field with a default may be missing;
    `Field(alias="class")` names a column that Python cannot. Numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnyRow = TypeVar("AnyRow", bound=Row)


def _text(cell: str) -> str:
    if not cell or cell != cell.strip():
        raise ValueError("it is empty or has spaces at its edges")
    return cell


Text = Annotated[str, AfterValidator(_text)]
"""A cell that holds something; a plain `str` may be empty"""
ClassName = Annotated[Text, StringConstraints(pattern="^[^/]*$")]
"""A class of texts: "/" stands between two of them in the name of a pair"""


Optional = Annotated[float | None, BeforeValidator(lambda cell: None if cell == "" else cell)]
"""A number, or an empty cell"""


def damaged(path: Path, what: str, line: int | None = None) -> TwoTowersError:
    """The error for a file, or for one line of it.

    Args:
        path: of the file.
        what: is wrong.
        line: its number, from 1.
    """
    at = f"line {line}: " if line else ""
    return TwoTowersError(
        f"'{path}' is damaged ({at}{what}): correct it, or restore it from the repository"
    )


def read_text(path: Path) -> str:
    """A file of UTF-8 text, equal however it was saved: without a mark at its beginning, with plain
    line ends and composed letters.

    Raises TwoTowersError when it is missing, empty, or something else.
    """
    try:
        text = unicodedata.normalize("NFC", path.read_text("utf-8-sig"))
    except OSError as error:
        raise TwoTowersError(
            f"there is no '{path}' ({error.strerror}): restore it from the repository"
        ) from None
    except UnicodeDecodeError:
        raise damaged(path, "it is no UTF-8 text") from None
    if not text.strip() or "\0" in text:
        raise damaged(path, "it is empty, or no text")
    return text


def unseen(text: str) -> str:
    """The first character that a reader cannot see, and a tokenizer does, by code and name; or
    ""."""
    for sign in "" if text.isascii() and text.isprintable() else text:
        # Letters of some scripts need joiners.
        joins = sign in "\u200c\u200d" and not re.sub("[\u200c\u200d]", "", text).isascii()
        if (
            not joins
            and sign != " "
            and unicodedata.category(sign) in ("Cc", "Cf", "Co", "Zl", "Zp", "Zs")
        ):
            return f"U+{ord(sign):04X} ({unicodedata.name(sign, 'a control character')})"
    return ""


def read_table(path: Path, row: type[AnyRow], unique: Sequence[str] = ()) -> list[AnyRow]:
    """The lines of a CSV file, in their order.

    Args:
        path: of the file.
        row: what a line is.
        unique: columns that no two lines may have alike together, such as ("id",).

    Returns:
        Entry i stands in line i + 2, for a cell holds no line break.

    Raises:
        TwoTowersError: naming file and line, for other columns, lines of another length, open
            quotes, a cell that `row` does not take, and a line that stands twice.
    """
    text = read_text(path)
    if not text.endswith("\n"):
        raise damaged(path, "its last line is cut off")
    try:
        lines = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise damaged(path, str(error)) from None
    if not lines:
        raise damaged(path, "it has no rows")
    wanted = {field.alias or name: field for name, field in row.model_fields.items()}
    needed = {name for name, field in wanted.items() if field.is_required()}
    if not needed <= {*lines[0]} <= {*wanted, None}:
        there = ",".join(map(str, lines[0]))[:60]
        raise damaged(path, f"its columns are {there}, and not {','.join(wanted)}", 1)
    rows: list[AnyRow] = []
    line_of: dict[tuple[str, ...], int] = {}
    for line, cells in enumerate(lines, 2):
        if None in cells or None in cells.values():
            raise damaged(path, "it has more cells than there are columns, or fewer", line)
        if sign := unseen("".join(cells.values())):  # a line break where a quote is left open
            raise damaged(path, f"it holds {sign}, which cannot be seen", line)
        try:
            rows.append(row.model_validate(cells))
        except ValidationError as error:
            raise damaged(path, first_fault(error), line) from None
        key = tuple(cells[name] for name in unique)
        if unique and line_of.setdefault(key, line) != line:
            raise damaged(
                path,
                f"{', '.join(unique)} '{', '.join(key)}' stands in line {line_of[key]}, too",
                line,
            )
    return rows


def read_written(
    folder: Path, column: str, known: Iterable[str], columns: Sequence[str]
) -> pd.DataFrame:
    """The rows that chapters wrote to a folder, in the order of what they are about.

    Args:
        folder: of CSV files.
        column: which says what a row is about, such as "claim".
        known: its entries, in order; rows of others are left out.
        columns: of a table without rows, where no chapter wrote any.
    """
    parts = [
        pd.read_csv(path, dtype={"chapter": str, "figure": str})
        for path in sorted(folder.glob("*.csv"))
    ]
    rows = pd.concat(parts or [pd.DataFrame(columns=columns)])
    order = {entry: i for i, entry in enumerate(known)}
    rows = rows[rows[column].isin(order)]
    return rows.sort_values(
        column, key=lambda entries: entries.map(order), kind="stable", ignore_index=True
    )


def first_fault(error: ValidationError) -> str:
    """What pydantic says of the first wrong value, such as a cell or a setting, or of all of them
    together."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return f"{first['loc'][0]} {str(first['input'])[:40]!r}: {message}" if first["loc"] else message


class ShownName(Row):
    """A line of data/models/names.csv."""

    name: Text
    shown: Text


@cache
def shown_names() -> dict[str, str]:
    """What pages call a model: name -> name with its size. Empty where the package was installed
    away from its data."""
    path = data_folder() / "models" / "names.csv" if has_data() else None
    return (
        {}
        if path is None
        else {row.name: row.shown for row in read_table(path, ShownName, ("name",))}
    )


def shown_name(text: str) -> str:
    """A model's name as pages show it; what stands after it stays: "smollm2-135m, 18-6" ->
    "SmolLM2-135M, 18-6"."""
    return NAME.sub(lambda match: shown_names().get(match[0], match[0]), text, count=1)
