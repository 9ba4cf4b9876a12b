"""Files of measurements, on that of every head, whose numbers are in test_independent."""

import numpy as np
import tiny_blocks
from conftest import tiny
from towerlab.measure.heads import heads
from twotowers.files import load, save


def test_large_variables_keep_nine_bits_and_others_all(tmp_path):
    values = np.array([1.0, 1 / 3, -2.7e-5, 0.0, np.nan, 123456.0])
    data = heads(tiny("gpt2"), tiny_blocks.blocks(2))
    data["writing"][:6, 0, 0] = data["logit_difference"][:6] = values
    save("heads", data, tmp_path / "a.nc", {})
    again = load(tmp_path / "a.nc")
    large, small = again["writing"].values[:6, 0, 0], again["logit_difference"].values[:6]
    assert (
        large.dtype == np.float32 and (small == values.astype(np.float32))[~np.isnan(values)].all()
    )
    np.testing.assert_allclose(large, values.astype(np.float32), rtol=2**-10)
    assert (large[:4].view(np.uint32) & ((1 << 14) - 1) == 0).all() and large[1] != np.float32(
        1 / 3
    )
