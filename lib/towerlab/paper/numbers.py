"""The published numbers (data/published.csv), and which model of ours is one of the paper's."""

from __future__ import annotations

import re

import pandas as pd
from pydantic import field_validator
from twotowers.data_files import Row, Text, read_table
from twotowers.paths import data_folder


class PublishedNumber(Row):
    """A printed number, as it is printed ("18-31" is one, too)."""

    source: Text
    model: Text
    where: str
    quantity: Text
    value: Text
    note: str

    @field_validator("value")
    @classmethod
    def _has_a_point(cls, value: str) -> str:
        if re.search(r"\d,\d", value):
            raise ValueError("write 0.94, with a point")
        return value


def published_numbers() -> pd.DataFrame:
    """The published numbers (data/published.csv): source, model, where, quantity, value, note, all as text."""
    return pd.DataFrame([row.model_dump() for row in read_table(data_folder() / "published.csv", PublishedNumber)])


def paper_model(name: str) -> str | None:
    """The paper's name of a model ("gpt2-large") from a hub id, a folder or a fingerprint; None for any other model.

    It goes by the last part of the name alone; "-hf" and the like do not count.
    """
    last = re.sub(r"@[0-9a-f]+$", "", name).rstrip("/").split("/")[-1].split("--")[-1].lower()
    names = {name for row in published_numbers()["model"] for name in re.split(r" and | ", row)} - {"toy"}
    last = {"gpt-j-6b": "gpt-j"}.get(last, last.removesuffix("-hf"))
    return last if last in names else None
