"""What pages show with many models: their names, panels and tables; and the contents of the
book."""

import re

import altair as alt
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from towerlab.building import listed
from twotowers import figures, files, pages, tables
from twotowers.tables import shown_name

FIVE = list(tables.shown_names())


def test_every_recorded_model_has_a_name_of_its_own_for_pages():
    assert {*files.precomputed_models(), "mini-gpt2"} <= {*FIVE} and len(
        {*tables.shown_names().values()}
    ) == len(FIVE)
    assert (
        shown_name("smollm2-135m, 18-6") == "SmolLM2-135M, 18-6"
        and shown_name("my/smollm2-135m") == "my/smollm2-135m"
    )
    assert shown_name("smollm2-135m-mine: x") == "smollm2-135m-mine: x" and shown_name("") == ""


@pytest.mark.parametrize("models", [3, 5])
def test_models_are_rows_where_a_table_would_be_too_wide(models):
    table = pd.DataFrame(
        [{"model": m, "what": what, "x": 1.0} for m in FIVE[:models] for what in ("a", "b")]
    )
    point = alt.Chart().mark_point().encode(x="x:Q")
    chart = figures.facets(point, table, column="what").to_dict()
    assert chart["facet"]["row"]["sort"] == [shown_name(m) for m in FIVE[:models]]
    assert 2 * (chart["spec"]["width"] + 60) < figures.WIDTH


def test_contents_name_every_page_and_titles_fit_the_sidebar():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    titles = {
        entry["file"]: entry.get("title") for part in toc["parts"] for entry in part["chapters"]
    }
    pages_there = {
        f"book/{path.stem}"
        for path in (ROOT / "book").glob("*.*")
        if path.suffix in (".ipynb", ".md")
    }
    assert {*listed(toc)} == pages_there - {"book/playground"}
    for name, title in titles.items():
        if title is None:
            # in a notebook's JSON a line begins with a quote and ends before an escaped break
            (path,) = ROOT.glob(f"{name}.*")
            title = re.search(r'^ *"?# (.*?)(\\n"|"|$)', path.read_text("utf8"), re.MULTILINE)[1]
        assert len(title) <= 28, title


def test_no_table_says_minus_nothing():
    html = pages.shown(
        pd.DataFrame({"x": [-0.001, -0.2], "name": ["a", "b"], "n": [1, 2]}), precision=2
    ).to_html()
    assert ">0.00<" in html and ">-0.20<" in html and ">1<" in html and "-0.00" not in html
    table = pd.DataFrame(
        {"model": ["a"], "x": ["b"], "value": [-0.001], "low": [-0.004], "high": [0.2], "n": 3}
    )
    assert "-0.00" not in pages.grid(table, ["x"], "model", fmt=".2f").to_html()
