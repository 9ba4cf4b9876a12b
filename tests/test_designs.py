"""Fifty small designs that settings accept, spread over the chapters: none ends in an error, whatever is left to show."""

import random

import pytest
from chapter_runs import CHAPTERS, evidence_of

DESIGNS = 50


def design(rng):
    """Settings at random, of the smallest sizes above all."""
    out = {
        "blocks": rng.choice((1, 2, 3, 8)), "locate": rng.choice((1, 2, 5, 8)), "k": rng.choice((1, 1, 2, 4)),
        "separator": rng.choice(("space", "line break")), "top_k": rng.choice((1, 2, 5, 40)), "seed": rng.randrange(5),
        "prompts": rng.choice((1, 2, 4)),
    }  # fmt: skip
    labels = rng.choice(("", "foo/bar", "bar/foo,baz/qux"))
    return out | ({"labels": labels} if labels else {})


@pytest.mark.slow
@pytest.mark.parametrize("i", range(DESIGNS))
def test_a_chapter_runs_on_any_design_that_settings_accept(i, monkeypatch, tmp_path):
    chosen = design(random.Random(i))
    rows = evidence_of(CHAPTERS[i % len(CHAPTERS)], monkeypatch, tmp_path / "evidence", out=str(tmp_path / "out"), **chosen)
    assert rows["verdict"].notna().all(), chosen
