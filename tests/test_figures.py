"""Charts of sizes that nobody had."""

import altair as alt
import pandas as pd
import pytest
from twotowers import figures


@pytest.mark.parametrize("layers, heads", [(60, 50), (1, 3000)])
def test_a_chart_holds_every_head(layers, heads):
    rows = [{"model": m, "layer": i, "head": h, "value": h / heads} for m in "abc" for i in range(layers) for h in range(heads)]
    shown = figures.facets(alt.Chart().mark_rect().encode(x="head:O", y="layer:O", color="value:Q"), pd.DataFrame(rows))
    assert sum(map(len, shown.to_dict()["datasets"].values())) == 9000
