"""Tables that people edit: whatever is wrong is told in one line, with the file and the line."""

import pandas as pd
import pytest
from pydantic import Field, model_validator
from towerlab.prompts import blocks
from twotowers import claims, evidence
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import Row, Text, read_csv, read_table

GOOD = 'id,class,size,note\na,one,2.5,\nb,two,1e3,"said, so"\n'


class Thing(Row):
    id: Text
    cls: Text = Field(alias="class")
    size: float
    note: str = ""

    @model_validator(mode="after")
    def _rule(self):
        if self.id == self.cls:
            raise ValueError("a thing is no class")
        return self


@pytest.fixture
def table(tmp_path):
    def read(text, **options):
        path = tmp_path / "things.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_table(path, Thing, **options)

    return read


def test_a_line_is_an_object_with_its_numbers(table):
    rows = table("\ufeff" + GOOD, unique=("id",))
    assert [(row.id, row.cls, row.size, row.note) for row in rows] == [
        ("a", "one", 2.5, ""),
        ("b", "two", 1000, "said, so"),
    ]
    (row,) = table("size,class,id\n1,one,a\n")  # note has a default
    assert (row.id, row.size, row.note) == ("a", 1, "")
    (changed,) = table("size,class,id\n2,one,a\n")  # what was checked before does not stay
    assert changed.size == 2


@pytest.mark.parametrize(
    "wrong, words",
    [
        (GOOD.replace("2.5", "O"), r"line 2, size 'O': .*number"),
        (GOOD.replace("1e3", "nan"), r"line 3, size 'nan': .*finite"),
        (GOOD.replace("b,two", " b,two"), r"line 3, id ' b': .*pattern"),
        (GOOD.replace("b,two", "two,two"), r"line 3, a thing is no class"),
        (GOOD.replace("b,two", "a,two"), r"line 3, id 'a' twice"),
        (GOOD.replace("1e3", "1e3,x"), "Expected 4 fields in line 3"),
        (GOOD.replace("size", "length"), "line 2, size .*Field required"),
        (GOOD.replace("note", "id"), "line 2, id.1 '': Extra inputs"),
        (GOOD.encode("utf-16"), "'utf-8' codec"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(table, wrong, words):
    with pytest.raises(TwoTowersError, match=words) as error:
        table(wrong, unique=("id",))
    assert "things.csv" in str(error.value) and "\n" not in str(error.value)


def test_models_with_names_that_look_missing_are_read(tmp_path):
    """F7: pandas would read these names as missing values."""
    names = ["null", "NA", "None", "nan", "360"]
    about = claims.claims()["learned"], claims.paper_results()["figure 6"]
    rows = [evidence.verdict_row(of, m, "not testable", "no reason") for m in names for of in about]
    pd.DataFrame(rows).to_csv(tmp_path / "1.csv", index=False)
    for statements in (claims.claims(), claims.paper_results()):
        assert sorted(evidence.read(tmp_path, statements)["model"]) == sorted(names)


def test_classes_have_words():
    assert {*"/".join(blocks.class_pairs()).split("/")} <= {*blocks.class_words()}


def test_texts_have_no_spaces_at_their_edges_and_are_there_once():
    own = read_csv(data_folder() / "sentences/own.csv", str)["sentence"]
    for texts in (own, blocks.words()["word"] + " " + blocks.words()["cls"]):
        assert (texts.str.strip() == texts).all() and texts.is_unique
    assert not blocks.words()["word"].str.contains(" ").any()
