"""What pages show with many models: their names, panels and tables; and the contents of the
book."""

import pandas as pd
from tags import Page
from twotowers import files, pages, tables

NAMES = tables.shown_names()


def test_every_recorded_model_has_a_name_of_its_own_for_pages():
    assert {*files.precomputed_models(), "mini-gpt2"} <= {*NAMES}
    assert len({*NAMES.values()}) == len(NAMES)


def test_no_text_of_a_table_or_of_a_note_is_markup(monkeypatch):
    html = [pages.shown(pd.DataFrame({"<b>": ["<img src=x>"]})).to_html()]
    monkeypatch.setattr(pages, "display", lambda part: html.append(part.data))
    pages.note("of <x-evil>")
    assert not {"b", "img", "x-evil"} & {*Page("".join(html)).tags}
